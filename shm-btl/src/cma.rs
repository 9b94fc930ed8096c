//! Cross-memory attach: one copy from one process's memory to another's, by the kernel
//! (process_vm_readv(2), process_vm_writev(2)).

use std::io;

/// Reason why a copy ended early.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum CmaError {
    /// The process has ended.
    #[error("the process has ended")]
    Gone,
    /// An address is not mapped, on this side or the other.
    #[error("an address is not mapped")]
    Fault,
    /// The system does not allow it: Yama, another user or user namespace, a filter of system
    /// calls.
    #[error("the system does not allow it (error {0})")]
    Refused(i32),
    /// The process has ended the connection or closed, so the memory may contain other bytes.
    #[error("the process has ended the connection")]
    Revoked,
    /// Another error, possibly temporary.
    #[error("error {0}")]
    Other(i32),
}

/// Signature of process_vm_readv(2) and process_vm_writev(2).
type Call = unsafe extern "C" fn(
    libc::pid_t,
    *const libc::iovec,
    libc::c_ulong,
    *const libc::iovec,
    libc::c_ulong,
    libc::c_ulong,
) -> libc::ssize_t;

/// Copies `length` bytes at `remote` of process `pid` to `local`. Some of them may have been copied
/// on error.
///
/// # Safety
/// `local` must be valid for writes of `length` bytes, and nothing else may access them during the
/// call.
pub(crate) unsafe fn read(
    pid: u32,
    local: *mut u8,
    remote: u64,
    length: usize,
) -> Result<(), CmaError> {
    // SAFETY: guaranteed by the caller.
    unsafe { copy(libc::process_vm_readv, pid, local, remote, length) }
}

/// Copies `length` bytes at `local` to `remote` of process `pid`.
///
/// # Safety
/// `local` must be valid for reads of `length` bytes, and nothing may change them during the call.
pub(crate) unsafe fn write(
    pid: u32,
    local: *const u8,
    remote: u64,
    length: usize,
) -> Result<(), CmaError> {
    // SAFETY: guaranteed by the caller; this call only reads `local`.
    unsafe {
        copy(
            libc::process_vm_writev,
            pid,
            local.cast_mut(),
            remote,
            length,
        )
    }
}

/// # Safety
/// `local` must be valid for reads or writes of `length` bytes, depending on `call`.
unsafe fn copy(
    call: Call,
    pid: u32,
    local: *mut u8,
    remote: u64,
    length: usize,
) -> Result<(), CmaError> {
    let pid = libc::pid_t::try_from(pid).map_err(|_| CmaError::Gone)?;
    let remote = usize::try_from(remote).map_err(|_| CmaError::Fault)?;
    let mut done = 0;
    while done < length {
        let at = remote.checked_add(done).ok_or(CmaError::Fault)?;
        let iov_len = length - done;
        let there = libc::iovec {
            iov_base: core::ptr::without_provenance_mut(at),
            iov_len,
        };
        // SAFETY: done < length, inside the memory that the caller promised.
        let iov_base = unsafe { local.add(done) }.cast();
        let here = libc::iovec { iov_base, iov_len };
        // SAFETY: one vector each; the kernel checks the remote one, the local one is the caller's
        // promise.
        let n = unsafe { call(pid, &raw const here, 1, &raw const there, 1, 0) };
        match usize::try_from(n) {
            // Partial: more than the kernel copies at once, or a hole, which the next call reports.
            Ok(n) if n > 0 => done += n,
            Ok(_) => return Err(CmaError::Fault),
            Err(_) => match io::Error::last_os_error().raw_os_error().unwrap_or(0) {
                libc::EINTR => {}
                libc::ESRCH => return Err(CmaError::Gone),
                libc::EFAULT => return Err(CmaError::Fault),
                error @ (libc::EPERM | libc::EACCES | libc::ENOSYS) => {
                    return Err(CmaError::Refused(error));
                }
                error => return Err(CmaError::Other(error)),
            },
        }
    }
    Ok(())
}

/// Private memory that peers read and write to test cross-memory attach.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Probe {
    nonce: [u64; 2],
    /// Written by peers, never read.
    target: core::sync::atomic::AtomicU64,
}

impl Probe {
    pub(crate) fn new(nonce: [u64; 2]) -> Box<Probe> {
        Box::new(Probe {
            nonce,
            target: core::sync::atomic::AtomicU64::new(0),
        })
    }

    /// Returns the address for [`ShmAddress::probe`](crate::address::ShmAddress::probe).
    pub(crate) fn address(&self) -> u64 {
        core::ptr::from_ref(self).expose_provenance() as u64
    }

    /// Reads a peer's nonce and writes to its target. Returns false if the nonce differs.
    pub(crate) fn try_on(pid: u32, address: u64, nonce: [u64; 2]) -> Result<bool, CmaError> {
        let mut found = [0u64; 2];
        // SAFETY: the local array is 16 bytes, and ours.
        unsafe { read(pid, found.as_mut_ptr().cast(), address, 16)? };
        if found != nonce {
            return Ok(false);
        }
        let word = 1u64;
        // SAFETY: the local word is 8 bytes.
        unsafe { write(pid, (&raw const word).cast(), address.wrapping_add(16), 8)? };
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_probe_of_this_process_succeeds_and_a_wrong_one_fails() {
        let probe = Probe::new([5, 6]);
        let pid = std::process::id();
        assert_eq!(Probe::try_on(pid, probe.address(), [5, 6]), Ok(true));
        assert_eq!(Probe::try_on(pid, probe.address(), [5, 7]), Ok(false));
        assert_eq!(Probe::try_on(pid, 0, [5, 6]), Err(CmaError::Fault));
        assert_eq!(Probe::try_on(pid, u64::MAX, [5, 6]), Err(CmaError::Fault));
        assert_eq!(
            Probe::try_on(u32::MAX, probe.address(), [5, 6]),
            Err(CmaError::Gone)
        );
    }

    #[test]
    fn a_hole_after_the_first_page_is_a_fault_and_not_a_short_copy() {
        use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
        let page = shmem::page_size();
        let (prot, flags) = (ProtFlags::READ, MapFlags::PRIVATE);
        // SAFETY: a new mapping at any address; the second page is unmapped at once, the first one
        // with the process.
        let at = unsafe {
            let base =
                mmap_anonymous(core::ptr::null_mut(), 2 * page, prot, flags).expect("memory");
            munmap(base.byte_add(page), page).expect("our own page");
            base.expose_provenance() as u64
        };
        let mut local = vec![0u8; 2 * page];
        // SAFETY: the local buffer is that long.
        let read = unsafe { read(std::process::id(), local.as_mut_ptr(), at, 2 * page) };
        assert_eq!(read, Err(CmaError::Fault));
    }
}
