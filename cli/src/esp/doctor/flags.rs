//! Command line of `esp doctor`.

/// Check this node and the ways to its peers; say what is wrong, and the command that mends it
///
/// Exit code: 0 when nothing is wrong, 1 after warnings, 2 after errors or when doctor could not
/// run. Notes are no faults. docs/doctor.md explains each check.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct Flags {
    /// Check the ways to this node, too; may be repeated. MAC address, IP address, or a name of
    /// /etc/ethers (or of the file $ESP_ETHERS names), an announced name such as node1.esp, or a
    /// name of the system's resolver
    #[arg(short, long, value_name = "NODE")]
    pub(super) peer: Vec<String>,
    /// Check the ways to all nodes that answer a broadcast, and show them as a matrix
    #[arg(short, long)]
    pub(super) all: bool,
    /// Check this interface; may be repeated [default: those of the daemon]
    #[arg(short = 'I', value_name = "IF")]
    pub(super) interface: Vec<String>,
    /// Only warnings and errors
    #[arg(short, long)]
    pub(super) quiet: bool,
    /// One JSON object per line
    #[arg(long)]
    pub(super) json: bool,
}

impl Flags {
    /// Returns true if peers are to be asked.
    pub(super) fn asks_peers(&self) -> bool {
        self.all || !self.peer.is_empty()
    }
}
