//! Effective settings from command line, environment and config file.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use esp_engine::{IdleConfig, LinkConfig};
use esp_proto::EndpointConfig;
use netif::IpNetwork;

use crate::args::Args;
use crate::config::{self, Config, Network};
use crate::error::StartError;
use crate::limits::Limits;

/// Everything a run needs, resolved; nothing on the machine has been changed yet.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The config file, if one was read; SIGHUP reloads it.
    pub config_file: Option<PathBuf>,
    /// Names of the interfaces.
    pub interfaces: Vec<String>,
    /// Networks of ESP in UDP.
    pub udp: Vec<Network>,
    /// Path of the control socket.
    pub socket: PathBuf,
    /// The config as read, for options without a command-line equivalent.
    pub config: Config,
}

impl Settings {
    /// Reads the config file and applies the command line. `environment` is the value of
    /// `ESP_SOCKET`.
    ///
    /// # Errors
    /// The config file is invalid, or was named and cannot be read.
    pub fn new(args: &Args, environment: Option<PathBuf>) -> Result<Settings, StartError> {
        let config_file = match &args.config {
            Some(file) => Some(file.clone()),
            None => Some(PathBuf::from(config::DEFAULT_FILE)).filter(|file| file.exists()),
        };
        let config = match &config_file {
            Some(file) => Config::load(file)?,
            None => Config::default(),
        };
        let interfaces = match args.interfaces.as_slice() {
            [] => config.interfaces.clone(),
            named => unique(named),
        };
        let udp = match args.udp.as_slice() {
            [] => config.udp.clone(),
            named => named.to_vec(),
        };
        let socket = args
            .socket
            .clone()
            .or(environment)
            .unwrap_or_else(|| config.socket.path.clone());
        Ok(Settings {
            config_file,
            interfaces,
            udp,
            socket,
            config,
        })
    }

    /// Returns the current state of the interfaces.
    ///
    /// # Errors
    /// None is named, or one of them is missing or not Ethernet.
    pub fn find_interfaces(&self) -> Result<Vec<netif::Interface>, StartError> {
        if self.interfaces.is_empty() && self.udp.is_empty() {
            let config = self
                .config_file
                .clone()
                .unwrap_or_else(|| config::DEFAULT_FILE.into());
            let usable = netif::Interface::list()
                .into_iter()
                .filter(|found| found.check_ethernet().is_ok());
            let mut existing: Vec<String> = usable.map(|found| found.name).collect();
            if existing.is_empty() {
                existing.push("no Ethernet interface".into());
            }
            return Err(StartError::NoInterface { config, existing });
        }
        let find = |name: &String| {
            let found = netif::Interface::by_name(name)?;
            found.check_ethernet()?;
            Ok(found)
        };
        self.interfaces.iter().map(find).collect()
    }

    /// Returns the links of ESP in UDP: one for each address of this node in the configured
    /// networks, named after its interface, such as `eth0/udp`.
    ///
    /// # Errors
    /// A network has no address of this node.
    pub fn find_udp(&self) -> Result<Vec<LinkConfig>, StartError> {
        let all = netif::addresses();
        let mut links: Vec<LinkConfig> = Vec::new();
        for network in &self.udp {
            let before = links.len();
            for found in all.iter().filter(|found| is_in(found, network)) {
                let local = SocketAddr::new(found.ip, self.config.udp_port);
                let source = match network {
                    Network::Prefix(prefix) => *prefix,
                    Network::OnLink => match IpNetwork::new(found.ip, found.prefix) {
                        Ok(own) => own,
                        Err(_) => continue,
                    },
                };
                let known = links.iter_mut().find_map(|link| match link {
                    LinkConfig::Udp {
                        local: own,
                        sources,
                        ..
                    } if *own == local => Some(sources),
                    _ => None,
                });
                match known {
                    Some(sources) => sources.push(source),
                    None => links.push(LinkConfig::Udp {
                        interface: named(&found.interface, &links),
                        local,
                        sources: vec![source],
                    }),
                }
            }
            if links.len() == before && !all.iter().any(|found| is_in(found, network)) {
                return Err(StartError::NoAddress {
                    network: network.to_string(),
                    existing: all.iter().map(|found| found.ip.to_string()).collect(),
                });
            }
        }
        Ok(links)
    }

    /// Returns the limits on this machine.
    pub fn limits(&self) -> Limits {
        Limits::new(&self.config.limits, machine_memory())
    }

