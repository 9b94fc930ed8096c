//! Mutexes, and the threads and tasks that wait for events of a socket.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::task::Waker;

use esp_engine::shm::{Region, Status};

use crate::error::EspError;

/// Locks a mutex, poisoned or not: the short critical sections of this crate leave nothing half
/// done when a thread panics in one.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Locks a mutex as [`lock`] does, unless another thread has it.
pub(crate) fn try_lock<T: ?Sized>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// Tasks that wait for the same event.
#[derive(Default)]
pub(crate) struct Wakers(Mutex<Vec<Waker>>);

/// Maximum number of registered tasks, some of which may no longer wait. Beyond it, the oldest one
/// is woken and registers again. More waiting tasks than this would wake each other endlessly:
/// there are four for each slot of a client.
#[cfg(feature = "tokio")]
const MAX_WAKERS: usize = 4 * esp_engine::shm::SLOTS;

impl Wakers {
    /// Registers the task of this context.
    #[cfg(feature = "tokio")]
    pub(crate) fn register(&self, cx: &std::task::Context<'_>) {
        let mut wakers = lock(&self.0);
        if wakers.iter().any(|waker| waker.will_wake(cx.waker())) {
            return;
        }
        let oldest = (wakers.len() >= MAX_WAKERS).then(|| wakers.remove(0));
        wakers.push(cx.waker().clone());
        drop(wakers);
        if let Some(waker) = oldest {
            waker.wake();
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        lock(&self.0).is_empty()
    }

    /// Wakes all registered tasks.
    pub(crate) fn wake(&self) {
        let wakers = std::mem::take(&mut *lock(&self.0));
        wakers.into_iter().for_each(Waker::wake);
    }
}

/// Status word of a socket's region, on which threads wait, and the tasks that wait for its events.
pub(crate) struct Waiting {
    pub(crate) status: Status,
    pub(crate) tasks: Wakers,
    /// Reason why the daemon of the socket is gone for this socket.
    pub(crate) lost: OnceLock<EspError>,
}

impl Waiting {
    pub(crate) fn new(region: Arc<Region>) -> Arc<Waiting> {
        Arc::new(Waiting {
            status: Status::new(region),
            tasks: Wakers::default(),
            lost: OnceLock::new(),
        })
    }

    /// Wakes all threads and tasks to check their condition again.
    pub(crate) fn poke(&self) {
        self.status.poke();
        self.tasks.wake();
    }
}

#[cfg(all(test, feature = "tokio"))]
mod tests {
    use std::collections::VecDeque;
    use std::task::{Context, Wake};

    use super::*;

    /// Tasks that are woken, by number, in order.
    type Woken = Arc<Mutex<VecDeque<usize>>>;

    struct Task(usize, Woken);

    impl Wake for Task {
        fn wake(self: Arc<Self>) {
            lock(&self.1).push_back(self.0);
        }
    }

    /// A reading and a writing task of each slot. Each registers again when it is woken, as its
    /// event has not occurred.
    #[test]
    fn two_tasks_of_each_slot_do_not_wake_each_other_endlessly() {
        const TASKS: usize = 2 * esp_engine::shm::SLOTS;
        let (wakers, woken) = (Wakers::default(), Woken::default());
        let task = |number| Waker::from(Arc::new(Task(number, Arc::clone(&woken))));
        let tasks: Vec<Waker> = (0..TASKS).map(task).collect();
        for task in &tasks {
            wakers.register(&Context::from_waker(task));
        }
        let mut steps = 0;
        while let Some(number) = { lock(&woken).pop_front() } {
            steps += 1;
            assert!(steps < 2 * TASKS, "they wake each other endlessly");
            wakers.register(&Context::from_waker(&tasks[number]));
        }
        wakers.wake();
        assert_eq!(lock(&woken).len(), TASKS);
    }

    /// Tasks that were dropped leave their wakers.
    #[test]
    fn the_wakers_of_former_tasks_are_bounded() {
        let (wakers, woken) = (Wakers::default(), Woken::default());
        for number in 0..=MAX_WAKERS {
            let task = Waker::from(Arc::new(Task(number, Arc::clone(&woken))));
            wakers.register(&Context::from_waker(&task));
        }
        assert_eq!(lock(&wakers.0).len(), MAX_WAKERS);
        assert_eq!(*lock(&woken), [0]);
    }
}
