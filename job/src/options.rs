//! Options of a job and the environment variables that set them.

use std::ffi::OsString;
use std::path::PathBuf;

use esp_client::{AUTH_VARIABLE, Auth, KEY_VARIABLE, key_files};
use p2p::Config;
use shm_btl::Thresholds;

use crate::JoinError;
use crate::error::printable;
use crate::tune::{self, Rdma};

/// Kind of transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// Memory of the node.
    Shm,
    /// InfiniBand or RoCE, by verbs.
    Ib,
    /// Raw Ethernet, by the node's esp-daemon.
    Eth,
    /// ESP in UDP, by sockets of the process. Needs no daemon and no privilege.
    Udp,
}

impl Transport {
    /// All transports, most preferred first.
    pub const ALL: [Transport; 4] = [
        Transport::Shm,
        Transport::Ib,
        Transport::Eth,
        Transport::Udp,
    ];

    /// Returns the name used in `ESP_BTL` and in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Transport::Shm => "shm",
            Transport::Ib => "ib",
            Transport::Eth => "eth",
            Transport::Udp => "udp",
        }
    }
}

/// Maximum number of RDMA ports, and of Ethernet rails, of a process.
pub(crate) const MAX_RAILS: usize = 4;

/// Default of [`Options::lazy_from`]: in smaller jobs the start is quick, and names all peers that
/// cannot be reached.
const LAZY_FROM: u32 = 65;

/// Options of joining a job.
#[derive(Clone, Debug)]
pub struct Options {
    /// Transports to use. (A message from a rank to itself needs none.)
    pub transports: Vec<Transport>,
    /// Interfaces to use for Ethernet and UDP, by name; `eth*` matches all names with that prefix.
    /// Empty: all that the daemon serves; for UDP, all that are up and have an IP address.
    pub interfaces: Vec<String>,
    /// Interfaces not to use; takes precedence over `interfaces`.
    pub not_interfaces: Vec<String>,
    /// Maximum number of interfaces used at once, each as a rail to each peer, 1 to 4. Default 4.
    /// The last rail has all remaining interfaces, and uses the best of them for each node.
    pub rails: usize,
    /// Use of keys for packets over UDP. The keys are those of [`Options::key_files`], otherwise
    /// one that rank 0 chooses and the launcher distributes. `None`: encryption if there are files,
    /// or if the daemon of rank 0's node has a key. With files, [`Auth::Encrypt`] or
    /// [`Auth::Integrity`], transports that these keys do not protect are excluded: all except
    /// shared memory and UDP.
    pub auth: Option<Auth>,
    /// Files with keys, at most [`MAX_KEYS`](esp_client::MAX_KEYS). All processes of a job need
    /// one of the keys in common.
    pub key_files: Vec<PathBuf>,
    /// Add a checksum to packets over UDP that no key protects; it detects damage and authenticates
    /// nothing. `None`: if the daemon of rank 0's node does so.
    pub checksum: Option<bool>,
    /// RDMA ports to use, such as `mlx5_0` or `mlx5_0:2`, one rail each. Empty: the active ones.
    pub rdma_ports: Vec<String>,
    /// Blocks and thresholds of RDMA.
    pub rdma: Rdma,
    /// Minimum number of ranks of a job in which a process reaches those of other nodes when it
    /// first communicates with them, not at the start. The value of rank 0 counts. Default 65.
    pub lazy_from: u32,
    /// Print the path to each peer on standard error.
    pub verbose: bool,
    /// Sizes above which one copy within a node is faster than two. `None`: the defaults.
    pub thresholds: Option<Thresholds>,
    /// Origin of the thresholds, for the report.
    pub thresholds_from: String,
    /// Configuration of the point-to-point layer. [`join_with`](crate::join_with) sets the number
    /// of processes that share the node.
    pub p2p: Config,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            transports: Transport::ALL.to_vec(),
            interfaces: Vec::new(),
            not_interfaces: Vec::new(),
            rails: MAX_RAILS,
            auth: None,
            key_files: Vec::new(),
            checksum: None,
            rdma_ports: Vec::new(),
            rdma: Rdma::default(),
            lazy_from: LAZY_FROM,
            verbose: false,
            thresholds: None,
            thresholds_from: "defaults".into(),
            p2p: Config::default(),
        }
    }
}

