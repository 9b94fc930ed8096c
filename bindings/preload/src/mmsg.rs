//! `sendmmsg` and `recvmmsg` for sockets of `AF_ENET`: repeat the calls with one message as the
//! kernel does.

use std::time::{Duration, Instant};

use libc::{c_int, c_uint, mmsghdr, timespec};

use crate::interpose::{is_over_esp, recvmsg, sendmsg};
use crate::kernel;
use crate::own::Own;

/// Maximum number of messages of a call; further ones are ignored.
const MAX_MESSAGES: usize = 1024;

/// `sendmmsg(2)`.
///
/// # Safety
/// `messages` must be valid for reads and writes of `number` messages, each with valid pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendmmsg(
    fd: c_int,
    messages: *mut mmsghdr,
    number: c_uint,
    flags: c_int,
) -> c_int {
    let is_ours = Own::of(fd).is_some() || (flags & libc::MSG_OOB != 0 && is_over_esp(fd));
    if !is_ours || messages.is_null() {
        return kernel::sendmmsg(fd, messages, number, flags);
    }
    // SAFETY: as the caller promises.
    let messages = unsafe { all(messages, number) };
    let mut done = 0;
    for message in messages {
        // SAFETY: as the caller promises.
        let sent = unsafe { sendmsg(fd, &raw const message.msg_hdr, flags) };
        let Ok(sent) = c_uint::try_from(sent) else {
            return if done > 0 { done } else { -1 };
        };
        message.msg_len = sent;
        done += 1;
    }
    done
}

/// `recvmmsg(2)`.
///
/// # Safety
/// `messages` must be valid for reads and writes of `number` messages, each with valid pointers;
/// `limit` must be null or valid for reads and writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn recvmmsg(
    fd: c_int,
    messages: *mut mmsghdr,
    number: c_uint,
    mut flags: c_int,
    limit: *mut timespec,
) -> c_int {
    if messages.is_null() || Own::of(fd).is_none() {
        return kernel::recvmmsg(fd, messages, number, flags, limit);
    }
    // SAFETY: as the caller promises.
    let (messages, limit) = unsafe { (all(messages, number), limit.as_mut()) };
    let Ok(end) = limit.as_deref().map(deadline).transpose() else {
        return kernel::fail(libc::EINVAL);
    };
    let mut done = 0;
    for message in messages {
        let one = flags & !libc::MSG_WAITFORONE;
        // SAFETY: as the caller promises.
        let received = unsafe { recvmsg(fd, &raw mut message.msg_hdr, one) };
        let Ok(received) = c_uint::try_from(received) else {
            if done == 0 {
                done = -1;
            }
            break;
        };
        message.msg_len = received;
        done += 1;
        if flags & libc::MSG_WAITFORONE != 0 {
            flags |= libc::MSG_DONTWAIT;
        }
        // The kernel, too, checks the time only after a message.
        if end.is_some_and(|end| end <= Instant::now()) {
            break;
        }
    }
    if let (Some(limit), Some(end), true) = (limit, end, done >= 0) {
        let left = end.saturating_duration_since(Instant::now());
        limit.tv_sec = left.as_secs().try_into().unwrap_or(limit.tv_sec);
        limit.tv_nsec = left.subsec_nanos().into();
    }
    done
}

/// Returns the messages of a call.
///
/// # Safety
/// `messages` must be valid for reads and writes of `number` messages.
unsafe fn all<'a>(messages: *mut mmsghdr, number: c_uint) -> &'a mut [mmsghdr] {
    let number = usize::try_from(number).map_or(MAX_MESSAGES, |number| number.min(MAX_MESSAGES));
    // SAFETY: as the caller promises.
    unsafe { std::slice::from_raw_parts_mut(messages, number) }
}

/// Returns the time at which the limit expires; an error if the limit is invalid.
fn deadline(limit: &timespec) -> Result<Instant, ()> {
    let secs = limit.tv_sec.try_into().map_err(drop)?;
    let nanos = u32::try_from(limit.tv_nsec).map_err(drop)?;
    let limit = Duration::from_secs(secs).checked_add(Duration::from_nanos(nanos.into()));
    limit
        .and_then(|limit| Instant::now().checked_add(limit))
        .ok_or(())
}
