//! Models of the end of a connection while the peer copies. An atomic word stands for the memory
//! that the kernel copies.

use std::sync::Arc;

use loom::thread;

use super::{check, pair_head, zero};
use crate::layout::PUTTING;
use crate::revoke::{end_copy, is_revoked, revoke};
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

#[test]
fn loom_a_put_writes_nothing_once_its_owner_has_found_it_at_an_end() {
    check(
        "revoke: a put while its owner takes the memory back",
        3,
        || {
            let (mine, theirs, memory) = (pair_head(), pair_head(), Arc::new(zero()));
            let (words, owner, target) = (mine.clone(), theirs.clone(), memory.clone());
            let writer = thread::spawn(move || {
                words.writing.0.copying.store(PUTTING, Ordering::Release);
                if !is_revoked(&owner) {
                    target.store(1, Ordering::Relaxed);
                }
                end_copy(&words);
            });
            revoke(&theirs);
            while mine.writing.0.copying.load(Ordering::Acquire) != 0 {
                thread::yield_now();
            }
            memory.store(2, Ordering::Relaxed);
            writer.join().expect("the writer");
            assert_eq!(memory.load(Ordering::Relaxed), 2, "written by the put");
        },
    );
}
