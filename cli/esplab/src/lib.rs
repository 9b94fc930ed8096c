//! `esplab`: a virtual cluster on this machine, its demonstration and its benchmarks.
#![forbid(unsafe_code)]

mod bench;
mod daemon;
mod demo;
mod down;
mod exec;
mod guard;
mod internal;
mod list;
mod mpirun;
mod papers;
mod rsh;
mod simulate;
mod transfer;
mod tune;
mod up;

use std::process::ExitCode;

use clap::{Args, CommandFactory, Parser, Subcommand};

use cli::out::{self, Failure, Verdict};

/// A virtual Ethernet cluster on this machine: network namespaces on one bridge, each with an
/// esp-daemon.
///
/// Runs as root, or without privileges in a user namespace. The machine's own network is never
/// touched.
#[derive(Debug, Parser)]
#[command(name = "esplab", version = cli::version::version())]
struct Flags {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Up(up::Flags),
    Down(down::Flags),
    Exec(exec::Flags),
    Rsh(rsh::Flags),
    List(list::Flags),
    Daemon(daemon::Flags),
    Mpirun(mpirun::Flags),
    Demo(demo::Flags),
    Bench(bench::Flags),
    Papers(papers::Flags),
    Simulate(simulate::Flags),
    Send(transfer::SendFlags),
    Recv(transfer::RecvFlags),
    Tune(tune::Flags),
    #[command(hide = true)]
    Guard(guard::Flags),
    #[command(hide = true)]
    Hold(internal::Hold),
    #[command(hide = true)]
    Enter(internal::Enter),
    #[command(hide = true)]
    Offload(internal::Offload),
    #[command(hide = true)]
    Worker(internal::Worker),
    #[command(hide = true)]
    Rank(internal::Rank),
}

/// Selects a lab.
#[derive(Debug, Args)]
struct Name {
    /// Name of the lab [default: $ESPLAB, or else "default"]
    #[arg(long, value_name = "LAB")]
    name: Option<String>,
}

impl Name {
    /// Returns the given name, or else the name of the lab in which the command runs, or else the
    /// default.
    fn resolve(self) -> String {
        self.name
            .or_else(|| std::env::var("ESPLAB").ok().filter(|name| !name.is_empty()))
            .unwrap_or_else(|| lab::DEFAULT_NAME.into())
    }
}

/// Runs esplab.
pub fn main() -> ExitCode {
    out::finish("esplab", run(Flags::parse().command))
}

/// Returns the command line, for its manual pages and completions.
pub fn command() -> clap::Command {
    Flags::command()
}

fn run(command: Command) -> Result<Verdict, Failure> {
    match command {
        Command::Up(flags) => up::run(flags),
        Command::Down(flags) => down::run(flags),
        Command::Exec(flags) => exec::run(flags),
        Command::Rsh(flags) => rsh::run(flags),
        Command::List(flags) => list::run(&flags),
        Command::Daemon(flags) => daemon::run(flags),
        Command::Mpirun(flags) => mpirun::run(&flags),
        Command::Demo(flags) => demo::run(&flags),
        Command::Send(flags) => transfer::run_send(&flags),
        Command::Recv(flags) => transfer::run_recv(&flags),
        Command::Tune(flags) => guard::guarded(|| tune::run(&flags)),
        Command::Bench(flags) => guard::guarded(|| bench::run(&flags)),
        Command::Papers(flags) => guard::guarded(|| papers::run(&flags)),
        Command::Simulate(flags) => simulate::run(&flags),
        Command::Guard(flags) => guard::run(&flags),
        Command::Hold(flags) => internal::hold(flags),
        Command::Enter(flags) => internal::enter(&flags),
        Command::Offload(flags) => internal::offload(&flags),
        Command::Worker(flags) => internal::worker(&flags),
        Command::Rank(flags) => internal::rank(&flags),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_consistent() {
        Flags::command().debug_assert();
    }

    #[test]
    fn commands_keep_their_own_options() {
        for line in [
            "esplab exec 0 -- esping -c 20 node1",
            "esplab exec 0 esping -c 20 node1",
        ] {
            let flags = Flags::try_parse_from(line.split(' ')).map(|f| f.command);
            let Ok(Command::Exec(flags)) = flags else {
                panic!("{line}: {flags:?}")
            };
            assert_eq!(flags.command, ["esping", "-c", "20", "node1"], "{line}");
        }
    }

    #[test]
    fn rsh_accepts_options_of_ssh() {
        let line = "esplab rsh --name x -x node1 orted -mca ess env";
        let flags = Flags::try_parse_from(line.split(' ')).map(|f| f.command);
        assert!(matches!(&flags, Ok(Command::Rsh(_))), "{flags:?}");
        let line = "esplab rsh -x -o A=b node1 orted --name y";
        let flags = Flags::try_parse_from(line.split(' ')).map(|f| f.command);
        assert!(matches!(&flags, Ok(Command::Rsh(_))), "{flags:?}");
    }

    #[test]
    fn invalid_arguments_are_refused() {
        for line in [
            "esplab",
            "esplab up",
            "esplab up --nodes 0",
            "esplab up --nodes 2 --loss 2",
            "esplab up --nodes 2 --rate x",
            "esplab exec 0",
            "esplab exec x -- ls",
        ] {
            let refused = match Flags::try_parse_from(line.split(' ')) {
                Err(_) => true,
                Ok(Flags {
                    command: Command::Up(flags),
                }) => flags.plan().is_err(),
                Ok(_) => false,
            };
            assert!(refused, "{line}");
        }
    }
}
