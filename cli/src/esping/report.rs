//! Output of esping: text, or one JSON object per line.

use std::fmt::{self, Display};
use std::io::{self, Write};

use esp_client::NodeAddr;
use serde::Serialize;

use super::survey::Silence;
use crate::names::Names;
use crate::out;

/// Format of the output.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Style {
    /// Print one JSON object per line.
    pub(super) json: bool,
    /// Print only summaries.
    pub(super) quiet: bool,
    /// Draw a dot for each request without an answer instead of a line for each reply.
    pub(super) flood: bool,
    /// Print the time before each line.
    pub(super) timestamps: bool,
}

/// Prints results.
pub(super) struct Report {
    style: Style,
    names: Names,
    /// Receives the output in tests.
    #[cfg(test)]
    pub(super) lines: Option<Vec<String>>,
}

/// Echo reply.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "type", rename = "reply")]
pub(super) struct Reply {
    pub(super) target: String,
    pub(super) mac: String,
    pub(super) seq: u64,
    pub(super) bytes: usize,
    pub(super) rtt_us: f64,
    /// True if an earlier answer had this number.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) duplicate: bool,
    /// True if the body differs from the one sent.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) corrupt: bool,
}

/// A request without an answer when the next one is sent.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "type", rename = "outstanding")]
pub(super) struct Outstanding {
    pub(super) target: String,
    pub(super) mac: String,
    pub(super) seq: u64,
}

/// An echo reply that matches no request of this run.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "type", rename = "ignored")]
pub(super) struct Ignored {
    pub(super) mac: String,
    pub(super) bytes: usize,
}

/// An event, with its time in seconds since 1970.
#[derive(Serialize)]
struct Stamped<'a, E> {
    time: f64,
    #[serde(flatten)]
    event: &'a E,
}

/// Statistics at the end of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(tag = "type", rename = "summary")]
pub(super) struct Summary {
    pub(super) target: String,
    pub(super) mac: String,
    pub(super) interface: String,
    pub(super) sent: u64,
    pub(super) received: u64,
    pub(super) duplicates: u64,
    pub(super) corrupt: u64,
    pub(super) loss_percent: f64,
    pub(super) time_ms: f64,
    #[serde(flatten)]
    pub(super) rtt: Option<Rtt>,
}

/// Round-trip times in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Rtt {
    pub(super) min_us: f64,
    pub(super) avg_us: f64,
    pub(super) max_us: f64,
    pub(super) mdev_us: f64,
}

/// Whether packets of streams, which have a separate EtherType, are answered, too.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "type", rename = "streams")]
pub(super) struct Streams {
    pub(super) target: String,
    pub(super) mac: String,
    pub(super) interface: String,
    /// Datagrams were answered.
    pub(super) datagrams: bool,
    /// Packets of streams were answered; `None` if they were not tried.
    pub(super) streams: Option<bool>,
    /// Probable cause of a total loss.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) silence: Option<Silence>,
}

/// Result of `--mtu`.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "type", rename = "mtu")]
pub(super) struct Mtu {
    pub(super) target: String,
    pub(super) mac: String,
    pub(super) interface: String,
    /// Maximum payload in bytes; `None` if there was no answer.
    pub(super) payload: Option<usize>,
    /// MTU of the interface that this payload needs; `None` if the length of the headers is
    /// unknown.
    pub(super) mtu: Option<usize>,
    /// Maximum payload of the local interface.
    pub(super) local_payload: usize,
    /// Maximum payload that the peer reports.
    pub(super) peer_payload: Option<u16>,
    /// Number of requests that were sent.
    pub(super) sent: u64,
}

/// A node found by `--discover`.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "type", rename = "node")]
pub(super) struct Found {
    pub(super) mac: String,
    /// Name in the ethers file.
    pub(super) name: Option<String>,
    /// Name that the node reports.
    pub(super) node_name: String,
    pub(super) interface: String,
    pub(super) version: u8,
    pub(super) max_payload: u16,
    pub(super) incarnation: u64,
    pub(super) rtt_us: f64,
}

impl Report {
    pub(super) fn new(style: Style, names: Names) -> Report {
        Report {
            style,
            names,
            #[cfg(test)]
            lines: None,
        }
    }

    pub(super) fn name_of(&self, mac: NodeAddr) -> Option<String> {
        self.names.of(mac).map(str::to_owned)
    }

    fn text(&mut self, text: &str) -> io::Result<()> {
        #[cfg(test)]
        if let Some(lines) = &mut self.lines {
            lines.extend(text.lines().map(str::to_owned));
            return Ok(());
        }
        out::line(text)
    }

    /// Prints a result.
    pub(super) fn show(&mut self, result: &(impl Serialize + Display)) -> io::Result<()> {
        if self.style.json {
            let text = serde_json::to_string(result).map_err(io::Error::other)?;
            return self.text(&text);
        }
        self.text(&result.to_string())
    }

    /// Prints the result for packets of streams if it explains a fault. Returns true if there is
    /// none.
    pub(super) fn streams(&mut self, streams: &Streams) -> io::Result<bool> {
        let fine = streams.datagrams && streams.streams != Some(false);
        if !fine {
            self.show(streams)?;
        }
        Ok(fine)
    }

    /// Prints an event of a run, with the time if requested.
    pub(super) fn event<E: Serialize + Display>(&mut self, event: &E) -> io::Result<()> {
        if !self.style.timestamps {
            return self.show(event);
        }
        let time = out::clock();
        if self.style.json {
            return self.text(&serde_json::to_string(&Stamped { time, event })?);
        }
        self.text(&format!("[{time:.6}] {event}"))
    }

