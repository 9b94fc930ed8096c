//! The files that may contain `unsafe`, for reviewers of memory safety. A crate without any makes
//! the compiler forbid it.

use std::fs;
use std::path::Path;

use crate::outcome::{Outcome, verdict};
use crate::workspace::{Workspace, files, shown};

/// Files and folders with `unsafe` code, and why.
const ALLOWED: &[(&str, &str)] = &[
    (
        "netif/src",
        "system calls on packet sockets and their buffers",
    ),
    ("dev/netns/src", "enters namespaces"),
    (
        "dev/fake-verbs/src",
        "copies between memory that tests have lent",
    ),
    (
        "dev/rawloop",
        "gives buffers of the benchmark to send batches",
    ),
    (
        "bindings/libfabric/src",
        "functions that libfabric calls, and the pointers that it passes",
    ),
    (
        "bindings/preload/src",
        "functions that programs call, their memory, calls of the kernel",
    ),
    (
        "bindings/preload/run/src/bin/esprun.rs",
        "a function that runs before Rust's runtime",
    ),
    ("netif/tests", "gives buffers of the test to send batches"),
    ("esp-engine/src/shm", "memory shared with programs"),
    (
        "esp-engine/tests/allocations.rs",
        "an allocator that counts",
    ),
    (
        "esp-engine/src/engine/transmit.rs",
        "hands ring memory to the send batch",
    ),
    (
        "esp-engine/src/exit.rs",
        "registers a function at the C library",
    ),
    ("tests/tests/lease_forked.rs", "forks"),
    ("esp-client/tests/forked.rs", "forks"),
    (
        "tests/tests/libfabric.rs",
        "lends memory to accesses of endpoints",
    ),
    (
        "p2p/src/memory.rs",
        "the program's buffers while requests use them; numbers as bytes",
    ),
    (
        "p2p/src/scope.rs",
        "lends borrowed buffers to requests until they complete",
    ),
    (
        "p2p/src/comm.rs",
        "lends the buffers of calls to requests; raw memory for other languages",
    ),
    (
        "p2p/src/endpoint.rs",
        "raw memory for other languages, lent to requests",
    ),
    (
        "p2p/src/access.rs",
        "raw memory for other languages, lent to requests",
    ),
    ("p2p/src/regions", "exposes memory in tests"),
    (
        "p2p/src/regions.rs",
        "copies from and to memory that peers may access",
    ),
    (
        "p2p/src/engine/access.rs",
        "reads the lent memory of a write as it is sent",
    ),
    (
        "p2p/src/engine/rendezvous.rs",
        "one-sided operations of transports",
    ),
    (
        "p2p/src/engine/outgoing.rs",
        "bytes of pending sends; held sends of transports",
    ),
    (
        "p2p/src/engine/receive.rs",
        "bytes of pending sends of a rank to itself",
    ),
    ("p2p/tests", "calls on raw memory, transports of tests"),
    (
        "p2p/examples",
        "a receive into raw memory that matches no message",
    ),
    (
        "btl/src/contract.rs",
        "declares the calls that lend memory to a transport",
    ),
    ("btl/src/held_sends.rs", "declares such calls"),
    ("btl/src/noticed_puts.rs", "declares such calls"),
    (
        "btl/src/shared",
        "gives out what only the thread that owns the transport may touch",
    ),
    (
        "dev/conformance/src/loopback",
        "copies between memories that the ranks of a process have lent",
    ),
    (
        "dev/conformance/src/forward.rs",
        "passes lent memory on to the wrapped transport",
    ),
    (
        "dev/conformance/src/faulty.rs",
        "passes lent memory on to the wrapped transport",
    ),
    (
        "dev/conformance/src/faulty/tx.rs",
        "passes lent memory on to the wrapped transport",
    ),
    (
        "dev/conformance/src/suite/memory.rs",
        "lends memory of test cases to the transport under test",
    ),
    (
        "dev/conformance/tests",
        "lends memory of tests, and passes lent memory on to the wrapped transport",
    ),
    ("shmem/src", "memory shared with other processes"),
    (
        "shm-btl/src/fifo",
        "bytes of the slots, rings and chunks that the queue gives to one side",
    ),
    (
        "shm-btl/src/layout.rs",
        "types that may lie in shared memory",
    ),
    (
        "shm-btl/src/attach.rs",
        "words of a peer, which are only loaded",
    ),
    (
        "shm-btl/src/model.rs",
        "bytes that the model checker watches",
    ),
    (
        "shm-btl/src/cma.rs",
        "copies between the memories of processes, by the kernel",
    ),
    (
        "shm-btl/src/transport/one_sided.rs",
        "hands lent memory to the copy",
    ),
    (
        "shm-btl/src/transport/coop.rs",
        "hands lent memory to the copy that both sides make",
    ),
    (
        "shm-btl/src/transport/contract.rs",
        "the contract's calls that take lent memory",
    ),
    (
        "shm-btl/src/transport/tests",
        "lends memory of tests to the transport",
    ),
    ("shm-btl/tests", "lends memory of tests to the transport"),
    (
        "ib-btl/src/raw",
        "the verbs library, its structures, registered memory",
    ),
    (
        "ib-btl/src/nic.rs",
        "declares the calls that take memory by its address",
    ),
    ("ib-btl/src/cache.rs", "hands lent memory to the adapter"),
    (
        "ib-btl/src/cache/tests.rs",
        "maps and unmaps the memory of cached registrations",
    ),
    (
        "ib-btl/src/transport",
        "hands lent and registered memory to the adapter",
    ),
    (
        "ib-btl/examples",
        "lends memory of a benchmark to the transport",
    ),
    ("ib-btl/tests", "lends memory of tests to the transport"),
    (
        "job/capi/src/ffi",
        "memory of C programs; names of the library's functions",
    ),
    (
        "job/boot/src/sys.rs",
        "calls of the system's libpmix; a descriptor that the launcher names by its number",
    ),
    (
        "job/boot/src/sys",
        "signatures of libpmix; tests that make values as it does",
    ),
];

