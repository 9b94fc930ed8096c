//! MCA parameters, and the transports made from them.

use std::ffi::c_int;
use std::fmt;

use btl::{Btl, MAX_HEADER};
use btl_eth::{Carrier, EthBtl, EthConfig, Path};

use crate::component::BUILT_FOR;
use crate::endpoint::{MAX_INTERFACES, RemoteRail, transport_size};
use crate::modex::RailAddress;

/// Parameters and facts that the shim collected (`struct esp_parameters`).
#[derive(Clone, Debug, Default)]
pub(crate) struct Parameters {
    pub(crate) rank: u32,
    pub(crate) size: u32,
    /// Text that is unique to the job.
    pub(crate) job: String,
    pub(crate) node: String,
    pub(crate) include: Vec<String>,
    pub(crate) exclude: Vec<String>,
    /// `auto`, `lease` or `daemon`.
    pub(crate) path: String,
    /// `auto`, `raw` or `udp`.
    pub(crate) carrier: String,
    pub(crate) rings: u64,
    /// Maximum length of a message of Open MPI.
    pub(crate) max_message: usize,
    /// Maximum length of an eager message of Open MPI.
    pub(crate) eager: usize,
    /// Maximum number of queued bytes.
    pub(crate) backlog: usize,
    /// Empty polls yield the processor. False if Open MPI itself yields.
    pub(crate) yields: bool,
    pub(crate) verbose: bool,
    /// The user selected this component by name.
    pub(crate) report_errors: bool,
}

impl fmt::Display for Parameters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} on node {}", self.rank, self.node)
    }
}

/// A rail of this process, not yet in use.
pub(crate) struct NewRail {
    /// Number of the interface's module.
    pub(crate) module: usize,
    /// Name of the interface.
    pub(crate) interface: String,
    pub(crate) carrier: Carrier,
    pub(crate) transport: EthBtl,
}

impl NewRail {
    /// Returns the published properties of the rail.
    pub(crate) fn published(&self) -> RailAddress {
        RailAddress {
            interface: self.interface.clone(),
            carrier: self.carrier,
            address: self.transport.address(),
        }
    }
}

/// Rails of this process under construction.
#[derive(Default)]
pub(crate) struct NewRails {
    pub(crate) rails: Vec<NewRail>,
    /// Names of the interfaces by module.
    pub(crate) interfaces: Vec<String>,
    /// Reasons why carriers have no rails, such as raw Ethernet without a daemon.
    pub(crate) absent: Vec<String>,
    /// Reasons why interfaces have no rail.
    pub(crate) errors: Vec<String>,
}

/// Splits a comma-separated list of names.
pub(crate) fn split_list(text: &str) -> Vec<String> {
    text.split(',')
        .map(str::trim)
        .filter(|name| !name.is_empty())
        .map(str::to_owned)
        .collect()
}

impl Parameters {
    /// Returns the path of messages; `None` if the environment decides.
    fn path(&self) -> Result<Option<Path>, String> {
        match self.path.as_str() {
            "" | "auto" => Ok(None),
            "lease" => Ok(Some(Path::Lease)),
            "daemon" => Ok(Some(Path::Daemon)),
            other => Err(format!(
                "invalid btl_esp_path {other:?}: use auto, lease or daemon"
            )),
        }
    }

