//! The engines of the daemon: one, or several among which the programs are divided.
//!
//! A program is served by one engine, which owns its ports ([`esp_engine::EngineSet`]): the one
//! with the fewest programs or, for a program of the last daemon, the one with the number of its
//! engine there, to which its ports belong.

use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use esp_client::control::ErrorKind;
use esp_engine::{AssignError, Command, EngineGone, EngineSet, LinkSnapshot, Reply, Snapshot};
use esp_proto::Port;
use tokio::sync::oneshot;

use crate::ports::{self, Claimant};
use crate::refusal::Refusal;

/// Queues a command for an engine. Waits while the queue is full; the engine empties it in every
/// poll. Fails when the engine's thread has ended.
pub type SendCommand = Box<dyn Fn(Command) -> Result<(), EngineGone> + Send + Sync>;

/// A counter: name, help, value.
type Counter = (&'static str, &'static str, u64);

/// The engines.
pub struct Engines {
    set: Arc<EngineSet>,
    /// At least one, in the set's order: the queue of commands, and the page in which programs see
    /// whether the engine sleeps.
    engines: Vec<(SendCommand, OwnedFd)>,
    /// Number of programs of each.
    programs: Arc<Mutex<Vec<usize>>>,
}

/// The place of a program at an engine, released on drop.
#[derive(Debug)]
pub(crate) struct Seat {
    engine: u8,
    programs: Arc<Mutex<Vec<usize>>>,
}

impl fmt::Debug for Engines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engines")
            .field("set", &self.set)
            .finish_non_exhaustive()
    }
}

impl Engines {
    /// Creates the table of the engines of a set, one entry for each: the function that queues its
    /// commands, and its page.
    pub fn new(set: Arc<EngineSet>, engines: Vec<(SendCommand, OwnedFd)>) -> Engines {
        let programs = Arc::new(Mutex::new(vec![0; engines.len()]));
        Engines {
            set,
            engines,
            programs,
        }
    }

    pub(crate) fn count(&self) -> u8 {
        self.set.engines()
    }

    pub(crate) fn numbers(&self) -> impl Iterator<Item = u8> + use<> {
        0..self.count()
    }

    /// Returns the random number that identifies this run of the engines.
    pub(crate) fn incarnation(&self) -> u64 {
        self.set.incarnation()
    }

    /// Takes a place for a program: at the engine with this number, if there is one, else at the
    /// one with the fewest programs.
    pub(crate) fn seat(&self, engine: Option<u8>) -> Seat {
        let mut programs = lock(&self.programs);
        let numbers = 0..self.count();
        let wanted = engine.filter(|engine| numbers.contains(engine));
        let fewest = || {
            let all = numbers.clone().zip(programs.iter());
            all.min_by_key(|(_, count)| **count)
                .map(|(engine, _)| engine)
        };
        let engine = wanted.or_else(fewest).unwrap_or(0);
        if let Some(count) = programs.get_mut(usize::from(engine)) {
            *count += 1;
        }
        Seat {
            engine,
            programs: Arc::clone(&self.programs),
        }
    }

    /// Returns a copy of an engine's page.
    pub(crate) fn page(&self, engine: u8) -> std::io::Result<OwnedFd> {
        let found = self.engines.get(usize::from(engine));
        found.map_or_else(
            || Err(std::io::ErrorKind::NotFound.into()),
            |(_, page)| page.try_clone(),
        )
    }

    /// Sends a command that has no answer.
    pub(crate) fn send(&self, engine: u8, command: Command) -> Result<(), Refusal> {
        let found = self.engines.get(usize::from(engine));
        let sent = found.ok_or(EngineGone).and_then(|(send, _)| send(command));
        sent.map_err(|_| Refusal::unavailable())
    }

