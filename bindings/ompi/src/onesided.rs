//! Put, get and atomic operations, made of messages: the peer's component does them when its program makes progress in any call of MPI.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::core::{Core, Keep, Outcome};
use crate::ffi;
use crate::memory::{self, ATOMIC, READ, WRITE};
use crate::queues::Item;
use crate::rail::Way;
use crate::wire::{Header, NARROW};

/// Own locks given back between two looks for peers that want them.
const GIVEN_BACK: u32 = 8;

/// What is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Put,
    /// So many bytes have come.
    Get {
        local: usize,
        length: u64,
        got: u64,
    },
    /// Where the value before goes; 0: nowhere.
    Atomic {
        result: usize,
        narrow: bool,
    },
}

#[derive(Clone, Copy, Debug)]
struct Operation {
    way: Way,
    kind: Kind,
    /// Whom to tell: `struct esp_done`.
    done: usize,
}

/// Operations of this process under way. Their numbers do not come again.
#[derive(Debug)]
pub(crate) struct Operations {
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    all: Option<HashMap<u64, Operation>>,
    last: u64,
}

impl Operations {
    pub(crate) const fn new() -> Operations {
        Operations {
            inner: Mutex::new(Inner { all: None, last: 0 }),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, operation: Operation) -> u64 {
        let mut inner = self.lock();
        inner.last += 1;
        let number = inner.last;
        inner.all.get_or_insert_default().insert(number, operation);
        number
    }

    fn take(&self, number: u64, way: Way) -> Option<Operation> {
        let mut inner = self.lock();
        let all = inner.all.as_mut()?;
        if all.get(&number)?.way != way {
            return None;
        }
        all.remove(&number)
    }

    /// Whom to tell of the end of a way.
    pub(crate) fn of(&self, way: Way) -> Vec<usize> {
        let mut inner = self.lock();
        let Some(all) = inner.all.as_mut() else {
            return Vec::new();
        };
        let numbers: Vec<u64> = all
            .iter()
            .filter(|(_, o)| o.way == way)
            .map(|(n, _)| *n)
            .collect();
        numbers
            .iter()
            .filter_map(|number| all.remove(number))
            .map(|operation| operation.done)
            .collect()
    }

    /// Where the next bytes of a get go, if these can be they. The operation, when they are the last.
    fn data(
        &self,
        number: u64,
        way: Way,
        offset: u64,
        length: u64,
        last: bool,
    ) -> Option<(usize, Option<Operation>)> {
        let mut inner = self.lock();
        let all = inner.all.as_mut()?;
        let operation = all
            .get_mut(&number)
            .filter(|operation| operation.way == way)?;
        let Kind::Get {
            local,
            length: whole,
            got,
        } = &mut operation.kind
        else {
            return None;
        };
        if offset != *got || length > *whole - *got || last != (*got + length == *whole) {
            return None;
        }
        let at = *local + usize::try_from(*got).ok()?;
        *got += length;
        Some((at, if last { all.remove(&number) } else { None }))
    }
}

impl Core {
    /// Begins a put; true: `done` is told.
    pub(crate) fn put(
        &self,
        way: Way,
        local: usize,
        remote: u64,
        key: u64,
        length: usize,
        done: usize,
    ) -> bool {
        if way.seat.peer() == self.rank() {
            // SAFETY: Open MPI says that `local` is readable, and the region is writable.
            let copy = |to| unsafe { memory::copy(local, to, length) };
            let found = self.own(key, remote, length as u64, WRITE, copy);
            ffi::done(done, found.is_some());
            return true;
        }
        let operation = self.operations.add(Operation {
            way,
            kind: Kind::Put,
            done,
        });
        if length <= self.piece() {
            let header = Header::Put {
                last: true,
                operation,
                key,
                address: remote,
            };
            // SAFETY: Open MPI leaves it readable until `done` is told.
            let body = unsafe { memory::bytes(local, length) };
            match self.send(
                way,
                &header,
                &[std::io::IoSlice::new(body)],
                Keep::Nothing,
                None,
            ) {
                Outcome::Gone => return true,
                Outcome::Busy => {}
                Outcome::Failed => return self.operations.take(operation, way).is_none(),
            }
        }
        self.queue(
            way,
            Item::Put {
                operation,
                key,
                remote,
                local,
                length,
                at: 0,
            },
        );
        true
    }