impl Options {
    /// Reads the options from the environment of this process and the file of thresholds it names.
    ///
    /// # Errors
    /// A variable or the file is invalid.
    pub fn from_env() -> Result<Options, JoinError> {
        Options::from(&|name| std::env::var_os(name))
    }

    fn from(env: &dyn Fn(&str) -> Option<OsString>) -> Result<Options, JoinError> {
        let mut options = Options::default();
        let text = |name: &str| {
            let text = env(name)?.to_string_lossy().into_owned();
            Some(text).filter(|text| !text.is_empty())
        };
        let switch = |name| match text(name).as_deref() {
            None => Ok(None),
            Some("0") => Ok(Some(false)),
            Some("1") => Ok(Some(true)),
            Some(other) => Err(bad(name, other, "expected 0 or 1")),
        };
        if let Some(list) = text("ESP_BTL") {
            options.transports = transports(&list)?;
        }
        if let Some(list) = text("ESP_INTERFACES") {
            for word in list.split(',').map(str::trim) {
                let (name, wanted) = word
                    .strip_prefix('^')
                    .map_or((word, true), |name| (name, false));
                if name.is_empty() || !name.chars().all(|c| c.is_ascii_graphic()) {
                    let want = "expected a list of interfaces, such as eth0,eth1 or ^wlan*";
                    return Err(bad("ESP_INTERFACES", &list, want));
                }
                let names = if wanted {
                    &mut options.interfaces
                } else {
                    &mut options.not_interfaces
                };
                names.push(name.to_owned());
            }
        }
        if let Some(number) = text("ESP_RAILS") {
            let want = "expected 1 to 4 interfaces";
            let rails = number.parse().ok().filter(|n| (1..=MAX_RAILS).contains(n));
            options.rails = rails.ok_or_else(|| bad("ESP_RAILS", &number, want))?;
        }
        if let Some(mode) = text(AUTH_VARIABLE) {
            let auth = mode
                .parse()
                .map_err(|want: String| bad(AUTH_VARIABLE, &mode, &want));
            options.auth = Some(auth?);
        }
        options.key_files = env(KEY_VARIABLE).map_or_else(Vec::new, |list| key_files(&list));
        options.checksum = switch("ESP_CHECKSUM")?;
        if let Some(list) = text("ESP_RDMA_PORTS") {
            options.rdma_ports = list.split(',').map(|word| word.trim().to_owned()).collect();
            let plain =
                |word: &String| !word.is_empty() && word.chars().all(|c| c.is_ascii_graphic());
            if !options.rdma_ports.iter().all(plain) || options.rdma_ports.len() > MAX_RAILS {
                let want = "expected at most four ports, such as mlx5_0,mlx5_1:2";
                return Err(bad("ESP_RDMA_PORTS", &list, want));
            }
        }
        if let Some(number) = text("ESP_LAZY_FROM") {
            let want = "expected at least 1 rank";
            let ranks = number.parse().ok().filter(|ranks| *ranks > 0);
            options.lazy_from = ranks.ok_or_else(|| bad("ESP_LAZY_FROM", &number, want))?;
        }
        options.verbose = switch("ESP_BTL_VERBOSE")?.unwrap_or(false);
        let (file, named) = match env("ESP_TUNE") {
            Some(file) => (Some(PathBuf::from(file)), true),
            None => (default_file(env), false),
        };
        if let Some(file) = file.filter(|file| !file.as_os_str().is_empty()) {
            let (shm, ib) = tune::read(&file, named)?;
            if shm.is_some() {
                options.thresholds = shm;
                options.thresholds_from = printable(&file.display().to_string(), 200);
            }
            options.rdma = ib.unwrap_or_default();
        }
        options.rdma.shared = switch("ESP_RDMA_SHARED")?.or(options.rdma.shared);
        Ok(options)
    }
}

