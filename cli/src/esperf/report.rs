//! Reports of a test: lines as iperf3 prints them, or one JSON object with its names.

use std::sync::Arc;
use std::time::Duration;

use esp_client::EspStream;
use serde_json::{Value, json};

use super::control::{Cpu, Results};
use super::flags::Plan;
use super::streams::{Interval, Link};
use crate::out::{self, Failure};
use crate::units::show_count;

/// One side of a test.
#[derive(Clone, Copy)]
pub(super) struct Side {
    pub(super) plan: Plan,
    pub(super) sends: bool,
    pub(super) interval: Duration,
    pub(super) json: bool,
}

/// The report, while a test runs.
pub(super) struct Report {
    side: Side,
    start: Value,
    intervals: Vec<Value>,
}

/// Bytes in a time.
#[derive(Clone, Copy)]
struct Flow {
    from: f64,
    to: f64,
    bytes: u64,
}

impl Flow {
    fn bits_per_second(self) -> f64 {
        if self.to > self.from {
            self.bytes as f64 * 8.0 / (self.to - self.from)
        } else {
            0.0
        }
    }

    fn json(self) -> Value {
        json!({
            "start": self.from,
            "end": self.to,
            "seconds": self.to - self.from,
            "bytes": self.bytes,
            "bits_per_second": self.bits_per_second(),
        })
    }

    /// Formats time, bytes and rate; `id` is a stream's number or SUM.
    fn line(self, id: &str) -> String {
        format!(
            "[{id:>3}] {:7.2}-{:<7.2} sec {:>7}Byte {:>7}bit/s",
            self.from,
            self.to,
            show_count(self.bytes as f64),
            show_count(self.bits_per_second()),
        )
    }
}

impl Report {
    /// Begins with the connections. `server` is the node and port that a client named.
    pub(super) fn start(
        side: Side,
        server: Option<(&str, u16)>,
        cookie: &str,
        streams: &[Arc<EspStream>],
    ) -> Result<Report, Failure> {
        let mut connected = Vec::new();
        for (number, stream) in (1..).zip(streams) {
            let (local, peer) = (stream.local_addr(), stream.peer_addr());
            if !side.json {
                out::line(format_args!(
                    "[{number:>3}] local {} port {} connected to {} port {} by {}",
                    local.addr,
                    local.port,
                    peer.addr,
                    peer.port,
                    peer.interface.as_deref().unwrap_or("-"),
                ))?;
            }
            connected.push(json!({
                "socket": number,
                "local_host": local.addr.to_string(),
                "local_port": local.port,
                "remote_host": peer.addr.to_string(),
                "remote_port": peer.port,
            }));
        }
        if !side.json {
            let columns = if side.sends { "  Retr    Cwnd" } else { "" };
            out::line(format_args!(
                "[ ID] {:<19} {:<11} {:<11}{columns}",
                "Interval", "Transfer", "Bitrate"
            ))?;
        }
        let plan = &side.plan;
        let mut start = json!({
            "connected": connected,
            "version": format!("esperf {}", env!("CARGO_PKG_VERSION")),
            "timestamp": { "timesecs": out::clock() as u64 },
            "cookie": cookie,
            "test_start": {
                "protocol": "ESP",
                "num_streams": plan.streams,
                "blksize": plan.length,
                "omit": 0,
                "duration": if plan.bytes.is_some() { 0.0 } else { plan.time.as_secs_f64() },
                "bytes": plan.bytes.unwrap_or(0),
                "blocks": 0,
                "reverse": u8::from(plan.reverse),
                "interval": side.interval.as_secs_f64(),
            },
        });
        if let Some((host, port)) = server {
            set(
                &mut start,
                "connecting_to",
                json!({ "host": host, "port": port }),
            );
        }
        Ok(Report {
            side,
            start,
            intervals: Vec::new(),
        })
    }

