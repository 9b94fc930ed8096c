//! A program for the tests: performs the steps in its arguments in order and prints the result of
//! each.
//!
//! `esp-test-program SOCKET STEP...`; each step prints `ok STEP` or `error STEP: EspError` (Debug
//! form). Steps:
//!
//! | step | effect |
//! |---|---|
//! | `uid:N` `uid:N:GROUP` | become user N, a member of another group (before anything else) |
//! | `client` | use one client for all later steps, instead of one for each |
//! | `udp` | use the client without a daemon for all later steps |
//! | `path:PATH` | use this path for later streams and listeners: `auto`, `lease`, `daemon` |
//! | `listen:PORT` `listen:PORT:BACKLOG` `listen:PORT:BACKLOG:KEY` | listen |
//! | `port` | print the port of the last listener |
//! | `accept` | accept a connection of the last listener, and keep it |
//! | `connect:NODE:PORT` `connect:NODE:PORT:KEY` | connect to a node, and keep the stream |
//! | `to:ADDRESS` | connect to an address of another form, and keep the stream |
//! | `start:NODE:PORT` | start to connect without waiting for the result |
//! | `edp:PORT` | bind a datagram port |
//! | `write:N` | write N bytes to the last stream |
//! | `flood` | write to the last stream until that fails |
//! | `read:N` | read N bytes from the last stream |
//! | `echo` | write back what the last stream receives, until it ends |
//! | `sink` | read the last stream until it ends |
//! | `shutdown` | end the sending direction of the last stream |
//! | `close` | close the last stream |
//! | `status` | print a line for each listener of the node, as this user sees it |
//! | `hold` | wait until standard input ends |
//! | `exit` | exit without dropping anything |

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::process::ExitCode;

use esp_client::{Client, EdpSocket, EspAddr, EspError, EspListener, EspStream, MacAddr, Path};
use lab::Node;

/// Objects created by the steps.
struct Held {
    socket: String,
    client: Option<Client>,
    listeners: Vec<EspListener>,
    streams: Vec<EspStream>,
    datagrams: Vec<EdpSocket>,
    path: Path,
}

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let Some(socket) = args.next() else {
        eprintln!("esp-test-program: SOCKET STEP...");
        return ExitCode::from(2);
    };
    let mut held = Held {
        socket,
        client: None,
        listeners: Vec::new(),
        streams: Vec::new(),
        datagrams: Vec::new(),
        // A wrong value is refused when a step opens its client.
        path: Path::from_environment().unwrap_or_default(),
    };
    for step in args {
        let outcome = held.step(&step);
        let printed = match outcome {
            Ok(()) => writeln!(io::stdout(), "ok {step}"),
            Err(error) => match EspError::of(&error) {
                Some(typed) => writeln!(io::stdout(), "error {step}: {typed:?}"),
                None => writeln!(io::stdout(), "error {step}: {error:?}"),
            },
        };
        // The test has ended.
        if printed.is_err() {
            break;
        }
    }
    ExitCode::SUCCESS
}

impl Held {
    fn client(&self) -> io::Result<Client> {
        match &self.client {
            Some(client) => Ok(client.clone()),
            None => Ok(Client::connect(&self.socket)?),
        }
    }

    fn stream(&self) -> io::Result<&EspStream> {
        self.streams
            .last()
            .ok_or_else(|| io::Error::other("no stream"))
    }

    fn step(&mut self, step: &str) -> io::Result<()> {
        let mut words = step.split(':');
        let (name, mut numbers) = (words.next().unwrap_or_default(), Vec::new());
        let mut key = "";
        for word in words {
            match word.parse::<u32>() {
                Ok(number) => numbers.push(number),
                Err(_) => key = word,
            }
        }
        let number = |at: usize| numbers.get(at).copied().unwrap_or(0);
        let port = |at: usize| u16::try_from(number(at)).map_err(io::Error::other);
        match name {
            "uid" => become_user(number(0), numbers.get(1).copied())?,
            "client" => self.client = Some(self.client()?),
            "udp" => self.client = Some(Client::udp()?),
            "listen" => {
                let mut builder = EspListener::builder().key(key).path(self.path);
                if numbers.len() > 1 {
                    builder = builder.backlog(port(1)?);
                }
                self.listeners
                    .push(builder.bind_at(&self.client()?, port(0)?)?);
            }
            "port" => {
                let listener = self.listeners.last();
                let listener = listener.ok_or_else(|| io::Error::other("no listener"))?;
                writeln!(io::stdout(), "port {}", listener.port())?;
            }
            "accept" => {
                let listener = self
                    .listeners
                    .last()
                    .ok_or_else(|| io::Error::other("no listener"))?;
                self.streams.push(listener.accept()?.0);
            }
            "connect" => {
                let builder = EspStream::builder().key(key).path(self.path);
                self.streams
                    .push(builder.connect_at(&self.client()?, address(number(0), port(1)?))?);
            }
            "to" => {
                let address = step.trim_start_matches("to:");
                self.streams
                    .push(EspStream::builder().connect_at(&self.client()?, address)?);
            }
            "start" => {
                let (client, to) = (self.client()?, address(number(0), port(1)?));
                std::thread::spawn(move || EspStream::builder().connect_at(&client, to));
            }
            "edp" => self
                .datagrams
                .push(EdpSocket::builder().bind_at(&self.client()?, port(0)?)?),
            "write" => self.stream()?.write_all(&vec![7; number(0) as usize])?,
            "flood" => loop {
                self.stream()?.write_all(&[7; 1 << 16])?;
            },
            "read" => self
                .stream()?
                .read_exact(&mut vec![0; number(0) as usize])?,
            "path" => {
                self.path = match key {
                    "lease" => Path::Lease,
                    "daemon" => Path::Daemon,
                    _ => Path::Auto,
                }
            }
            "echo" => {
                let mut stream = self.stream()?;
                let mut block = [0; 4096];
                loop {
                    let n = stream.read(&mut block)?;
                    if n == 0 {
                        break;
                    }
                    stream.write_all(&block[..n])?;
                }
            }
            "sink" => io::copy(&mut self.stream()?, &mut io::sink()).map(drop)?,
            "shutdown" => self.stream()?.shutdown(Shutdown::Write)?,
            "close" => {
                drop(self.streams.pop());
                drop(self.listeners.pop());
                drop(self.datagrams.pop());
                // The daemon processes requests in order.
                self.client()?.status()?;
            }
            "status" => {
                let mut listeners = self.client()?.status()?.listeners;
                listeners.sort_by_key(|l| l.port);
                for l in listeners {
                    let line = format!(
                        "listener {} uid {:?} pid {:?} program {:?}",
                        l.port, l.owner.uid, l.owner.pid, l.owner.program
                    );
                    writeln!(io::stdout(), "{line}")?;
                }
            }
            "hold" => io::stdin().read_to_end(&mut Vec::new()).map(drop)?,
            "exit" => std::process::exit(0),
            _ => return Err(io::Error::other("no such step")),
        }
        Ok(())
    }
}

fn address(node: u32, port: u16) -> EspAddr {
    EspAddr::new(MacAddr(Node(node as usize).mac()), port)
}

/// Drops every privilege permanently.
fn become_user(uid: u32, group: Option<u32>) -> io::Result<()> {
    let others: Vec<_> = group.into_iter().map(nix::unistd::Gid::from_raw).collect();
    nix::unistd::setgroups(&others)?;
    nix::unistd::setgid(nix::unistd::Gid::from_raw(uid))?;
    nix::unistd::setuid(nix::unistd::Uid::from_raw(uid))?;
    Ok(())
}
