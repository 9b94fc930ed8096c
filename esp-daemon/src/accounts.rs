//! Quotas of users. A [`Charge`] is held by the resource it pays for and returned on drop.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use dashmap::DashMap;
use tokio::sync::Semaphore;

use crate::config::{Limits, Resource};

const RESOURCES: usize = Resource::ALL.len();

/// Charges of one user. Exists while any are held, and until its request rate has recovered: a
/// program that connects again gets no new burst.
#[derive(Debug)]
struct Account {
    used: [u64; RESOURCES],
    requests: Bucket,
    /// One permit, held by the program whose status is being made or is unread.
    status: Arc<Semaphore>,
}

impl Account {
    fn idle(&self) -> bool {
        self.used.iter().all(|used| *used == 0)
    }
}

/// Charges and limits of all users.
#[derive(Debug)]
pub struct Accounts {
    users: DashMap<u32, Account>,
    node: [AtomicU64; RESOURCES],
    limits: RwLock<Arc<Limits>>,
}

/// Error: a limit is reached. The text is meant for the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OverLimit {
    what: Resource,
    limit: u64,
    /// `None`: the limit of the node.
    uid: Option<u32>,
}

impl fmt::Display for OverLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (mut noun, mut key, limit) = (self.what.noun(), self.what.key(), self.limit);
        if let Some(uid) = self.uid {
            return write!(
                f,
                "limit of user {uid} reached: at most {limit} {noun}; close some, or ask the administrator to raise \
                 limits.{key} in the daemon's config"
            );
        }
        if node_counter(self.what) == Some(Resource::Streams) {
            (noun, key) = ("streams and datagram sockets", "sockets");
        }
        write!(
            f,
            "limit of this node reached: at most {limit} {noun} of all users; retry later, or ask the \
             administrator to raise limits.node.{key} in the daemon's config"
        )
    }
}

/// Returns the counter of the node on which a resource is counted. Streams and datagram sockets
/// share one.
fn node_counter(what: Resource) -> Option<Resource> {
    match what {
        Resource::Programs | Resource::RingBytes => Some(what),
        Resource::Streams | Resource::EdpSockets => Some(Resource::Streams),
        Resource::Listeners | Resource::Leases | Resource::Requests => None,
    }
}

impl Accounts {
    /// Creates empty accounts.
    pub fn new(limits: Limits) -> Arc<Accounts> {
        Arc::new(Accounts {
            users: DashMap::new(),
            node: Default::default(),
            limits: RwLock::new(Arc::new(limits)),
        })
    }

