//! Communication among the ranks without the transport under test.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use btl::Rank;

/// A rank's access to the others without the transport.
pub trait Meeting {
    /// Offers bytes to the other ranks.
    ///
    /// # Errors
    /// The suite has ended.
    fn offer(&mut self, mine: &[u8]) -> Result<(), String>;

    /// Returns the offers of all ranks when all live ranks have made theirs. Dead and finished
    /// ranks have `None`.
    ///
    /// # Errors
    /// The suite has ended.
    fn collect(&mut self) -> Result<Option<Vec<Option<Vec<u8>>>>, String>;

    /// Kills a rank, possibly this one. It is dead on return.
    ///
    /// # Errors
    /// Killing is not supported.
    fn kill(&mut self, rank: Rank) -> Result<(), String>;

    /// Returns whether [`kill`](Meeting::kill) is supported.
    fn can_kill(&self) -> bool;

    /// Returns whether this rank was killed, which only threads can observe.
    fn killed(&self) -> bool;

    /// Returns whether another rank failed, which ends the case.
    fn aborted(&mut self) -> bool;
}

/// State of a meeting.
#[derive(Debug, Default)]
pub(super) struct Table {
    offers: Vec<Option<Vec<u8>>>,
    present: Vec<bool>,
    killed: Vec<bool>,
    last: Vec<Option<Vec<u8>>>,
    /// Number of completed exchanges.
    rounds: u64,
    aborted: bool,
}

impl Table {
    pub(super) fn new(size: u32) -> Table {
        let size = size as usize;
        Table {
            offers: vec![None; size],
            present: vec![true; size],
            killed: vec![false; size],
            last: vec![None; size],
            rounds: 0,
            aborted: false,
        }
    }

    /// Adds an offer. Returns true if it completes the exchange.
    pub(super) fn offer(&mut self, rank: Rank, bytes: Vec<u8>) -> bool {
        if let Some(offer) = self.offers.get_mut(rank as usize) {
            *offer = Some(bytes);
        }
        self.settle()
    }

    /// Removes a rank that finished or died. Returns true if that completes an exchange.
    pub(super) fn leave(&mut self, rank: Rank, killed: bool) -> bool {
        if let Some(present) = self.present.get_mut(rank as usize) {
            *present = false;
            self.killed[rank as usize] |= killed;
        }
        self.settle()
    }

    pub(super) fn is_present(&self, rank: Rank) -> bool {
        self.present.get(rank as usize).copied().unwrap_or(false)
    }

    pub(super) fn was_killed(&self, rank: Rank) -> bool {
        self.killed.get(rank as usize).copied().unwrap_or(false)
    }

    pub(super) fn last(&self) -> &[Option<Vec<u8>>] {
        &self.last
    }

    fn settle(&mut self) -> bool {
        let ready = |(offer, present): (&Option<Vec<u8>>, &bool)| !present || offer.is_some();
        let all = self.offers.iter().zip(&self.present).all(ready);
        if !all || !self.present.contains(&true) {
            return false;
        }
        self.last = self.offers.iter_mut().map(Option::take).collect();
        for (last, present) in self.last.iter_mut().zip(&self.present) {
            if !present {
                *last = None;
            }
        }
        self.rounds += 1;
        true
    }
}

/// Function that ends a rank of a job whose ranks are threads.
pub(super) type KillFn = Arc<dyn Fn(Rank) + Send + Sync>;

/// Meeting of threads.
#[derive(Clone)]
pub(super) struct ThreadMeeting {
    pub(super) table: Arc<Mutex<Table>>,
    pub(super) rank: Rank,
    pub(super) kill: Option<KillFn>,
    /// Exchange for which this rank waits.
    pub(super) round: u64,
}

impl ThreadMeeting {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the case because this rank failed. Returns true if another rank failed before, which
    /// may be the cause.
    pub(super) fn abort(&self) -> bool {
        std::mem::replace(&mut self.table().aborted, true)
    }

    /// Removes this rank, which has finished.
    pub(super) fn leave(&self) {
        self.table().leave(self.rank, false);
    }
}

impl Meeting for ThreadMeeting {
    fn offer(&mut self, mine: &[u8]) -> Result<(), String> {
        let mut table = self.table();
        let round = table.rounds;
        table.offer(self.rank, mine.to_vec());
        drop(table);
        self.round = round;
        Ok(())
    }

    fn collect(&mut self) -> Result<Option<Vec<Option<Vec<u8>>>>, String> {
        let table = self.table();
        Ok((table.rounds > self.round).then(|| table.last.clone()))
    }

    fn kill(&mut self, rank: Rank) -> Result<(), String> {
        let Some(kill) = &self.kill else {
            return Err("killing a rank is not supported".into());
        };
        kill(rank);
        self.table().leave(rank, true);
        Ok(())
    }

    fn can_kill(&self) -> bool {
        self.kill.is_some()
    }

    fn killed(&self) -> bool {
        self.table().was_killed(self.rank)
    }

    fn aborted(&mut self) -> bool {
        self.table().aborted
    }
}
