//! Developer commands: demo, tests, gates, CI. `cargo xtask` lists them.
#![forbid(unsafe_code)]

mod arrows;
mod check;
mod ci;
mod configs;
mod demo;
mod dependencies;
mod install;
mod libfabric;
mod links;
mod manual;
mod msrv;
mod ompi;
mod open_mpi;
mod outcome;
mod packages;
mod process;
mod purity;
mod soak;
mod spec;
mod steps;
mod suite;
mod tools;
mod unsafety;
mod width;
mod workspace;

use std::process::ExitCode;

use check::GATES;
use outcome::Failure;
use steps::Steps;
use workspace::Workspace;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (command, rest) = match args.split_first() {
        Some((command, rest)) => (command.as_str(), rest),
        None => ("help", &args[..]),
    };
    let result = match (command, rest) {
        ("demo", args) => demo::demo(args).map(|()| ExitCode::SUCCESS),
        ("test", []) => suite::run_all(),
        ("check", []) => check(),
        ("ci", []) => ci::run(),
        ("install-c", args) => install::install_c(args).map(|()| ExitCode::SUCCESS),
        ("install-ompi", args) => ompi::install_ompi(args).map(|()| ExitCode::SUCCESS),
        ("install-libfabric", args) => {
            libfabric::install_libfabric(args).map(|()| ExitCode::SUCCESS)
        }
        (what @ ("man" | "completions"), args) => {
            manual::manual(what, args).map(|()| ExitCode::SUCCESS)
        }
        ("packages", args) => packages::packages(args).map(|()| ExitCode::SUCCESS),
        ("help" | "-h" | "--help", _) => {
            print!("{}", help());
            Ok(ExitCode::SUCCESS)
        }
        (name, []) if GATES.iter().any(|gate| gate.name == name) => gate(name),
        _ => Err(Failure::CannotRun(format!(
            "unknown command `{}`\n\n{}",
            args.join(" "),
            help()
        ))),
    };
    result.unwrap_or_else(|failure| {
        eprintln!("xtask: {failure}");
        failure.exit_code()
    })
}

fn check() -> Result<ExitCode, Failure> {
    let mut steps = Steps::new("check");
    check::all(&mut steps, &Workspace::load()?);
    Ok(steps.finish())
}

/// Runs one gate alone.
fn gate(name: &str) -> Result<ExitCode, Failure> {
    let workspace = Workspace::load()?;
    for gate in GATES.iter().filter(|gate| gate.name == name) {
        println!("{name}: {}", (gate.run)(&workspace)?);
    }
    Ok(ExitCode::SUCCESS)
}

fn help() -> String {
    let mut text = String::from(
        "cargo xtask COMMAND

  demo [ARGS]    build, and show two nodes talking on this machine (ARGS go to `esplab demo`)
  test           all tests: unit, integration, documentation, models
  check          all gates below
  ci             test and check, as CI runs them (needs root)
  install-c --prefix DIR
                 build libesp and install it: esp.h, libesp.so, libesp.a, esp.pc
  install-ompi [--ompi DIR] [--dir DIR]
                 build the component for the Open MPI of mpicc, or below DIR, and install it for
                 this user
  install-libfabric [--dir DIR]
                 build the provider of libfabric and install it for this user
  man DIR        write the manual pages of the programs
  completions DIR
                 write completions of the programs for bash, zsh and fish
  packages DIR [--debug]
                 build packages for Debian and RPM

",
    );
    for gate in GATES {
        text.push_str(&format!("  {:<14} {}\n", gate.name, gate.about));
    }
    text
}
