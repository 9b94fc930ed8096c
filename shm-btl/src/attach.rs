//! Finding a peer by its card, and being sure that it is the one.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags};
use rustix::fs::{CWD, FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags};

use crate::card::Card;
use crate::cma::{CmaError, Probe};
use crate::config::{Copies, ShmConfig};
use crate::host::{Host, start_time, yama_scope};
use crate::layout::{About, CLAIMS_MAGIC, Common, DATA_MAGIC, Layout, PairHead, Slot, VERSION};
use shmem::sync::{AtomicU64, Ordering};
use shmem::{Access, Bytes, LINE, Line, Mapping, Shared, SharedFile, SharedSlice};

/// A peer's memory and what else leads to it.
#[derive(Debug)]
pub(crate) struct Attached {
    pub(crate) common: Shared<Common>,
    /// The peer's words for us.
    pub(crate) pair: Shared<PairHead>,
    /// Messages to us.
    pub(crate) slots: SharedSlice<Slot>,
    pub(crate) ring: Bytes,
    /// All of its chunks.
    pub(crate) pool: Bytes,
    /// Its claim words; written by all.
    pub(crate) claims: SharedSlice<AtomicU64>,
    /// Its pipe, to wake it. We hold it open for reading as well, so that a write to it never raises SIGPIPE in our process, which belongs to
    /// somebody else.
    pub(crate) bell: OwnedFd,
    /// Becomes readable when it ends.
    pub(crate) pidfd: OwnedFd,
}

/// May this peer be reached from here at all? In words why not.
pub(crate) fn eligible(
    card: &Card,
    rank: u32,
    job: u64,
    host: &Host,
    layout: &Layout,
    config: &ShmConfig,
) -> Result<(), String> {
    let their = &card.host;
    if card.job != job {
        return Err(format!(
            "the card is of another job than \"{}\"",
            config.job
        ));
    }
    if card.rank != rank {
        return Err(format!("the card is rank {}'s", card.rank));
    }
    if their.boot != host.boot {
        return Err("it runs on another node".into());
    }
    if their.net_ns != host.net_ns && !config.across_net_namespaces {
        return Err("it runs in another network namespace, which counts as another node (unless across_net_namespaces)".into());
    }
    if their.pid_ns != host.pid_ns {
        return Err(
            "it runs in another PID namespace (container), so its memory cannot be found through /proc; \
                    let the containers of a job share one"
                .into(),
        );
    }
    if their.uid != host.uid {
        return Err(format!(
            "it runs as user {}, this process as user {}",
            their.uid, host.uid
        ));
    }
    if card.layout != *layout {
        return Err("its sizes (slots, ring, chunk, chunks) are configured differently".into());
    }
    Ok(())
}

/// Opens what the card names and checks that it is what it says.
pub(crate) fn attach(card: &Card, own_rank: u32) -> Result<Attached, String> {
    let pid = i32::try_from(card.pid)
        .ok()
        .and_then(Pid::from_raw)
        .ok_or("the card's process id is none")?;
    // First hold the process, then ask who it is: what is true now stays true of this descriptor.
    let pidfd =
        rustix::process::pidfd_open(pid, PidfdFlags::empty()).map_err(|error| match error {
            Errno::SRCH => format!("process {} has ended", card.pid),
            Errno::NOSYS => "this kernel has no pidfd_open (Linux 5.3)".into(),
            error => format!("process {}: {error}", card.pid),
        })?;
    if start_time(card.pid).ok() != Some(card.started) {
        return Err(format!(
            "process {} has ended; another one has its number now",
            card.pid
        ));
    }
    let layout = &card.layout;
    let data = open(
        card,
        card.data,
        "memory",
        FileType::RegularFile,
        OFlags::RDONLY,
    )?;
    let data = SharedFile::open(data, layout.data_bytes())
        .map_err(|what| format!("its memory is refused: {what}"))?;
    let claims = open(
        card,
        card.claims,
        "claims",
        FileType::RegularFile,
        OFlags::RDWR,
    )?;
    let claims = SharedFile::open(claims, layout.claims_bytes())
        .map_err(|what| format!("its claims are refused: {what}"))?;
    let bell = open(
        card,
        card.bell,
        "pipe",
        FileType::Fifo,
        OFlags::RDWR | OFlags::NONBLOCK,
    )?;

    let map = |file: &SharedFile, offset, len, access| {
        let map: io::Result<Arc<Mapping>> = file.map(offset, len, access);
        map.map_err(|error| format!("mapping its memory: {error}"))
    };
    let shared = map(&data, 0, layout.shared_bytes(), Access::Read)?;
    let pair_at = layout.pair_at(own_rank);
    let pair = map(&data, pair_at, layout.pair_bytes(), Access::Read)?;
    let claims = map(&claims, 0, layout.claims_bytes(), Access::Write)?;
    // SAFETY: the words of a peer's data file are only loaded.
    let (common, head, slots) = unsafe {
        let slots = layout.slots as usize;
        (
            Shared::<Common>::read_only(&shared, 0),
            Shared::<PairHead>::read_only(&pair, 0),
            SharedSlice::<Slot>::read_only(&pair, Layout::SLOTS_AT, slots),
        )
    };
    check_about(&common.about.0, DATA_MAGIC, card.nonce)?;
    check_about(
        &Shared::<Line<About>>::new(&claims, 0).0,
        CLAIMS_MAGIC,
        card.nonce,
    )?;
    if has_ended(&pidfd) {
        return Err(format!("process {} has ended", card.pid));
    }
    pair.populate(0, layout.ring_at());
    Ok(Attached {
        common,
        pair: head,
        slots,
        ring: Bytes::new(&pair, layout.ring_at(), layout.ring as usize),
        pool: Bytes::new(&shared, layout.chunks_at(), layout.chunks_bytes()),
        claims: SharedSlice::new(&claims, LINE, layout.claims()),
        bell,
        pidfd,
    })
}

