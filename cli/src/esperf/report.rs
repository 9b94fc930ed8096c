//! Reports of a test: lines as iperf3 prints them, or one JSON object with its names.

use std::sync::Arc;
use std::time::Duration;

use esp_client::{EspAddr, EspStream};
use serde_json::{Value, json};

use super::control::{Cpu, Datagrams, Results};
use super::flags::Plan;
use super::measure::{Interval, Link};
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

/// The report of a running test.
pub(super) struct Report {
    side: Side,
    start: Value,
    intervals: Vec<Value>,
}

/// Number of bytes in an interval.
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
    /// Begins the report with the connections. `server` is the node and port that a client named.
    pub(super) fn start(
        side: Side,
        server: Option<(&str, u16)>,
        cookie: &str,
        addresses: &[(EspAddr, EspAddr)],
    ) -> Result<Report, Failure> {
        let mut connected = Vec::new();
        for (number, (local, peer)) in (1..).zip(addresses) {
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
            let columns = match (side.plan.datagrams, side.sends) {
                (None, true) => "  Retr    Cwnd",
                (None, false) => "",
                (Some(_), true) => " Datagrams",
                (Some(_), false) => " Jitter     Lost/Total Datagrams",
            };
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
                "protocol": if plan.datagrams.is_some() { "EDP" } else { "ESP" },
                "num_streams": plan.streams,
                "blksize": plan.length,
                "omit": 0,
                "duration": if plan.bytes.is_some() { 0.0 } else { plan.time.as_secs_f64() },
                "bytes": plan.bytes.unwrap_or(0),
                "blocks": 0,
                "reverse": u8::from(plan.reverse),
                "target_bitrate": plan.datagrams.unwrap_or(0),
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
        let rows = rows(interval);
        let sum = Row::sum(&rows);
        if self.side.json {
            let streams = (1..).zip(&rows).map(|(number, row)| {
                let mut stream = self.json(row);
                set(&mut stream, "socket", json!(number));
                for (name, value) in [("snd_cwnd", row.link.cwnd), ("rtt", row.link.rtt)] {
                    if self.side.sends && value.is_some() {
                        set(&mut stream, name, json!(value));
                    }
                }
                stream
            });
            let streams: Vec<_> = streams.collect();
            let sum = self.json(&sum);
            self.intervals
                .push(json!({ "streams": streams, "sum": sum }));
            return Ok(());
        }
        for (number, row) in (1u32..).zip(&rows) {
            out::line(row.flow.line(&number.to_string()) + &self.columns(row))?;
        }
        if rows.len() > 1 {
            out::line(sum.flow.line("SUM") + &self.columns(&sum))?;
        }
        Ok(())
    }

    /// Returns a row of an interval as JSON.
    fn json(&self, row: &Row) -> Value {
        let mut value = row.flow.json();
        if self.side.sends && row.link.retransmits.is_some() {
            set(&mut value, "retransmits", json!(row.link.retransmits));
        }
        if let Some(datagrams) = &row.datagrams {
            datagrams.add_to(&mut value, self.side.sends);
        }
        set(&mut value, "omitted", json!(false));
        set(&mut value, "sender", json!(self.side.sends));
        value
    }

    /// Returns the columns after the rate.
    fn columns(&self, row: &Row) -> String {
        if let Some(datagrams) = &row.datagrams {
            return datagrams.columns(self.side.sends);
        }
        if !self.side.sends {
            return String::new();
        }
        let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".into());
        let retransmits = or_dash(row.link.retransmits.map(|count| count.to_string()));
        let cwnd = or_dash(row.link.cwnd.map(|cwnd| show_count(cwnd as f64) + "Byte"));
        format!(" {retransmits:>6} {cwnd:>9}")
    }

    /// Reports the totals of both sides. `theirs` is `None` if the test was broken off.
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
        for (results, sends) in [(sent, true), (received, false)] {
            let Some(results) = results else { continue };
            let role = if sends { "sender" } else { "receiver" };
            let rows = self.totals(results, sent);
            for (number, row) in (1u32..).zip(&rows) {
                let columns = end_columns(row, sends);
                out::line(row.flow.line(&number.to_string()) + &format!("{columns} {role}"))?;
            }
            if rows.len() > 1 {
                let sum = Row::sum(&rows);
                let columns = end_columns(&sum, sends);
                out::line(sum.flow.line("SUM") + &format!("{columns} {role}"))?;
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
            let sends = role == "sender";
            let value = |row: &Row| {
                let mut value = row.flow.json();
                set(&mut value, "sender", json!(self.side.sends));
                if sends && row.link.retransmits.is_some() {
                    set(&mut value, "retransmits", json!(row.link.retransmits));
                }
                if let Some(datagrams) = &row.datagrams {
                    datagrams.add_to(&mut value, sends);
                }
                value
            };
            let rows = self.totals(results, sent);
            for (number, (row, stream)) in (1..).zip(rows.iter().zip(&mut streams)) {
                let mut value = value(row);
                set(&mut value, "socket", json!(number));
                // Like iperf3, which has one object for both sides of a flow of datagrams.
                if row.datagrams.is_some() {
                    set(stream, "udp", value.clone());
                }
                set(stream, role, value);
            }
            let all = value(&Row::sum(&rows));
            if self.side.plan.datagrams.is_some() {
                set(&mut end, "sum", all.clone());
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

/// A stream, or the sum of all, in a time.
#[derive(Clone, Copy)]
struct Row {
    flow: Flow,
    link: Link,
    /// `None` for streams.
    datagrams: Option<Datagrams>,
}

/// Returns the streams of an interval.
fn rows(interval: &Interval) -> Vec<Row> {
    let row = |(index, bytes): (usize, &u64)| Row {
        flow: Flow {
            from: interval.from,
            to: interval.to,
            bytes: *bytes,
        },
        link: interval.links.get(index).copied().unwrap_or_default(),
        datagrams: interval.datagrams.get(index).copied(),
    };
    interval.bytes.iter().enumerate().map(row).collect()
}

impl Row {
    /// Returns the sum of rows that cover the same time.
    fn sum(rows: &[Row]) -> Row {
        let first = rows.first().map(|row| row.flow);
        let bytes = rows.iter().map(|row| row.flow.bytes);
        Row {
            flow: Flow {
                from: first.map_or(0.0, |flow| flow.from),
                to: first.map_or(0.0, |flow| flow.to),
                bytes: bytes.fold(0, u64::saturating_add),
            },
            link: Link {
                retransmits: total(rows.iter().map(|row| row.link.retransmits)),
                ..Link::default()
            },
            datagrams: rows
                .iter()
                .filter_map(|row| row.datagrams)
                .reduce(Datagrams::plus),
        }
        .with_mean_jitter(rows.len())
    }

    fn with_mean_jitter(mut self, count: usize) -> Row {
        if let Some(datagrams) = &mut self.datagrams {
            datagrams.jitter_ms /= count.max(1) as f64;
        }
        self
    }
}

impl Report {
    /// Returns the totals of a side. With the sender's numbers, datagrams that were lost after the
    /// last received one are counted, too.
    fn totals(&self, results: &Results, sent: Option<&Results>) -> Vec<Row> {
        let row = |(index, bytes): (usize, &u64)| {
            let mut datagrams = results.datagrams.get(index).copied();
            let of_sender = sent.and_then(|sent| sent.datagrams.get(index));
            if let (Some(own), Some(sent)) = (&mut datagrams, of_sender) {
                own.lost = sent.packets.saturating_sub(own.packets);
            }
            Row {
                flow: Flow {
                    from: 0.0,
                    to: results.seconds,
                    bytes: *bytes,
                },
                link: Link {
                    retransmits: results.retransmits.get(index).copied().flatten(),
                    ..Link::default()
                },
                datagrams,
            }
        };
        // A peer may have sent results for more streams than there are.
        let streams = usize::from(self.side.plan.streams);
        let bytes = results.bytes.iter().take(streams);
        bytes.enumerate().map(row).collect()
    }
}

/// Returns the columns after the rate of a total.
fn end_columns(row: &Row, sends: bool) -> String {
    match &row.datagrams {
        Some(datagrams) => datagrams.columns(sends),
        None if sends => {
            let again = row.link.retransmits.map(|count| count.to_string());
            format!(" {:>6}", again.as_deref().unwrap_or("-"))
        }
        None => format!(" {:>6}", ""),
    }
}

impl Datagrams {
    fn plus(self, other: Datagrams) -> Datagrams {
        Datagrams {
            packets: self.packets.saturating_add(other.packets),
            lost: self.lost.saturating_add(other.lost),
            out_of_order: self.out_of_order.saturating_add(other.out_of_order),
            jitter_ms: self.jitter_ms + other.jitter_ms,
        }
    }

    /// Returns the number of datagrams that were sent, as known to the receiver.
    fn all(&self) -> u64 {
        self.packets.saturating_add(self.lost)
    }

    fn lost_percent(&self) -> f64 {
        match self.all() {
            0 => 0.0,
            all => self.lost as f64 * 100.0 / all as f64,
        }
    }

    fn columns(&self, sends: bool) -> String {
        if sends {
            return format!(" {:>9}", self.packets);
        }
        let (jitter, lost, all) = (self.jitter_ms, self.lost, self.all());
        let percent = format!("{:.2}", self.lost_percent());
        let percent = percent.trim_end_matches('0').trim_end_matches('.');
        let late = match self.out_of_order {
            0 => String::new(),
            count => format!(", {count} out of order"),
        };
        format!(" {jitter:.3} ms  {lost}/{all} ({percent} %{late})")
    }

    /// Adds the numbers with the names of iperf3.
    fn add_to(&self, value: &mut Value, sends: bool) {
        let packets = if sends { self.packets } else { self.all() };
        set(value, "packets", json!(packets));
        if !sends {
            set(value, "jitter_ms", json!(self.jitter_ms));
            set(value, "lost_packets", json!(self.lost));
            set(value, "lost_percent", json!(self.lost_percent()));
            set(value, "out_of_order", json!(self.out_of_order));
        }
    }
}

/// Returns the local and the peer's address of each stream.
pub(super) fn addresses(streams: &[Arc<EspStream>]) -> Vec<(EspAddr, EspAddr)> {
    let of = |stream: &Arc<EspStream>| (stream.local_addr(), stream.peer_addr());
    streams.iter().map(of).collect()
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

    fn side(datagrams: Option<u64>) -> Side {
        Side {
            plan: Plan {
                streams: 2,
                length: 1000,
                reverse: false,
                time: Duration::from_secs(1),
                bytes: None,
                datagrams,
            },
            sends: true,
            interval: Duration::from_secs(1),
            json: true,
        }
    }

    fn report(datagrams: Option<u64>) -> Report {
        Report {
            side: side(datagrams),
            start: json!({}),
            intervals: Vec::new(),
        }
    }

    #[test]
    fn more_results_than_streams_are_ignored() {
        let results = Results {
            bytes: vec![u64::MAX, 2, 3],
            ..Results::default()
        };
        let rows = report(None).totals(&results, None);
        assert_eq!(rows.len(), 2);
        assert_eq!(Row::sum(&rows).flow.bytes, u64::MAX);
    }

    #[test]
    fn losses_count_what_the_sender_sent() {
        let of = |packets, lost, jitter_ms| Datagrams {
            packets,
            lost,
            out_of_order: 1,
            jitter_ms,
        };
        let results = |datagrams| Results {
            bytes: vec![1000, 1000],
            datagrams,
            ..Results::default()
        };
        let sent = results(vec![of(100, 0, 0.0), of(50, 0, 0.0)]);
        // The last datagram of the first stream was lost, which its receiver cannot detect.
        let received = results(vec![of(95, 4, 0.5), of(50, 0, 1.5)]);
        let rows = report(Some(0)).totals(&received, Some(&sent));
        assert_eq!(
            end_columns(&rows[0], false),
            " 0.500 ms  5/100 (5 %, 1 out of order)"
        );
        let sum = Row::sum(&rows);
        assert_eq!(
            end_columns(&sum, false),
            " 1.000 ms  5/150 (3.33 %, 2 out of order)"
        );
        assert_eq!(end_columns(&sum, true), "       145");
        let end = report(Some(0)).end_json(Some(&sent), Some(&received), &sent, Some(&received));
        assert_eq!(end["sum"]["lost_packets"], 5, "{end}");
        assert_eq!(end["streams"][0]["udp"]["packets"], 100, "{end}");
        assert_eq!(end["sum_sent"]["packets"], 150, "{end}");
        assert_eq!(end["sum_sent"]["lost_packets"], Value::Null, "{end}");
    }
}
