//! The job of this process, and the handles of its objects in C.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use job::Job;
use p2p::{Comm, Message, P2p, RequestId};

use crate::code::{Code, Fault};

/// State between `esp_init` and `esp_finalize`.
struct Joined {
    p2p: P2p,
    world: Comm,
    report: String,
    /// Communicators by handle, from 1.
    comms: BTreeMap<i32, Comm>,
    next_comm: i32,
}

/// Phase of the library's life cycle.
enum Phase {
    Before,
    Joined(Joined),
    After,
}

static PHASE: RwLock<Phase> = RwLock::new(Phase::Before);
/// Held while this process joins the job, so that a second thread does not join again.
static JOINING: Mutex<()> = Mutex::new(());
/// The job. Only [`abort`], which ends the process, holds the lock during a wait, so that no other
/// call delays it.
static JOB: Mutex<Option<Job>> = Mutex::new(None);
static MESSAGES: Mutex<(u64, BTreeMap<u64, Message>)> = Mutex::new((1, BTreeMap::new()));

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn outside(phase: &Phase) -> Fault {
    let text = match phase {
        Phase::After => "this process has left the job (esp_finalize) already",
        _ => "this process has not joined a job: call esp_init first",
    };
    Fault::new(Code::State, text)
}

fn phase() -> RwLockReadGuard<'static, Phase> {
    PHASE.read().unwrap_or_else(PoisonError::into_inner)
}

fn phase_mut() -> RwLockWriteGuard<'static, Phase> {
    PHASE.write().unwrap_or_else(PoisonError::into_inner)
}

fn joined<T>(work: impl FnOnce(&Joined) -> Result<T, Fault>) -> Result<T, Fault> {
    match &*phase() {
        Phase::Joined(joined) => work(joined),
        phase => Err(outside(phase)),
    }
}

fn joined_mut<T>(work: impl FnOnce(&mut Joined) -> Result<T, Fault>) -> Result<T, Fault> {
    match &mut *phase_mut() {
        Phase::Joined(joined) => work(joined),
        phase => Err(outside(phase)),
    }
}

pub(crate) fn init() -> Result<(), Fault> {
    let _joining = lock(&JOINING);
    if !matches!(&*phase(), Phase::Before) {
        let text = "esp_init was called before: a process can join only one job";
        return Err(Fault::new(Code::State, text));
    }
    let job = job::join().map_err(|e| Fault::new(Code::Join, e.to_string()))?;
    let joined = Joined {
        p2p: job.p2p().clone(),
        world: job.world(),
        report: job.report().to_string(),
        comms: BTreeMap::new(),
        next_comm: 1,
    };
    let mut held = lock(&JOB);
    *held = Some(job);
    *phase_mut() = Phase::Joined(joined);
    Ok(())
}

pub(crate) fn finalize() -> Result<(), Fault> {
    let mut held = lock(&JOB);
    let Some(job) = held.take() else {
        return Err(outside(&phase()));
    };
    *phase_mut() = Phase::After;
    // The rest waits for the other processes; another thread may call `esp_abort` during that.
    drop(held);
    lock(&MESSAGES).1.clear();
    job.finalize().map_err(|error| match error {
        job::FinalizeError::P2p(error) => Fault::from(error),
        job::FinalizeError::Boot(error) => Fault::new(Code::Launcher, error.to_string()),
    })
}

pub(crate) fn initialized() -> bool {
    joined(|_| Ok(())).is_ok()
}

/// Ends all processes of the job, or this process if it has not joined or begins to leave. The
/// launcher of a job that it leaves treats that as a failure, like the loss of any process.
pub(crate) fn abort(code: i32, why: &str) -> ! {
    if let Some(job) = &*lock(&JOB) {
        job.abort(code, why)
    }
    let place = match &*phase() {
        Phase::After => "in or after esp_finalize",
        _ => "outside of a job",
    };
    eprintln!("esp: abort (code {code}) {place}: {why}");
    std::process::exit(code)
}

pub(crate) fn report() -> Result<String, Fault> {
    joined(|j| Ok(j.report.clone()))
}

pub(crate) fn p2p() -> Result<P2p, Fault> {
    joined(|j| Ok(j.p2p.clone()))
}

/// Returns the communicator of a handle.
pub(crate) fn comm(number: i32) -> Result<Comm, Fault> {
    joined(|j| match number {
        0 => Ok(j.world.clone()),
        number => j.comms.get(&number).cloned().ok_or_else(|| no_comm(number)),
    })
}

fn no_comm(number: i32) -> Fault {
    Fault::new(Code::Comm, format!("there is no communicator {number}"))
}

/// Creates a handle for a new communicator.
pub(crate) fn add_comm(comm: Comm) -> Result<i32, Fault> {
    joined_mut(|j| {
        let number = j.next_comm;
        j.next_comm = number
            .checked_add(1)
            .ok_or_else(|| Fault::new(Code::System, "too many communicators"))?;
        j.comms.insert(number, comm);
        Ok(number)
    })
}

pub(crate) fn free_comm(number: i32) -> Result<(), Fault> {
    match joined_mut(|j| Ok(j.comms.remove(&number)))? {
        Some(_) => Ok(()),
        None if number == 0 => Err(Fault::new(Code::Comm, "the world cannot be freed")),
        None => Err(no_comm(number)),
    }
}

pub(crate) fn add_message(message: Message) -> u64 {
    let mut messages = lock(&MESSAGES);
    let number = messages.0;
    messages.0 += 1;
    messages.1.insert(number, message);
    number
}

pub(crate) fn take_message(number: u64) -> Result<Message, Fault> {
    let found = lock(&MESSAGES).1.remove(&number);
    let text = "a message that was already received or never existed";
    found.ok_or_else(|| Fault::new(Code::Message, text))
}

/// Converts a request to its handle in C, where 0 is none.
pub(crate) fn request_number(id: RequestId) -> u64 {
    id.to_bits().wrapping_add(1)
}

pub(crate) fn request(number: u64) -> RequestId {
    RequestId::from_bits(number.wrapping_sub(1))
}
