//! Replies to the requests of a program that serves itself, without a daemon, over its own UDP
//! sockets. All ports of these sockets are the program's, so there is nothing to grant: streams,
//! listeners and datagram sockets are made by its embedded engine.

use std::collections::HashMap;
use std::sync::Mutex;

use esp_proto::FIRST_EPHEMERAL_PORT;

use crate::control::{ErrorKind, ErrorReply, Reply, Request};
use crate::sync::lock;

/// Stands for the daemon's socket in error texts.
pub(super) const LOCAL: &str = "(no daemon: ESP in UDP)";

/// Ports of the program's listeners.
#[derive(Default)]
pub(super) struct LocalPorts(Mutex<Listeners>);

#[derive(Default)]
struct Listeners {
    /// Ports by the id of their listener.
    ports: HashMap<u64, u16>,
    last_id: u64,
}

impl LocalPorts {
    /// Returns the reply to a request; `None` if there is none yet.
    pub(super) fn answer(&self, request: &Request) -> Option<Reply> {
        match *request {
            Request::Listen { port, .. } => Some(self.listen(port)),
            Request::CloseListener { listener } => {
                lock(&self.0).ports.remove(&listener);
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
            Request::Hello { .. }
            | Request::Connect { .. }
            | Request::BindEdp { .. }
            | Request::Lease { .. }
            | Request::Adopt { .. }
            | Request::Standby { .. }
            | Request::Status => Some(refusal(
                ErrorKind::Unavailable,
                "this needs esp-daemon, and the program runs without one",
            )),
        }
    }

    fn listen(&self, wanted: u16) -> Reply {
        let mut listeners = lock(&self.0);
        let is_free = |port: &u16| !listeners.ports.values().any(|used| used == port);
        let found = match wanted {
            0 => (FIRST_EPHEMERAL_PORT..=u16::MAX).find(is_free),
            port => Some(port).filter(is_free),
        };
        let Some(port) = found else {
            return refusal(ErrorKind::InUse, "this program listens on the port already");
        };
        listeners.last_id += 1;
        let listener = listeners.last_id;
        listeners.ports.insert(listener, port);
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

    fn listen(ports: &LocalPorts, port: u16) -> Option<Reply> {
        ports.answer(&Request::Listen {
            interface: None,
            port,
            backlog: 1,
            key: Vec::new(),
        })
    }

    #[test]
    fn a_port_has_one_listener_at_a_time() {
        let ports = LocalPorts::default();
        let first = Reply::Listening {
            listener: 1,
            port: 7,
        };
        assert_eq!(listen(&ports, 7), Some(first));
        assert!(matches!(listen(&ports, 7), Some(Reply::Error(_))));
        ports.answer(&Request::CloseListener { listener: 1 });
        assert!(matches!(
            listen(&ports, 7),
            Some(Reply::Listening { port: 7, .. })
        ));
    }

    #[test]
    fn port_0_is_any_free_one() {
        let ports = LocalPorts::default();
        for port in [FIRST_EPHEMERAL_PORT, FIRST_EPHEMERAL_PORT + 1] {
            let Some(Reply::Listening { port: given, .. }) = listen(&ports, 0) else {
                panic!("refused");
            };
            assert_eq!(given, port);
        }
    }
}
