//! The same types as futures, with tokio's `AsyncRead` and `AsyncWrite`.
//!
//! They need no runtime of a certain kind: the crate's own thread wakes the tasks when the engine
//! says so, and no timer is used (take `tokio::time::timeout`). While there is something to read or
//! room to write, no other thread takes part.

mod edp;
mod listener;
mod stream;

use std::io;

pub use edp::EdpSocket;
pub use listener::EspListener;
pub use stream::{EspStream, OwnedReadHalf, OwnedWriteHalf};

use crate::client::Client;
use crate::error::EspError;

/// Runs something that waits (for the daemon's welcome, for answers of a peer) on a thread of its
/// own.
async fn aside<T: Send + 'static>(
    run: impl FnOnce() -> Result<T, EspError> + Send + 'static,
) -> io::Result<T> {
    let (done, result) = tokio::sync::oneshot::channel();
    std::thread::Builder::new()
        .name("esp-client-wait".into())
        .spawn(move || {
            // Nobody listens when the future was dropped.
            let _ = done.send(run());
        })?;
    match result.await {
        Ok(result) => Ok(result?),
        Err(_) => Err(io::Error::other(
            "a helper thread of esp-client has panicked",
        )),
    }
}

/// The shared client, without blocking the executor while it is opened.
async fn shared() -> io::Result<Client> {
    match Client::already_shared() {
        Some(client) => Ok(client),
        None => aside(Client::shared).await,
    }
}
