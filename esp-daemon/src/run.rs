//! One run of the daemon, from start to end.

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use esp_engine::{Command, Engine, EngineConfig, EngineEvent, EngineHandle, LinkConfig, LinkId};
use esp_proto::Port;
use tokio::net::UnixListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, oneshot, watch};
use tracing::{error, info, warn};

use crate::config::Config;
use crate::error::{Failure, RunError, StartError};
use crate::leases::{LeaseSetup, record};
use crate::life::interface::InterfaceClaim;
use crate::life::notify;
use crate::life::socket::{self, SocketClaim};
use crate::limits::Limits;
use crate::links::LinkSpec;
use crate::node::{Node, NodeOptions};
use crate::settings::{Settings, machine_memory};
use crate::telemetry::Telemetry;
use crate::{peer, server};

/// Timeout of stopping the engine, and of ending the sessions.
const SHUTDOWN: Duration = Duration::from_secs(3);

/// Threads of the control plane.
const WORKERS: usize = 2;

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
    // First, so that no signal is missed.
    let mut signals = Signals::new()?;
    let interfaces = settings.find_interfaces()?;
    for interface in &interfaces {
        for ethertype in [
            settings.config.ethertypes.esp,
            settings.config.ethertypes.edp,
        ] {
            let claim = InterfaceClaim::take(&interface.name, interface.index, ethertype)?;
            tokio::spawn(claim.answer());
        }
    }
    let group = settings
        .config
        .socket
        .group
        .as_deref()
        .map(socket::group)
        .transpose()?;
    let udp = settings.find_udp()?;
    let ethernet = interfaces.iter().cloned().map(LinkConfig::Ethernet);
    // Leases number the interfaces of raw Ethernet as the engine does, so these come first.
    let all: Vec<LinkConfig> = ethernet.chain(udp).collect();
    let links: Vec<LinkSpec> = all.iter().map(Into::into).collect();
    let names = links.iter().map(|link| link.name.as_str());
    let names = names.collect::<Vec<_>>().join(", ");
    let record = record::path(&settings.socket);
    // Also with leases disabled, so that their programs are refused at once.
    let before = record::load(&record);
    let held = held_before(&before, &interfaces);
    let lease = LeaseSetup {
        record: Some(record),
        before,
        options: settings.config.lease.clone(),
        groups: lease_groups(&settings.config.lease.groups),
        endpoint: settings.endpoint(),
        interfaces: interfaces.clone(),
    };
    let mut engine = start_engine(settings, all, held)?;
    // Last of the steps that can fail: from now on programs find the daemon.
    let (claim, socket) =
        SocketClaim::take(&settings.socket, settings.config.socket.mode.0, group)?;
    let listener = UnixListener::from_std(socket.into())
        .map_err(StartError::system("watch the control socket"))?;

    let node = Node::new(
        Box::new(engine.handle.clone()),
        NodeOptions {
            links,
            limits: settings.limits(),
            rings: settings.config.rings.clone(),
            control: settings.config.control.clone(),
            lease,
        },
    );
    start_metrics(settings, &node)?;
    tokio::spawn(expire_reservations(
        Arc::clone(&node),
        settings.config.lease.grace.0,
    ));
    tokio::spawn(Arc::clone(&node).dispatch(engine.events));
    let (stop, stopped) = watch::channel(false);
    let serving = tokio::spawn(server::serve(
        Arc::clone(&node),
        listener,
        peer::by_kernel(),
        stopped,
    ));
    if let Some(pause) = notify::watchdog() {
        tokio::spawn(notify_watchdog(Arc::clone(&node), pause));
    }

    info!(interfaces = names, socket = %claim.path().display(), "esp-daemon {} is ready", env!("CARGO_PKG_VERSION"));
    notify::ready(&names);
    let ended = loop {
        tokio::select! {
            biased;
            _ = &mut engine.ended => break Err(RunError::EngineStopped.into()),
            _ = signals.terminate.recv() => break Ok(()),
            _ = signals.interrupt.recv() => break Ok(()),
            _ = signals.hangup.recv() => reload(&node, settings.config_file.as_ref()),
        }
    };
    info!("stopping");
    notify::stopping();
    let result = match ended {
        Ok(()) => stop_engine(&engine.handle).await.map_err(Failure::from),
        failed => failed,
    };
    node.leases.stop();
    // The engine has ended every stream; the sessions follow.
    let _ = stop.send(true);
    if tokio::time::timeout(SHUTDOWN, serving).await.is_err() {
        warn!("some sessions did not end in time");
    }
    drop(claim);
    result
}

struct Running {
    handle: EngineHandle,
    events: mpsc::UnboundedReceiver<EngineEvent>,
    /// Resolves when the engine's thread has ended.
    ended: oneshot::Receiver<()>,
}