impl Options {
    /// Returns the variable that demands keys for all packets between nodes, if one does.
    pub(crate) fn demands_keys(&self) -> Option<&'static str> {
        match self.auth {
            Some(Auth::Off) => None,
            _ if !self.key_files.is_empty() => Some(KEY_VARIABLE),
            Some(Auth::Encrypt | Auth::Integrity) => Some(AUTH_VARIABLE),
            None => None,
        }
    }
}

/// Returns `~/.config/esp/tune.toml`, the file written by `esplab tune`.
fn default_file(env: &dyn Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let absolute = |name: &str| env(name).map(PathBuf::from).filter(|dir| dir.is_absolute());
    let config = absolute("XDG_CONFIG_HOME").or_else(|| Some(absolute("HOME")?.join(".config")))?;
    Some(config.join("esp/tune.toml"))
}

fn transports(list: &str) -> Result<Vec<Transport>, JoinError> {
    let mut found = Vec::new();
    for word in list.split(',').map(str::trim) {
        match Transport::ALL.into_iter().find(|t| t.name() == word) {
            Some(transport) if found.contains(&transport) => {
                return Err(bad("ESP_BTL", list, &format!("{word} is listed twice")));
            }
            Some(transport) => found.push(transport),
            None if word == "self" => {}
            None => {
                let want = "expected a list of self, shm, ib, eth and udp, such as shm,eth";
                return Err(bad("ESP_BTL", list, want));
            }
        }
    }
    Ok(found)
}

