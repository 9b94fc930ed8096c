//! Opening a peer's files by its address, and checking that it is the right process.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags};
use rustix::fs::{CWD, FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags};

use crate::address::ShmAddress;
use crate::cma::{CmaError, Probe};
use crate::layout::{About, CHUNK_STRIDE, Common, Layout, PairHead, Requests, Slot};
use crate::process::{NodeView, start_time, yama_scope};
use shmem::sync::Ordering;
use shmem::{Access, Bytes, Mapping, Shared, SharedFile, SharedSlice};

/// Memory and descriptors of a peer.
#[derive(Debug)]
pub(crate) struct Attached {
    pub(crate) common: Shared<Common>,
    /// The peer's words for this process.
    pub(crate) pair: Shared<PairHead>,
    /// Messages to this process.
    pub(crate) slots: SharedSlice<Slot>,
    pub(crate) ring: Bytes,
    /// All chunks of the peer.
    pub(crate) pool: Bytes,
    /// The peer's pipe, to wake it. It is held open for reading as well, so that writing to it
    /// never raises SIGPIPE in this process.
    pub(crate) bell: OwnedFd,
    /// Process descriptor; readable when the peer has ended.
    pub(crate) pidfd: OwnedFd,
}

/// Checks whether the peer may be reached from this process; the error is the reason.
pub(crate) fn eligible(
    address: &ShmAddress,
    rank: u32,
    job: u64,
    node: &NodeView,
) -> Result<(), String> {
    let their = &address.node;
    if address.job != job {
        return Err("the address is that of another job".into());
    }
    if address.rank != rank {
        return Err(format!("the address is that of rank {}", address.rank));
    }
    if their.boot != node.boot {
        return Err("it runs on another node".into());
    }
    if their.net_ns != node.net_ns {
        return Err(
            "it runs in another network namespace, which counts as another node (as in a virtual \
             cluster)"
                .into(),
        );
    }
    if their.pid_ns != node.pid_ns {
        return Err(
            "it runs in another PID namespace (container), so its memory cannot be found through \
             /proc; let the containers of a job share one"
                .into(),
        );
    }
    if their.uid != node.uid {
        return Err(format!(
            "it runs as user {}, this process as user {}",
            their.uid, node.uid
        ));
    }
    Ok(())
}

/// Files of a peer, whose owner was checked.
#[derive(Debug)]
pub(crate) struct Files {
    data: SharedFile<OwnedFd>,
    shared: Arc<Mapping>,
    pub(crate) common: Shared<Common>,
    /// Requests of an open transport.
    pub(crate) requests: Option<Shared<Requests>>,
    bell: OwnedFd,
    pub(crate) pidfd: OwnedFd,
}

impl Files {
    /// Opens the files that the address names.
    pub(crate) fn open(address: &ShmAddress, layout: &Layout) -> Result<Files, String> {
        // The process is opened before its identity is checked, so the result stays valid for this
        // descriptor.
        let pidfd = open_process(address.pid)?;
        if start_time(address.pid).ok() != Some(address.started) {
            return Err(format!(
                "process {} has ended; another process has its number now",
                address.pid
            ));
        }
        let data = open_data(address.pid, address.data, layout)?;
        let (pipe, flags) = (FileType::Fifo, OFlags::RDWR | OFlags::NONBLOCK);
        let bell = open(address.pid, address.bell, "pipe", pipe, flags)?;
        let (shared, common) = map_common(&data, layout)?;
        check_nonce(&common.about.0, address)?;
        let requests = address.requests.map(|fd| open_requests(address, fd));
        let requests = requests.transpose()?;
        if has_ended(&pidfd) {
            return Err(format!("process {} has ended", address.pid));
        }
        Ok(Files {
            data,
            shared,
            common,
            requests,
            bell,
            pidfd,
        })
    }

    /// Wakes the peer.
    pub(crate) fn ring(&self) {
        let _ = rustix::io::write(&self.bell, &[1]);
    }

    /// Maps the peer's pair for this process.
    pub(crate) fn attach(self, layout: &Layout, place: u32) -> Result<Attached, String> {
        let pair = (layout.pair_at(place), layout.pair_bytes());
        let pair = self.data.map(pair.0, pair.1, Access::Read);
        let pair = pair.map_err(map_failed)?;
        // SAFETY: the words of a peer's data file are only loaded.
        let (head, slots) = unsafe {
            (
                Shared::<PairHead>::read_only(&pair, 0),
                SharedSlice::<Slot>::read_only_slice(&pair, Layout::SLOTS_AT, layout.slots),
            )
        };
        pair.populate(0, layout.ring_at());
        let pool = layout.chunks * CHUNK_STRIDE;
        Ok(Attached {
            common: self.common,
            pair: head,
            slots,
            ring: Bytes::new(&pair, layout.ring_at(), layout.ring),
            pool: Bytes::new(&self.shared, layout.chunks_at(), pool),
            bell: self.bell,
            pidfd: self.pidfd,
        })
    }
}

/// Returns the address in the memory of an open transport of process `pid`, whose data file is
/// descriptor `data`. The address is untrusted.
pub(crate) fn read_address(pid: u32, data: u32, layout: &Layout) -> Result<ShmAddress, String> {
    open_process(pid)?;
    let (_map, common) = map_common(&open_data(pid, data, layout)?, layout)?;
    let words = common.address.each_ref();
    let words = words.map(|word| word.load(Ordering::Acquire).to_le_bytes());
    let address = ShmAddress::decode(words.as_flattened()).map_err(|error| error.to_string())?;
    if (address.pid, address.data) != (pid, data) {
        return Err("the address in its memory is another one".into());
    }
    Ok(address)
}

