//! `esplab list`.

use clap::Args;
use serde::Serialize;

use super::up::describe;
use cli::out::{self, Failure, Verdict};
use lab::{ProcessRef, State, WireOptions};

/// Show the labs of this user
#[derive(Debug, Args)]
pub(super) struct Flags {
    /// Print one JSON object per lab and line
    #[arg(long)]
    json: bool,
}

/// JSON object of a lab.
#[derive(Debug, Serialize)]
struct Row<'a> {
    name: &'a str,
    state: &'static str,
    rootless: bool,
    #[serde(flatten)]
    wire: &'a WireOptions,
    /// Number of running daemons.
    daemons: usize,
}

impl<'a> Row<'a> {
    fn of(state: &'a State) -> Row<'a> {
        let daemons = state
            .nodes
            .iter()
            .filter_map(|n| n.daemon)
            .filter(|d| d.is_alive())
            .count();
        let holders = state.nodes.iter().map(|n| n.holder).chain(state.switch);
        let word = match (state.is_alive(), state.ready) {
            (false, _) => "dead",
            (true, false) => "starting",
            (true, true) if !holders.into_iter().all(ProcessRef::is_alive) => "broken",
            (true, true) => "up",
        };
        Row {
            name: &state.name,
            state: word,
            rootless: state.rootless,
            wire: &state.wire,
            daemons,
        }
    }
}

pub(super) fn run(flags: &Flags) -> Result<Verdict, Failure> {
    let labs = lab::list()?;
    if !flags.json && labs.is_empty() {
        out::note("no lab (create one: esplab up --nodes 2)");
    }
    for state in &labs {
        let row = Row::of(state);
        if flags.json {
            out::json(&row)?;
        } else {
            let rootless = if row.rootless { ", rootless" } else { "" };
            out::line(format_args!(
                "{:<16} {:<8} {}, {} daemons{rootless}",
                row.name,
                row.state,
                describe(row.wire),
                row.daemons
            ))?;
        }
    }
    Ok(Verdict::Done)
}