/// Checks every crate.
pub(crate) fn check(workspace: &Workspace) -> Outcome {
    let (mut problems, mut seen) = (Vec::new(), 0);
    for package in &workspace.packages {
        let roots = ["src/lib.rs", "src/main.rs"].map(|file| package.dir.join(file));
        let texts = roots.map(|file| fs::read_to_string(file).unwrap_or_default());
        problems.extend(does_not_forbid(&shown(&package.dir), &texts.concat()));
        for path in files(&package.dir, &|p| p.extension().is_some_and(|e| e == "rs")) {
            seen += 1;
            let text = fs::read_to_string(&path).unwrap_or_default();
            problems.extend(problem(&shown(&path), &text));
        }
    }
    if seen == 0 {
        problems.push("no source file was found: nothing was checked".into());
    }
    verdict(
        &problems,
        format!("{seen} files, `unsafe` allowed in {} places", ALLOWED.len()),
    )
}

/// The first `unsafe` of a file that may have none. Whole lines of comments do not count; the
/// gate's own texts do not either, because its crate forbids unsafe code.
fn problem(path: &str, text: &str) -> Option<String> {
    let allowed = |(place, _): &(&str, &str)| Path::new(path).starts_with(place);
    if path.starts_with("dev/xtask") || ALLOWED.iter().any(allowed) {
        return None;
    }
    let is_unsafe = |line: &str| {
        let words = [
            "unsafe {",
            "unsafe fn",
            "unsafe impl",
            "unsafe extern",
            "#[unsafe(",
        ];
        !line.trim_start().starts_with("//") && words.iter().any(|word| line.contains(word))
    };
    let line = text.lines().position(is_unsafe)? + 1;
    Some(format!(
        "{path}:{line}: `unsafe` is not for this file (see dev/xtask/src/unsafety.rs)"
    ))
}

/// A crate without any place in [`ALLOWED`] makes the compiler forbid unsafe code.
fn does_not_forbid(dir: &str, roots: &str) -> Option<String> {
    let is_inside = |(place, _): &(&str, &str)| Path::new(place).starts_with(dir);
    let forbids = roots.lines().any(|line| line == "#![forbid(unsafe_code)]");
    (!forbids && !ALLOWED.iter().any(is_inside))
        .then(|| format!("{dir}: its root does not say #![forbid(unsafe_code)]"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_planted_unsafe_is_found_where_it_may_not_be() {
        let text = "// unsafe {\nfn f() { unsafe { g() } }";
        let found = problem("cli/src/x.rs", text);
        assert!(found.is_some_and(|p| p.starts_with("cli/src/x.rs:2")));
        assert_eq!(problem("netif/src/x.rs", text), None);
        assert_eq!(problem("cli/src/x.rs", "#![forbid(unsafe_code)]"), None);
    }

    #[test]
    fn a_crate_that_does_not_forbid_is_found() {
        assert!(does_not_forbid("cli", "//! x").is_some());
        assert_eq!(does_not_forbid("cli", "#![forbid(unsafe_code)]"), None);
        assert_eq!(does_not_forbid("netif", ""), None);
    }
}
