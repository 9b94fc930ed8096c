//! `esplab daemon`.

use clap::{Args, ValueEnum};

use super::Name;

use cli::out::{Failure, Verdict};
use lab::{DaemonAction, Node};

/// End or start the esp-daemon of a node while programs use it
///
/// Streams, listeners and datagram sockets of programs wait for the next daemon, by default for 35
/// seconds. Their peers wait for 30 seconds. `esplab send` and `esplab recv` check every byte.
#[derive(Debug, Args)]
pub(super) struct Flags {
    #[command(flatten)]
    name: Name,
    /// The action
    #[arg(value_enum)]
    action: Action,
    /// The node: node1, or 1
    #[arg(value_name = "NODE")]
    node: Node,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Action {
    /// Kill it by SIGKILL
    Kill,
    /// Stop it by SIGTERM; the next daemon takes over its streams
    Stop,
    /// Start the next daemon
    Start,
    /// Stop it and start the program of this build
    Upgrade,
}

pub(super) fn run(flags: Flags) -> Result<Verdict, Failure> {
    let action = match flags.action {
        Action::Kill => DaemonAction::Kill,
        Action::Stop => DaemonAction::Stop,
        Action::Start => DaemonAction::Start,
        Action::Upgrade => DaemonAction::Upgrade,
    };
    let Node(node) = flags.node;
    lab::act_on_daemon(&flags.name.resolve(), node, action)?;
    Ok(Verdict::Done)
}
