//! The broker: holds the other ends of the sockets of a program and of the programs that it starts.
//!
//! `control` answers requests; `table` contains the sockets of `AF_ENET`, `streams`, `listeners`
//! and `datagrams` serve them, and `pump` copies, in two threads for each stream; `tcp` and `rules`
//! serve TCP, in one thread for each engine; `system` and `diag` query the kernel.

mod control;
mod datagrams;
mod diag;
mod listeners;
mod pump;
pub(crate) mod rules;
mod streams;
mod system;
mod table;
mod tcp;

use std::io::{self, Write};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use cli::out::{Context, Failure, Verdict};
use esp_client::Spin;
use netif::{Closer, refuse_descriptors};
use nix::errno::Errno;
use preload_wire::{Broker, VARIABLE, abstract_addr};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{
    Pid, PidfdFlags, Resource, Rlimit, getrlimit, pidfd_open, setrlimit, setsid,
};

use table::Table;
use tcp::Tcp;

/// Line that the broker prints when it is ready to serve.
pub(crate) const READY: &str = "ready";
/// Interval between checks of programs and sockets.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// Maximum time for which connections continue after the last program has ended.
const LAST_BYTES: Duration = Duration::from_secs(60);
/// Waits sleep at once: another thread of this process, or the program, must run before a wait can
/// end.
const SLEEP: Spin = Spin {
    spins: 0,
    yields: 0,
};
/// Maximum number of connections and sockets.
const MAX_SOCKETS: usize = 8192;

/// State of the broker, shared by its threads.
struct Node {
    broker: Broker,
    /// Process that `esprun` became.
    program: u32,
    table: Table,
    tcp: Tcp,
    /// Number of threads that serve programs.
    busy: AtomicUsize,
    /// Closes connections into which other users may have sent descriptors.
    closer: Closer,
}

impl Node {
    /// Runs `serve` in a thread. The broker stays until it has ended.
    ///
    /// # Errors
    /// ENOBUFS: the thread could not be started.
    fn busy(
        self: &Arc<Node>,
        name: &str,
        serve: impl FnOnce(&Node) + Send + 'static,
    ) -> io::Result<()> {
        self.busy_with(name, (), |node, ()| serve(node))
            .map_err(|(error, ())| error)
    }

    /// Runs `serve` like [`Node::busy`], and passes `owned` to it.
    ///
    /// # Errors
    /// See [`Node::busy`]; the error includes `owned`.
    fn busy_with<T: Send + 'static>(
        self: &Arc<Node>,
        name: &str,
        owned: T,
        serve: impl FnOnce(&Node, T) + Send + 'static,
    ) -> Result<(), (io::Error, T)> {
        let node = Arc::clone(self);
        self.busy.fetch_add(1, Ordering::SeqCst);
        let thread = thread::Builder::new().name(name.into());
        // If the thread cannot be started, its closure is dropped with all values that it owns.
        let (give, given) = mpsc::channel();
        let spawned = thread.spawn(move || {
            if let Ok(owned) = given.recv() {
                serve(&node, owned);
            }
            node.busy.fetch_sub(1, Ordering::SeqCst);
        });
        if spawned.is_err() {
            self.busy.fetch_sub(1, Ordering::SeqCst);
            // EAGAIN would mean that the program can try again.
            return Err((Errno::ENOBUFS.into(), owned));
        }
        // The thread waits for this value, so sending cannot fail.
        let _ = give.send(owned);
        Ok(())
    }
}

/// Serves the process `program` and the processes that it starts, until they have ended.
pub(crate) fn run(program: u32, rules: Option<&Path>) -> Result<Verdict, Failure> {
    match prepare(program, rules) {
        Ok((node, handle)) => {
            println!("{READY}");
            // Readers of the program's output must not wait for the end of the broker.
            let silent = io::stdout().flush().and_then(|()| silence());
            silent.doing("closing the output")?;
            watch(&node, &handle);
            Ok(Verdict::Done)
        }
        Err(failure) => {
            println!("{failure}");
            Ok(Verdict::Partly)
        }
    }
}

