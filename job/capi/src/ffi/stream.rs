//! Streams and listeners.

use std::ffi::{c_char, c_int, c_void};

use super::{check, guard};
use crate::streams;

/// Converts a number of bytes, which is at most the length of a buffer.
fn number(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn esp_stream_connect(
    address: *const c_char,
    timeout: i64,
    poller: u64,
    stream: *mut u64,
) -> c_int {
    // SAFETY: by the contract of the module.
    guard(|| unsafe {
        let stream = check::out(stream, "stream")?;
        let address = check::text(check::some(address, "address")?);
        *stream = streams::connect(&address, check::timeout(timeout), poller)?;
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn esp_stream_read(
    stream: u64,
    buffer: *mut c_void,
    room: i64,
    timeout: i64,
    count: *mut i64,
) -> c_int {
    // SAFETY: by the contract of the module.
    guard(|| unsafe {
        let (count, buffer) = (check::out(count, "count")?, check::write(buffer, room)?);
        *count = number(streams::read(stream, buffer, check::timeout(timeout))?);
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn esp_stream_write(
    stream: u64,
    data: *const c_void,
    length: i64,
    timeout: i64,
    count: *mut i64,
) -> c_int {
    // SAFETY: by the contract of the module.
    guard(|| unsafe {
        let (data, mut written) = (check::read(data, length)?, 0);
        let done = streams::write(stream, data, check::timeout(timeout), &mut written);
        check::put(count, number(written));
        done
    })
}

#[unsafe(no_mangle)]
extern "C" fn esp_stream_shutdown(stream: u64) -> c_int {
    guard(|| streams::shutdown(stream))
}

#[unsafe(no_mangle)]
extern "C" fn esp_stream_finish(stream: u64, timeout: i64) -> c_int {
    guard(|| streams::finish(stream, check::timeout(timeout)))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn esp_stream_peer(
    stream: u64,
    text: *mut c_char,
    room: i64,
    needed: *mut i64,
) -> c_int {
    // SAFETY: by the contract of the module.
    guard(|| unsafe { check::put_text(text, room, needed, streams::peer(stream)?) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn esp_stream_close(stream: *mut u64) -> c_int {
    // SAFETY: by the contract of the module.
    guard(|| unsafe {
        let stream = check::out(stream, "stream")?;
        streams::close_stream(*stream)?;
        *stream = 0;
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn esp_listener_open(port: u16, poller: u64, listener: *mut u64) -> c_int {
    // SAFETY: by the contract of the module.
    guard(|| unsafe {
        let listener = check::out(listener, "listener")?;
        *listener = streams::listen(port, poller)?;
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn esp_listener_port(listener: u64, port: *mut u16) -> c_int {
    // SAFETY: by the contract of the module.
    guard(|| unsafe {
        *check::out(port, "port")? = streams::port(listener)?;
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn esp_listener_accept(listener: u64, timeout: i64, stream: *mut u64) -> c_int {
    // SAFETY: by the contract of the module.
    guard(|| unsafe {
        let stream = check::out(stream, "stream")?;
        *stream = streams::accept(listener, check::timeout(timeout))?;
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn esp_listener_close(listener: *mut u64) -> c_int {
    // SAFETY: by the contract of the module.
    guard(|| unsafe {
        let listener = check::out(listener, "listener")?;
        streams::close_listener(*listener)?;
        *listener = 0;
        Ok(())
    })
}