    /// Adds an interval.
    pub(super) fn interval(&mut self, interval: &Interval) -> Result<(), Failure> {
        let flow = |bytes| Flow {
            from: interval.from,
            to: interval.to,
            bytes,
        };
        let sum = flow(interval.bytes.iter().sum());
        let retransmits = total(interval.links.iter().map(|link| link.retransmits));
        if self.side.json {
            let streams = (1..).zip(&interval.bytes).zip(&interval.links);
            let streams = streams.map(|((number, bytes), link)| {
                let mut stream = self.flow(flow(*bytes), link.retransmits);
                set(&mut stream, "socket", json!(number));
                for (name, value) in [("snd_cwnd", link.cwnd), ("rtt", link.rtt)] {
                    if self.side.sends && value.is_some() {
                        set(&mut stream, name, json!(value));
                    }
                }
                stream
            });
            let streams: Vec<_> = streams.collect();
            let sum = self.flow(sum, retransmits);
            self.intervals
                .push(json!({ "streams": streams, "sum": sum }));
            return Ok(());
        }
        for ((number, bytes), link) in (1..).zip(&interval.bytes).zip(&interval.links) {
            let number: u32 = number;
            let columns = self.columns(link);
            out::line(flow(*bytes).line(&number.to_string()) + &columns)?;
        }
        if interval.bytes.len() > 1 {
            let columns = self.columns(&Link {
                retransmits,
                ..Link::default()
            });
            out::line(sum.line("SUM") + &columns)?;
        }
        Ok(())
    }

    /// Returns a flow of an interval as JSON.
    fn flow(&self, flow: Flow, retransmits: Option<u64>) -> Value {
        let mut value = flow.json();
        if self.side.sends && retransmits.is_some() {
            set(&mut value, "retransmits", json!(retransmits));
        }
        set(&mut value, "omitted", json!(false));
        set(&mut value, "sender", json!(self.side.sends));
        value
    }

    /// Returns the columns of a sender.
    fn columns(&self, link: &Link) -> String {
        if !self.side.sends {
            return String::new();
        }
        let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".into());
        let retransmits = or_dash(link.retransmits.map(|count| count.to_string()));
        let cwnd = or_dash(link.cwnd.map(|cwnd| show_count(cwnd as f64) + "Byte"));
        format!(" {retransmits:>6} {cwnd:>9}")
    }

    /// Reports the totals of both sides; `None`: the test broke off.
    pub(super) fn end(&self, own: &Results, theirs: Option<&Results>) -> Result<(), Failure> {
        let (sent, received) = match self.side.sends {
            true => (Some(own), theirs),
            false => (theirs, Some(own)),
        };
        if self.side.json {
            let end = self.end_json(sent, received, own, theirs);
            let all = json!({ "start": self.start, "intervals": self.intervals, "end": end });
            return Ok(out::json(&all)?);
        }
        out::line("- ".repeat(25))?;
        for (results, role) in [(sent, "sender"), (received, "receiver")] {
            let Some(results) = results else { continue };
            let count = self.side.plan.streams.into();
            for (number, flow) in flows(results, count) {
                let again = results.retransmits.get(number - 1).copied().flatten();
                let again = again.map_or_else(|| "-".into(), |count| count.to_string());
                let again = if role == "sender" {
                    again
                } else {
                    String::new()
                };
                out::line(flow.line(&number.to_string()) + &format!(" {again:>6} {role}"))?;
            }
            if self.side.plan.streams > 1 {
                let again = total(results.retransmits.iter().copied());
                let again = again.map_or_else(|| "-".into(), |count| count.to_string());
                let again = if role == "sender" {
                    again
                } else {
                    String::new()
                };
                out::line(sum(results).line("SUM") + &format!(" {again:>6} {role}"))?;
            }
        }
        for (results, role) in [(sent, "sender"), (received, "receiver")] {
            if let Some(Cpu { user, system }) = results.map(|results| results.cpu) {
                let all = user + system;
                out::line(format_args!(
                    "CPU of the {role}: {all:.1} % ({user:.1} % user, {system:.1} % system)"
                ))?;
            }
        }
        Ok(())
    }

