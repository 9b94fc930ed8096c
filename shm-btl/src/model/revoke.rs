//! Model of the end of a connection while the peer copies. An atomic word stands for the memory
//! that the kernel copies.

use std::sync::Arc;

use loom::thread;

use super::{check, pair_head, zero};
use crate::revoke::{is_revoked, revoke};
use shmem::sync::Ordering;

#[test]
fn loom_a_get_delivers_nothing_that_its_owner_wrote_after_ending_the_connection() {
    check(
        "revoke: a get while its owner uses the memory again",
        3,
        || {
            let (head, memory) = (pair_head(), Arc::new(zero()));
            let (theirs, source) = (head.clone(), memory.clone());
            let reader = thread::spawn(move || {
                let copied = source.load(Ordering::Relaxed);
                let failed = is_revoked(&theirs);
                assert!(copied == 0 || failed, "it delivers other bytes");
            });
            revoke(&head);
            memory.store(1, Ordering::Relaxed);
            reader.join().expect("the reader");
        },
    );
}
