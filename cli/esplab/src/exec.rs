//! `esplab exec`.

use std::ffi::OsString;

use clap::Args;

use super::Name;

use cli::out::{Failure, Verdict};
use lab::Node;

/// Run a command in a node; its exit code is the command's, 127 if there is no such command
///
/// The command finds the programs of this build in its PATH, the names node0, node1, … in
/// ESP_ETHERS (and /etc/hosts), its node's daemon in ESP_SOCKET, and in ESPLAB_RSH a program that
/// runs commands on other nodes like ssh. ESPLAB, ESPLAB_NODE and the host name identify its node.
#[derive(Debug, Args)]
pub(super) struct Flags {
    #[command(flatten)]
    name: Name,
    /// Cores the command may run on, such as 0,1
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    cpus: Vec<usize>,
    /// The node: node1, or 1
    #[arg(value_name = "NODE")]
    node: Node,
    /// The command and its arguments
    #[arg(
        value_name = "CMD",
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    pub(super) command: Vec<OsString>,
}

pub(super) fn run(flags: Flags) -> Result<Verdict, Failure> {
    let Flags {
        name,
        cpus,
        node: Node(node),
        command,
    } = flags;
    Err(lab::exec(&name.resolve(), node, &cpus, &command).into())
}
