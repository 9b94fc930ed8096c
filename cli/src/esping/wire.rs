//! What esping needs of a datagram socket.

use std::io;
use std::time::Duration;

use esp_client::{Client, DatagramInfo, EdpKind, EdpSocket, MacAddr, NodeInfo, monotonic_nanos};

use super::plan::Target;
use crate::out::Failure;

/// An answer that came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// To an echo request: its body.
    Echo(Vec<u8>),
    /// To an information request.
    Info(NodeInfo),
}

/// An answer with what is known of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Arrival {
    pub(super) src: MacAddr,
    /// Nanoseconds of the wire's clock.
    pub(super) at: u64,
    pub(super) answer: Answer,
}

/// Asks and hears. The sequence is for those who read the wire; which answer belongs to which
/// request is told by the bytes that come back, because a node numbers its datagrams as it likes.
pub(super) trait Wire {
    /// Name of the interface.
    fn interface(&self) -> &str;
    /// Most bytes of an echo request's body.
    fn max_body(&self) -> usize;
    /// Nanoseconds; the clock of [`Arrival::at`].
    fn now(&self) -> u64;
    /// Asks for an echo.
    fn echo(&mut self, dst: MacAddr, sequence: u16, body: &[u8]) -> io::Result<()>;
    /// Asks who is there.
    fn info(&mut self, dst: MacAddr, sequence: u16) -> io::Result<()>;
    /// The next answer within this time. What is no answer is passed over.
    fn hear(&mut self, patience: Duration) -> io::Result<Option<Arrival>>;
}

/// By way of the node's daemon.
pub(super) struct Daemon {
    socket: EdpSocket,
    buffer: Vec<u8>,
}

impl Daemon {
    /// A socket on the interface that leads to the target.
    pub(super) fn towards(target: &Target) -> Result<Daemon, Failure> {
        let client = client()?;
        let interface = match &target.interface {
            Some(name) => name.clone(),
            None => {
                client
                    .route(target.mac)
                    .map_err(|e| Failure::new(e.to_string()))?
                    .interface
            }
        };
        Daemon::on(&client, &interface)
    }

    /// A socket on this interface, or on each that is up.
    pub(super) fn everywhere(interface: Option<&str>) -> Result<Vec<Daemon>, Failure> {
        let client = client()?;
        if let Some(name) = interface {
            return Ok(vec![Daemon::on(&client, name)?]);
        }
        let up: Vec<_> = client.interfaces().iter().filter(|i| i.up).collect();
        if up.is_empty() {
            return Err(Failure::new("none of the daemon's interfaces is up"));
        }
        up.into_iter()
            .map(|i| Daemon::on(&client, &i.name))
            .collect()
    }

    fn on(client: &Client, interface: &str) -> Result<Daemon, Failure> {
        let socket = EdpSocket::builder()
            .interface(interface)
            .bind_at(client, 0)
            .map_err(|e| Failure::new(e.to_string()))?;
        Ok(Daemon {
            buffer: vec![0; socket.max_payload()],
            socket,
        })
    }
}

fn client() -> Result<Client, Failure> {
    Client::shared().map_err(|e| Failure::new(e.to_string()))
}

impl Wire for Daemon {
    fn interface(&self) -> &str {
        self.socket.interface()
    }

    fn max_body(&self) -> usize {
        // A request has its type in front of its body.
        self.socket.max_payload().saturating_sub(1)
    }

    fn now(&self) -> u64 {
        monotonic_nanos()
    }

    fn echo(&mut self, dst: MacAddr, sequence: u16, body: &[u8]) -> io::Result<()> {
        self.socket.send_echo(dst, sequence, body).map(drop)
    }

    fn info(&mut self, dst: MacAddr, sequence: u16) -> io::Result<()> {
        self.socket.send_info_request(dst, sequence).map(drop)
    }

    fn hear(&mut self, patience: Duration) -> io::Result<Option<Arrival>> {
        match self.socket.recv_from_timeout(&mut self.buffer, patience) {
            Ok((len, info)) => Ok(arrival(&info, self.buffer.get(..len).unwrap_or_default())),
            Err(e)
                if matches!(
                    e.kind(),
                    io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock
                ) =>
            {
                Ok(None)
            }
            Err(e) => Err(e),
        }
    }
}

fn arrival(info: &DatagramInfo, body: &[u8]) -> Option<Arrival> {
    let answer = match info.kind {
        EdpKind::EchoReply => Answer::Echo(body.to_vec()),
        EdpKind::InfoReply => Answer::Info(NodeInfo::parse(body)?),
        _ => return None,
    };
    Some(Arrival {
        src: info.src,
        at: info.received_nanos,
        answer,
    })
}

/// A wire whose peer is a closure, on a clock that only waiting moves.
#[cfg(test)]
pub(super) mod fake {
    use super::*;
    use std::collections::VecDeque;

    /// What the peer makes of a request (its number from 1, its body): answers, each after so many
    /// microseconds.
    type Peer = Box<dyn FnMut(MacAddr, u64, Option<&[u8]>) -> Vec<(u64, Arrival)>>;

    pub(in crate::esping) struct Fake {
        pub(in crate::esping) now: u64,
        pub(in crate::esping) max: usize,
        pub(in crate::esping) sent: u64,
        peer: Peer,
        coming: VecDeque<Arrival>,
    }

    impl Fake {
        pub(in crate::esping) fn new(
            max: usize,
            peer: impl FnMut(MacAddr, u64, Option<&[u8]>) -> Vec<(u64, Arrival)> + 'static,
        ) -> Fake {
            Fake {
                now: 0,
                max,
                sent: 0,
                peer: Box::new(peer),
                coming: VecDeque::new(),
            }
        }

        fn ask(&mut self, dst: MacAddr, body: Option<&[u8]>) {
            self.sent += 1;
            for (after, mut answer) in (self.peer)(dst, self.sent, body) {
                answer.at = self.now + after * 1000;
                self.coming.push_back(answer);
            }
            self.coming.make_contiguous().sort_by_key(|a| a.at);
        }
    }

    /// The echo of a body.
    pub(in crate::esping) fn echo(src: MacAddr, body: &[u8]) -> Arrival {
        Arrival {
            src,
            at: 0,
            answer: Answer::Echo(body.to_vec()),
        }
    }

    impl Wire for Fake {
        fn interface(&self) -> &str {
            "fake0"
        }

        fn max_body(&self) -> usize {
            self.max
        }

        fn now(&self) -> u64 {
            self.now
        }

        fn echo(&mut self, dst: MacAddr, _sequence: u16, body: &[u8]) -> io::Result<()> {
            self.ask(dst, Some(body));
            Ok(())
        }

        fn info(&mut self, dst: MacAddr, _sequence: u16) -> io::Result<()> {
            self.ask(dst, None);
            Ok(())
        }

        fn hear(&mut self, patience: Duration) -> io::Result<Option<Arrival>> {
            let end = self.now + u64::try_from(patience.as_nanos()).unwrap_or(u64::MAX);
            if self.coming.front().is_some_and(|a| a.at <= end) {
                let next = self.coming.pop_front();
                self.now = self.now.max(next.as_ref().map_or(0, |a| a.at));
                return Ok(next);
            }
            self.now = end;
            Ok(None)
        }
    }
}