fn bad(variable: &str, value: &str, want: &str) -> JoinError {
    let value = printable(value, 100).replace('\n', " ");
    JoinError::Environment(format!("{variable}={value}: {want}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(variables: &[(&str, &str)]) -> Result<Options, String> {
        let env = |name: &str| {
            variables
                .iter()
                .find(|(n, _)| *n == name)
                .map(|(_, v)| OsString::from(v))
        };
        Options::from(&env).map_err(|e| e.to_string())
    }

    #[test]
    fn transports_are_chosen_by_name() {
        let list = |text| options(&[("ESP_BTL", text)]).map(|o| o.transports);
        assert_eq!(options(&[]).unwrap().transports, Transport::ALL);
        assert_eq!(list(""), Ok(Transport::ALL.to_vec()));
        assert_eq!(
            list("eth, self ,shm"),
            Ok(vec![Transport::Eth, Transport::Shm])
        );
        assert_eq!(list("self"), Ok(Vec::new()));
        for wrong in ["tcp", "shm,shm", "shm,,eth", "\u{1b}[2J"] {
            let text = list(wrong).unwrap_err();
            assert!(
                text.contains("ESP_BTL=") && !text.chars().any(char::is_control),
                "{text}"
            );
        }
        let checksum = |value| options(&[("ESP_CHECKSUM", value)]).map(|o| o.checksum);
        assert_eq!(checksum("1"), Ok(Some(true)));
        assert!(checksum("crc").unwrap_err().contains("ESP_CHECKSUM=crc"));
        assert!(options(&[("ESP_BTL_VERBOSE", "1")]).unwrap().verbose);
        assert!(!options(&[("ESP_BTL_VERBOSE", "0")]).unwrap().verbose);
        assert!(options(&[("ESP_BTL_VERBOSE", "yes")]).is_err());
    }

    #[test]
    fn keys_are_used_as_the_environment_says() {
        let auth = |value| options(&[("ESP_AUTH", value)]).map(|o| (o.auth, o.demands_keys()));
        assert_eq!(auth("encrypt"), Ok((Some(Auth::Encrypt), Some("ESP_AUTH"))));
        assert_eq!(
            auth("integrity"),
            Ok((Some(Auth::Integrity), Some("ESP_AUTH")))
        );
        assert_eq!(auth("off"), Ok((Some(Auth::Off), None)));
        assert_eq!(auth(""), Ok((None, None)));
        assert!(auth("aes").unwrap_err().contains("ESP_AUTH=aes"));
        let files = ("ESP_KEY_FILE", "/a/new:/a/old");
        let found = options(&[files]).unwrap();
        assert_eq!(found.key_files, [PathBuf::from("/a/new"), "/a/old".into()]);
        assert_eq!(found.demands_keys(), Some("ESP_KEY_FILE"));
        let off = options(&[files, ("ESP_AUTH", "off")]).unwrap();
        assert_eq!(off.demands_keys(), None);
    }

    #[test]
    fn interfaces_are_included_or_excluded() {
        let found = options(&[("ESP_INTERFACES", "eth0, ^wlan*,ib*")]).unwrap();
        assert_eq!(
            (found.interfaces, found.not_interfaces),
            (vec!["eth0".into(), "ib*".into()], vec!["wlan*".into()])
        );
        for wrong in ["eth0,", "^", "a b,\u{1b}"] {
            assert!(
                options(&[("ESP_INTERFACES", wrong)])
                    .unwrap_err()
                    .contains("ESP_INTERFACES="),
                "{wrong}"
            );
        }
    }

    #[test]
    fn the_number_of_rails_is_checked() {
        assert_eq!(options(&[]).unwrap().rails, 4);
        assert_eq!(options(&[("ESP_RAILS", "1")]).unwrap().rails, 1);
        for wrong in ["0", "5", "two", "-1", "\u{1b}"] {
            assert!(
                options(&[("ESP_RAILS", wrong)])
                    .unwrap_err()
                    .contains("ESP_RAILS="),
                "{wrong}"
            );
        }
    }

    #[test]
    fn the_size_of_lazy_jobs_is_checked() {
        let lazy_from = |text| options(&[("ESP_LAZY_FROM", text)]).map(|it| it.lazy_from);
        assert_eq!(lazy_from(""), Ok(LAZY_FROM));
        assert_eq!(lazy_from("2"), Ok(2));
        for wrong in ["0", "-1", "many", "4294967296"] {
            assert!(lazy_from(wrong).unwrap_err().contains("ESP_LAZY_FROM="));
        }
    }

    #[test]
    fn ports_are_listed_and_limited() {
        let found = options(&[("ESP_RDMA_PORTS", "mlx5_0, mlx5_1:2")]).unwrap();
        assert_eq!(found.rdma_ports, ["mlx5_0", "mlx5_1:2"]);
        for wrong in ["a,,b", "a,b,c,d,e", "a b", "\u{1b}"] {
            assert!(
                options(&[("ESP_RDMA_PORTS", wrong)])
                    .unwrap_err()
                    .contains("ESP_RDMA_PORTS="),
                "{wrong}"
            );
        }
    }

    #[test]
    fn the_shared_receive_queue_is_an_option() {
        let shared = |text| options(&[("ESP_RDMA_SHARED", text)]).map(|found| found.rdma.shared);
        assert_eq!(
            (shared(""), shared("0"), shared("1")),
            (Ok(None), Ok(Some(false)), Ok(Some(true)))
        );
        assert!(shared("yes").unwrap_err().contains("ESP_RDMA_SHARED="));
    }

    #[test]
    fn a_named_file_must_exist_and_the_default_need_not() {
        let text = options(&[("ESP_TUNE", "/nonexistent/tune.toml")]).unwrap_err();
        assert!(
            text.contains("/nonexistent/tune.toml") && text.contains("esplab tune"),
            "{text}"
        );
        for variables in [
            &[("ESP_TUNE", "")][..],
            &[("HOME", "/nonexistent")],
            &[("HOME", "relative")],
        ] {
            assert!(
                options(variables).unwrap().thresholds.is_none(),
                "{variables:?}"
            );
        }
    }
}
