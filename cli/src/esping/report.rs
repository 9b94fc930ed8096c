//! Output of esping: text, or one JSON object per line.

use std::io;

use esp_client::NodeAddr;
use serde::Serialize;

use crate::names::Names;
use crate::out;

/// Prints results.
pub(super) struct Report {
    json: bool,
    quiet: bool,
    names: Names,
    /// Receives the output in tests.
    #[cfg(test)]
    pub(super) lines: Option<Vec<String>>,
}

/// One line of `--json`.
#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum Line<'a> {
    /// Echo reply.
    Reply(&'a Reply),
    /// Statistics at the end.
    Summary(&'a Summary),
    /// Result of `--mtu`.
    Mtu(&'a Mtu),
    /// Node found by `--discover`.
    Node(&'a Found),
}

/// Echo reply.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Reply {
    pub(super) target: String,
    pub(super) mac: String,
    pub(super) seq: u64,
    pub(super) bytes: usize,
    pub(super) rtt_us: f64,
    /// True if an earlier answer had the same number.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) duplicate: bool,
    /// True if the body differs from the one sent.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) corrupt: bool,
}

/// Statistics at the end of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
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

/// Result of `--mtu`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Mtu {
    pub(super) target: String,
    pub(super) mac: String,
    pub(super) interface: String,
    /// Largest payload in bytes; `None` if nothing came back.
    pub(super) payload: Option<usize>,
    /// MTU that it needs: payload + 11.
    pub(super) mtu: Option<usize>,
    /// Largest payload of the local interface.
    pub(super) local_payload: usize,
    /// Largest payload that the peer reports.
    pub(super) peer_payload: Option<u16>,
    /// Requests sent.
    pub(super) sent: u64,
}

/// Node found by `--discover`.
#[derive(Clone, Debug, PartialEq, Serialize)]
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
    pub(super) fn new(json: bool, quiet: bool, names: Names) -> Report {
        Report {
            json,
            quiet,
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

    fn json(&mut self, line: &Line<'_>) -> io::Result<()> {
        let text = serde_json::to_string(line).map_err(io::Error::other)?;
        self.text(&text)
    }

    /// Prints the first line of a run.
    pub(super) fn start(
        &mut self,
        target: &str,
        mac: NodeAddr,
        interface: &str,
        size: usize,
    ) -> io::Result<()> {
        if self.json {
            return Ok(());
        }
        self.text(&format!(
            "ESPING {} via {interface}: {size} bytes of data",
            named(target, &mac.to_string())
        ))
    }

    pub(super) fn reply(&mut self, reply: &Reply) -> io::Result<()> {
        if self.quiet {
            return Ok(());
        }
        if self.json {
            return self.json(&Line::Reply(reply));
        }
        let Reply {
            bytes, seq, rtt_us, ..
        } = reply;
        let mut text = format!(
            "{bytes} bytes from {}: seq={seq} time={rtt_us:.1} µs",
            named(&reply.target, &reply.mac)
        );
        if reply.duplicate {
            text += " (DUP!)";
        }
        if reply.corrupt {
            text += " (CORRUPT: the bytes differ from those sent)";
        }
        self.text(&text)
    }

    pub(super) fn summary(&mut self, summary: &Summary) -> io::Result<()> {
        if self.json {
            return self.json(&Line::Summary(summary));
        }
        let Summary {
            target,
            sent,
            received,
            duplicates,
            corrupt,
            loss_percent,
            time_ms,
            ..
        } = summary;
        let more = [(*duplicates, "duplicates"), (*corrupt, "corrupt")];
        let more: String = more
            .iter()
            .filter(|(n, _)| *n > 0)
            .map(|(n, what)| format!(", +{n} {what}"))
            .collect();
        let loss = format!("{loss_percent:.1}");
        let loss = loss.trim_end_matches('0').trim_end_matches('.');
        self.text(&format!(
            "\n--- {target} esping statistics ---\n{sent} packets transmitted, {received} received{more}, {loss}% packet loss, time {time_ms:.0} ms"
        ))?;
        if let Some(Rtt {
            min_us,
            avg_us,
            max_us,
            mdev_us,
        }) = summary.rtt
        {
            self.text(&format!(
                "rtt min/avg/max/mdev = {min_us:.1}/{avg_us:.1}/{max_us:.1}/{mdev_us:.1} µs"
            ))?;
        }
        Ok(())
    }

    pub(super) fn mtu(&mut self, mtu: &Mtu) -> io::Result<()> {
        if self.json {
            return self.json(&Line::Mtu(mtu));
        }
        let who = named(&mtu.target, &mtu.mac);
        let Some(payload) = mtu.payload else {
            return self.text(&format!("{who} does not answer via {}", mtu.interface));
        };
        self.text(&format!(
            "{who}: largest payload {payload} bytes (MTU {}) via {}, verified",
            payload + 11,
            mtu.interface
        ))?;
        if mtu.is_narrow() {
            let peer = mtu
                .peer_payload
                .map_or_else(String::new, |p| format!(", the peer can receive {p}"));
            self.text(&format!(
                "the path carries less than its ends: this node can send {}{peer} bytes",
                mtu.local_payload
            ))?;
        }
        Ok(())
    }

    pub(super) fn found(&mut self, found: &Found) -> io::Result<()> {
        if self.json {
            return self.json(&Line::Node(found));
        }
        let name = found.name.as_deref().unwrap_or("-");
        let Found {
            mac,
            node_name,
            interface,
            max_payload,
            version,
            rtt_us,
            ..
        } = found;
        self.text(&format!(
            "{mac}  {name:<16}  {interface:<8}  payload {max_payload:<5}  version {version}  {rtt_us:>8.1} µs  {node_name}"
        ))
    }
}

impl Mtu {
    /// Returns true if the path carries less than both ends can.
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