/// Returns the ports of earlier leases, for the engine to hold.
fn held_before(
    before: &[record::Entry],
    interfaces: &[netif::Interface],
) -> Vec<(LinkId, RangeInclusive<Port>)> {
    let number = |name: &str| {
        interfaces
            .iter()
            .position(|interface| interface.name == name)
    };
    let held = |entry: &record::Entry| {
        let link = u16::try_from(number(&entry.interface)?).ok()?;
        Some((LinkId(link), entry.ports.clone()))
    };
    before.iter().filter_map(held).collect()
}

/// Frees the ports of earlier leases that were not adopted within the grace period.
async fn expire_reservations(node: Arc<Node>, grace: Duration) {
    let waiting = node.waiting_leases();
    if waiting == 0 {
        return;
    }
    info!(leases = waiting, "reserved the ports of earlier leases");
    tokio::time::sleep(grace).await;
    let left = node.expire_waiting_leases();
    info!(
        adopted = waiting - left,
        expired = left,
        "grace period over: freed the ports of leases that were not adopted"
    );
}

fn start_engine(
    settings: &Settings,
    links: Vec<LinkConfig>,
    held: Vec<(LinkId, RangeInclusive<Port>)>,
) -> Result<Running, StartError> {
    let config = EngineConfig {
        endpoint: settings.endpoint(),
        links,
        held,
        idle: settings.idle(),
        pcap: settings.config.pcap.clone(),
        ..EngineConfig::default()
    };
    let (to_control, events) = mpsc::unbounded_channel();
    let send = move |event| {
        let _ = to_control.send(event); // no receiver during the shutdown
    };
    let (engine, handle) = Engine::new(config, Box::new(send))?;
    let (end, ended) = oneshot::channel();
    std::thread::Builder::new()
        .name("esp-engine".into())
        .spawn(move || {
            engine.run();
            let _ = end.send(());
        })
        .map_err(StartError::system("start the engine's thread"))?;
    Ok(Running {
        handle,
        events,
        ended,
    })
}

/// Resolves groups. A missing group is not an error: the default names one that may not exist.
fn lease_groups(names: &[String]) -> Vec<u32> {
    names
        .iter()
        .filter_map(|name| socket::group(name).ok())
        .map(|group| group.as_raw())
        .collect()
}

fn start_metrics(settings: &Settings, node: &Arc<Node>) -> Result<(), StartError> {
    let metrics = &settings.config.metrics;
    let Some(listen) = metrics.listen else {
        return Ok(());
    };
    let (telemetry, exporter) = Telemetry::new(listen).map_err(|error| StartError::Metrics {
        listen,
        what: error.to_string(),
    })?;
    tokio::spawn(exporter);
    tokio::spawn(telemetry.run(Arc::clone(node), metrics.interval.0));
    info!(%listen, "serving metrics");
    Ok(())
}

/// Resets every connection with `Shutdown` and waits until the resets are sent.
async fn stop_engine(engine: &EngineHandle) -> Result<(), RunError> {
    let (done, is_done) = oneshot::channel();
    let reply = Box::new(move |()| {
        let _ = done.send(());
    });
    // A stuck engine does not even accept commands.
    let engine = engine.clone();
    let sent = tokio::task::spawn_blocking(move || engine.send(Command::Shutdown { reply }));
    let stopped = async {
        match sent.await {
            Ok(Ok(())) => is_done.await.map_err(|_| RunError::EngineStopped),
            _ => Err(RunError::EngineStopped),
        }
    };
    tokio::time::timeout(SHUTDOWN, stopped)
        .await
        .unwrap_or(Err(RunError::EngineStuck))
}

/// Notifies the service manager as long as engine and control plane are alive.
async fn notify_watchdog(node: Arc<Node>, pause: Duration) {
    loop {
        if node.snapshot().await.is_ok() {
            notify::alive();
        }
        tokio::time::sleep(pause).await;
    }
}

/// Reloads the limits; all other options need a restart.
fn reload(node: &Node, file: Option<&PathBuf>) {
    let Some(file) = file else {
        warn!("SIGHUP: no config file to reload");
        return;
    };
    match Config::load(file) {
        Ok(config) => {
            node.accounts
                .set_limits(Limits::new(&config.limits, machine_memory()));
            info!(file = %file.display(), "reloaded the limits; other options need a restart");
        }
        Err(error) => error!(%error, "SIGHUP: cannot reload; the limits are unchanged"),
    }
}

struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

impl Signals {
    fn new() -> Result<Signals, StartError> {
        let catch = |kind| signal(kind).map_err(StartError::system("catch signals"));
        Ok(Signals {
            terminate: catch(SignalKind::terminate())?,
            interrupt: catch(SignalKind::interrupt())?,
            hangup: catch(SignalKind::hangup())?,
        })
    }
}

/// Raises the descriptor limit to the maximum: each program needs three.
fn raise_descriptor_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(
        Resource::Nofile,
        Rlimit {
            current: limit.maximum,
            maximum: limit.maximum,
        },
    ) {
        warn!(%error, "cannot raise the limit of open files");
    }
}
