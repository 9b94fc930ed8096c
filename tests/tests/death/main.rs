//! Programs, daemons and links that end abruptly: they leave nothing behind, and every other
//! process learns of it by a typed error within a bounded time.

mod daemons;
mod links;
mod mtu;
mod polled;
mod power;
mod programs;

use std::io::{self, Read, Write};

use esp_client::{Client, EspError, EspStream};
use esp_tests::PATIENCE;

/// A short peer timeout.
const IMPATIENT: &str = "[timers]\npeer_timeout = \"1500ms\"\nkeepalive = \"400ms\"\n";

/// Reads to the end, which must be an error; returns the number of bytes before it, and the error.
#[track_caller]
fn read_to_error(mut stream: &EspStream) -> (usize, EspError) {
    stream.set_read_timeout(Some(PATIENCE)).expect("a time-out");
    let mut bytes = Vec::new();
    match stream.read_to_end(&mut bytes) {
        Ok(n) => panic!("an orderly end after {n} bytes"),
        Err(error) => (bytes.len(), typed(&error)),
    }
}

/// Writes until that fails.
fn write_to_error(mut stream: &EspStream) -> EspError {
    stream
        .set_write_timeout(Some(PATIENCE))
        .expect("a time-out");
    loop {
        if let Err(error) = stream.write_all(&[5; 4096]) {
            return typed(&error);
        }
    }
}

#[track_caller]
fn typed(error: &io::Error) -> EspError {
    EspError::of(error)
        .unwrap_or_else(|| panic!("not one of ours: {error}"))
        .clone()
}

fn nothing_is_open(client: &Client) -> bool {
    let status = client.status().expect("status");
    status.connections.is_empty() && status.listeners.is_empty() && status.edp.is_empty()
}
