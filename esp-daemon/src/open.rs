//! The start of the daemon: claims, engines, and the control socket.

use std::sync::Arc;
use std::time::Duration;

use esp_engine::{
    Engine, EngineConfig, EngineEvent, EngineHandle, EngineSet, LinkConfig, LinkId, Member,
};
use esp_proto::secure::SecureConfig;
use netif::Interface;
use rustix::process::Gid;
use tokio::net::UnixListener;
use tokio::sync::mpsc;
use tracing::{info, warn};

use crate::auth;
use crate::claim::{self, InterfaceClaim, SocketClaim, beside};
use crate::config::{Checksum, Config, Ethertypes, LeaseAllow, LeaseOptions};
use crate::engines::{Engines, SendCommand};
use crate::error::StartError;
use crate::leases::{LeaseSetup, record};
use crate::links::describe;
use crate::node::{Node, NodeOptions};
use crate::settings::Settings;

/// Time within which a program must send Hello, complete a message, or read a reply.
const PATIENCE: Duration = Duration::from_secs(5);

/// A started daemon, to which programs can connect.
pub(crate) struct Opened {
    /// Held until the end.
    pub(crate) interfaces: Vec<InterfaceClaim>,
    /// Names of all links, for the log.
    pub(crate) names: String,
    pub(crate) running: Running,
    /// Group of the control socket.
    pub(crate) group: Option<Gid>,
    /// The control socket.
    pub(crate) claim: SocketClaim,
    pub(crate) listener: UnixListener,
    pub(crate) node: Arc<Node>,
}

/// Claims the interfaces, starts the engines, and then creates the control socket.
pub(crate) fn open(settings: &Settings) -> Result<Opened, StartError> {
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

/// The running engines.
pub(crate) struct Running {
    set: Arc<EngineSet>,
    pub(crate) handles: Vec<EngineHandle>,
    pub(crate) events: mpsc::UnboundedReceiver<(u8, EngineEvent)>,
    /// Receives when an engine's thread has ended.
    pub(crate) ended: mpsc::Receiver<()>,
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
