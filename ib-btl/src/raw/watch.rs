//! Detection of unmapped memory by userfaultfd, without a hook into the allocator.
//!
//! A range is registered with a userfaultfd in write-protect mode, without ever protecting
//! anything, so no access faults. The kernel then reports:
//! - *Events* when a part of the range is unmapped, moved, or emptied (`munmap`, `mremap`,
//!   `MADV_DONTNEED`, `MADV_FREE`, `MADV_REMOVE`). The thread that does so is blocked until the
//!   event was read, by a small thread that holds a lock.
//! - *Whether a range is still registered*: a mapping made later at its address is not.
//!   `UFFDIO_WRITEPROTECT` that protects nothing returns `ENOENT` for it, and `EAGAIN` while an
//!   event is pending (from before the address can be reused until the event was read).
//!
//! Together they miss nothing: call [`Watch::holds`] first, then [`Watch::gone`]. If a range was
//! unmapped and mapped again before, then either it is no longer registered, or (if a neighbour
//! grew into it by `mremap`) its event was read under the lock that `gone` takes.
//!
//! Only private anonymous memory is watched, because pages of a file may be removed by others
//! without an event here.
//!
//! A process has one userfaultfd for all watches. The kernel does not report with which userfaultfd
//! a range is registered. With several, [`Watch::holds`] would count a range as watched although
//! its events go to another watch. The userfaultfd stays open, and its thread runs, until the
//! process ends: ranges stay registered while a forked child has a copy of the descriptor, and
//! unmapping them without the thread would wait for that child.

use std::ffi::c_int;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::event::{PollFd, PollFlags, poll};

/// `linux/userfaultfd.h`
const UFFD_USER_MODE_ONLY: c_int = 1;
const UFFD_API: u64 = 0xaa;
const FEATURES: u64 = 1 << 2 | 1 << 3 | 1 << 6; // EVENT_REMAP, EVENT_REMOVE, EVENT_UNMAP
const FEATURE_WP: u64 = 1;
const REGISTER_WP: u64 = 2;
const IOC_API: u64 = 0xc018_aa3f;
const IOC_REGISTER: u64 = 0xc020_aa00;
const IOC_WRITEPROTECT: u64 = 0xc018_aa06;
const EVENT_REMAP: u8 = 0x14;
const EVENT_REMOVE: u8 = 0x15;
const EVENT_UNMAP: u8 = 0x16;

/// Maximum number of recorded ranges; beyond it all memory counts as unmapped.
const ROOM: usize = 128;
const EVERYTHING: (u64, u64) = (0, u64::MAX);
/// Maximum number of watches of a process. A job has one for each rail.
const WATCHES: usize = 64;

/// `struct uffd_msg`
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Message {
    event: u8,
    _reserved: [u8; 7],
    arg: [u64; 3],
}

/// Memory ranges known to be unmapped.
struct Gone {
    ranges: [(u64, u64); ROOM],
    count: usize,
}

/// The ranges for each watch, by its index; `None`: the index is free.
type Lists = [Option<Box<Gone>>; WATCHES];

/// The userfaultfd of a process.
struct Source {
    fd: OwnedFd,
    /// Nothing is allocated or freed while it is locked: freeing watched memory waits for the
    /// thread, which waits for this lock.
    lists: Mutex<Lists>,
    /// Process that created it, whose memory it watches, even from a forked child.
    process: u32,
}

/// The userfaultfd of this process, once there was a watch.
static SOURCE: Mutex<Option<Arc<Source>>> = Mutex::new(None);

/// Watches ranges of this process's memory.
pub(crate) struct Watch {
    source: Arc<Source>,
    place: usize,
}

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Watch")
    }
}

/// Calls an `ioctl` whose argument is a structure of 64-bit words.
fn control<const N: usize>(fd: &OwnedFd, request: u64, words: &mut [u64; N]) -> io::Result<()> {
    // SAFETY: the structure is as long as the request's number says, and the descriptor is open.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), request as _, words.as_mut_ptr()) };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Gone {
    fn push(&mut self, range: (u64, u64)) {
        if let Some(place) = self.ranges.get_mut(self.count) {
            *place = range;
        }
        self.count = (self.count + 1).min(ROOM + 1);
    }
}

