//! Network namespaces for tests, created by the test and removed when it ends.
//!
//! The namespaces have no name: only descriptors of this process refer to them. When it ends, even
//! by `kill -9`, the kernel removes them with all interfaces inside, and no other process is
//! disturbed. Interfaces exist only inside them, so their names need not be unique.
//!
//! Needs root (`CAP_SYS_ADMIN`) and the program `ip` of iproute2.
//!
//! ```no_run
//! use netns::TwoNodes;
//!
//! let Some(nodes) = TwoNodes::new_or_skip("two stations hear each other") else { return };
//! nodes.a.run(|| { /* this thread is in the first node's namespace */ });
//! ```

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::panic::resume_unwind;
use std::process::{Child, Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};

use netif::{Interface, PacketSocket, SocketOptions};

/// Name of the environment variable that makes a skipped test fail (value `1`).
pub const REQUIRE_PRIVILEGE: &str = "ESP_TEST_REQUIRE_PRIVILEGE";

/// Index for the next interface.
static NEXT_INDEX: AtomicU32 = AtomicU32::new(10);

/// Time limit for the carrier of a new cable.
const CARRIER_TIME: Duration = Duration::from_secs(10);

/// Reports on stderr that a test was skipped, so that its success is not taken for a result.
///
/// # Panics
/// When [`REQUIRE_PRIVILEGE`] is `1`: tests must not be skipped then.
pub fn skip(test: &str, reason: &str) {
    let required = std::env::var_os(REQUIRE_PRIVILEGE).is_some_and(|value| value == "1");
    assert!(
        !required,
        "{test}: {reason}, and {REQUIRE_PRIVILEGE}=1 forbids skipping it"
    );
    // Not `eprintln`, which the test harness captures when the test succeeds. One write, since
    // other processes write, too.
    let _ = io::stderr().write_all(format!("SKIPPED {test}: {reason}\n").as_bytes());
}

/// An unnamed network namespace. It is removed when the last reference to it is dropped.
#[derive(Debug)]
pub struct Namespace {
    fd: OwnedFd,
}

impl Namespace {
    /// Creates a namespace that contains only a loopback interface, which is up.
    ///
    /// # Errors
    /// `PermissionDenied` without root; `NotFound` without `ip`.
    pub fn new() -> io::Result<Namespace> {
        // A single thread can be in another namespace; it ends at once and leaves the descriptor.
        let maker =
            thread::Builder::new()
                .name("namespace".into())
                .spawn(|| -> io::Result<File> {
                    // SAFETY: only unsharing descriptors (`FILES`) could affect other code; they
                    // stay shared.
                    unsafe { unshare_unsafe(UnshareFlags::NEWNET)? };
                    File::open("/proc/thread-self/ns/net")
                })?;
        let file = maker.join().unwrap_or_else(|panic| resume_unwind(panic))?;
        let namespace = Namespace { fd: file.into() };
        namespace.ip("link set lo up")?;
        Ok(namespace)
    }

    /// Returns another handle to this namespace.
    ///
    /// # Errors
    /// No descriptors left.
    pub fn try_clone(&self) -> io::Result<Namespace> {
        Ok(Namespace {
            fd: self.fd.try_clone()?,
        })
    }

    /// Runs `work` in a thread inside the namespace and waits for it. Sockets and processes created
    /// there belong to the namespace and may be used from anywhere. A panic is resumed in the
    /// caller.
    ///
    /// # Panics
    /// When the namespace cannot be entered, and when `work` panics.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        thread::scope(|scope| {
            let inside = scope.spawn(|| {
                self.enter().expect("enter the namespace");
                work()
            });
            inside.join().unwrap_or_else(|panic| resume_unwind(panic))
        })
    }

    /// Starts a thread inside the namespace.
    ///
    /// # Panics
    /// When no thread can be created; the thread panics when the namespace cannot be entered.
    pub fn spawn<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> JoinHandle<T> {
        let inside = self
            .try_clone()
            .expect("another descriptor of the namespace");
        thread::spawn(move || {
            inside.enter().expect("enter the namespace");
            work()
        })
    }

    /// Moves the calling thread into the namespace permanently, with the threads it starts later.
    ///
    /// # Errors
    /// Those of the system.
    pub fn enter(&self) -> io::Result<()> {
        Ok(move_into_link_name_space(
            self.fd.as_fd(),
            Some(LinkNameSpaceType::Network),
        )?)
    }

    /// Runs a program inside the namespace and waits for its end.
    ///
    /// # Errors
    /// The program cannot be started.
    pub fn output(&self, command: &mut Command) -> io::Result<Output> {
        self.run(|| command.output())
    }

    /// Starts a program inside the namespace.
    ///
    /// # Errors
    /// The program cannot be started.
    pub fn start(&self, command: &mut Command) -> io::Result<Child> {
        self.run(|| command.spawn())
    }

    /// Runs `ip` inside the namespace with arguments separated by spaces.
    ///
    /// # Errors
    /// Contains the stderr output of `ip`.
    pub fn ip(&self, arguments: &str) -> io::Result<String> {
        self.tool("ip", arguments)
    }

    /// Runs a tool inside the namespace with arguments separated by spaces; returns its standard
    /// output.
    ///
    /// # Errors
    /// Contains its stderr output.
    pub fn tool(&self, program: &str, arguments: &str) -> io::Result<String> {
        let output = self
            .output(Command::new(program).args(arguments.split_whitespace()))
            .map_err(|error| {
                io::Error::new(error.kind(), format!("{program} {arguments}: {error}"))
            })?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let stderr = String::from_utf8_lossy(&output.stderr);
        Err(io::Error::other(format!(
            "{program} {arguments}: {}: {}",
            output.status,
            stderr.trim()
        )))
    }

    /// Returns a path at which other programs find the namespace while this process lives.
    pub fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.fd.as_raw_fd())
    }
}

