//! Command line of `esp doctor`.

/// Check this node and the paths to its peers; report each problem and the command that fixes it
///
/// Exit code: 0 if nothing is wrong, 1 after warnings, 2 after errors or if doctor could not run.
/// Notes are not faults. docs/doctor.md explains each check.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct Flags {
    /// Check the paths to this node, too; may be repeated. A MAC address, an IP address, a name in
    /// /etc/ethers (or in the file that $ESP_ETHERS names), an announced name such as node1.esp, or
    /// a name known to the system's resolver
    #[arg(short, long, value_name = "NODE")]
    pub(super) peer: Vec<String>,
    /// Check the paths to all nodes that answer a broadcast, and show them as a matrix
    #[arg(short, long)]
    pub(super) all: bool,
    /// Check this interface; may be repeated [default: those of the daemon]
    #[arg(short = 'I', value_name = "IF")]
    pub(super) interface: Vec<String>,
    /// Show only warnings and errors
    #[arg(short, long)]
    pub(super) quiet: bool,
    /// Print one JSON object per line
    #[arg(long)]
    pub(super) json: bool,
}

impl Flags {
    /// Returns true if peers are to be probed.
    pub(super) fn asks_peers(&self) -> bool {
        self.all || !self.peer.is_empty()
    }
}