    /// Begins a get; true: `done` is told.
    pub(crate) fn get(
        &self,
        way: Way,
        local: usize,
        remote: u64,
        key: u64,
        length: usize,
        done: usize,
    ) -> bool {
        if way.seat.peer() == self.rank() {
            // SAFETY: Open MPI says that `local` is writable, and the region is readable.
            let copy = |from| unsafe { memory::copy(from, local, length) };
            let found = self.own(key, remote, length as u64, READ, copy);
            ffi::done(done, found.is_some());
            return true;
        }
        let length = length as u64;
        let operation = self.operations.add(Operation {
            way,
            kind: Kind::Get {
                local,
                length,
                got: 0,
            },
            done,
        });
        self.ask(
            way,
            operation,
            &Header::Get {
                operation,
                key,
                address: remote,
                length,
            },
        )
    }

    /// Begins an atomic operation; true: `done` is told.
    #[allow(clippy::too_many_arguments)] // as many as Open MPI has
    pub(crate) fn atomic(
        &self,
        way: Way,
        result: usize,
        remote: u64,
        key: u64,
        what: u8,
        (operand, compare): (u64, u64),
        done: usize,
    ) -> bool {
        let narrow = what & NARROW != 0;
        if way.seat.peer() == self.rank() {
            // SAFETY: Open MPI says that it is readable and writable.
            let run = |at| unsafe { memory::atomic(at, what, operand, compare) };
            let value = self
                .own(key, remote, if narrow { 4 } else { 8 }, ATOMIC, run)
                .flatten();
            if let Some(value) = value {
                // SAFETY: Open MPI says that it is writable.
                unsafe { memory::store(result, value, narrow) };
            }
            ffi::done(done, value.is_some());
            if result == 0 {
                self.gave_back();
            }
            return true;
        }
        let operation = self.operations.add(Operation {
            way,
            kind: Kind::Atomic { result, narrow },
            done,
        });
        self.ask(
            way,
            operation,
            &Header::Atomic {
                what,
                operation,
                key,
                address: remote,
                operand,
                compare,
            },
        )
    }

    /// Memory of this process for its own program: without a key Open MPI's word is enough.
    fn own<R>(
        &self,
        key: u64,
        address: u64,
        length: u64,
        right: u32,
        f: impl FnOnce(usize) -> R,
    ) -> Option<R> {
        if key == 0 {
            return usize::try_from(address).ok().map(f);
        }
        self.regions.with(key, address, length, right, f)
    }

    /// An atomic operation of this process on itself that asks for no value gives back a lock. Who takes and gives back one of his own again
    /// and again never has to wait and makes progress only while he holds it, so that no peer would ever get it: now and then he looks
    /// now. Not each time, for a lock that changes hands is the slower for all.
    fn gave_back(&self) {
        if self
            .given_back
            .fetch_add(1, Ordering::Relaxed)
            .is_multiple_of(GIVEN_BACK)
        {
            self.look();
        }
    }

    fn ask(&self, way: Way, operation: u64, header: &Header) -> bool {
        match self.send(way, header, &[], Keep::Copy, None) {
            Outcome::Gone | Outcome::Busy => true,
            Outcome::Failed => self.operations.take(operation, way).is_none(),
        }
    }

    fn operate(&self, key: u64, address: u64, what: u8, operand: u64, compare: u64) -> Option<u64> {
        let length = if what & NARROW != 0 { 4 } else { 8 };
        // SAFETY: the region is readable and writable there.
        let run = |at| unsafe { memory::atomic(at, what, operand, compare) };
        self.regions
            .with(key, address, length, ATOMIC, run)
            .flatten()
    }