fn open_process(pid: u32) -> Result<OwnedFd, String> {
    let known = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let known = known.ok_or("the address has an invalid process id")?;
    rustix::process::pidfd_open(known, PidfdFlags::empty()).map_err(|error| match error {
        Errno::SRCH => format!("process {pid} has ended"),
        Errno::NOSYS => "this kernel has no pidfd_open: it needs Linux 5.3".into(),
        error => format!("process {pid}: {error}"),
    })
}

fn open_data(pid: u32, data: u32, layout: &Layout) -> Result<SharedFile<OwnedFd>, String> {
    open_file(pid, data, "memory", OFlags::RDONLY, layout.data_bytes())
}

fn open_requests(address: &ShmAddress, fd: u32) -> Result<Shared<Requests>, String> {
    let bytes = Layout::requests_bytes();
    let file = open_file(address.pid, fd, "requests file", OFlags::RDWR, bytes)?;
    let map = file.map(0, bytes, Access::Write).map_err(map_failed)?;
    check_nonce(&Shared::<About>::new(&map, 0), address)?;
    Ok(Shared::new(&map, Layout::REQUESTS_AT))
}

fn check_nonce(about: &About, address: &ShmAddress) -> Result<(), String> {
    let nonce = about.nonce.each_ref();
    if nonce.map(|word| word.load(Ordering::Acquire)) != address.nonce {
        return Err("the memory belongs to another process: the nonce differs".into());
    }
    Ok(())
}

fn open_file(
    pid: u32,
    fd: u32,
    what: &str,
    flags: OFlags,
    bytes: usize,
) -> Result<SharedFile<OwnedFd>, String> {
    let fd = open(pid, fd, what, FileType::RegularFile, flags)?;
    SharedFile::open(fd, bytes).map_err(|why| format!("its {what} is refused: {why}"))
}

fn map_common(
    data: &SharedFile<OwnedFd>,
    layout: &Layout,
) -> Result<(Arc<Mapping>, Shared<Common>), String> {
    let shared = data.map(0, layout.shared_bytes(), Access::Read);
    let shared = shared.map_err(map_failed)?;
    // SAFETY: the words of a peer's data file are only loaded.
    let common = unsafe { Shared::<Common>::read_only(&shared, 0) };
    Ok((shared, common))
}

#[allow(clippy::needless_pass_by_value)] // for map_err
fn map_failed(error: io::Error) -> String {
    format!("mapping its memory: {error}")
}

/// Opens a descriptor of the peer. The type is checked before the file itself is opened, because
/// opening, say, a device may have effects.
fn open(pid: u32, fd: u32, what: &str, kind: FileType, flags: OFlags) -> Result<OwnedFd, String> {
    let path = format!("/proc/{pid}/fd/{fd}");
    let failed = |error: Errno| match error {
        Errno::ACCESS | Errno::PERM => format!(
            "no permission to open {path} ({what}): both processes must run as the same user, and \
             neither may be non-dumpable (set-uid program, PR_SET_DUMPABLE)"
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

/// Returns true if the process of this descriptor has ended.
pub(crate) fn has_ended(pidfd: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(pidfd, PollFlags::IN)];
    let now = rustix::event::Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    matches!(rustix::event::poll(&mut fds, Some(&now)), Ok(n) if n > 0)
}

/// Checks whether cross-memory attach works with this peer; the error is the reason.
pub(crate) fn probe(address: &ShmAddress, node: &NodeView, one_copy: bool) -> Result<(), String> {
    if !one_copy {
        return Err("configured".into());
    }
    if address.probe == 0 {
        return Err("disabled by the peer, or its system has no cross-memory attach".into());
    }
    match Probe::try_on(address.pid, address.probe, address.nonce) {
        Ok(true) => Ok(()),
        Ok(false) => Err("cross-memory attach reads other bytes than the address announces".into()),
        Err(error) => Err(format!(
            "cross-memory attach failed: {}",
            advice(error, address, node)
        )),
    }
}

fn advice(error: CmaError, address: &ShmAddress, node: &NodeView) -> String {
    let text = match (error, yama_scope()) {
        (CmaError::Refused(libc::ENOSYS), _) => {
            "this kernel was built without it (CONFIG_CROSS_MEMORY_ATTACH)"
        }
        (CmaError::Refused(_), _) if address.node.user_ns != node.user_ns => {
            "the processes are in different user namespaces; run the job's containers in one"
        }
        (CmaError::Refused(_), Some(0) | None) => {
            "a filter of system calls or a security module refuses it; containers need \
             CAP_SYS_PTRACE or a profile that allows process_vm_readv and process_vm_writev"
        }
        (CmaError::Refused(_), Some(scope)) => {
            return format!(
                "kernel.yama.ptrace_scope is {scope}; set it to 0, or to 1 if it is higher (3 \
                 stays until the next boot)"
            );
        }
        (error, _) => return error.to_string(),
    };
    text.into()
}

/// Allows processes other than its parents to access this one, which Yama requires to be requested.
pub(crate) fn allow_others() -> io::Result<()> {
    if yama_scope() == Some(1) {
        rustix::process::set_ptracer(rustix::process::PTracer::Any)?;
    }
    Ok(())
}