impl Source {
    /// Returns the userfaultfd of this process, and creates it at the first call.
    fn of_process() -> io::Result<Arc<Source>> {
        let process = std::process::id();
        let mut known = lock(&SOURCE);
        if let Some(source) = known.as_ref().filter(|one| one.process == process) {
            return Ok(Arc::clone(source));
        }
        let source = Arc::new(Source {
            fd: userfaultfd()?,
            lists: Mutex::new([const { None }; WATCHES]),
            process,
        });
        let read = Arc::clone(&source);
        std::thread::Builder::new()
            .name("ib-watch".into())
            .stack_size(64 << 10)
            .spawn(move || read.read_events())?;
        *known = Some(Arc::clone(&source));
        Ok(source)
    }

    /// Runs the thread, which allocates nothing, frees nothing and calls no other code.
    fn read_events(&self) {
        loop {
            let mut fds = [PollFd::from_borrowed_fd(self.fd.as_fd(), PollFlags::IN)];
            if poll(&mut fds, None).is_err_and(|error| error != rustix::io::Errno::INTR) {
                return;
            }
            if fds[0].revents().contains(PollFlags::IN) {
                // Locked before the read, because reading lets the program continue.
                let mut lists = lock(&self.lists);
                while let Some(range) = next(&self.fd) {
                    lists.iter_mut().flatten().for_each(|list| list.push(range));
                }
            } else if !fds[0].revents().is_empty() {
                return;
            }
        }
    }
}

/// Creates a userfaultfd that reports unmapped memory.
fn userfaultfd() -> io::Result<OwnedFd> {
    let flags = libc::O_CLOEXEC | libc::O_NONBLOCK | UFFD_USER_MODE_ONLY;
    // SAFETY: no memory is passed.
    let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, flags) };
    let fd = c_int::try_from(fd)
        .ok()
        .filter(|fd| *fd >= 0)
        .ok_or_else(io::Error::last_os_error)?;
    // SAFETY: just created, and owned by nothing else.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    control(&fd, IOC_API, &mut [UFFD_API, FEATURES | FEATURE_WP, 0])?;
    Ok(fd)
}

impl Watch {
    /// Creates a watch without any ranges.
    ///
    /// # Errors
    /// The kernel has no userfaultfd, has it without write protection, or does not allow it; or the
    /// process has too many watches.
    pub(crate) fn new() -> io::Result<Watch> {
        let source = Source::of_process()?;
        let mut list = Some(Box::new(Gone {
            ranges: [(0, 0); ROOM],
            count: 0,
        }));
        let place = {
            let mut lists = lock(&source.lists);
            let free = lists.iter().position(Option::is_none);
            free.inspect(|free| lists[*free] = list.take())
        };
        match place {
            Some(place) => Ok(Watch { source, place }),
            None => Err(io::ErrorKind::ResourceBusy.into()),
        }
    }

    /// Starts to watch whole pages.
    ///
    /// # Errors
    /// The range is not private anonymous memory, or is watched by other code.
    pub(crate) fn add(&self, start: usize, end: usize) -> io::Result<()> {
        if !anonymous(start, end)? {
            return Err(io::ErrorKind::Unsupported.into());
        }
        control(
            &self.source.fd,
            IOC_REGISTER,
            &mut [start as u64, (end - start) as u64, REGISTER_WP, 0],
        )
    }

    /// Checks that all of the range is watched and no event is pending.
    pub(crate) fn holds(&self, start: usize, end: usize) -> Result<(), Moving> {
        let result = control(
            &self.source.fd,
            IOC_WRITEPROTECT,
            &mut [start as u64, (end - start) as u64, 0],
        );
        let Err(error) = result else { return Ok(()) };
        let page = rustix::param::page_size();
        if error.raw_os_error() == Some(libc::EAGAIN) {
            return Err(Moving::Yes);
        }
        if end - start <= page {
            return Err(Moving::No);
        }
        // Kernels before 6.4 check one mapping only, and watching splits mappings. Halving finds
        // the borders, and the first page that is not watched, in few calls.
        let middle = start + (end - start) / page / 2 * page;
        self.holds(start, middle)?;
        self.holds(middle, end)
    }

    /// Passes the ranges unmapped since the last call to `each`.
    pub(crate) fn gone(&self, each: impl FnMut((usize, usize))) {
        let (ranges, count) = {
            let mut lists = lock(&self.source.lists);
            let Some(Some(gone)) = lists.get_mut(self.place) else {
                return;
            };
            (gone.ranges, std::mem::take(&mut gone.count))
        };
        let ranges = ranges.get(..count).unwrap_or(&[EVERYTHING]);
        let range = |range: &(u64, u64)| (range.0 as usize, range.1 as usize);
        ranges.iter().map(range).for_each(each);
    }
}