    fn end_json(
        &self,
        sent: Option<&Results>,
        received: Option<&Results>,
        own: &Results,
        theirs: Option<&Results>,
    ) -> Value {
        let mut end = json!({});
        let mut streams = vec![json!({}); self.side.plan.streams.into()];
        for (results, role, sum_name) in [
            (sent, "sender", "sum_sent"),
            (received, "receiver", "sum_received"),
        ] {
            let Some(results) = results else { continue };
            for (number, flow) in flows(results, streams.len()) {
                let mut value = flow.json();
                set(&mut value, "socket", json!(number));
                set(&mut value, "sender", json!(self.side.sends));
                let again = results.retransmits.get(number - 1).copied().flatten();
                if role == "sender" && again.is_some() {
                    set(&mut value, "retransmits", json!(again));
                }
                if let Some(stream) = streams.get_mut(number - 1) {
                    set(stream, role, value);
                }
            }
            let mut all = sum(results).json();
            set(&mut all, "sender", json!(self.side.sends));
            let again = total(results.retransmits.iter().copied());
            if role == "sender" && again.is_some() {
                set(&mut all, "retransmits", json!(again));
            }
            set(&mut end, sum_name, all);
        }
        set(&mut end, "streams", json!(streams));
        let mut cpu = json!({});
        for (side, results) in [("host", Some(own)), ("remote", theirs)] {
            let Some(Cpu { user, system }) = results.map(|results| results.cpu) else {
                continue;
            };
            set(&mut cpu, &format!("{side}_total"), json!(user + system));
            set(&mut cpu, &format!("{side}_user"), json!(user));
            set(&mut cpu, &format!("{side}_system"), json!(system));
        }
        set(&mut end, "cpu_utilization_percent", cpu);
        end
    }
}

/// Returns number and flow of each stream, at most `count`: a peer sent the results.
fn flows(results: &Results, count: usize) -> impl Iterator<Item = (usize, Flow)> {
    let flow = |bytes: &u64| Flow {
        from: 0.0,
        to: results.seconds,
        bytes: *bytes,
    };
    (1..).zip(results.bytes.iter().take(count).map(flow))
}

fn sum(results: &Results) -> Flow {
    Flow {
        from: 0.0,
        to: results.seconds,
        bytes: results
            .bytes
            .iter()
            .fold(0, |all, n| all.saturating_add(*n)),
    }
}

/// Returns the sum of the known values; `None` if none is known.
fn total(values: impl Iterator<Item = Option<u64>>) -> Option<u64> {
    values.flatten().reduce(u64::saturating_add)
}

fn set(object: &mut Value, name: &str, value: Value) {
    if let Some(object) = object.as_object_mut() {
        object.insert(name.to_owned(), value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_time_bytes_and_rate() {
        let flow = Flow {
            from: 1.0,
            to: 2.0,
            bytes: 125_000_000,
        };
        assert_eq!(
            flow.line("1"),
            "[  1]    1.00-2.00    sec    125MByte   1.00Gbit/s"
        );
        let empty = Flow { to: 1.0, ..flow };
        assert!(empty.bits_per_second() < 1.0);
    }

    #[test]
    fn unknown_retransmissions_are_not_zero() {
        assert_eq!(total([None, None].into_iter()), None);
        assert_eq!(total([None, Some(2), Some(3)].into_iter()), Some(5));
    }

    #[test]
    fn more_results_than_streams_are_ignored() {
        let results = Results {
            bytes: vec![u64::MAX, 2, 3],
            ..Results::default()
        };
        assert_eq!(flows(&results, 2).count(), 2);
        assert_eq!(sum(&results).bytes, u64::MAX);
    }
}
