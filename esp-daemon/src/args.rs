//! The command line.

use std::path::PathBuf;
use std::sync::LazyLock;

use clap::Parser;
use esp_client::control;

use crate::config::Network;

/// Versions of the program and of the control protocol, for `--version`.
static VERSIONS: LazyLock<String> = LazyLock::new(|| {
    format!(
        "{} (control protocol {})",
        env!("CARGO_PKG_VERSION"),
        control::VERSION
    )
});

/// The command line.
#[derive(Clone, Debug, Default, PartialEq, Eq, Parser)]
#[command(
    name = "esp-daemon",
    version = VERSIONS.as_str(),
    about = "Provides ESP streams and EDP datagrams over Ethernet to the programs of this node.",
    after_help = "Exit codes: 0 stopped on request (or the check succeeded), 1 failed while running, or cannot\n\
                  start yet (another daemon serves, no memory), 2 cannot start.\n\
                  Signals: SIGTERM stops the daemon and leaves streams to the next one;\n\
                  SIGINT stops it and ends them; SIGHUP reloads limits and keys. See docs/daemon.md."
)]
pub struct Args {
    /// Network interface to use; may be repeated. Replaces `interfaces` of the config
    #[arg(long = "interface", short = 'i', value_name = "IF")]
    pub interfaces: Vec<String>,

    /// Network of ESP in UDP, such as 10.1.0.0/16 or on-link; may be repeated. Replaces `udp` of
    /// the config
    #[arg(long = "udp", value_name = "NETWORK")]
    pub udp: Vec<Network>,

    /// Config file [default: /etc/esp/esp-daemon.toml if it exists]
    #[arg(long, short = 'c', value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// Control socket [default: $ESP_SOCKET, else socket.path of the config, else
    /// /run/esp/esp.sock]
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,

    /// Check a config file, print the first error, and exit
    #[arg(long, value_name = "FILE", conflicts_with_all = ["interfaces", "udp", "config", "socket", "log", "check_upgrade"])]
    pub check_config: Option<PathBuf>,

    /// Check that programs of the running daemon could continue with this version, and exit
    #[arg(long)]
    pub check_upgrade: bool,

    /// Log filter: error, warn, info, debug, trace, or for example info,esp_daemon::session=debug
    /// [default: $ESP_LOG, else info]
    #[arg(long, value_name = "FILTER")]
    pub log: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_names_the_control_protocol() {
        let shown = Args::try_parse_from(["esp-daemon", "--version"]).unwrap_err();
        let text = shown.to_string();
        let protocol = format!("(control protocol {})", control::VERSION);
        assert!(
            text.contains(env!("CARGO_PKG_VERSION")) && text.contains(&protocol),
            "{text}"
        );
    }
}