/// Reason why a range does not count as watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Moving {
    /// An event is pending somewhere, so the state is unknown.
    Yes,
    /// A part of the range is not watched.
    No,
}

impl Drop for Watch {
    fn drop(&mut self) {
        let mut lists = lock(&self.source.lists);
        let list = lists.get_mut(self.place).and_then(Option::take);
        drop(lists);
        drop(list);
    }
}

/// Returns the range of the next event.
fn next(fd: &OwnedFd) -> Option<(u64, u64)> {
    let mut message = Message::default();
    let size = std::mem::size_of::<Message>();
    // SAFETY: room for one message.
    let read = unsafe { libc::read(fd.as_raw_fd(), (&raw mut message).cast(), size) };
    if read != size as isize {
        return None;
    }
    let [first, second, third] = message.arg;
    match message.event {
        EVENT_REMOVE | EVENT_UNMAP => Some((first, second)),
        EVENT_REMAP => Some((first, first.saturating_add(third))),
        // No other event was requested, so assume the worst.
        _ => Some(EVERYTHING),
    }
    .map(|range| if second == 0 { EVERYTHING } else { range })
}

/// Returns whether all of a range is private anonymous memory, according to /proc/self/maps.
fn anonymous(start: usize, end: usize) -> io::Result<bool> {
    let mut at = start;
    for line in BufReader::new(File::open("/proc/self/maps")?).lines() {
        let line = line?;
        let mut words = line.split_ascii_whitespace();
        let (Some(range), Some(rights), Some(_), Some(_), Some(inode)) = (
            words.next(),
            words.next(),
            words.next(),
            words.next(),
            words.next(),
        ) else {
            return Ok(false);
        };
        let (low, high) = range.split_once('-').unwrap_or_default();
        let (Ok(low), Ok(high)) = (
            usize::from_str_radix(low, 16),
            usize::from_str_radix(high, 16),
        ) else {
            return Ok(false);
        };
        if high <= at {
            continue;
        }
        if low > at || inode != "0" || !rights.ends_with('p') {
            return Ok(false);
        }
        at = high;
        if at >= end {
            return Ok(true);
        }
    }
    Ok(false)
}