    /// Draws a dot for a request that was sent.
    pub(super) fn sent(&mut self) -> io::Result<()> {
        self.draw(".")
    }

    /// Prints a reply.
    pub(super) fn reply(&mut self, reply: &Reply) -> io::Result<()> {
        if self.style.flood {
            return if reply.duplicate {
                Ok(())
            } else {
                self.draw("\u{8} \u{8}")
            };
        }
        if self.style.quiet {
            return Ok(());
        }
        self.event(reply)
    }

    /// Prints without a line feed, in a flood.
    fn draw(&mut self, text: &str) -> io::Result<()> {
        let Style {
            json, quiet, flood, ..
        } = self.style;
        if json || quiet || !flood {
            return Ok(());
        }
        #[cfg(test)]
        if let Some(lines) = &mut self.lines {
            lines.push(text.to_owned());
            return Ok(());
        }
        let mut out = io::stdout().lock();
        out.write_all(text.as_bytes())?;
        out.flush()
    }

    /// Prints the first line of a run.
    pub(super) fn start(
        &mut self,
        target: &str,
        mac: NodeAddr,
        interface: &str,
        size: usize,
    ) -> io::Result<()> {
        if self.style.json {
            return Ok(());
        }
        self.text(&format!(
            "ESPING {} via {interface}: {size} bytes of data",
            named(target, &mac.to_string())
        ))
    }
}

impl Display for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (target, seq, rtt) = (named(&self.target, &self.mac), self.seq, self.rtt_us);
        write!(
            f,
            "{} bytes from {target}: seq={seq} time={rtt:.1} µs",
            self.bytes
        )?;
        if self.duplicate {
            f.write_str(" (DUP!)")?;
        }
        if self.corrupt {
            f.write_str(" (CORRUPT: the bytes differ from those sent)")?;
        }
        Ok(())
    }
}

impl Display for Outstanding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let target = named(&self.target, &self.mac);
        write!(f, "no answer yet from {target}: seq={}", self.seq)
    }
}

impl Display for Ignored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Ignored { mac, bytes } = self;
        write!(
            f,
            "{bytes} bytes from {mac}: answers no request of this run"
        )
    }
}

impl Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (target, sent, received) = (&self.target, self.sent, self.received);
        let loss = format!("{:.1}", self.loss_percent);
        let loss = loss.trim_end_matches('0').trim_end_matches('.');
        write!(f, "\n--- {target} esping statistics ---\n")?;
        write!(f, "{sent} packets transmitted, {received} received")?;
        for (n, what) in [(self.duplicates, "duplicates"), (self.corrupt, "corrupt")] {
            if n > 0 {
                write!(f, ", +{n} {what}")?;
            }
        }
        write!(f, ", {loss}% packet loss, time {:.0} ms", self.time_ms)?;
        let Some(rtt) = self.rtt else { return Ok(()) };
        let (min, avg, max, mdev) = (rtt.min_us, rtt.avg_us, rtt.max_us, rtt.mdev_us);
        write!(
            f,
            "\nrtt min/avg/max/mdev = {min:.1}/{avg:.1}/{max:.1}/{mdev:.1} µs"
        )
    }
}

impl Display for Streams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let target = named(&self.target, &self.mac);
        let filtered = |answers, silent, ethertype| {
            format!(
                "{target} answers {answers}, but not {silent}: does a switch or firewall drop \
                 their EtherType ({ethertype} by default)?"
            )
        };
        let (datagrams, streams) = ("datagrams (EDP)", "packets of streams (ESP)");
        let text = match (self.datagrams, self.streams, &self.silence) {
            (true, Some(false), _) => filtered(datagrams, streams, "0x88b5"),
            (false, Some(true), _) => filtered(streams, datagrams, "0x88b6"),
            (true, _, _) => format!("{target} answers"),
            (false, _, Some(silence)) => {
                let more = format!("to investigate further: esp doctor --peer {}", self.target);
                format!("no answer: {silence}\n{more}")
            }
            (false, _, None) => "no answer".to_owned(),
        };
        f.write_str(&text)
    }
}

impl Display for Mtu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (target, interface) = (named(&self.target, &self.mac), &self.interface);
        let Some(payload) = self.payload else {
            return write!(f, "{target} does not answer via {interface}");
        };
        write!(f, "{target}: largest payload {payload} bytes")?;
        if let Some(mtu) = self.mtu {
            write!(f, " (MTU {mtu})")?;
        }
        write!(f, " via {interface}, verified")?;
        if self.is_narrow() {
            let local = self.local_payload;
            write!(
                f,
                "\nthe path carries less than its ends support: this node can send {local}"
            )?;
            if let Some(peer) = self.peer_payload {
                write!(f, ", the peer can receive {peer}")?;
            }
            f.write_str(" bytes")?;
        }
        Ok(())
    }
}

impl Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.name.as_deref().unwrap_or("-");
        write!(f, "{}  {name:<16}  {:<8}  ", self.mac, self.interface)?;
        write!(
            f,
            "payload {:<5}  version {}  ",
            self.max_payload, self.version
        )?;
        write!(f, "{:>8.1} µs  {}", self.rtt_us, self.node_name)
    }
}

impl Mtu {
    /// Returns true if the path carries less than both ends support.
    pub(super) fn is_narrow(&self) -> bool {
        let ends = self.peer_payload.map_or(self.local_payload, |peer| {
            self.local_payload.min(usize::from(peer))
        });
        self.payload.is_some_and(|payload| payload < ends)
    }
}

fn named(target: &str, mac: &str) -> String {
    if target == mac {
        mac.to_owned()
    } else {
        format!("{target} ({mac})")
    }
}
