//! Asynchronous streams, listeners and datagram sockets, with tokio's `AsyncRead` and `AsyncWrite`.
//!
//! They work under any executor: a thread of this crate wakes the tasks, and no timers are used
//! (use `tokio::time::timeout`). Streams opened here use the daemon, never a lease.

mod edp;
mod listener;
mod stream;

use std::io;

pub use edp::EdpSocket;
pub use listener::EspListener;
pub use stream::{EspStream, OwnedReadHalf, OwnedWriteHalf};

use crate::client::Client;
use crate::error::EspError;

/// Runs a blocking call (the daemon's handshake, a peer's reply) on a thread of its own.
async fn aside<T: Send + 'static>(
    run: impl FnOnce() -> Result<T, EspError> + Send + 'static,
) -> io::Result<T> {
    let (done, result) = tokio::sync::oneshot::channel();
    std::thread::Builder::new()
        .name("esp-client-wait".into())
        .spawn(move || {
            // Fails if the future was dropped.
            let _ = done.send(run());
        })?;
    match result.await {
        Ok(result) => Ok(result?),
        Err(_) => Err(io::Error::other(
            "a helper thread of esp-client has panicked",
        )),
    }
}

/// Returns the shared client; opens it without blocking the executor.
async fn shared() -> io::Result<Client> {
    match Client::already_shared() {
        Some(client) => Ok(client),
        None => aside(Client::shared).await,
    }
}
