//! Pollers: events of streams, and the descriptor to wait for.

use std::ffi::c_int;

use esp_client::Interest;

use super::{check, guard};
use crate::code::{Code, Fault};
use crate::streams;

/// Bits of `what` in `esp_stream_arm`.
const EVENTS: [(c_int, &[Interest]); 3] = [
    (1, &[Interest::Readable]),
    (2, &[Interest::Writable]),
    (3, &[Interest::Readable, Interest::Writable]),
];

#[unsafe(no_mangle)]
unsafe extern "C" fn esp_poller_open(poller: *mut u64) -> c_int {
    // SAFETY: by the contract of the module.
    guard(|| unsafe {
        let poller = check::out(poller, "poller")?;
        *poller = streams::open_poller()?;
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn esp_poller_fd(poller: u64, fd: *mut c_int) -> c_int {
    // SAFETY: by the contract of the module.
    guard(|| unsafe {
        *check::out(fd, "fd")? = streams::poller_fd(poller)?;
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn esp_stream_arm(stream: u64, what: c_int) -> c_int {
    guard(|| {
        let found = EVENTS.iter().find(|(bits, _)| *bits == what);
        let (_, interests) = found.ok_or_else(|| {
            let text = format!("events {what}: give ESP_READABLE, ESP_WRITABLE or both");
            Fault::new(Code::Arg, text)
        })?;
        streams::arm(stream, interests)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn esp_poller_take(
    poller: u64,
    ready: *mut u64,
    room: i64,
    count: *mut i64,
) -> c_int {
    // SAFETY: by the contract of the module.
    guard(|| unsafe {
        let (count, ready) = (check::out(count, "count")?, check::values(ready, room)?);
        *count = i64::try_from(streams::take(poller, ready)?).unwrap_or(i64::MAX);
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn esp_poller_sleep(poller: u64, asleep: *mut c_int) -> c_int {
    // SAFETY: by the contract of the module.
    guard(|| unsafe {
        *check::out(asleep, "asleep")? = c_int::from(streams::sleep(poller)?);
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn esp_poller_close(poller: *mut u64) -> c_int {
    // SAFETY: by the contract of the module.
    guard(|| unsafe {
        let poller = check::out(poller, "poller")?;
        streams::close_poller(*poller)?;
        *poller = 0;
        Ok(())
    })
}