    /// Returns the carriers to use.
    fn carriers(&self) -> Result<&'static [Carrier], String> {
        match self.carrier.as_str() {
            "" | "auto" => Ok(&[Carrier::Raw, Carrier::Udp]),
            "raw" => Ok(&[Carrier::Raw]),
            "udp" => Ok(&[Carrier::Udp]),
            other => Err(format!(
                "invalid btl_esp_carrier {other:?}: use auto, raw or udp"
            )),
        }
    }

    fn config(&self) -> Result<EthConfig, String> {
        let size = transport_size(self.size)
            .ok_or_else(|| format!("jobs of {} ranks are not supported", self.size))?;
        let mut config = EthConfig::new(0, size, self.job.as_bytes());
        config.include = self.include.clone();
        config.exclude = self.exclude.clone();
        config.path = self.path()?.unwrap_or(config.path);
        config.rings = u32::try_from(self.rings).unwrap_or(u32::MAX);
        config.max_send = self.max_message + MAX_HEADER;
        Ok(config)
    }

    /// Creates a rail for each carrier of each interface. `auto`: raw Ethernet and UDP on the
    /// interfaces of the daemon; UDP on all interfaces if there is no daemon.
    pub(crate) fn rails(&self) -> NewRails {
        let mut new = NewRails::default();
        let (config, carriers) = match (self.config(), self.carriers()) {
            (Ok(config), Ok(carriers)) => (config, carriers),
            (Err(error), _) | (_, Err(error)) => {
                new.errors.push(error);
                return new;
            }
        };
        for &carrier in carriers {
            let mut config = config.clone();
            config.carrier = carrier;
            self.add_rails(&mut new, &config);
        }
        new
    }

    /// Creates a rail for each interface that has the carrier. If there are rails already, only
    /// their interfaces are considered.
    fn add_rails(&self, new: &mut NewRails, config: &EthConfig) {
        let names = match config.interfaces() {
            Ok(names) => names,
            Err(error) => {
                new.absent.push(error.to_string());
                return;
            }
        };
        let known = new.interfaces.clone();
        for interface in names {
            let module = match known.iter().position(|name| *name == interface) {
                Some(module) => module,
                None if known.is_empty() && new.interfaces.len() < MAX_INTERFACES => {
                    new.interfaces.len()
                }
                None => continue,
            };
            let Some(own) = RemoteRail::new(self.rank, new.rails.len()) else {
                return;
            };
            let config = EthConfig {
                rank: own.0,
                include: vec![interface.clone()],
                ..config.clone()
            };
            let carrier = config.carrier;
            match self.transport(config) {
                Ok(transport) => {
                    if module == new.interfaces.len() {
                        new.interfaces.push(interface.clone());
                    }
                    new.rails.push(NewRail {
                        module,
                        interface,
                        carrier,
                        transport,
                    });
                }
                Err(error) => new.errors.push(format!("interface {interface}: {error}")),
            }
        }
    }

    fn transport(&self, config: EthConfig) -> Result<EthBtl, String> {
        let (own, needed) = (config.rank, config.max_send);
        let mut transport = EthBtl::new(config).map_err(|error| error.to_string())?;
        // The path to this process itself has the limits of the rings that the daemon granted.
        let address = transport.address();
        let limit = transport
            .add_peer(own, &address)
            .map_err(|error| error.to_string())?
            .max_send;
        if limit < needed {
            return Err(format!(
                "messages of {needed} bytes need larger rings than the {} bytes requested or \
                 granted: lower btl_esp_eager_limit and btl_esp_max_send_size, or raise \
                 btl_esp_rings and the [rings] limits of esp-daemon",
                self.rings
            ));
        }
        Ok(transport)
    }
}

/// Returns an interface's name for C, with a terminating zero.
pub(crate) fn c_name(name: &str) -> [u8; 16] {
    let mut bytes = [0; 16];
    for (slot, byte) in bytes.iter_mut().take(15).zip(name.bytes()) {
        *slot = byte;
    }
    bytes
}

/// Returns the link speed that the driver reports, in Mbit/s; 0 if it reports none.
pub(crate) fn link_speed(name: &str) -> u32 {
    // Names of interfaces contain no slash. One from a faulty daemon could name another file.
    if name.contains('/') {
        return 0;
    }
    let text = std::fs::read_to_string(format!("/sys/class/net/{name}/speed")).unwrap_or_default();
    text.trim().parse().unwrap_or(0)
}

/// Returns the release series that `[major, minor, _]` belongs to, such as `5.0`.
fn series([major, minor, _]: [c_int; 3]) -> String {
    format!("{major}.{minor}")
}

/// Returns the version of this component and the Open MPI it is for.
pub(crate) fn version() -> String {
    let [major, minor, release] = BUILT_FOR;
    format!(
        "{}, for Open MPI {} (built with the headers of {major}.{minor}.{release})",
        env!("CARGO_PKG_VERSION"),
        series(BUILT_FOR)
    )
}