    /// Returns the current limits.
    pub fn limits(&self) -> Arc<Limits> {
        Arc::clone(&self.limits.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Replaces the limits. Users above them keep their resources and get no more.
    pub fn set_limits(&self, limits: Limits) {
        *self.limits.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(limits);
    }

    /// Charges a user.
    ///
    /// # Errors
    /// The exceeded limit. In this case nothing is charged.
    pub fn charge(
        self: &Arc<Self>,
        uid: u32,
        what: Resource,
        amount: u64,
    ) -> Result<Charge, OverLimit> {
        let limits = self.limits();
        let limit = limits.of(uid, what);
        if !self.users.contains_key(&uid) {
            self.forget_idle(&limits);
        }
        let mut account = self.users.entry(uid).or_insert_with(|| Account {
            used: [0; RESOURCES],
            requests: Bucket::full(limits.of(uid, Resource::Requests)),
            status: Arc::new(Semaphore::new(1)),
        });
        let refused = if account.used[what as usize].saturating_add(amount) > limit {
            Some(OverLimit {
                what,
                limit,
                uid: Some(uid),
            })
        } else {
            self.charge_node(&limits, what, amount).err()
        };
        if let Some(error) = refused {
            return Err(error);
        }
        account.used[what as usize] += amount;
        Ok(Charge {
            accounts: Arc::clone(self),
            uid,
            what,
            amount,
        })
    }

    /// Removes the accounts that do not differ from new ones.
    fn forget_idle(&self, limits: &Limits) {
        let now = Instant::now();
        self.users.retain(|uid, account| {
            let rate = limits.of(*uid, Resource::Requests) as f64;
            !account.idle() || account.requests.tokens_at(rate, now) < Bucket::size(rate)
        });
    }

    fn charge_node(&self, limits: &Limits, what: Resource, amount: u64) -> Result<(), OverLimit> {
        let Some(counter) = node_counter(what) else {
            return Ok(());
        };
        let limit = match counter {
            Resource::Programs => limits.node.programs.into(),
            Resource::RingBytes => limits.node.ring_bytes.into(),
            _ => limits.node.sockets.into(),
        };
        let add = |used: u64| used.checked_add(amount).filter(|sum| *sum <= limit);
        match self.node[counter as usize].fetch_update(Ordering::Relaxed, Ordering::Relaxed, add) {
            Ok(_) => Ok(()),
            Err(_) => Err(OverLimit {
                what,
                limit,
                uid: None,
            }),
        }
    }

    fn give_back(&self, uid: u32, what: Resource, amount: u64) {
        if let Some(counter) = node_counter(what) {
            self.node[counter as usize].fetch_sub(amount, Ordering::Relaxed);
        }
        if let Some(mut account) = self.users.get_mut(&uid) {
            let used = &mut account.used[what as usize];
            *used = used.saturating_sub(amount);
        }
    }

    /// Takes one request from the user's rate, or returns the time to wait. Users without charges
    /// are not limited.
    pub fn request(&self, uid: u32, now: Instant) -> Result<(), Duration> {
        let rate = self.limits().of(uid, Resource::Requests) as f64;
        match self.users.get_mut(&uid) {
            Some(mut account) => account.requests.take(rate, now),
            None => Ok(()),
        }
    }

    /// Returns the semaphore of the user's programs for a status, which may have several megabytes:
    /// one permit. `None` for a user without charges.
    pub(crate) fn status_turn(&self, uid: u32) -> Option<Arc<Semaphore>> {
        let account = self.users.get(&uid)?;
        Some(Arc::clone(&account.status))
    }

    /// Returns the charges of all users together.
    pub fn total(&self, what: Resource) -> u64 {
        self.users
            .iter()
            .map(|account| account.used[what as usize])
            .sum()
    }

    /// Returns the number of users with charges.
    pub fn users(&self) -> usize {
        self.users.iter().filter(|account| !account.idle()).count()
    }

    /// Returns true when nothing is charged; for tests and the last log line.
    pub fn is_empty(&self) -> bool {
        self.users() == 0
            && Resource::ALL
                .iter()
                .all(|what| self.node[*what as usize].load(Ordering::Relaxed) == 0)
    }
}

/// Quota permit: part of a user's limit, returned on drop.
#[derive(Debug)]
pub struct Charge {
    accounts: Arc<Accounts>,
    uid: u32,
    what: Resource,
    amount: u64,
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.accounts.give_back(self.uid, self.what, self.amount);
    }
}

/// Token bucket; holds the tokens of half a second, so that a start-up burst passes.
#[derive(Debug)]
struct Bucket {
    tokens: f64,
    since: Option<Instant>,
}

impl Bucket {
    fn full(rate: u64) -> Bucket {
        Bucket {
            tokens: Bucket::size(rate as f64),
            since: None,
        }
    }

    fn size(rate: f64) -> f64 {
        (rate / 2.0).max(1.0)
    }

    fn tokens_at(&self, rate: f64, now: Instant) -> f64 {
        let passed = self
            .since
            .map_or(Duration::ZERO, |since| now.saturating_duration_since(since));
        (self.tokens + passed.as_secs_f64() * rate).min(Bucket::size(rate))
    }

