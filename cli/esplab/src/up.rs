//! `esplab up`.

use clap::Args;

use super::Name;
use cli::out::{self, Failure, Verdict};
use cli::units;
use lab::{Carriers, Ip, Lab, LabError, LabOptions, WireOptions};

/// Parses one of a few names.
fn one_of<T: Copy>(names: &[(&str, T)], text: &str) -> Result<T, String> {
    let found = names.iter().find(|(name, _)| *name == text);
    found.map(|(_, value)| *value).ok_or_else(|| {
        let names: Vec<&str> = names.iter().map(|(name, _)| *name).collect();
        format!("write one of {}", names.join(", "))
    })
}

fn carriers(text: &str) -> Result<Carriers, String> {
    use Carriers::{Both, Raw, Udp};
    one_of(&[("raw", Raw), ("udp", Udp), ("both", Both)], text)
}

fn versions(text: &str) -> Result<Ip, String> {
    one_of(&[("4", Ip::V4), ("6", Ip::V6), ("both", Ip::Both)], text)
}

/// Create a lab: N nodes on one switch, each with an esp-daemon
#[derive(Debug, Args)]
pub(super) struct Flags {
    /// Number of nodes, 1 to 254, numbered from 0
    #[arg(long, value_name = "N")]
    nodes: usize,
    /// Interfaces of each node, each on a switch of its own, 1 to 8
    #[arg(long, value_name = "N", default_value_t = 1)]
    rails: usize,
    /// MTU of the wire in bytes, 576 to 65535
    #[arg(long, value_name = "BYTES", default_value_t = 1500)]
    mtu: u32,
    /// Bandwidth from the switch to each node, with a queue of 64 frames: 10mbit, 1gbit. A packet
    /// of segmentation offload counts as one frame
    #[arg(long, value_parser = units::rate)]
    rate: Option<u64>,
    /// Share of frames that are lost: 0.01 or 1%. A packet of segmentation offload counts as one
    /// frame
    #[arg(long, value_name = "P", value_parser = units::share)]
    loss: Option<u32>,
    /// Disable segmentation offload for TCP and UDP, whose packets of up to 64 KiB cross the wire
    /// whole
    #[arg(long)]
    no_offload: bool,
    /// Start no esp-daemons
    #[arg(long)]
    no_daemon: bool,
    /// Carrier of the daemons: raw Ethernet, UDP, or both [default: raw; udp with --routed; both
    /// with --ip 6 and --ip both]
    #[arg(long, value_name = "CARRIER", value_parser = carriers)]
    carrier: Option<Carriers>,
    /// Two segments with a router between them, which forwards IP but not raw Ethernet
    #[arg(long)]
    routed: bool,
    /// IP addresses of the nodes: IPv4 (node1 is 10.99.0.2), IPv6 (node1 is fd00:99::2), or both
    #[arg(long, value_name = "VERSION", value_parser = versions, default_value = "4")]
    ip: Ip,
    #[command(flatten)]
    name: Name,
}

impl Flags {
    /// Returns the options of the lab.
    pub(super) fn plan(self) -> Result<LabOptions, LabError> {
        let mut options = LabOptions::new(self.nodes);
        options.name = Some(self.name.resolve());
        options.wire = WireOptions {
            nodes: self.nodes,
            mtu: self.mtu,
            rate: self.rate,
            loss_ppm: self.loss.unwrap_or(0),
            offload: !self.no_offload,
            routed: self.routed,
            ip: self.ip,
        };
        options.rails = self.rails;
        options.daemon = !self.no_daemon;
        options.carriers = match self.carrier {
            Some(carriers) => carriers,
            None if self.routed => Carriers::Udp,
            None if options.wire.ip != Ip::V4 => Carriers::Both,
            None => Carriers::Raw,
        };
        options.check()?;
        Ok(options)
    }
}

pub(super) fn run(flags: Flags) -> Result<Verdict, Failure> {
    let options = flags.plan()?;
    let lab = create(&options)?;
    let state = lab.keep()?;
    let option = if state.name == lab::DEFAULT_NAME {
        String::new()
    } else {
        format!(" --name {}", state.name)
    };
    out::line(format_args!(
        "lab `{}` is up: {}",
        state.name,
        describe(&state.wire)
    ))?;
    if options.daemon && options.wire.nodes > 1 {
        out::line(format_args!(
            "try: esplab exec{option} 0 -- esping -c 5 node1"
        ))?;
    }
    out::line(format_args!("end: esplab down{option}"))?;
    Ok(Verdict::Done)
}

/// Creates a lab; shows progress on a terminal.
pub(super) fn create(options: &LabOptions) -> Result<Lab, LabError> {
    let bar = out::progress(
        Lab::steps(options),
        "{spinner} creating the lab [{bar:30}] {pos}/{len} {msg}",
    );
    let lab = Lab::create_watched(options, |step| {
        bar.set_message(step.to_owned());
        bar.inc(1);
    });
    bar.finish_and_clear();
    lab
}

/// Describes a wire.
pub(super) fn describe(wire: &WireOptions) -> String {
    let mut text = format!(
        "{} node{}, MTU {}",
        wire.nodes,
        if wire.nodes == 1 { "" } else { "s" },
        wire.mtu
    );
    if let Some(rate) = wire.rate {
        text += &format!(", {} to each", units::show_rate(rate));
    }
    if wire.loss_ppm > 0 {
        text += &format!(", {} % loss", f64::from(wire.loss_ppm) / 1e4);
    }
    if wire.routed {
        text += ", two segments with a router between them";
    }
    match wire.ip {
        Ip::V4 => {}
        Ip::V6 => text += ", IPv6",
        Ip::Both => text += ", IPv4 and IPv6",
    }
    if !wire.offload {
        text += ", no segmentation offload";
    }
    text
}