/// Connects two namespaces by a veth pair; both ends are up and have a carrier.
///
/// # Errors
/// Contains the output of `ip`; `TimedOut` when there is no carrier in time.
pub fn connect(a: &Namespace, a_name: &str, b: &Namespace, b_name: &str) -> io::Result<()> {
    // With equal indices at both ends, the kernel treats the two as one interface, whose carrier
    // may be delayed by a second.
    let index = NEXT_INDEX.fetch_add(2, Ordering::Relaxed);
    a.ip(&format!(
        "link add {a_name} index {index} type veth peer name {b_name} index {} netns {}",
        index + 1,
        b.path()
    ))?;
    for (namespace, name) in [(a, a_name), (b, b_name)] {
        namespace.ip(&format!("link set {name} up"))?;
    }
    // The kernel detects the carrier a little later, on a thread of its own.
    let end = Instant::now() + CARRIER_TIME;
    for (namespace, name) in [(a, a_name), (b, b_name)] {
        while !namespace
            .run(|| Interface::by_name(name))
            .map_err(io::Error::other)?
            .running
        {
            if Instant::now() > end {
                return Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    format!("{name} has no carrier"),
                ));
            }
            thread::sleep(Duration::from_millis(1));
        }
    }
    Ok(())
}

/// One node of a test network: a namespace with one Ethernet interface.
#[derive(Debug)]
pub struct Node {
    namespace: Namespace,
    name: String,
}

impl Node {
    /// Returns the node's namespace.
    pub fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    /// Returns the name of the node's interface.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the current state of the node's interface.
    ///
    /// # Panics
    /// When the interface does not exist.
    pub fn interface(&self) -> Interface {
        self.run(|| Interface::by_name(&self.name))
            .expect("the node's interface")
    }

    /// Opens a packet socket on the node's interface.
    ///
    /// # Panics
    /// When it cannot be opened.
    pub fn socket(&self, ethertype: u16, options: &SocketOptions) -> PacketSocket {
        let interface = self.interface();
        self.run(|| PacketSocket::open(&interface, ethertype, options))
            .expect("packet socket")
    }

    /// Runs `work` in the node's namespace; see [`Namespace::run`].
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        self.namespace.run(work)
    }

    /// Runs `ip link set <its interface> <what>`.
    ///
    /// # Panics
    /// With the output of `ip`.
    pub fn set_link(&self, what: &str) {
        self.namespace
            .ip(&format!("link set {} {what}", self.name))
            .expect("ip link set");
    }
}

/// Two nodes with a cable between them.
#[derive(Debug)]
pub struct TwoNodes {
    /// The first node.
    pub a: Node,
    /// The second node.
    pub b: Node,
}

impl TwoNodes {
    /// Creates two namespaces joined by a veth pair, both ends up, MTU 1500.
    ///
    /// # Errors
    /// Those of [`Namespace::new`] and [`connect`].
    pub fn new() -> io::Result<TwoNodes> {
        let (a, b) = (Namespace::new()?, Namespace::new()?);
        connect(&a, "wire0", &b, "wire0")?;
        let node = |namespace| Node {
            namespace,
            name: "wire0".into(),
        };
        Ok(TwoNodes {
            a: node(a),
            b: node(b),
        })
    }

    /// Creates two nodes, or returns `None` after reporting it ([`skip`]) where the privilege or
    /// `ip` is missing.
    ///
    /// # Panics
    /// On any other failure.
    pub fn new_or_skip(test: &str) -> Option<TwoNodes> {
        match TwoNodes::new() {
            Ok(nodes) => Some(nodes),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                skip(test, "network namespaces need root");
                None
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                skip(test, &error.to_string());
                None
            }
            Err(error) => panic!("{test}: cannot set up two nodes: {error}"),
        }
    }

    /// Sets the MTU of both ends.
    pub fn set_mtu(&self, mtu: u32) {
        for node in [&self.a, &self.b] {
            node.set_link(&format!("mtu {mtu}"));
        }
    }
}
