//! One run of the daemon, from start to end.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use esp_engine::{Command, EngineHandle};
use rustix::process::Gid;
use sd_notify::NotifyState;
use tokio::net::{TcpListener, UnixListener};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{oneshot, watch};
use tracing::{error, info, warn};

use crate::auth;
use crate::claim::SocketClaim;
use crate::config::{Config, Listen};
use crate::error::{Failure, StartError};
use crate::exporter::{self, Listener, Token};
use crate::node::Node;
use crate::open::{Opened, open};
use crate::settings::Settings;
use crate::telemetry::Telemetry;
use crate::{peer, server};

/// Time limit of stopping the engine, and of ending the sessions.
const SHUTDOWN: Duration = Duration::from_secs(3);

/// Timeout of the last notification to the service manager.
const MANAGER: Duration = Duration::from_secs(1);

/// Threads of the control plane.
const WORKERS: usize = 2;
/// Poll interval for the end of programs that may adopt leases.
const RESERVED_CHECK: Duration = Duration::from_millis(500);
/// Failure while running: the engine's thread ended unexpectedly.
const ENGINE_STOPPED: Failure = Failure::Run(
    "the engine stopped unexpectedly and its connections are lost: restart esp-daemon, and report \
     the log before this message",
);

/// Serves until a signal requests the end.
///
/// # Errors
/// The daemon could not start, or failed while running.
pub fn run(settings: &Settings) -> Result<(), Failure> {
    raise_descriptor_limit();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(WORKERS)
        .thread_name("esp-control")
        .enable_all()
        .build()
        .map_err(StartError::system("start the control threads"))?;
    let result = runtime.block_on(serve(settings));
    // Not `drop`: that would wait for a thread that waits for a stuck engine.
    runtime.shutdown_background();
    result
}

async fn serve(settings: &Settings) -> Result<(), Failure> {
    let config = &settings.config;
    // First, so that no signal is missed.
    let mut signals = Signals::catch()?;
    let Opened {
        interfaces: _interfaces,
        names,
        mut running,
        group,
        mut claim,
        listener,
        node,
    } = open(settings)?;

    let metrics = start_metrics(config, group, &node).await?;
    tokio::spawn(expire_reservations(Arc::clone(&node), config.lease.grace.0));
    tokio::spawn(Arc::clone(&node).dispatch(running.events));
    let (stop, stopped) = watch::channel(false);
    let serving = tokio::spawn(server::serve(
        Arc::clone(&node),
        listener,
        peer::by_kernel(),
        stopped,
    ));
    if let Some(timeout) = sd_notify::watchdog_enabled() {
        tokio::spawn(notify_watchdog(Arc::clone(&node), timeout / 2));
    }

    info!(
        interfaces = names,
        socket = %config.socket.path.display(),
        "esp-daemon {} is ready",
        env!("CARGO_PKG_VERSION")
    );
    notify(&[
        NotifyState::Ready,
        NotifyState::Status(&format!("serving {names}")),
    ]);
    let ended = loop {
        tokio::select! {
            biased;
            _ = running.ended.recv() => break Err(ENGINE_STOPPED),
            _ = signals.terminate.recv() => break Ok(End::Leave),
            _ = signals.interrupt.recv() => break Ok(End::ForGood),
            _ = signals.hangup.recv() => {
                reload(&node, &running.handles, settings);
            }
        }
    };

    info!("stopping");
    notify_stopping().await;
    let leaves = matches!(ended, Ok(End::Leave));
    let result = match ended {
        Ok(end) => stop_engines(&running.handles, end).await,
        Err(failed) => {
            // The other engines, if there are several.
            let _ = stop_engines(&running.handles, End::ForGood).await;
            Err(failed)
        }
    };
    node.leases.stop();
    if leaves {
        // The programs' calls wait for the next daemon, and must get no reply from this one.
        claim.leave();
        return result;
    }
    // The engines have ended every stream; the sessions follow.
    let _ = stop.send(true);
    if tokio::time::timeout(SHUTDOWN, serving).await.is_err() {
        warn!("some sessions did not end in time");
    }
    drop((claim, metrics));
    result
}

/// The signals that the daemon handles.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    /// Requests that the config file is read again.
    hangup: Signal,
}

impl Signals {
    fn catch() -> Result<Signals, StartError> {
        let catch = |kind| signal(kind).map_err(StartError::system("catch signals"));
        Ok(Signals {
            terminate: catch(SignalKind::terminate())?,
            interrupt: catch(SignalKind::interrupt())?,
            hangup: catch(SignalKind::hangup())?,
        })
    }
}

/// Kind of an end on request.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    /// SIGTERM: the streams are left to the next daemon, if one comes.
    Leave,
    /// SIGINT: peers and programs are notified.
    ForGood,
}

/// Frees the ports of earlier leases that were not adopted within the grace period.
async fn expire_reservations(node: Arc<Node>, grace: Duration) {
    let waiting = node.leases.reserved().len();
    if waiting == 0 {
        return;
    }
    info!(leases = waiting, "reserved the ports of earlier leases");
    let end = Instant::now() + grace;
    while Instant::now() < end && !node.leases.reserved().is_empty() {
        let left = end.saturating_duration_since(Instant::now());
        tokio::time::sleep(RESERVED_CHECK.min(left)).await;
        node.free_orphaned_ports();
    }
    let left = node.leases.reserved();
    for lease in &left {
        node.end_lease(*lease);
    }
    let adopted = node.stats.leases_adopted.get();
    info!(
        adopted,
        expired = (waiting as u64).saturating_sub(adopted),
        "the grace period has ended: freed the ports of leases that were not adopted"
    );
}