/// Opens the sockets and starts the threads.
fn prepare(
    program: u32,
    rules: Option<&Path>,
) -> Result<(Arc<Node>, std::os::fd::OwnedFd), Failure> {
    let value = std::env::var(VARIABLE).unwrap_or_default();
    let broker = Broker::parse(&value).ok_or_else(|| Failure::new("started without esprun"))?;
    let pid = i32::try_from(program).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or_else(|| Failure::new("invalid process id"))?;
    let handle = pidfd_open(pid, PidfdFlags::empty()).doing("finding the program")?;
    // Signals of the terminal are for the program.
    setsid().doing("leaving the session")?;
    raise_limit();
    let bind = |name: &str| {
        let listener = UnixListener::bind_addr(&abstract_addr(name)?)?;
        // Older kernels do not support this: see `closer`.
        refuse_descriptors(&listener);
        io::Result::Ok(listener)
    };
    let control = bind(&broker.control()).doing("listening")?;
    let streams = bind(&broker.streams()).doing("listening")?;
    let tcp = Tcp::new(broker.tcp, rules::load(rules)?).doing("listening on loopback")?;
    let node = Arc::new(Node {
        broker,
        program,
        table: Table::default(),
        tcp,
        busy: AtomicUsize::new(0),
        closer: Closer::default(),
    });
    let start = |name: &str, run: Box<dyn FnOnce() + Send>| {
        let thread = thread::Builder::new().name(name.into());
        thread.spawn(run).map(drop).doing("starting a thread")
    };
    let one = Arc::clone(&node);
    start("control", Box::new(move || control::serve(&one, &control)))?;
    let one = Arc::clone(&node);
    start("streams", Box::new(move || streams::accept(&one, &streams)))?;
    Ok((node, handle))
}

/// Raises the limit on descriptors to the system's maximum, because each connection of the programs
/// takes one.
fn raise_limit() {
    let limit = getrlimit(Resource::Nofile);
    let all = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    // After an error, fewer connections are possible.
    let _ = setrlimit(Resource::Nofile, all);
}

/// Points standard output and error at /dev/null.
fn silence() -> io::Result<()> {
    let null = std::fs::File::options().write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    Ok(())
}

/// Waits until the programs have ended. Until then, closes the broker's ends of sockets that they
/// have closed.
fn watch(node: &Arc<Node>, program: &std::os::fd::OwnedFd) {
    let pause = Timespec {
        tv_sec: 0,
        tv_nsec: i64::from(POLL_INTERVAL.subsec_nanos()),
    };
    let variable = format!("{VARIABLE}={}", node.broker.value());
    let mut last: Option<Instant> = None;
    let mut has_ended = false;
    loop {
        if has_ended {
            thread::sleep(POLL_INTERVAL);
        } else {
            let mut waits = [PollFd::new(program, PollFlags::IN)];
            has_ended = poll(&mut waits, Some(&pause)).is_ok_and(|ready| ready > 0);
        }
        // Before the names are read: a socket that is created in between is not among them.
        let all = node.table.names();
        let Ok(names) = system::names() else {
            // Out of descriptors, so the state of the programs' sockets is unknown now.
            thread::sleep(POLL_INTERVAL);
            continue;
        };
        node.table.sweep(&all, &names);
        node.tcp.sweep();
        streams::expire(node);
        let prefix = node.broker.prefix();
        let holds = || {
            // Names of the broker's sockets have more parts.
            let is_program = |name: &String| {
                let parts = name.strip_prefix(&prefix).map(|rest| rest.split('.'));
                parts.is_some_and(|mut parts| {
                    matches!(parts.next(), Some("s" | "d")) && parts.count() == 2
                })
            };
            names.iter().any(is_program)
        };
        let in_use =
            !has_ended || node.tcp.is_listening() || holds() || system::any_program_with(&variable);
        if in_use {
            last = None;
            continue;
        }
        let since = *last.get_or_insert_with(Instant::now);
        // Connections of TCP end by themselves. An unknown program may have one; if it ended early,
        // that would look to the program like the end of the peer's bytes.
        if node.tcp.is_busy() {
            continue;
        }
        if node.busy.load(Ordering::SeqCst) == 0 || since.elapsed() > LAST_BYTES {
            return;
        }
    }
}
