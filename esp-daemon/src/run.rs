//! One run of the daemon, from start to end.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use esp_engine::{
    Command, Engine, EngineConfig, EngineEvent, EngineHandle, EngineSet, LinkConfig, LinkId, Member,
};
use esp_proto::secure::SecureConfig;
use netif::Interface;
use rustix::process::Gid;
use sd_notify::NotifyState;
use tokio::net::{TcpListener, UnixListener};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, oneshot, watch};
use tracing::{error, info, warn};

use crate::auth;
use crate::claim::{self, InterfaceClaim, SocketClaim, beside};
use crate::config::{Checksum, Config, Ethertypes, LeaseAllow, LeaseOptions, Listen};
use crate::engines::{Engines, SendCommand};
use crate::error::{Failure, StartError};
use crate::exporter::{self, Listener, Token};
use crate::leases::{LeaseSetup, record};
use crate::links::describe;
use crate::node::{Node, NodeOptions};
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
/// Time within which a program must send Hello, complete a message, or read a reply.
const PATIENCE: Duration = Duration::from_secs(5);
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

/// What the daemon has when programs can connect.
struct Opened {
    /// Held until the end.
    interfaces: Vec<InterfaceClaim>,
    /// Names of all links, for the log.
    names: String,
    running: Running,
    /// Group of the control socket.
    group: Option<Gid>,
    /// The control socket.
    claim: SocketClaim,
    listener: UnixListener,
    node: Arc<Node>,
}

/// Claims the interfaces, starts the engines, and then creates the control socket.
fn open(settings: &Settings) -> Result<Opened, StartError> {
    let config = &settings.config;
    let found = settings.find_interfaces()?;
    let interfaces = claim_interfaces(&found, &config.ethertypes)?;
    let group = config
        .socket
        .group
        .as_deref()
        .map(claim::group)
        .transpose()?;
    let udp = settings.find_udp()?;
    let ethernet = found.iter().cloned().map(LinkConfig::Ethernet);
    // Leases number the interfaces of raw Ethernet as the engine does, so these come first.
    let all: Vec<LinkConfig> = ethernet.chain(udp).collect();
    let secure = auth::load(config)?;
    let links: Vec<_> = (all.iter())
        .map(|link| describe(link, secure.is_some()))
        .collect();
    let names: Vec<_> = links.iter().map(|link| link.name.as_str()).collect();
    let names = names.join(", ");
    let lease = lease_setup(settings, found);
    let running = start_engines(settings, all, &lease, secure)?;
    warn_of_small_buffers();
    let engines = running.table()?;
    // The last step that can fail, because programs can then connect.
    let (claim, socket) = SocketClaim::take(&config.socket.path, config.socket.mode.0, group)?;
    let listener = UnixListener::from_std(socket.into())
        .map_err(StartError::system("watch the control socket"))?;
    let node = Node::new(NodeOptions {
        engines,
        links,
        limits: config.limits.clone(),
        rings: config.rings.clone(),
        patience: PATIENCE,
        lease,
    });
    Ok(Opened {
        interfaces,
        names,
        running,
        group,
        claim,
        listener,
        node,
    })
}

/// Claims the EtherTypes of each interface.
fn claim_interfaces(
    interfaces: &[Interface],
    ethertypes: &Ethertypes,
) -> Result<Vec<InterfaceClaim>, StartError> {
    let mut claims = Vec::new();
    for interface in interfaces {
        for ethertype in [ethertypes.esp, ethertypes.edp] {
            let claim = InterfaceClaim::take(&interface.name, interface.index, ethertype)?;
            claims.push(claim);
        }
    }
    Ok(claims)
}

/// Kind of an end on request.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    /// SIGTERM: the streams are left to the next daemon, if one comes.
    Leave,
    /// SIGINT: peers and programs are notified.
    ForGood,
}

struct Running {
    set: Arc<EngineSet>,
    handles: Vec<EngineHandle>,
    events: mpsc::UnboundedReceiver<(u8, EngineEvent)>,
    /// Receives when an engine's thread has ended.
    ended: mpsc::Receiver<()>,
}

