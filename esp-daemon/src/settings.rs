//! Effective settings from command line, environment and config file.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use esp_engine::{IdleConfig, LinkConfig};
use esp_proto::EndpointConfig;
use netif::IpNetwork;

use crate::args::Args;
use crate::config::{self, Config, Network};
use crate::error::StartError;
use crate::exporter::Token;

/// Everything a run needs; nothing on the machine has been changed yet.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The config file, if one was read; SIGHUP reloads it.
    pub config_file: Option<PathBuf>,
    /// The config, with the options of the command line.
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
        let mut config = match &config_file {
            Some(file) => Config::load(file).map_err(StartError::new)?,
            None => Config::default(),
        };
        if !args.interfaces.is_empty() {
            config.interfaces.clear();
        }
        for name in &args.interfaces {
            if !config.interfaces.contains(name) {
                config.interfaces.push(name.clone());
            }
        }
        if !args.udp.is_empty() {
            config.udp.clone_from(&args.udp);
        }
        if let Some(socket) = args.socket.clone().or(environment) {
            config.socket.path = socket;
        }
        let engines = config.check_engines();
        engines.map_err(|what| StartError::new(format_args!("engines: {what}")))?;
        Ok(Settings {
            config_file,
            config,
        })
    }

    /// Returns the current state of the interfaces.
    ///
    /// # Errors
    /// No interface is named, or one of them is missing or not Ethernet.
    pub fn find_interfaces(&self) -> Result<Vec<netif::Interface>, StartError> {
        if self.config.interfaces.is_empty() && self.config.udp.is_empty() {
            let config = self.config_file.as_deref();
            let config = config.unwrap_or(Path::new(config::DEFAULT_FILE)).display();
            let usable = netif::Interface::list()
                .into_iter()
                .filter(|found| found.check_ethernet().is_ok());
            let mut existing: Vec<String> = usable.map(|found| found.name).collect();
            if existing.is_empty() {
                existing.push("no Ethernet interface".into());
            }
            return Err(StartError::new(format_args!(
                "no interface configured: name one with --interface, or in `interfaces` of {config}; existing: {}",
                existing.join(", ")
            )));
        }
        let find = |name: &String| ethernet(name);
        self.config.interfaces.iter().map(find).collect()
    }

    /// Returns the links of ESP in UDP: one for each address of this node in the configured
    /// networks, named after its interface, such as `eth0/udp`.
    ///
    /// # Errors
    /// No address of this node is in a network.
    pub fn find_udp(&self) -> Result<Vec<LinkConfig>, StartError> {
        let all = netif::addresses();
        let networks = &self.config.udp;
        for network in networks {
            if !all.iter().any(|found| source(found, network).is_some()) {
                let existing: Vec<String> = all.iter().map(|found| found.ip.to_string()).collect();
                return Err(StartError::new(format_args!(
                    "udp: no address of this node is in {network}; it has {}",
                    existing.join(", ")
                )));
            }
        }
        let mut links: Vec<LinkConfig> = Vec::new();
        for found in &all {
            let sources: Vec<IpNetwork> = networks
                .iter()
                .filter_map(|network| source(found, network))
                .collect();
            if !sources.is_empty() {
                let interface = named(&found.interface, &links);
                let local = SocketAddr::new(found.ip, self.config.udp_port);
                links.push(LinkConfig::Udp {
                    interface,
                    local,
                    sources,
                });
            }
        }
        Ok(links)
    }

    /// Returns the parameters of the protocol.
    pub fn endpoint(&self) -> EndpointConfig {
        let Config {
            timers, ethertypes, ..
        } = &self.config;
        EndpointConfig {
            esp_ethertype: ethertypes.esp,
            edp_ethertype: ethertypes.edp,
            min_rto: timers.min_rto.0,
            max_rto: timers.max_rto.0,
            connect_timeout: timers.connect_timeout.0,
            peer_timeout: timers.peer_timeout.0,
            keepalive: timers.keepalive.0,
            node_name: self.config.node_name.clone().unwrap_or_else(host_name),
            ..EndpointConfig::default()
        }
    }

    /// Returns the behaviour of an engine when it is idle.
    pub fn idle(&self, engine: u8) -> IdleConfig {
        let idle = &self.config.idle;
        let core = idle.core.and_then(|core| usize::try_from(core).ok());
        IdleConfig {
            spin: idle.spin.0,
            core: core.and_then(|core| core.checked_add(engine.into())),
            ..IdleConfig::default()
        }
    }
}

