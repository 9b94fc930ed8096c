//! `esplab recv`.

use std::time::{Duration, Instant};

use clap::Args;
use esp_client::EspListener;
use indicatif::ProgressBar;
use serde::Serialize;

use crate::transfer::{self, Received};
use cli::names::Names;
use cli::out::{self, Doing, Failure, Verdict};
use cli::units;

/// Wait for an `esplab send` and check every byte
#[derive(Debug, Args)]
pub(super) struct Flags {
    /// Port to listen on
    port: u16,
    /// Show no progress, even on a terminal
    #[arg(short, long)]
    quiet: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Result of a transfer.
#[derive(Debug, Serialize)]
pub(super) struct Transferred {
    direction: &'static str,
    peer: String,
    bytes: u64,
    /// Number of correct bytes from the start.
    right: u64,
    intact: bool,
    seconds: f64,
    gbit_s: f64,
}

impl Transferred {
    pub(super) fn new(
        direction: &'static str,
        peer: &str,
        received: Received,
        took: Duration,
    ) -> Transferred {
        let Received { bytes, right } = received;
        let seconds = took.as_secs_f64().max(1e-9);
        let gbit_s = bytes as f64 * 8.0 / seconds / 1e9;
        Transferred {
            direction,
            peer: peer.to_owned(),
            bytes,
            right,
            intact: received.is_intact(),
            seconds,
            gbit_s,
        }
    }

    pub(super) fn print(&self, json: bool) -> Result<Verdict, Failure> {
        let Transferred {
            direction,
            peer,
            bytes,
            right,
            intact,
            seconds,
            gbit_s,
        } = self;
        if json {
            out::json(self)?;
        } else {
            let content = if *intact {
                "content verified".into()
            } else {
                format!("WRONG from byte {right}")
            };
            let size = units::show_bytes(*bytes);
            let preposition = if *direction == "sent" { "to" } else { "from" };
            out::line(format_args!(
                "{size} {direction} {preposition} {peer} in {seconds:.2} s ({gbit_s:.2} Gbit/s), {content}"
            ))?;
        }
        Ok(if *intact {
            Verdict::Done
        } else {
            Verdict::Partly
        })
    }
}

/// Progress of a transfer.
pub(super) fn bar(quiet: bool) -> ProgressBar {
    if quiet {
        return ProgressBar::hidden();
    }
    out::progress(
        0,
        "{spinner} [{bar:30}] {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec} {eta} left",
    )
}

pub(super) fn run(flags: &Flags) -> Result<Verdict, Failure> {
    let listener = EspListener::bind(flags.port).doing(format_args!("port {}", flags.port))?;
    if !flags.json {
        out::line(format_args!("waiting at port {}", listener.port()))?;
    }
    let (mut stream, peer) = listener
        .accept()
        .doing(format_args!("port {}", flags.port))?;
    let peer = Names::load().show(peer.addr);
    let bar = bar(flags.quiet);
    let start = Instant::now();
    let result = transfer::receive(&mut stream, |bytes, at| {
        bar.set_length(bytes);
        bar.set_position(at);
    });
    bar.finish_and_clear();
    let received = result.doing(format_args!("receiving from {peer}"))?;
    // The program may end only when its answer has arrived.
    stream.finish(Duration::from_secs(10)).doing("answering")?;
    Transferred::new("received", &peer, received, start.elapsed()).print(flags.json)
}