/// Says what the owner's file is.
pub(crate) fn introduce(about: &About, magic: u64, nonce: [u64; 2]) {
    for (word, value) in about.nonce.iter().zip(nonce) {
        word.store(value, Ordering::Relaxed);
    }
    about.version.store(VERSION, Ordering::Relaxed);
    about.magic.store(magic, Ordering::Release);
}

fn check_about(about: &About, magic: u64, nonce: [u64; 2]) -> Result<(), String> {
    let found = about
        .nonce
        .each_ref()
        .map(|word| word.load(Ordering::Relaxed));
    if about.magic.load(Ordering::Acquire) != magic || found != nonce {
        return Err("its memory is another's than the card says".into());
    }
    if about.version.load(Ordering::Relaxed) != VERSION {
        return Err("its memory is of another version: use one build in the whole job".into());
    }
    Ok(())
}

/// Opens a descriptor of the peer anew. Nothing is opened for good before it is known to be of the right type: opening, say, a
/// device can do things.
fn open(
    card: &Card,
    fd: u32,
    what: &str,
    kind: FileType,
    flags: OFlags,
) -> Result<OwnedFd, String> {
    let path = format!("/proc/{}/fd/{fd}", card.pid);
    let failed = |error: Errno| match error {
        Errno::ACCESS | Errno::PERM => format!(
            "the system does not let us open {path} ({what}): both processes must be of one user and neither may be \
             protected from it (set-uid programs and PR_SET_DUMPABLE are)"
        ),
        error => format!("opening {path} ({what}): {error}"),
    };
    let named = rustix::fs::openat(CWD, &path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
        .map_err(failed)?;
    let stat = rustix::fs::fstat(&named).map_err(failed)?;
    if FileType::from_raw_mode(stat.st_mode) != kind {
        return Err(format!("{path} is not its {what}"));
    }
    let own = format!("/proc/self/fd/{}", named.as_raw_fd());
    rustix::fs::openat(CWD, &own, flags | OFlags::CLOEXEC, Mode::empty()).map_err(failed)
}

/// Of a process descriptor.
pub(crate) fn has_ended(pidfd: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(pidfd, PollFlags::IN)];
    let now = rustix::event::Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    matches!(rustix::event::poll(&mut fds, Some(&now)), Ok(n) if n > 0)
}

/// Does cross-memory attach work with this peer? In words why not.
pub(crate) fn probe(card: &Card, host: &Host, copies: Copies) -> Result<(), String> {
    if copies == Copies::Two {
        return Err("two copies: configured".into());
    }
    if card.probe == 0 {
        return Err(
            "two copies: the peer is configured so, or its system has no cross-memory attach"
                .into(),
        );
    }
    match Probe::try_on(card.pid, card.probe, card.nonce) {
        Ok(true) => Ok(()),
        Ok(false) => {
            Err("two copies: cross-memory attach reads something else than the card says".into())
        }
        Err(error) => Err(format!(
            "two copies: cross-memory attach failed: {}",
            advice(error, card, host)
        )),
    }
}

fn advice(error: CmaError, card: &Card, host: &Host) -> String {
    if !matches!(error, CmaError::Refused(_)) {
        return error.to_string();
    }
    if matches!(error, CmaError::Refused(libc::ENOSYS)) {
        return "this kernel was built without it (CONFIG_CROSS_MEMORY_ATTACH)".into();
    }
    if card.host.user_ns != host.user_ns {
        return "the processes are in different user namespaces; run the job's containers in one"
            .into();
    }
    match yama_scope() {
        Some(0) | None => {
            "a filter of system calls or a security module refuses it; containers need CAP_SYS_PTRACE or a \
                           profile that allows process_vm_readv and process_vm_writev"
                .into()
        }
        Some(1) => "kernel.yama.ptrace_scope is 1 and the peer has not allowed it; set it to 0".into(),
        Some(scope) => {
            format!("kernel.yama.ptrace_scope is {scope}; set it to 1 or 0 (3 stays until the next boot)")
        }
    }
}

/// Yama lets a process be reached by others than its parents once it says so itself.
pub(crate) fn allow_others() -> io::Result<()> {
    if yama_scope() == Some(1) {
        rustix::process::set_ptracer(rustix::process::PTracer::Any)?;
    }
    Ok(())
}
