//! Where the ranks meet without the transport under test.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use btl::Rank;

/// One rank's access to the others, besides the transport.
pub trait Meeting {
    /// Lays something down for the others.
    ///
    /// # Errors
    /// The suite is over.
    fn offer(&mut self, mine: &[u8]) -> Result<(), String>;

    /// What all living ranks laid down, once all have; a dead or finished rank's is `None`.
    ///
    /// # Errors
    /// The suite is over.
    fn collect(&mut self) -> Result<Option<Vec<Option<Vec<u8>>>>, String>;

    /// Kills a rank, also the own one; on return it is dead.
    ///
    /// # Errors
    /// Not possible here.
    fn kill(&mut self, rank: Rank) -> Result<(), String>;

    /// Whether [`kill`](Meeting::kill) works.
    fn can_kill(&self) -> bool;

    /// Whether this rank was killed (only threads live to see it).
    fn killed(&self) -> bool;

    /// Another rank failed: the case is over.
    fn aborted(&mut self) -> bool;
}

/// The state of a meeting.
#[derive(Debug, Default)]
pub(super) struct Table {
    offers: Vec<Option<Vec<u8>>>,
    present: Vec<bool>,
    killed: Vec<bool>,
    last: Vec<Option<Vec<u8>>>,
    /// Exchanges that are over.
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

    /// True: an exchange is complete.
    pub(super) fn offer(&mut self, rank: Rank, bytes: Vec<u8>) -> bool {
        if let Some(place) = self.offers.get_mut(rank as usize) {
            *place = Some(bytes);
        }
        self.settle()
    }

    /// A rank has finished or died. True: that completed an exchange.
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

/// What ends a rank of a job whose ranks are threads.
pub(super) type KillFn = Arc<dyn Fn(Rank) + Send + Sync>;

/// A meeting of threads.
#[derive(Clone)]
pub(super) struct ThreadMeeting {
    pub(super) table: Arc<Mutex<Table>>,
    pub(super) rank: Rank,
    pub(super) kill: Option<KillFn>,
    /// The round this rank waits for.
    pub(super) round: u64,
}

impl ThreadMeeting {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// This rank failed, the others need not go on. True: another one did before, and what failed
    /// here may follow from that.
    pub(super) fn abort(&self) -> bool {
        std::mem::replace(&mut self.table().aborted, true)
    }

    /// This rank is done.
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
            return Err("no way to kill a rank".into());
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
