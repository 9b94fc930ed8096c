//! One thread at a time has the transport, and nobody waits for it.
//!
//! Open MPI's threads send and make progress at the same time, and what progress calls sends again. A lock that is held across such
//! a call would be waited for by a thread that holds a lock of Open MPI's that the call wants. So: who finds the transport taken does
//! not wait but leaves its message in a queue ([`crate::queues`]), and who has it looks there before giving it back.

use std::cell::UnsafeCell;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};

use btl::Tx;
use btl_eth::EthBtl;

thread_local! {
    /// Its address names a thread.
    static HERE: u8 = const { 0 };
}

fn me() -> usize {
    HERE.with(|here| ptr::from_ref(here).addr())
}

/// The transport, and who has it.
pub(crate) struct Turn {
    /// The thread that has it; 0: nobody.
    owner: AtomicUsize,
    /// For the owner.
    transport: UnsafeCell<Option<EthBtl>>,
    /// For the owner: the transport while something outside is called, else null.
    lent: UnsafeCell<*mut EthBtl>,
}

// SAFETY: `transport` and `lent` are touched by the owner only, and there is one at most.
unsafe impl Sync for Turn {}

/// It is not to be had now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// Somebody has it.
    Taken,
    /// There is none.
    None,
}

impl Turn {
    pub(crate) const fn new() -> Turn {
        Turn {
            owner: AtomicUsize::new(0),
            transport: UnsafeCell::new(None),
            lent: UnsafeCell::new(ptr::null_mut()),
        }
    }

    /// This thread has the transport: it is called by what the transport has called.
    #[inline]
    pub(crate) fn is_mine(&self) -> bool {
        self.owner.load(Ordering::Relaxed) == me()
    }

    fn take(&self, me: usize) -> bool {
        self.owner
            .compare_exchange(0, me, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
    }

    /// Calls `f` with the transport, if nobody has it; not even this thread.
    pub(crate) fn enter<R>(&self, f: impl FnOnce(&mut Option<EthBtl>) -> R) -> Option<R> {
        if !self.take(me()) {
            return None;
        }
        // SAFETY: this thread is the owner since the line above.
        let result = f(unsafe { &mut *self.transport.get() });
        self.owner.store(0, Ordering::Release);
        Some(result)
    }

    /// Calls `f` with the transport, if nobody has it, or if this thread has it and has lent it to what it called.
    #[inline]
    pub(crate) fn with<R>(&self, f: impl FnOnce(&mut EthBtl) -> R) -> Result<R, Refused> {
        let me = me();
        if self.owner.load(Ordering::Relaxed) == me {
            // SAFETY: this thread is the owner.
            let lent = unsafe { ptr::replace(self.lent.get(), ptr::null_mut()) };
            if lent.is_null() {
                return Err(Refused::Taken);
            }
            // SAFETY: `lend` put it there for the time of its call, in which this is; and it is nobody else's, for it was taken out.
            let result = f(unsafe { &mut *lent });
            // SAFETY: this thread is the owner.
            unsafe { *self.lent.get() = lent };
            return Ok(result);
        }
        if !self.take(me) {
            return Err(Refused::Taken);
        }
        // SAFETY: this thread is the owner since the lines above.
        let result = unsafe { &mut *self.transport.get() }
            .as_mut()
            .map(f)
            .ok_or(Refused::None);
        self.owner.store(0, Ordering::Release);
        result
    }

    /// The owner calls `f`, which calls things outside that may come back to [`Turn::with`].
    pub(crate) fn lend<R>(&self, transport: &mut EthBtl, f: impl FnOnce() -> R) -> R {
        // SAFETY: only an owner has a transport to lend.
        let before = unsafe { ptr::replace(self.lent.get(), transport) };
        let result = f();
        // SAFETY: as above.
        unsafe { *self.lent.get() = before };
        result
    }

    /// As [`Turn::lend`], with what the transport gives its callbacks.
    pub(crate) fn lend_sender<R>(&self, sender: &mut dyn Tx, f: impl FnOnce() -> R) -> R {
        let transport = ptr::from_mut(sender).cast::<EthBtl>();
        // SAFETY: the only transport here is an EthBtl, and it hands itself to its callbacks.
        self.lend(unsafe { &mut *transport }, f)
    }
}
