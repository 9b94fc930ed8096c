//! `esplab send`.

use std::time::Instant;

use clap::Args;
use esp_client::EspStream;

use super::recv::{Transferred, bar};
use cli::out::{Doing, Failure, Verdict};
use cli::units;

use crate::transfer;

/// Send bytes to `esplab recv` on another node, which checks each of them
#[derive(Debug, Args)]
pub(super) struct Flags {
    /// Node and port, such as node1:7000
    #[arg(value_name = "TARGET:PORT")]
    target: String,
    /// Number of bytes, such as 4096, 64m or 1g
    #[arg(long, value_name = "BYTES", value_parser = units::bytes, default_value = "64m")]
    bytes: u64,
    /// Show no progress, even on a terminal
    #[arg(short, long)]
    quiet: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(super) fn run(flags: &Flags) -> Result<Verdict, Failure> {
    let mut stream = EspStream::connect(&flags.target).doing(&flags.target)?;
    let bar = bar(flags.quiet);
    bar.set_length(flags.bytes);
    // The pattern differs each time, so that data of an earlier transfer cannot pass.
    let seed = u64::from(std::process::id()) << 32 | esp_client::monotonic_nanos() & 0xffff_ffff;
    let start = Instant::now();
    let result = transfer::send(&mut stream, flags.bytes, seed, |at| bar.set_position(at));
    bar.finish_and_clear();
    let received = result.doing(format_args!("sending to {}", flags.target))?;
    let transferred = Transferred::new("sent", &flags.target, received, start.elapsed());
    transferred.print(flags.json)
}