impl Running {
    /// Returns the engines for the sessions.
    fn table(&self) -> Result<Engines, StartError> {
        let entry = |handle: &EngineHandle| {
            let page = handle.page_fd().try_clone_to_owned();
            let page = page.map_err(StartError::system("pass the engine's page"))?;
            let handle = handle.clone();
            let send: SendCommand = Box::new(move |command| handle.send(command));
            Ok((send, page))
        };
        let entries: Result<_, StartError> = self.handles.iter().map(entry).collect();
        Ok(Engines::new(Arc::clone(&self.set), entries?))
    }
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

/// Returns the policy of leases, with the leases of the previous daemon.
fn lease_setup(settings: &Settings, interfaces: Vec<Interface>) -> LeaseSetup {
    let config = &settings.config;
    let record = beside(&config.socket.path, ".leases");
    let groups = config.lease.groups.iter();
    LeaseSetup {
        // Even with leases disabled, so that their programs are refused at once.
        before: record::load(&record),
        record: Some(record),
        options: lease_options(config),
        // A missing group is not an error, because the default names one that may not exist.
        groups: groups
            .filter_map(|name| Some(claim::group(name).ok()?.as_raw()))
            .collect(),
        endpoint: settings.endpoint(),
        interfaces,
    }
}

/// Returns the policy of leases. A program with a lease sends its packets itself, without
/// protection.
fn lease_options(config: &Config) -> LeaseOptions {
    let mut options = config.lease.clone();
    if !config.auth.key_files.is_empty() {
        info!("no leases: packets are authenticated by the daemon ([auth])");
        options.allow = LeaseAllow::Off;
    } else if config.checksum != Checksum::Off {
        info!("no leases: packets have the daemon's checksum (which does not authenticate them)");
        options.allow = LeaseAllow::Off;
    }
    options
}

fn start_engines(
    settings: &Settings,
    links: Vec<LinkConfig>,
    lease: &LeaseSetup,
    secure: Option<SecureConfig>,
) -> Result<Running, StartError> {
    let adoption = if claim::was_left(&settings.config.socket.path) {
        settings.config.lease.grace.0
    } else {
        Duration::ZERO
    };
    let held = lease.before.iter().filter_map(|entry| {
        let mut interfaces = lease.interfaces.iter();
        let link = interfaces.position(|interface| interface.name == entry.interface)?;
        Some((LinkId(u16::try_from(link).ok()?), entry.ports.clone()))
    });
    let set = EngineSet::new(settings.config.engines.0).map_err(StartError::new)?;
    let config = EngineConfig {
        endpoint: settings.endpoint(),
        links,
        held: held.collect(),
        secure,
        pcap: settings.config.pcap.clone(),
        adoption,
        ..EngineConfig::default()
    };
    let (to_control, events) = mpsc::unbounded_channel();
    let (mut engines, mut handles) = (Vec::new(), Vec::new());
    for engine in 0..set.engines() {
        let to_control = to_control.clone();
        let send = move |event| {
            let _ = to_control.send((engine, event)); // no receiver during the shutdown
        };
        let config = EngineConfig {
            idle: settings.idle(engine),
            member: Some(Member {
                set: Arc::clone(&set),
                engine,
            }),
            ..config.clone()
        };
        let (engine, handle) = Engine::new(config, Box::new(send)).map_err(StartError::new)?;
        engines.push(engine);
        handles.push(handle);
    }
    set.connect(handles.clone());
    let (end, ended) = mpsc::channel(1);
    for (number, engine) in engines.into_iter().enumerate() {
        let name = match number {
            0 => "esp-engine".into(),
            _ => format!("esp-engine-{number}"),
        };
        let end = Ended(end.clone());
        std::thread::Builder::new()
            .name(name)
            .spawn(move || {
                let _end = end;
                engine.run();
            })
            .map_err(StartError::system("start the engine's thread"))?;
    }
    Ok(Running {
        set,
        handles,
        events,
        ended,
    })
}

/// Reports the end of an engine's thread on drop.
struct Ended(mpsc::Sender<()>);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.try_send(()); // the first end suffices
    }
}

/// Warns if the kernel grants smaller socket buffers than the engine asks for.
fn warn_of_small_buffers() {
    let wanted = netif::WINDOW_BYTES;
    if let Ok((receive, send)) = netif::granted_buffers(wanted, wanted)
        && receive.min(send) < wanted
    {
        warn!(
            wanted,
            receive,
            send,
            "small socket buffers: frames of fast senders may be lost; run sysctl -w \
             net.core.rmem_max=16777216 net.core.wmem_max=16777216, or give the daemon \
             CAP_NET_ADMIN"
        );
    }
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