    /// Returns the parameters of the protocol.
    pub fn endpoint(&self) -> EndpointConfig {
        let Config {
            timers,
            protocol,
            ethertypes,
            ..
        } = &self.config;
        EndpointConfig {
            esp_ethertype: ethertypes.esp,
            edp_ethertype: ethertypes.edp,
            max_connections: protocol.max_connections as usize,
            max_window: protocol.max_window,
            max_ack_delay: timers.max_ack_delay.0,
            min_rto: timers.min_rto.0,
            max_rto: timers.max_rto.0,
            connect_timeout: timers.connect_timeout.0,
            peer_timeout: timers.peer_timeout.0,
            keepalive: timers.keepalive.0,
            time_wait: timers.time_wait.0,
            node_name: self.config.node_name.clone().unwrap_or_else(host_name),
            ..EndpointConfig::default()
        }
    }

    /// Returns the behaviour of the idle engine.
    pub fn idle(&self) -> IdleConfig {
        let idle = &self.config.idle;
        IdleConfig {
            spin: idle.spin.0,
            yield_for: idle.yield_for.0,
            core: idle.core.and_then(|core| usize::try_from(core).ok()),
        }
    }
}

/// Returns true if a link serves this address for a network.
fn is_in(found: &netif::LocalAddress, network: &Network) -> bool {
    let link_local = matches!(found.ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
    match network {
        Network::Prefix(prefix) => prefix.contains(found.ip),
        Network::OnLink => !found.interface.loopback && !link_local,
    }
}

/// Returns the interface under the name of its next link.
fn named(interface: &netif::Interface, links: &[LinkConfig]) -> netif::Interface {
    let index = interface.index;
    let is_same = |link: &&LinkConfig| matches!(link, LinkConfig::Udp { interface, .. } if interface.index == index);
    let name = match links.iter().filter(is_same).count() {
        0 => format!("{}/udp", interface.name),
        earlier => format!("{}/udp{}", interface.name, earlier + 1),
    };
    let mut interface = interface.clone();
    interface.name = name;
    interface
}

/// Checks a config file as `--check-config` does: the file itself, and that the interfaces and the
/// socket's group that it names exist on this machine.
///
/// # Errors
/// The first error found.
pub fn check_config(file: &Path) -> Result<(), StartError> {
    let config = Config::load(file)?;
    for name in &config.interfaces {
        netif::Interface::by_name(name)?.check_ethernet()?;
    }
    if let Some(name) = &config.socket.group {
        crate::life::socket::group(name)?;
    }
    Ok(())
}

/// Returns the machine's memory in bytes.
#[allow(clippy::useless_conversion)] // 32 bits wide on some machines
pub fn machine_memory() -> u64 {
    let info = rustix::system::sysinfo();
    u64::from(info.totalram).saturating_mul(u64::from(info.mem_unit))
}

fn host_name() -> String {
    rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned()
}

fn unique(names: &[String]) -> Vec<String> {
    let mut kept: Vec<String> = Vec::new();
    for name in names {
        if !kept.contains(name) {
            kept.push(name.clone());
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TempDir;

    fn settings(args: &Args, environment: Option<&str>) -> Settings {
        Settings::new(args, environment.map(PathBuf::from)).unwrap()
    }

    #[test]
    fn command_line_comes_before_environment_before_config() {
        let dir = TempDir::new();
        let file = dir.path().join("a.toml");
        std::fs::write(
            &file,
            "interfaces = [\"c0\"]\n[socket]\npath = \"/c\"\n[timers]\nkeepalive = \"7s\"\n",
        )
        .unwrap();
        let mut args = Args {
            config: Some(file),
            ..Args::default()
        };
        assert_eq!(settings(&args, None).socket, Path::new("/c"));
        assert_eq!(settings(&args, Some("/e")).socket, Path::new("/e"));
        assert_eq!(settings(&args, None).interfaces, ["c0"]);
        args.socket = Some("/a".into());
        args.interfaces = vec!["a0".into(), "a1".into(), "a0".into()];
        let all = settings(&args, Some("/e"));
        assert_eq!(all.socket, Path::new("/a"));
        assert_eq!(all.interfaces, ["a0", "a1"]);
        assert_eq!(all.endpoint().keepalive.as_secs(), 7);
        assert!(!all.endpoint().node_name.is_empty());
    }

    #[test]
    fn named_config_has_to_exist() {
        let args = Args {
            config: Some("/nonexistent/x.toml".into()),
            ..Args::default()
        };
        assert!(
            Settings::new(&args, None)
                .unwrap_err()
                .to_string()
                .contains("/nonexistent/x.toml")
        );
    }

    #[test]
    fn machine_has_memory() {
        assert!(machine_memory() > 1 << 20);
    }
}