const _: () = assert!(std::mem::size_of::<Message>() == 32);

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use rustix::mm::{
        Advice, MapFlags, MremapFlags, ProtFlags, madvise, mmap_anonymous, mremap, munmap,
    };

    const PAGE: usize = 4096;

    /// Locked by tests with a watch, because a watch also reports the ranges of other watches.
    pub(crate) static ALONE: Mutex<()> = Mutex::new(());

    fn map(at: usize, pages: usize) -> usize {
        let (flags, prot) = (MapFlags::PRIVATE, ProtFlags::READ | ProtFlags::WRITE);
        let flags = if at == 0 {
            flags
        } else {
            flags | MapFlags::FIXED
        };
        // SAFETY: new memory, or in place of a mapping of this test.
        let start = unsafe {
            mmap_anonymous(
                std::ptr::without_provenance_mut(at),
                pages * PAGE,
                prot,
                flags,
            )
        }
        .unwrap();
        // SAFETY: just mapped.
        unsafe { start.cast::<u8>().write_bytes(7, pages * PAGE) };
        start.expose_provenance()
    }

    fn unmap(at: usize, pages: usize) {
        // SAFETY: mapped by the test, and not used afterwards.
        unsafe { munmap(std::ptr::with_exposed_provenance_mut(at), pages * PAGE) }.unwrap();
    }

    fn watch() -> Option<(MutexGuard<'static, ()>, Watch)> {
        let alone = lock(&ALONE);
        match Watch::new() {
            Ok(watch) => Some((alone, watch)),
            Err(error) => {
                assert!(
                    std::env::var_os("ESP_TEST_REQUIRE_RDMA").is_none(),
                    "no userfaultfd: {error}"
                );
                println!("SKIPPED: no userfaultfd: {error}");
                None
            }
        }
    }

    fn taken(watch: &Watch) -> Vec<(usize, usize)> {
        let mut all = Vec::new();
        watch.gone(|range| all.push(range));
        all
    }

    #[test]
    fn every_way_of_unmapping_is_detected() {
        let Some((_alone, watch)) = watch() else {
            return;
        };
        let start = map(0, 8);
        let end = start + 8 * PAGE;
        assert_eq!(watch.holds(start, end), Err(Moving::No));
        watch.add(start, end).unwrap();
        assert_eq!((watch.holds(start, end), taken(&watch)), (Ok(()), vec![]));
        // SAFETY: memory of this test.
        unsafe {
            madvise(
                std::ptr::with_exposed_provenance_mut(start),
                2 * PAGE,
                Advice::LinuxDontNeed,
            )
        }
        .unwrap();
        assert_eq!(taken(&watch), [(start, start + 2 * PAGE)]);
        // Replaced in place: unmapped, and the new mapping is not watched.
        map(start + 4 * PAGE, 1);
        assert_eq!(taken(&watch), [(start + 4 * PAGE, start + 5 * PAGE)]);
        assert_eq!(watch.holds(start, end), Err(Moving::No));
        assert_eq!(watch.holds(start, start + 4 * PAGE), Ok(()));
        unmap(start + 6 * PAGE, 2);
        assert_eq!(taken(&watch), [(start + 6 * PAGE, end)]);
        let moved = map(0, 1);
        unmap(moved, 1);
        // SAFETY: memory of this test, moved to a free address.
        let to = unsafe {
            mremap(
                std::ptr::with_exposed_provenance_mut(start),
                2 * PAGE,
                64 * PAGE,
                MremapFlags::MAYMOVE,
            )
        };
        let to = to.unwrap().expose_provenance();
        assert!(taken(&watch).contains(&(start, start + 2 * PAGE)) && to != start);
        assert_eq!(watch.holds(start, start + PAGE), Err(Moving::No));
        unmap(to, 64);
        unmap(start + 2 * PAGE, 4);
    }

    #[test]
    fn memory_of_files_is_not_watched() {
        let Some((_alone, watch)) = watch() else {
            return;
        };
        let file = rustix::fs::memfd_create("watched", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&file, PAGE as u64).unwrap();
        // SAFETY: new memory.
        let at = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                PAGE,
                ProtFlags::READ,
                MapFlags::SHARED,
                &file,
                0,
            )
        };
        let at = at.unwrap().expose_provenance();
        assert!(watch.add(at, at + PAGE).is_err());
        unmap(at, 1);
    }

    #[test]
    fn more_ranges_than_fit_count_as_everything() {
        let Some((_alone, watch)) = watch() else {
            return;
        };
        let start = map(0, ROOM + 1);
        watch.add(start, start + (ROOM + 1) * PAGE).unwrap();
        for page in 0..=ROOM {
            unmap(start + page * PAGE, 1);
        }
        assert_eq!(taken(&watch), [(0, usize::MAX)]);
        assert_eq!(taken(&watch), []);
    }

    #[test]
    fn every_watch_sees_the_ranges_of_another() {
        let Some((_alone, first)) = watch() else {
            return;
        };
        let second = Watch::new().unwrap();
        let start = map(0, 1);
        let end = start + PAGE;
        first.add(start, end).unwrap();
        // Mapped again, and watched again on behalf of the first watch.
        map(start, 1);
        first.add(start, end).unwrap();
        for watch in [&first, &second] {
            assert_eq!(watch.holds(start, end), Ok(()));
            assert_eq!(taken(watch), [(start, end)]);
        }
        second.add(start, end).unwrap();
        unmap(start, 1);
    }

    #[test]
    fn a_process_has_a_limited_number_of_watches() {
        let Some((_alone, first)) = watch() else {
            return;
        };
        let others: Vec<Watch> = std::iter::from_fn(|| Watch::new().ok()).collect();
        assert_eq!(others.len(), WATCHES - 1);
        drop(first);
        assert!(Watch::new().is_ok());
    }

    #[test]
    fn unmapping_ends_after_the_last_watch_despite_a_forked_child() {
        let Some((_alone, watch)) = watch() else {
            return;
        };
        let start = map(0, 1);
        watch.add(start, start + PAGE).unwrap();
        // SAFETY: the child calls only functions that are allowed after a fork.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: as above. It ends, too, if this test is ended.
            unsafe {
                libc::alarm(60);
                loop {
                    libc::pause();
                }
            }
        }
        assert!(child > 0, "fork: {}", io::Error::last_os_error());
        drop(watch);
        let (over, ended) = std::sync::mpsc::channel();
        let unmapping = std::thread::spawn(move || {
            unmap(start, 1);
            let _ = over.send(());
        });
        let ended = ended.recv_timeout(std::time::Duration::from_secs(10));
        // SAFETY: a child of this test, which has not been waited for.
        unsafe {
            libc::kill(child, libc::SIGKILL);
            libc::waitpid(child, std::ptr::null_mut(), 0);
        }
        unmapping.join().unwrap();
        assert!(ended.is_ok(), "unmapping waited for the child");
    }
}