/// Returns the reason why a component that was `built` for one release of Open MPI must be ignored
/// in the running one; `None` if both are of one release series. `library`: text of
/// `MPI_Get_library_version`.
pub(crate) fn other_series(built: [c_int; 3], library: &str) -> Option<String> {
    // Tools that do not link MPI, such as ompi_info, have no version.
    if library.is_empty() {
        return None;
    }
    let (ours, name) = (series(built), library.split(',').next().unwrap_or(library));
    let rest = library.strip_prefix("Open MPI v");
    let is_ours = rest
        .and_then(|rest| rest.strip_prefix(&ours))
        .is_some_and(|rest| !rest.starts_with(|c: char| c.is_ascii_digit()));
    let name: String = name.chars().take(80).collect();
    (!is_ours).then(|| {
        format!(
            "esp: this component is for Open MPI {ours}, and is ignored in {name}: install it for \
             that version, see docs/open-mpi.md"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_release_series_are_refused() {
        for (built, right) in [
            ([4, 1, 4], ""),
            (
                [4, 1, 4],
                "Open MPI v4.1.4, package: Debian OpenMPI, ident: 4.1.4",
            ),
            ([4, 1, 4], "Open MPI v4.1, x"),
            ([4, 1, 4], "Open MPI v4.1rc1"),
            ([5, 0, 7], "Open MPI v5.0.7, package: Debian OpenMPI"),
            ([5, 0, 7], "Open MPI v5.0.10, package"),
            ([6, 0, 0], "Open MPI v6.0.0rc2, package"),
        ] {
            assert_eq!(other_series(built, right), None, "{right}");
        }
        for (built, wrong) in [
            ([4, 1, 4], "Open MPI v5.0.3, package"),
            ([4, 1, 4], "Open MPI v4.0.5"),
            ([4, 1, 4], "Open MPI v4.10.1"),
            ([4, 1, 4], "MPICH Version: 4.0.2"),
            ([4, 1, 4], "Open MPI v"),
            ([5, 0, 7], "Open MPI v4.1.4, package"),
            ([5, 0, 7], "Open MPI v6.0.0, package"),
            ([6, 0, 0], "Open MPI v5.0.7, package"),
        ] {
            assert!(other_series(built, wrong).is_some(), "{wrong}");
        }
        let text = other_series([5, 0, 7], "Open MPI v4.1.4, package: Debian OpenMPI").unwrap();
        assert!(
            text.contains("is for Open MPI 5.0, and is ignored in Open MPI v4.1.4:"),
            "{text}"
        );
    }

    #[test]
    fn the_version_says_for_which_open_mpi_it_is() {
        let [major, minor, release] = BUILT_FOR;
        let text = version();
        assert!(
            text.contains(&format!("for Open MPI {major}.{minor} (")),
            "{text}"
        );
        assert!(text.contains(&format!("of {major}.{minor}.{release})")));
    }

    #[test]
    fn the_path_is_parsed() {
        let path = |path: &str| {
            Parameters {
                path: path.into(),
                ..Parameters::default()
            }
            .path()
        };
        assert_eq!(path("auto"), Ok(None));
        assert_eq!(path("daemon"), Ok(Some(Path::Daemon)));
        assert_eq!(path("lease"), Ok(Some(Path::Lease)));
        assert!(path("fast").unwrap_err().contains("\"fast\""));
    }

    #[test]
    fn names_are_bounded_and_checked() {
        assert_eq!(&c_name("eth0")[..5], b"eth0\0");
        assert_eq!(&c_name("0123456789abcdefgh"), b"0123456789abcde\0");
        assert_eq!(link_speed("lo/../../../../etc/passwd"), 0);
        assert_eq!(link_speed("no such link"), 0);
    }

    #[test]
    fn lists_are_split() {
        assert_eq!(split_list("eth0, eth1,,"), ["eth0", "eth1"]);
        assert!(split_list("").is_empty());
    }
}