    fn take(&mut self, rate: f64, now: Instant) -> Result<(), Duration> {
        self.tokens = self.tokens_at(rate, now);
        self.since = Some(now);
        if self.tokens >= 1.0 {
            self.tokens -= 1.0;
            return Ok(());
        }
        let wait = (1.0 - self.tokens) / rate.max(1.0);
        // The runtime's timer has a resolution of a millisecond.
        Err(Duration::from_secs_f64(wait).max(Duration::from_millis(1)))
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::Config;

    fn accounts(text: &str) -> Arc<Accounts> {
        Accounts::new(Config::parse(text, Path::new("t")).unwrap().limits)
    }

    #[test]
    fn limit_is_exact_and_charges_are_returned() {
        let accounts = accounts("[limits]\nstreams = 2\n");
        let one = accounts.charge(5, Resource::Streams, 1).unwrap();
        let _two = accounts.charge(5, Resource::Streams, 1).unwrap();
        let error = accounts
            .charge(5, Resource::Streams, 1)
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("limit of user 5 reached: at most 2 streams")
                && error.contains("limits.streams"),
            "{error}"
        );
        let _other = accounts.charge(6, Resource::Streams, 1).unwrap();
        drop(one);
        let _again = accounts.charge(5, Resource::Streams, 1).unwrap();
        assert_eq!(accounts.total(Resource::Streams), 3);
    }

    #[test]
    fn node_limit_holds_across_users_and_kinds() {
        let accounts = accounts("[limits.node]\nsockets = 2\n");
        let _one = accounts.charge(1, Resource::Streams, 1).unwrap();
        let two = accounts.charge(2, Resource::EdpSockets, 1).unwrap();
        let error = accounts
            .charge(3, Resource::Streams, 1)
            .unwrap_err()
            .to_string();
        assert!(error.contains("limits.node.sockets"), "{error}");
        assert_eq!(accounts.users(), 2, "a refused user leaves no account");
        drop(two);
        let _three = accounts.charge(3, Resource::Streams, 1).unwrap();
    }

    #[test]
    fn no_account_is_left_when_everything_is_returned() {
        let accounts = accounts("");
        let charges: Vec<Charge> = Resource::ALL
            .iter()
            .flat_map(|what| accounts.charge(1, *what, 3))
            .collect();
        assert_eq!(charges.len(), RESOURCES);
        assert!(!accounts.is_empty());
        drop(charges);
        assert!(accounts.is_empty());
    }

    #[test]
    fn lowered_limits_revoke_nothing() {
        let accounts = accounts("");
        let held = accounts.charge(1, Resource::Listeners, 5).unwrap();
        let lowered = Config::parse("[limits]\nlisteners = 2\n", Path::new("t")).unwrap();
        accounts.set_limits(lowered.limits);
        assert!(accounts.charge(1, Resource::Listeners, 1).is_err());
        assert_eq!(accounts.total(Resource::Listeners), 5);
        drop(held);
        assert!(accounts.charge(1, Resource::Listeners, 1).is_ok());
    }

    #[test]
    fn requests_beyond_the_rate_wait() {
        let accounts = accounts("[limits]\nrequests_per_second = 10\n");
        let _program = accounts.charge(1, Resource::Programs, 1).unwrap();
        let now = Instant::now();
        for _ in 0..5 {
            assert_eq!(accounts.request(1, now), Ok(()));
        }
        let wait = accounts.request(1, now).unwrap_err();
        assert!(
            wait > Duration::from_millis(50) && wait <= Duration::from_millis(100),
            "{wait:?}"
        );
        assert_eq!(accounts.request(1, now + wait), Ok(()));
        assert!(accounts.request(1, now + wait).is_err());
    }

    #[test]
    fn a_program_that_connects_again_gets_no_new_burst() {
        let accounts = accounts("[limits]\nrequests_per_second = 10\n");
        let now = Instant::now() + Duration::from_secs(60);
        for attempt in 0..6 {
            let _program = accounts.charge(1, Resource::Programs, 1).unwrap();
            assert_eq!(accounts.request(1, now).is_ok(), attempt < 5, "{attempt}");
        }
        assert_eq!(accounts.users(), 0);
        assert_eq!(accounts.users.len(), 1);
    }

    #[test]
    fn accounts_that_have_recovered_are_forgotten() {
        let accounts = accounts("[limits]\nrequests_per_second = 10\n");
        let _program = accounts.charge(1, Resource::Programs, 1).unwrap();
        let past = Instant::now() - Duration::from_secs(1);
        for uid in 2..100 {
            let program = accounts.charge(uid, Resource::Programs, 1).unwrap();
            accounts.request(uid, past).unwrap();
            drop(program);
        }
        // The new one, the held one, and the one before.
        assert!(accounts.users.len() <= 3, "{}", accounts.users.len());
    }
}