/// Returns the source addresses that a link at this address accepts for a network; `None` if it is
/// not in the network.
fn source(found: &netif::LocalAddress, network: &Network) -> Option<IpNetwork> {
    let link_local = matches!(found.ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
    match network {
        Network::Prefix(prefix) => prefix.contains(found.ip).then_some(*prefix),
        Network::OnLink if found.interface.loopback || link_local => None,
        Network::OnLink => IpNetwork::new(found.ip, found.prefix).ok(),
    }
}

/// Returns the interface with the name of its next link.
fn named(interface: &netif::Interface, links: &[LinkConfig]) -> netif::Interface {
    let index = interface.index;
    let is_same = |link: &&LinkConfig| match link {
        LinkConfig::Udp { interface, .. } => interface.index == index,
        _ => false,
    };
    let name = match links.iter().filter(is_same).count() {
        0 => format!("{}/udp", interface.name),
        earlier => format!("{}/udp{}", interface.name, earlier + 1),
    };
    let mut interface = interface.clone();
    interface.name = name;
    interface
}

/// Checks a config file as `--check-config` does: the file itself, that the interfaces, networks
/// and group of the socket that it names exist on this machine, and that its key files and token
/// file can be used. The file need not name interfaces or networks, because the command line may.
///
/// # Errors
/// The first error that a start would report.
pub fn check_config(file: &Path) -> Result<(), StartError> {
    let settings = Settings {
        config_file: Some(file.to_owned()),
        config: Config::load(file).map_err(StartError::new)?,
    };
    let config = &settings.config;
    for name in &config.interfaces {
        ethernet(name)?;
    }
    if let Some(name) = &config.socket.group {
        crate::claim::group(name)?;
    }
    settings.find_udp()?;
    crate::auth::load(config)?;
    Token::of(&config.metrics)?;
    Ok(())
}

fn ethernet(name: &str) -> Result<netif::Interface, StartError> {
    let found = netif::Interface::by_name(name).map_err(StartError::new)?;
    found.check_ethernet().map_err(StartError::new)?;
    Ok(found)
}

fn host_name() -> String {
    rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned()
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
        assert_eq!(settings(&args, None).config.socket.path, Path::new("/c"));
        assert_eq!(
            settings(&args, Some("/e")).config.socket.path,
            Path::new("/e")
        );
        assert_eq!(settings(&args, None).config.interfaces, ["c0"]);
        args.socket = Some("/a".into());
        args.interfaces = vec!["a0".into(), "a1".into(), "a0".into()];
        let all = settings(&args, Some("/e"));
        assert_eq!(all.config.socket.path, Path::new("/a"));
        assert_eq!(all.config.interfaces, ["a0", "a1"]);
        assert_eq!(all.endpoint().keepalive.as_secs(), 7);
        assert!(!all.endpoint().node_name.is_empty());
    }

    /// Returns the error of checking a config file of this text.
    fn checked(text: &str) -> String {
        let dir = TempDir::new();
        let file = dir.path().join("a.toml");
        std::fs::write(&file, text).unwrap();
        let checked = check_config(&file);
        checked.map_or_else(|error| error.to_string(), |()| "ok".into())
    }

    #[test]
    fn a_check_reports_what_a_start_would() {
        assert_eq!(checked(""), "ok");
        // No node has an address of class E (RFC 1112).
        let error = checked("udp = [\"240.0.0.0/4\"]\n");
        let text = "udp: no address of this node is in 240.0.0.0/4";
        assert!(error.starts_with(text), "{error}");
        let metrics =
            "[metrics]\nlisten = \"127.0.0.1:9100\"\ntoken_file = \"/nonexistent/token\"\n";
        let error = checked(metrics);
        let text = "metrics.token_file: /nonexistent/token: ";
        assert!(error.starts_with(text), "{error}");
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
}