    /// A message of a peer's component; false: it is none that a peer in order sends.
    pub(crate) fn onesided(&self, way: Way, header: Header, body: &[u8]) -> bool {
        match header {
            Header::Active { .. } => {}
            Header::Put {
                last,
                operation,
                key,
                address,
            } => {
                // SAFETY: the region is writable there.
                let fill = |at| unsafe { memory::fill(at, body) };
                let refused = self
                    .regions
                    .with(key, address, body.len() as u64, WRITE, fill)
                    .is_none();
                if last || refused {
                    self.answer(
                        way,
                        &Header::Done {
                            refused,
                            operation,
                            value: 0,
                        },
                    );
                }
            }
            Header::Get {
                operation,
                key,
                address,
                length,
            } => {
                if self
                    .regions
                    .with(key, address, length, READ, |_| ())
                    .is_some()
                {
                    self.queue(
                        way,
                        Item::Reply {
                            operation,
                            key,
                            address,
                            length,
                            at: 0,
                        },
                    );
                } else {
                    self.answer(
                        way,
                        &Header::Done {
                            refused: true,
                            operation,
                            value: 0,
                        },
                    );
                }
            }
            Header::Atomic {
                what,
                operation,
                key,
                address,
                operand,
                compare,
            } => {
                let value = self.operate(key, address, what, operand, compare);
                let refused = value.is_none();
                self.answer(
                    way,
                    &Header::Done {
                        refused,
                        operation,
                        value: value.unwrap_or(0),
                    },
                );
            }
            Header::Data {
                last,
                operation,
                offset,
            } => {
                let place = self
                    .operations
                    .data(operation, way, offset, body.len() as u64, last);
                let Some((at, over)) = place else {
                    return false;
                };
                // SAFETY: it lies in the memory that Open MPI gave for this get, which is not over.
                unsafe { memory::fill(at, body) };
                if let Some(operation) = over {
                    ffi::done(operation.done, true);
                }
            }
            Header::Done {
                refused,
                operation,
                value,
            } => {
                // The end of one that was refused before its last piece was said already.
                let Some(operation) = self.operations.take(operation, way) else {
                    return refused;
                };
                if let Kind::Atomic { result, narrow } = operation.kind
                    && !refused
                {
                    // SAFETY: Open MPI leaves it writable until `done` is told.
                    unsafe { memory::store(result, value, narrow) };
                }
                let whole = !matches!(operation.kind, Kind::Get { .. });
                ffi::done(operation.done, !refused && whole);
            }
        }
        true
    }

    /// What cannot be answered because the peer is gone need not be.
    fn answer(&self, way: Way, header: &Header) {
        let _ = self.send(way, header, &[], Keep::Copy, None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rail::Seat;

    fn way(seat: u32) -> Way {
        Way {
            rail: 0,
            seat: Seat(seat),
        }
    }

    #[test]
    fn only_the_bytes_that_are_next_are_taken() {
        let operations = Operations::new();
        let kind = Kind::Get {
            local: 1000,
            length: 10,
            got: 0,
        };
        let number = operations.add(Operation {
            way: way(3),
            kind,
            done: 77,
        });
        for (peer, offset, length, last) in [
            (4, 0, 5, false),
            (3, 1, 5, false),
            (3, 0, 11, true),
            (3, 0, 5, true),
            (3, 0, 10, false),
        ] {
            assert!(
                operations
                    .data(number, way(peer), offset, length, last)
                    .is_none(),
                "{peer} {offset} {length} {last}"
            );
        }
        assert!(operations.data(number + 1, way(3), 0, 5, false).is_none());
        assert!(matches!(
            operations.data(number, way(3), 0, 4, false),
            Some((1000, None))
        ));
        let (at, over) = operations.data(number, way(3), 4, 6, true).unwrap();
        assert_eq!((at, over.unwrap().done), (1004, 77));
        assert!(operations.take(number, way(3)).is_none());
    }

    #[test]
    fn the_end_of_a_way_ends_its_operations_only() {
        let operations = Operations::new();
        for (peer, done) in [(1, 10), (2, 20), (1, 11)] {
            operations.add(Operation {
                way: way(peer),
                kind: Kind::Put,
                done,
            });
        }
        let mut told = operations.of(way(1));
        told.sort_unstable();
        assert_eq!(told, [10, 11]);
        assert!(operations.of(Way { rail: 1, ..way(2) }).is_empty());
        assert_eq!(operations.of(way(2)), [20]);
        assert!(operations.of(way(1)).is_empty());
    }
}
