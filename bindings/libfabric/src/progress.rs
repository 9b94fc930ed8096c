//! Progress without calls of the program (`FI_PROGRESS_AUTO`): a thread for each endpoint.
//!
//! While the program makes progress itself, the thread naps; one nap after the program's last call,
//! the thread takes over. It sleeps on the descriptors of the transports.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::core::Core;
use crate::wakeups::Wakeups;

/// Nap while the program makes progress.
const NAP: Duration = Duration::from_millis(1);
/// Maximum sleep, in case a transport does not wake the thread.
const MAX_SLEEP: Duration = Duration::from_secs(1);
/// Number of polls with events after which the thread checks whether to stop, and whether the
/// program makes progress again.
const POLLS: usize = 1000;

/// A progress thread. Dropping it ends the thread.
#[derive(Debug)]
pub(crate) struct ProgressThread {
    wakeups: Arc<Wakeups>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl ProgressThread {
    /// Starts the thread of an enabled endpoint.
    pub(crate) fn start(core: &Arc<Core>) -> io::Result<ProgressThread> {
        let wakeups = Arc::new(Wakeups::new()?);
        core.add_wakeups(&wakeups);
        let stop = Arc::new(AtomicBool::new(false));
        let own = (Arc::clone(core), Arc::clone(&wakeups), Arc::clone(&stop));
        let builder = std::thread::Builder::new().name("esp-fi".to_owned());
        let thread = builder.spawn(move || run(&own.0, &own.1, &own.2))?;
        Ok(ProgressThread {
            wakeups,
            stop,
            thread: Some(thread),
        })
    }
}

impl Drop for ProgressThread {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        self.wakeups.ring();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn run(core: &Arc<Core>, wakeups: &Wakeups, stop: &AtomicBool) {
    let mut seen = core.calls();
    let cores = [Arc::clone(core)];
    while !stop.load(Ordering::SeqCst) {
        let calls = core.calls();
        if calls != seen {
            seen = calls;
            std::thread::sleep(NAP);
            continue;
        }
        let mut polls = 0;
        while polls < POLLS && core.make_progress() != 0 {
            polls += 1;
        }
        if polls == POLLS {
            continue;
        }
        let idle = || !stop.load(Ordering::SeqCst) && core.calls() == seen;
        if wakeups.prepare(&cores, Some(MAX_SLEEP), idle) {
            wakeups.sleep();
        } else {
            std::thread::yield_now();
        }
    }
}