    /// Sends a command and waits for its answer, for one poll of the engine.
    pub(crate) async fn request<T: Send + 'static>(
        &self,
        engine: u8,
        command: impl FnOnce(Reply<T>) -> Command,
    ) -> Result<T, Refusal> {
        let (answer, answered) = oneshot::channel();
        let command = command(Box::new(move |value| {
            let _ = answer.send(value); // the requester may have ended
        }));
        self.send(engine, command)?;
        answered.await.map_err(|_| Refusal::unavailable())
    }

    /// Assigns a port that a program has claimed to the program's engine, and waits until the
    /// frames of the port reach it ([`EngineSet::assign`]).
    pub(crate) async fn assign(
        &self,
        port: Port,
        program: Claimant,
        used_by_others: impl Fn(Port, u8) -> bool,
    ) -> Result<(), Refusal> {
        let (answer, answered) = oneshot::channel();
        let reply = Box::new(move |assigned| {
            let _ = answer.send(assigned); // the requester may have ended
        });
        let Claimant { uid, engine } = program;
        self.set.assign(port, (engine, uid), used_by_others, reply);
        let assigned = answered.await.map_err(|_| Refusal::unavailable())?;
        assigned.map_err(|error| {
            let kind = match error {
                AssignError::InUse => ErrorKind::InUse,
                AssignError::TooMany | AssignError::Kernel(_) => ErrorKind::Limit,
            };
            Refusal::new(kind, format!("port {port} cannot be used: {error}"))
        })
    }

    /// Returns true if an engine serves a port.
    pub(crate) fn owns(&self, engine: u8, port: Port) -> bool {
        self.set.owner(port) == engine
    }

    /// Takes one of an engine's ephemeral ports: the first that `take` accepts, in a search that
    /// starts at an unpredictable one.
    pub(crate) fn free_port<T>(&self, engine: u8, take: impl Fn(Port) -> Option<T>) -> Option<T> {
        let mut own = ports::ephemeral(ports::random_start());
        // Checked again, because it may have been assigned to another engine before it was taken.
        own.find_map(|port| {
            let taken = self.owns(engine, port).then(|| take(port)).flatten();
            taken.filter(|_| self.owns(engine, port))
        })
    }

    /// Returns the state of all engines: the sums of their counters, and the connections of all.
    pub(crate) async fn snapshot(&self) -> Result<Snapshot, Refusal> {
        let mut all = Snapshot::default();
        for engine in self.numbers() {
            let one = self.request(engine, |reply| Command::Snapshot { reply });
            merge(&mut all, one.await?);
        }
        Ok(all)
    }
}

fn lock(programs: &Mutex<Vec<usize>>) -> MutexGuard<'_, Vec<usize>> {
    programs.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Seat {
    pub(crate) fn engine(&self) -> u8 {
        self.engine
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        if let Some(count) = lock(&self.programs).get_mut(usize::from(self.engine)) {
            *count = count.saturating_sub(1);
        }
    }
}

/// Adds the state of an engine. All engines have the same links and counters.
fn merge(all: &mut Snapshot, one: Snapshot) {
    if all.links.is_empty() {
        *all = one;
        return;
    }
    add(&mut all.engine, &one.engine);
    for (all, one) in all.links.iter_mut().zip(one.links) {
        let LinkSnapshot {
            counters,
            connections,
            listeners,
            edp_ports,
            ..
        } = one;
        add(&mut all.counters, &counters);
        all.connections.extend(connections);
        all.listeners.extend(listeners);
        all.edp_ports.extend(edp_ports);
    }
}

fn add(all: &mut [Counter], one: &[Counter]) {
    for ((_, _, sum), (_, _, value)) in all.iter_mut().zip(one) {
        *sum = sum.saturating_add(*value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn engines(count: u8) -> Engines {
        let engine = |_| {
            let send: SendCommand = Box::new(|_| Ok(()));
            (send, std::fs::File::open("/dev/null").unwrap().into())
        };
        Engines::new(
            EngineSet::new(count).unwrap(),
            (0..count).map(engine).collect(),
        )
    }

    #[test]
    fn programs_are_divided_evenly_and_keep_their_engine() {
        let engines = engines(3);
        let seats: Vec<Seat> = (0..6).map(|_| engines.seat(None)).collect();
        let chosen: Vec<u8> = seats.iter().map(Seat::engine).collect();
        assert_eq!(chosen, [0, 1, 2, 0, 1, 2]);
        let kept = engines.seat(Some(0));
        assert_eq!(kept.engine(), 0);
        drop(seats);
        let next = [(); 3].map(|()| engines.seat(None));
        assert_eq!(next.map(|seat| seat.engine()), [1, 2, 0]);
        assert_eq!(engines.seat(Some(3)).engine(), 1, "there are fewer now");
    }

    #[test]
    fn counters_are_added_and_lists_joined() {
        let one = |value, port| Snapshot {
            engine: vec![("polls", "", value)],
            links: vec![LinkSnapshot {
                interface: "eth0".into(),
                addr: esp_proto::NodeAddr::default(),
                mtu: 1500,
                up: true,
                counters: vec![("rx", "", 10 * value), ("tx", "", value)],
                connections: Vec::new(),
                listeners: vec![(port, None, 0, 1)],
                edp_ports: Vec::new(),
            }],
        };
        let mut all = Snapshot::default();
        merge(&mut all, one(1, 7));
        merge(&mut all, one(2, 9));
        assert_eq!(all.engine, [("polls", "", 3)]);
        let link = &all.links[0];
        assert_eq!(link.counters, [("rx", "", 30), ("tx", "", 3)]);
        assert_eq!(link.listeners, [(7, None, 0, 1), (9, None, 0, 1)]);
    }
}
