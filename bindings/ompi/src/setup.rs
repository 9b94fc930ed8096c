//! Parameters, and the transports made of them.

use btl::MAX_HEADER;
use btl_eth::{EthBtl, EthConfig, Path};

use crate::rail::{Seat, seats};

/// What the shim found out.
#[derive(Clone, Debug, Default)]
pub(crate) struct Setup {
    pub(crate) rank: u32,
    pub(crate) size: u32,
    pub(crate) job: String,
    pub(crate) host: String,
    pub(crate) include: Vec<String>,
    pub(crate) exclude: Vec<String>,
    /// `auto`, `lease` or `daemon`.
    pub(crate) path: String,
    pub(crate) rings: u64,
    /// Longest message of Open MPI's.
    pub(crate) max_message: usize,
    /// Messages up to here are always taken.
    pub(crate) eager: usize,
    /// Most bytes that wait.
    pub(crate) backlog: usize,
    /// A message that is not longer may wait for the next one of a row.
    pub(crate) coalesce: usize,
    /// Looks in vain before the processor is offered to others; 0: never.
    pub(crate) yield_after: u32,
    pub(crate) verbose: bool,
    pub(crate) loud: bool,
}

/// Transports with the names of their interfaces.
pub(crate) type Transports = Vec<(String, EthBtl)>;

/// The names in a list of a parameter.
pub(crate) fn names(text: &str) -> Vec<String> {
    text.split(',')
        .map(str::trim)
        .filter(|name| !name.is_empty())
        .map(str::to_owned)
        .collect()
}

impl Setup {
    /// None: as the environment says.
    fn way(&self) -> Result<Option<Path>, String> {
        match self.path.as_str() {
            "" | "auto" => Ok(None),
            "lease" => Ok(Some(Path::Lease)),
            "daemon" => Ok(Some(Path::Daemon)),
            other => Err(format!(
                "btl_esp_path is {other:?}: auto, lease or daemon is possible"
            )),
        }
    }

    /// A transport for each interface that is to be used, with its name; and why others have none, in words.
    ///
    /// # Errors
    /// Why there is none at all.
    pub(crate) fn transports(&self) -> Result<(Transports, Vec<String>), String> {
        let too_many = || {
            format!(
                "{} ranks are more than this component can number",
                self.size
            )
        };
        let mut config = EthConfig::new(
            0,
            seats(self.size).ok_or_else(too_many)?,
            self.job.as_bytes(),
        );
        config.include = self.include.clone();
        config.exclude = self.exclude.clone();
        config.path = self.way()?.unwrap_or(config.path);
        config.rings = u32::try_from(self.rings).unwrap_or(u32::MAX);
        config.max_send = self.max_message + MAX_HEADER;
        let (mut all, mut without) = (Vec::new(), Vec::new());
        for name in config.interfaces().map_err(|error| error.to_string())? {
            let Some(seat) = Seat::new(self.rank, all.len()) else {
                break;
            };
            let config = EthConfig {
                rank: seat.0,
                include: vec![name.clone()],
                ..config.clone()
            };
            match self.transport(config) {
                Ok(transport) => all.push((name, transport)),
                Err(words) => without.push(format!("interface {name}: {words}")),
            }
        }
        if all.is_empty() {
            Err(without.join("; "))
        } else {
            Ok((all, without))
        }
    }

    fn transport(&self, config: EthConfig) -> Result<EthBtl, String> {
        let least = config.max_send;
        let transport = EthBtl::new(config).map_err(|error| error.to_string())?;
        if transport.max_send() < least {
            return Err(format!(
                "messages of {least} bytes do not fit into the rings of {} bytes that are wanted and given; lower btl_esp_eager_limit and btl_esp_max_send_size, or raise btl_esp_rings and the [rings] of esp-daemon's configuration",
                self.rings
            ));
        }
        Ok(transport)
    }
}

/// A name of an interface for C, with a zero behind it.
pub(crate) fn padded(name: &str) -> [u8; 16] {
    let mut bytes = [0; 16];
    for (place, byte) in bytes.iter_mut().take(15).zip(name.bytes()) {
        *place = byte;
    }
    bytes
}

/// What the driver says that the link carries, Mbit/s; 0: it does not say.
pub(crate) fn speed(name: &str) -> u32 {
    // Names of interfaces have no slash; one of the daemon's that had would lead elsewhere.
    if name.contains('/') {
        return 0;
    }
    let text = std::fs::read_to_string(format!("/sys/class/net/{name}/speed")).unwrap_or_default();
    text.trim().parse().unwrap_or(0)
}

/// Whether the library in this process is of the series that this component was built for, by what MPI_Get_library_version says.
pub(crate) fn series_fits(library: &str) -> bool {
    let Some(rest) = library.strip_prefix("Open MPI v") else {
        // Tools without MPI of the same installation: nothing to go by, and nothing to fear.
        return library.is_empty();
    };
    rest.strip_prefix("4.1")
        .is_some_and(|rest| !rest.starts_with(|c: char| c.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_series_are_noticed() {
        for right in [
            "",
            "Open MPI v4.1.4, package: Debian OpenMPI, ident: 4.1.4",
            "Open MPI v4.1, x",
            "Open MPI v4.1rc1",
        ] {
            assert!(series_fits(right), "{right}");
        }
        for wrong in [
            "Open MPI v5.0.3, package",
            "Open MPI v4.0.5",
            "Open MPI v4.10.1",
            "MPICH Version: 4.0.2",
            "Open MPI v",
        ] {
            assert!(!series_fits(wrong), "{wrong}");
        }
    }

    #[test]
    fn the_way_of_messages() {
        let way = |path: &str| {
            Setup {
                path: path.into(),
                ..Setup::default()
            }
            .way()
        };
        assert_eq!(way("auto"), Ok(None));
        assert_eq!(way("daemon"), Ok(Some(Path::Daemon)));
        assert_eq!(way("lease"), Ok(Some(Path::Lease)));
        assert!(way("fast").unwrap_err().contains("\"fast\""));
    }

    #[test]
    fn names_for_c_end_with_a_zero() {
        assert_eq!(&padded("eth0")[..5], b"eth0\0");
        assert_eq!(&padded("0123456789abcdefgh"), b"0123456789abcde\0");
        assert_eq!(
            (speed("lo/../../../../etc/passwd"), speed("no such link")),
            (0, 0)
        );
    }

    #[test]
    fn lists_of_names() {
        assert_eq!(names("eth0, eth1,,"), ["eth0", "eth1"]);
        assert!(names("").is_empty());
    }
}
