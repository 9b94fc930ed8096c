//! Words to the service manager. Without one (no NOTIFY_SOCKET) each does nothing.

use std::time::Duration;

use sd_notify::NotifyState;
use tracing::warn;

/// The daemon serves programs.
pub fn ready(interfaces: &str) {
    send(&[
        NotifyState::Ready,
        NotifyState::Status(&format!("serving {interfaces}")),
    ]);
}

/// The daemon is on its way out.
pub fn stopping() {
    send(&[NotifyState::Stopping]);
}

/// The daemon lives; see [`watchdog`].
pub fn alive() {
    send(&[NotifyState::Watchdog]);
}

/// How often [`alive`] has to be called, if the service manager wants it at all: twice in its patience.
pub fn watchdog() -> Option<Duration> {
    sd_notify::watchdog_enabled().map(|patience| patience / 2)
}

fn send(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        warn!(%error, "cannot reach the service manager");
    }
}
