//! Notifications to the service manager. Without one (no NOTIFY_SOCKET) they have no effect.

use std::time::Duration;

use sd_notify::NotifyState;
use tracing::warn;

/// Reports that the daemon serves programs.
pub fn ready(interfaces: &str) {
    send(&[
        NotifyState::Ready,
        NotifyState::Status(&format!("serving {interfaces}")),
    ]);
}

/// Reports that the daemon is stopping.
pub fn stopping() {
    send(&[NotifyState::Stopping]);
}

/// Reports that the daemon is alive; see [`watchdog`].
pub fn alive() {
    send(&[NotifyState::Watchdog]);
}

/// Returns the interval at which [`alive`] must be called, half of the watchdog timeout; `None`
/// without a watchdog.
pub fn watchdog() -> Option<Duration> {
    sd_notify::watchdog_enabled().map(|patience| patience / 2)
}

fn send(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        warn!(%error, "cannot reach the service manager");
    }
}
