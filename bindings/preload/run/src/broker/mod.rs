//! The broker: holds the other ends of the sockets of one program and of those that it starts.
//!
//! `control` answers requests; `table` has the sockets of `AF_ENET`, `streams`, `listeners` and
//! `datagrams` serve them, and `pump` copies, in two threads for each stream; `tcp` and `rules`
//! serve TCP, in one thread for each engine; `system` and `diag` ask the kernel.

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

use cli::out::{Doing, Failure, Verdict};
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

/// Line that the broker prints once it serves.
pub(crate) const READY: &str = "ready";
/// Period of looks at programs and sockets.
const LOOK: Duration = Duration::from_millis(500);
/// Time for which connections may go on after the last program.
const LAST_BYTES: Duration = Duration::from_secs(60);
/// Waits sleep at once: what a thread waits for needs another one of this process, and the program,
/// to run.
const SLEEP: Spin = Spin {
    spins: 0,
    yields: 0,
};
/// Most connections and sockets at a time.
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
    /// Runs `serve` in a thread, for which the broker stays.
    ///
    /// # Errors
    /// ENOBUFS: there is no thread for it.
    fn busy(
        self: &Arc<Node>,
        name: &str,
        serve: impl FnOnce(&Node) + Send + 'static,
    ) -> io::Result<()> {
        self.busy_with(name, (), |node, ()| serve(node))
            .map_err(|(error, ())| error)
    }

    /// Runs `serve` like [`Node::busy`], with `owned`.
    ///
    /// # Errors
    /// Those of [`Node::busy`], with `owned`.
    fn busy_with<T: Send + 'static>(
        self: &Arc<Node>,
        name: &str,
        owned: T,
        serve: impl FnOnce(&Node, T) + Send + 'static,
    ) -> Result<(), (io::Error, T)> {
        let node = Arc::clone(self);
        self.busy.fetch_add(1, Ordering::SeqCst);
        let thread = thread::Builder::new().name(name.into());
        // A thread that does not start drops what it would own.
        let (give, given) = mpsc::channel();
        let spawned = thread.spawn(move || {
            if let Ok(owned) = given.recv() {
                serve(&node, owned);
            }
            node.busy.fetch_sub(1, Ordering::SeqCst);
        });
        if spawned.is_err() {
            self.busy.fetch_sub(1, Ordering::SeqCst);
            // EAGAIN would mean to a program that it can try again.
            return Err((Errno::ENOBUFS.into(), owned));
        }
        // The thread waits for it.
        let _ = give.send(owned);
        Ok(())
    }
}

/// Serves the process `program` and those that it starts, until they have ended.
pub(crate) fn run(program: u32, rules: Option<&Path>) -> Result<Verdict, Failure> {
    match prepare(program, rules) {
        Ok((node, handle)) => {
            println!("{READY}");
            // The program's output must not wait for the end of the broker.
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
        // Older kernels pass them: see `closer`.
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

/// Allows as many descriptors as the system does, for each connection of the programs takes one.
fn raise_limit() {
    let limit = getrlimit(Resource::Nofile);
    let all = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    // Else there are fewer.
    let _ = setrlimit(Resource::Nofile, all);
}

/// Points standard output and error at /dev/null.
fn silence() -> io::Result<()> {
    let null = std::fs::File::options().write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    Ok(())
}

/// Waits until the programs have ended, and closes what they have closed.
fn watch(node: &Arc<Node>, program: &std::os::fd::OwnedFd) {
    let pause = Timespec {
        tv_sec: 0,
        tv_nsec: i64::from(LOOK.subsec_nanos()),
    };
    let variable = format!("{VARIABLE}={}", node.broker.value());
    let mut last: Option<Instant> = None;
    let mut has_ended = false;
    loop {
        if has_ended {
            thread::sleep(LOOK);
        } else {
            let mut waits = [PollFd::new(program, PollFlags::IN)];
            has_ended = poll(&mut waits, Some(&pause)).is_ok_and(|ready| ready > 0);
        }
        // Before the names: a socket that is made meanwhile has none among them.
        let all = node.table.names();
        let Ok(names) = system::names() else {
            // Out of descriptors: nothing is known of the programs' sockets now.
            thread::sleep(LOOK);
            continue;
        };
        node.table.sweep(&all, &names);
        node.tcp.sweep();
        streams::expire(node);
        let prefix = node.broker.prefix();
        let holds = || {
            // Those of the broker have more parts.
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
        // Connections of TCP end by themselves. A program that is not known may have one, whose
        // early end would look to it like that of the peer's bytes.
        if node.tcp.is_busy() {
            continue;
        }
        if node.busy.load(Ordering::SeqCst) == 0 || since.elapsed() > LAST_BYTES {
            return;
        }
    }
}
