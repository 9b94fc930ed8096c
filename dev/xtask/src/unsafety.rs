//! Where `unsafe` may stand. Everything else is memory-safe by construction, so reviewers of memory safety know which
//! files to read.

use std::path::Path;

use crate::outcome::{Outcome, verdict};
use crate::source::Source;
use crate::workspace::{Package, Workspace, shown};

/// Files and folders with `unsafe` code, and why.
const ALLOWED: &[(&str, &str)] = &[
    (
        "netif/src",
        "system calls on packet sockets and their buffers",
    ),
    ("dev/netns/src", "enters namespaces"),
    (
        "dev/rawloop",
        "gives buffers of the benchmark to send batches",
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
    ("tests/tests/lease_forked.rs", "forks"),
    (
        "p2p/src/memory.rs",
        "the program's buffers while requests use them; numbers as bytes",
    ),
    (
        "p2p/src/raw.rs",
        "non-blocking calls on raw memory, for other languages",
    ),
    (
        "p2p/src/scope.rs",
        "lends borrowed buffers to requests, and sees their end",
    ),
    ("p2p/src/owned.rs", "lends owned buffers to requests"),
    (
        "p2p/src/shared.rs",
        "lends the buffers of blocking calls to requests",
    ),
    (
        "p2p/src/engine/transfer.rs",
        "one-sided operations of transports",
    ),
    (
        "p2p/src/engine/ahead.rs",
        "memory that transports look up ahead",
    ),
    ("p2p/tests", "calls on raw memory, transports of tests"),
    ("p2p/examples", "a receive on raw memory that nothing fits"),
    (
        "btl/src/contract.rs",
        "declares the calls that lend memory to a transport",
    ),
    (
        "dev/conformance/src/loopback",
        "copies between memories that the ranks of a process have lent",
    ),
    (
        "dev/conformance/src/faulty.rs",
        "hands lent memory on to the wrapped transport",
    ),
    (
        "dev/conformance/src/suite/memory.rs",
        "lends memory of test cases to the transport under test",
    ),
    (
        "dev/conformance/tests",
        "lends memory of tests, and hands lent memory on to the wrapped transport",
    ),
    ("shm-btl/src/memory.rs", "memory shared with peers"),
    (
        "shm-btl/src/model_memory.rs",
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
        "shm-btl/src/transport/sharing.rs",
        "hands lent memory to the copy that both sides make",
    ),
    (
        "shm-btl/src/transport/contract.rs",
        "the contract's calls that take lent memory",
    ),
    (
        "shm-btl/src/transport/tests.rs",
        "lends memory of tests to the transport",
    ),
    (
        "shm-btl/examples/shmbench/mover.rs",
        "lends memory to the transport it measures",
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
        "ib-btl/src/cache_tests.rs",
        "maps and unmaps memory behind the cache",
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
        "what C programs give; their names in the library",
    ),
    (
        "job/boot/src/sys.rs",
        "calls of the system's libpmix; a descriptor that the launcher names by its number",
    ),
];

/// Looks at every crate.
pub(crate) fn check(workspace: &Workspace) -> Outcome {
    let (mut problems, mut files) = (Vec::new(), 0);
    for package in &workspace.packages {
        problems.extend(does_not_forbid(package));
        for source in Source::read_all(&package.dir)? {
            files += 1;
            problems.extend(problem(&source));
        }
    }
    if files == 0 {
        problems.push("no source file was found: nothing was checked".into());
    }
    verdict(
        &problems,
        format!(
            "{files} files, `unsafe` allowed in {} places",
            ALLOWED.len()
        ),
    )
}

/// The first `unsafe` of a file that may have none.
fn problem(source: &Source) -> Option<String> {
    let path = shown(&source.path);
    if ALLOWED
        .iter()
        .any(|(place, _)| Path::new(&path).starts_with(place))
    {
        return None;
    }
    let at = source.idents("unsafe").next()?;
    Some(format!(
        "{}: `unsafe` is not for this file (see dev/xtask/src/unsafety.rs)",
        source.place(at)
    ))
}

/// A crate without any place in [`ALLOWED`] has the compiler keep this rule, too.
fn does_not_forbid(package: &Package) -> Option<String> {
    let dir = shown(&package.dir);
    if ALLOWED
        .iter()
        .any(|(place, _)| Path::new(place).starts_with(&dir))
    {
        return None;
    }
    let roots = ["src/lib.rs", "src/main.rs"].map(|file| package.dir.join(file));
    let mut texts = roots
        .iter()
        .filter_map(|file| std::fs::read_to_string(file).ok());
    let forbids = texts.any(|text| {
        Source::new("", text)
            .code
            .contains("#![forbid(unsafe_code)]")
    });
    if forbids {
        None
    } else {
        Some(format!(
            "{dir}: its root does not say #![forbid(unsafe_code)]"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_planted_unsafe_is_found_where_it_may_not_be() {
        let text = "// unsafe\nfn f() { \"unsafe\"; unsafe { g() } }";
        let root = crate::workspace::root();
        assert!(
            problem(&Source::new(root.join("cli/src/x.rs"), text))
                .is_some_and(|p| p.starts_with("cli/src/x.rs:2"))
        );
        assert_eq!(
            problem(&Source::new(root.join("netif/src/x.rs"), text)),
            None
        );
        assert_eq!(
            problem(&Source::new(
                root.join("cli/src/x.rs"),
                "#![forbid(unsafe_code)]"
            )),
            None
        );
    }
}