/// Serves the metrics, if configured. Returns the claim of a Unix socket.
async fn start_metrics(
    config: &Config,
    group: Option<Gid>,
    node: &Arc<Node>,
) -> Result<Option<SocketClaim>, StartError> {
    let Some(listen) = &config.metrics.listen else {
        return Ok(None);
    };
    let failed = |error: io::Error| {
        StartError::new(format_args!(
            "cannot serve metrics on {listen}: {error}; change metrics.listen"
        ))
    };
    let token = Token::of(&config.metrics)?;
    let (claim, listener) = match listen {
        Listen::Address(address) => {
            let listener = TcpListener::bind(address).await.map_err(failed)?;
            (None, Listener::Tcp(listener))
        }
        Listen::Unix(path) => {
            let (claim, socket) = SocketClaim::take(path, config.socket.mode.0, group)?;
            // Closing one could block the thread that reads.
            netif::refuse_descriptors(&socket);
            let listener = UnixListener::from_std(socket.into()).map_err(failed)?;
            (Some(claim), Listener::Unix(listener))
        }
    };
    let telemetry = Telemetry::new();
    // Before requests are served, so that the first one gets all metrics.
    telemetry.refresh(node).await;
    tokio::spawn(exporter::serve(
        listener,
        token,
        telemetry.handle(),
        Arc::clone(node),
    ));
    tokio::spawn(telemetry.run(Arc::clone(node)));
    info!(%listen, "serving metrics");
    Ok(claim)
}

/// Stops the engines. For good: resets every connection with `Shutdown`, and waits until the resets
/// are sent.
async fn stop_engines(engines: &[EngineHandle], end: End) -> Result<(), Failure> {
    let keep = end == End::Leave;
    let stop = |engine: &EngineHandle| {
        let (done, is_done) = oneshot::channel();
        let reply = Box::new(move |()| {
            let _ = done.send(());
        });
        // A stuck engine does not even accept commands.
        let engine = engine.clone();
        let sent =
            tokio::task::spawn_blocking(move || engine.send(Command::Shutdown { keep, reply }));
        (sent, is_done)
    };
    let stopping: Vec<_> = engines.iter().map(stop).collect();
    let stopped = async {
        let mut all = true;
        for (sent, is_done) in stopping {
            let sent = sent.await.is_ok_and(|sent| sent.is_ok());
            all &= sent && is_done.await.is_ok();
        }
        all.then_some(()).ok_or(ENGINE_STOPPED)
    };
    let stuck = "the engine did not stop in time; the peers of its connections are not notified";
    let stopped = tokio::time::timeout(SHUTDOWN, stopped).await;
    stopped.unwrap_or(Err(Failure::Run(stuck)))
}

/// Notifies the service manager, if there is one. Blocks while the manager's socket is full.
fn notify(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        warn!(%error, "cannot reach the service manager");
    }
}

/// Notifies the service manager that the daemon stops. A failure does not matter.
async fn notify_stopping() {
    let notified = tokio::task::spawn_blocking(|| notify(&[NotifyState::Stopping]));
    if tokio::time::timeout(MANAGER, notified).await.is_err() {
        warn!(
            "the service manager did not accept the notification that esp-daemon is stopping; stopping anyway"
        );
    }
}

/// Notifies the service manager as long as engine and control plane are alive.
async fn notify_watchdog(node: Arc<Node>, pause: Duration) {
    loop {
        if node.snapshot().await.is_ok() {
            let notified = tokio::task::spawn_blocking(|| notify(&[NotifyState::Watchdog]));
            let _ = notified.await;
        }
        tokio::time::sleep(pause).await;
    }
}

/// Reloads the limits, and the keys of a daemon that was started with keys; all other options need
/// a restart.
fn reload(node: &Node, engines: &[EngineHandle], settings: &Settings) {
    let Some(file) = &settings.config_file else {
        warn!("SIGHUP: no config file to reload");
        return;
    };
    let loaded = Config::load(file).map_err(StartError::new);
    let loaded = loaded.and_then(|config| {
        let keys = auth::load_keys(&config.auth.key_files)?;
        Ok((config, keys))
    });
    let (config, keys) = match loaded {
        Ok(loaded) => loaded,
        Err(error) => {
            error!(%error, "SIGHUP: cannot reload; nothing has changed");
            return;
        }
    };
    node.accounts.set_limits(config.limits);
    let (had, has) = (!settings.config.auth.key_files.is_empty(), !keys.is_empty());
    if had != has {
        warn!(
            "SIGHUP: reloaded limits; authentication stays {} until esp-daemon is restarted",
            if had {
                "on, with the previous keys"
            } else {
                "off"
            }
        );
        return;
    }
    if has {
        for engine in engines {
            let _ = engine.send(Command::SetKeys(keys.clone())); // fails during the shutdown only
        }
    }
    info!(file = %file.display(), "reloaded limits and keys; other options need a restart");
}

/// Raises the descriptor limit to the maximum: each program needs three.
fn raise_descriptor_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let maximum = getrlimit(Resource::Nofile).maximum;
    let limit = Rlimit {
        current: maximum,
        maximum,
    };
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        warn!(%error, "cannot raise the limit of open files");
    }
}
