//! Replies to the requests of a program that serves itself, without a daemon, over its own UDP
//! sockets. All ports of these sockets are the program's, so there is nothing to grant: streams,
//! listeners and datagram sockets are made by its embedded engine.

use std::collections::HashMap;

use esp_proto::FIRST_EPHEMERAL_PORT;

use crate::control::{ErrorKind, ErrorReply, Reply, Request};

/// Stands for the daemon's socket in error texts.
pub(super) const LOCAL: &str = "(no daemon: ESP in UDP)";

/// Ports of the program's listeners.
#[derive(Default)]
pub(super) struct LocalPorts {
    /// Ports by the id of their listener.
    ports: HashMap<u64, u16>,
    last_id: u64,
}

impl LocalPorts {
    /// Returns the reply to a request; `None` if there is none yet.
    pub(super) fn answer(&mut self, request: &Request) -> Option<Reply> {
        match *request {
            Request::Listen { port, .. } => Some(self.listen(port)),
            Request::CloseListener { listener } => {
                self.ports.remove(&listener);
                Some(Reply::Done)
            }
            // Connections come to the embedded engine.
            Request::Accept { .. } => None,
            Request::CancelAccept { .. }
            | Request::Close { .. }
            | Request::Abort { .. }
            | Request::CloseEdp { .. }
            | Request::EndLease { .. }
            | Request::LeaseConnection { .. } => Some(Reply::Done),
            _ => Some(refusal(
                ErrorKind::Unavailable,
                "this needs esp-daemon, and the program runs without one",
            )),
        }
    }

    fn listen(&mut self, wanted: u16) -> Reply {
        let is_free = |port: &u16| !self.ports.values().any(|used| used == port);
        let found = match wanted {
            0 => (FIRST_EPHEMERAL_PORT..=u16::MAX).find(is_free),
            port => Some(port).filter(is_free),
        };
        let Some(port) = found else {
            return refusal(ErrorKind::InUse, "this program listens on the port already");
        };
        self.last_id += 1;
        let listener = self.last_id;
        self.ports.insert(listener, port);
        Reply::Listening { listener, port }
    }
}

fn refusal(kind: ErrorKind, message: &str) -> Reply {
    Reply::Error(ErrorReply {
        kind,
        message: message.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listen(ports: &mut LocalPorts, port: u16) -> Option<Reply> {
        ports.answer(&Request::Listen {
            interface: None,
            port,
            backlog: 1,
            key: Vec::new(),
        })
    }

    #[test]
    fn a_port_has_one_listener_at_a_time() {
        let mut ports = LocalPorts::default();
        let first = Reply::Listening {
            listener: 1,
            port: 7,
        };
        assert_eq!(listen(&mut ports, 7), Some(first));
        assert!(matches!(listen(&mut ports, 7), Some(Reply::Error(_))));
        ports.answer(&Request::CloseListener { listener: 1 });
        assert!(matches!(
            listen(&mut ports, 7),
            Some(Reply::Listening { port: 7, .. })
        ));
    }

    #[test]
    fn port_0_is_any_free_one() {
        let mut ports = LocalPorts::default();
        for port in [FIRST_EPHEMERAL_PORT, FIRST_EPHEMERAL_PORT + 1] {
            let Some(Reply::Listening { port: given, .. }) = listen(&mut ports, 0) else {
                panic!("refused");
            };
            assert_eq!(given, port);
        }
    }
}
