//! A transport that panics while the program's memory is lent to it ends the process.
//!
//! Unwinding would free buffers that a request, the transport or a peer still writes to. Each case
//! runs in a child process.

mod common;

use std::io::IoSlice;
use std::os::unix::process::ExitStatusExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use btl::{
    Btl, Capabilities, Events, HeldSends, NoticedPuts, PeerInfo, PendingPeers, Rank, SendError, Tx,
    Unreachable,
};
use btl_conformance::loopback::Limits;
use p2p::{Comm, Source, Tag};

/// Name of the case that a child process runs.
const CASE: &str = "P2P_TEST_UNWINDING";

/// Panics in `progress` once it is armed.
#[derive(Debug)]
struct Panicking {
    inner: Box<dyn Btl>,
    armed: Arc<AtomicBool>,
}

impl HeldSends for Panicking {}
impl NoticedPuts for Panicking {}
impl PendingPeers for Panicking {}

impl Tx for Panicking {
    fn send(&mut self, peer: Rank, header: &[u8], body: &[IoSlice<'_>]) -> Result<(), SendError> {
        self.inner.send(peer, header, body)
    }
}

impl Btl for Panicking {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }

    fn address(&self) -> Vec<u8> {
        self.inner.address()
    }

    fn add_peer(&mut self, peer: Rank, address: &[u8]) -> Result<PeerInfo, Unreachable> {
        self.inner.add_peer(peer, address)
    }

    fn progress(&mut self, events: &mut dyn Events) -> usize {
        assert!(!self.armed.load(Ordering::SeqCst), "planted panic");
        self.inner.progress(events)
    }

    fn flush(&mut self) -> bool {
        self.inner.flush()
    }

    fn close(&mut self) {
        self.inner.close();
    }
}

const CASES: [&str; 6] = ["recv", "ssend", "sendrecv", "mprobe", "scope", "owned"];

/// Blocks in a call whose transport panics. Returns only if the call unwinds.
fn block(case: &str, comm: &Comm, armed: &AtomicBool) {
    let mut buffer = [0u8; 64];
    let out = vec![1u8; 1 << 20];
    let taken = (case == "mprobe").then(|| comm.mprobe(Source::Any, Tag::Any).unwrap());
    armed.store(true, Ordering::SeqCst);
    let _ = match case {
        "recv" => comm.recv(&mut buffer, Source::Any, Tag::Any).map(drop),
        "ssend" => comm.ssend(&out, 1, 0),
        "sendrecv" => comm.sendrecv(&out, 1, 0, &mut buffer, 1, 0).map(drop),
        "mprobe" => taken.unwrap().recv(&mut buffer).map(drop),
        "scope" => comm.scope(|scope| {
            scope.irecv(&mut buffer, 1, 0)?;
            scope.waitall()
        }),
        _ => comm
            .irecv_owned(vec![0; 64], 1, 0)
            .and_then(|request| request.wait().0.map(drop)),
    };
}

/// Runs one case, in the child process.
fn child(case: &str) {
    let (mut transports, _killer) = common::loopbacks(2, Limits::default());
    let armed = Arc::new(AtomicBool::new(false));
    let inner = transports[0].remove(0);
    transports[0].push(Box::new(Panicking {
        inner,
        armed: Arc::clone(&armed),
    }));
    let layers = common::start(transports, &common::config(2));
    if case == "mprobe" {
        // Sent by rendezvous, so that its receive has to wait.
        let body: &'static [u8] = vec![7; 1 << 20].leak();
        // SAFETY: the body is never freed.
        let id = unsafe { layers[1].world().isend_raw(body.as_ptr(), body.len(), 0, 0) };
        id.unwrap();
    }
    let world = layers[0].world();
    let unwound = catch_unwind(AssertUnwindSafe(|| block(case, &world, &armed))).is_err();
    println!("survived, unwound: {unwound}");
    // Nothing may run after unwinding: the stack frames that the requests name are gone.
    std::process::exit(0);
}

#[test]
fn a_panic_while_memory_is_lent_aborts() {
    if let Ok(case) = std::env::var(CASE) {
        return child(&case);
    }
    for case in CASES {
        let output = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "a_panic_while_memory_is_lent_aborts",
                "--nocapture",
            ])
            .env(CASE, case)
            .output()
            .unwrap();
        let (out, err) = (
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr),
        );
        assert_eq!(
            output.status.signal(),
            Some(6),
            "{case}: not aborted\n{out}\n{err}"
        );
        assert!(err.contains("planted panic"), "{case}: {err}");
        assert!(err.contains("memory is lent"), "{case}: {err}");
    }
}

/// Without a request the caller can catch the panic.
#[test]
fn a_panic_while_nothing_is_lent_unwinds() {
    let (mut transports, _killer) = common::loopbacks(2, Limits::default());
    let armed = Arc::new(AtomicBool::new(true));
    let inner = transports[0].remove(0);
    transports[0].push(Box::new(Panicking { inner, armed }));
    let layers = common::start(transports, &common::config(2));
    assert!(catch_unwind(AssertUnwindSafe(|| layers[0].progress())).is_err());
}
