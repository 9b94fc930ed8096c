//! Benchmarks between two nodes: their labs and their cases.

use crate::about::About;
use crate::protect::Protection;
use crate::task::{Protocol, Wait, Work};
use lab::{LabOptions, WireOptions};

/// A benchmark: cases that are measured in turn.
#[derive(Clone, Debug)]
pub struct Bench {
    /// Name, title and limits.
    pub about: &'static About,
    /// Labs it needs. All exist at the same time.
    pub labs: Vec<LabPlan>,
    /// Cases of a round, in this order.
    pub cases: Vec<Case>,
    /// Number of rounds.
    pub rounds: usize,
}

/// A lab of two nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LabPlan {
    /// Bytes.
    pub mtu: u32,
    /// Frames lost, per million.
    pub loss_ppm: u32,
    /// Idle connections that are open all the time.
    pub held: usize,
    /// Idle leased ports of each node that are open all the time.
    pub leases: usize,
    /// Protection of packets between the daemons.
    pub protection: Protection,
}

impl LabPlan {
    /// Options of its wire.
    pub fn wire(&self) -> WireOptions {
        WireOptions {
            mtu: self.mtu,
            loss_ppm: self.loss_ppm,
            ..LabOptions::new(2).wire
        }
    }
}

/// One measurement of a round.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// Index of the lab.
    pub lab: usize,
    /// Protocol under test.
    pub path: Protocol,
    /// Waiting of the workers.
    pub wait: Wait,
    /// Traffic.
    pub work: Work,
    /// False: segmentation offload of both nodes is off during the measurement.
    pub offload: bool,
}

impl Case {
    /// Returns true if both measure the same traffic over other protocols or wires. Of bulk traffic
    /// only the sizes must agree, where both have one: the bare loop is measured with both kinds of
    /// waiting, and the better one counts.
    fn comparable(&self, other: &Case) -> bool {
        let has_size = |case: &Case| !case.path.is_bare();
        match (self.work, other.work) {
            (Work::Stream { size: mine, .. }, Work::Stream { size: theirs, .. }) => {
                mine == theirs || !has_size(self) || !has_size(other)
            }
            _ => self.work == other.work && self.wait == other.wait,
        }
    }
}

impl Bench {
    /// Returns the cases in the same lab that differ by the protocol alone. TCP is measured in one
    /// of the labs that differ by the protection of ESP's packets.
    pub fn counterparts(&self, case: &Case, path: Protocol) -> Vec<usize> {
        let lab = |index: usize| self.labs.get(index).copied().unwrap_or_default();
        let plain = |index| LabPlan {
            protection: Protection::None,
            ..lab(index)
        };
        self.positions(|other| {
            other.path == path
                && case.path != path
                && (other.lab == case.lab
                    || path.carrier().is_none() && plain(case.lab) == lab(other.lab))
                && case.comparable(other)
        })
    }

    /// Returns the case that differs by the protection alone.
    pub fn without_protection(&self, case: &Case) -> Vec<usize> {
        self.in_lab(case, |lab| LabPlan {
            protection: Protection::None,
            ..*lab
        })
    }

    /// Returns the case that differs by the loss alone.
    pub fn without_loss(&self, case: &Case) -> Vec<usize> {
        self.in_lab(case, |lab| LabPlan {
            loss_ppm: 0,
            ..*lab
        })
    }

    /// Returns the case that differs by the idle connections alone.
    pub fn without_held(&self, case: &Case) -> Vec<usize> {
        self.in_lab(case, |lab| LabPlan { held: 0, ..*lab })
    }

    /// Returns the case that differs by the idle leases alone.
    pub fn without_leases(&self, case: &Case) -> Vec<usize> {
        self.in_lab(case, |lab| LabPlan { leases: 0, ..*lab })
    }

    /// Returns the same case in the changed lab; none if the change changes nothing.
    fn in_lab(&self, case: &Case, change: impl Fn(&LabPlan) -> LabPlan) -> Vec<usize> {
        let lab = self.labs.get(case.lab).copied().unwrap_or_default();
        let wanted = change(&lab);
        self.positions(|other| {
            wanted != lab
                && self.labs.get(other.lab) == Some(&wanted)
                && other.path == case.path
                && case.comparable(other)
        })
    }

    fn positions(&self, is_wanted: impl Fn(&Case) -> bool) -> Vec<usize> {
        let all = self.cases.iter().enumerate();
        all.filter(|(_, case)| is_wanted(case))
            .map(|(index, _)| index)
            .collect()
    }
}

/// All protocols, in the order they are measured.
pub const PROTOCOLS: [Protocol; 11] = [
    Protocol::Tcp,
    Protocol::TcpTls,
    Protocol::TcpNoOffload,
    Protocol::Raw,
    Protocol::Lease,
    Protocol::Daemon,
    Protocol::P2p,
    Protocol::RawUdp,
    Protocol::Udp,
    Protocol::UdpDaemon,
    Protocol::P2pUdp,
];

/// All benchmarks between two nodes, in the order they run.
pub static BENCHES: [About; 8] = [
    About {
        name: "pingpong",
        title: "latency over size: half a round trip",
        limits: "When both ends block, most of the time is that of waking a core, which ESP's \
                 programs avoid by yielding before they sleep. When both poll, three quarters of \
                 the time of a short message are the kernel's path from one packet socket to the \
                 other, which the bare loop takes, too. Long messages are limited by the cost per \
                 frame: TCP has segmentation offload, packet sockets do not.",
        millis: [1_000, 500],
    },
    About {
        name: "send",
        title: "mean time of the send calls of a burst of 32, 1 byte each, 20 µs between bursts",
        limits: "A sample is the mean of a burst, because reading the clock at each call would be \
                 a considerable part of a call through the daemon: p50 and p99 are those of \
                 bursts, and single calls take longer. Through the daemon a call is a copy into \
                 shared memory and an atomic operation; only the first call after the daemon fell \
                 asleep is a system call. Over a lease, and over UDP without a daemon, a call \
                 sends a frame through the kernel, on this virtual link up to the receiver's \
                 socket, if window and credit allow it; otherwise it is a copy, too, and its \
                 bytes share a later frame. Which of the two most calls do differs from round to \
                 round.",
        millis: [490, 130],
    },
    About {
        name: "send-idle",
        title: "time of a send call, 1 byte, one each millisecond, all processes asleep before",
        limits: "Over a lease and over TCP the call includes the wake-up of the receiver's core, \
                 which costs most in a virtual machine. Through the daemon it includes a write to \
                 the daemon's eventfd only.",
        millis: [680, 180],
    },
    About {
        name: "stream",
        title: "bandwidth over size of a write, one way",
        limits: "The sender's core is the limit: nine tenths of its time are in the system call \
                 that sends frames, which on a veth link also runs the receiver's side of the \
                 kernel. TCP with segmentation offload passes 64 KiB through that path at once, a \
                 packet socket one frame.",
        millis: [600, 300],
    },
    About {
        name: "loss",
        title: "bandwidth with 1 % of the frames lost, one way",
        limits: "The rate is limited by how much stays in flight while the lost frames are \
                 repaired; selective acknowledgements repair many losses in one round trip. TCP \
                 and ESP in UDP are measured without offload, because the loss of one large \
                 packet would be that of many frames at once.",
        millis: [800, 300],
    },
    About {
        name: "idle",
        title: "one busy connection, alone and with 999 idle ones, through the daemon",
        limits: "The daemon's work depends on the number of connections with traffic, not of \
                 those that exist. An idle connection costs the pages of its rings that were \
                 touched.",
        millis: [840, 510],
    },
    About {
        name: "leases",
        title: "one busy connection, with no other leased port and with 63 others of each node",
        limits: "The leased sockets of an interface form one fan-out group, so that one filter \
                 program selects the socket of a frame by binary search. Without the group each \
                 further socket costs every frame 120 ns.",
        millis: [1_100, 870],
    },
    About {
        name: "protect",
        title: "protection of packets, through the daemon: none, checksum, integrity, encrypt",
        limits: "The daemons' cores are the limit: each packet is copied once more on both sides, \
                 and its checksum or tag is made from all of its bytes. TLS over TCP works on \
                 records of up to 16 KiB, which segmentation offload passes through the stack at \
                 once.",
        millis: [1_000, 500],
    },
];

/// Returns all benchmarks, or those named. `quick`: fewer rounds, sizes and samples.
///
/// # Errors
/// A name is unknown.
pub fn plan(quick: bool, only: &[String]) -> Result<Vec<Bench>, String> {
    let is_known = |name: &&String| BENCHES.iter().any(|about| about.name == *name);
    if let Some(unknown) = only.iter().find(|name| !is_known(name)) {
        let known = BENCHES.each_ref().map(|about| about.name).join(", ");
        return Err(format!(
            "unknown benchmark `{unknown}`: write one of {known}"
        ));
    }
    let is_wanted =
        |about: &&'static About| only.is_empty() || only.iter().any(|name| name == about.name);
    Ok(BENCHES
        .iter()
        .filter(is_wanted)
        .map(|about| bench(about, quick))
        .collect())
}

fn bench(about: &'static About, quick: bool) -> Bench {
    let lab = LabPlan {
        mtu: 1500,
        ..LabPlan::default()
    };
    let jumbo = LabPlan { mtu: 9000, ..lab };
    let labs = match about.name {
        "loss" => vec![
            lab,
            LabPlan {
                loss_ppm: 10_000,
                ..lab
            },
        ],
        "idle" => vec![lab, LabPlan { held: 999, ..lab }],
        "leases" => vec![lab, LabPlan { leases: 63, ..lab }],
        "protect" => {
            let with = |lab| Protection::ALL.map(|protection| LabPlan { protection, ..lab });
            [lab, jumbo].into_iter().flat_map(with).collect()
        }
        _ => vec![lab, jumbo],
    };
    let mut cases = Vec::new();
    for (index, lab) in labs.iter().enumerate() {
        let mut raw_streams = Vec::new();
        for (wait, work) in works(about.name, quick) {
            for path in PROTOCOLS {
                let is_raw_stream = path.is_bare() && matches!(work, Work::Stream { .. });
                if !fits(about.name, path, work, lab)
                    || (is_raw_stream && raw_streams.contains(&path))
                {
                    continue;
                }
                if is_raw_stream {
                    raw_streams.push(path);
                }
                let waits = if is_raw_stream {
                    &[Wait::Block, Wait::Poll][..]
                } else {
                    &[wait]
                };
                cases.extend(waits.iter().map(|&wait| Case {
                    lab: index,
                    path,
                    wait,
                    work,
                    offload: path != Protocol::TcpNoOffload && about.name != "loss",
                }));
            }
        }
    }
    Bench {
        about,
        labs,
        cases,
        rounds: if quick { 3 } else { 5 },
    }
}

/// Returns true if the benchmark measures this protocol.
///
/// Bulk traffic is compared with TCP with and without offload; under loss all is without (see the
/// limits of `loss`). Small messages do not use offload. The bare loop has no send calls, no repair
/// of losses and no messages above one frame.
fn fits(bench: &str, path: Protocol, work: Work, lab: &LabPlan) -> bool {
    let is_one_frame = match work {
        Work::PingPong { size, .. } => size + 41 <= lab.mtu as usize,
        _ => true,
    };
    if path == Protocol::TcpTls && bench != "protect" {
        return false;
    }
    match bench {
        "stream" => true,
        "pingpong" => path != Protocol::TcpNoOffload && (!path.is_bare() || is_one_frame),
        "loss" => matches!(
            path,
            Protocol::TcpNoOffload | Protocol::Lease | Protocol::Daemon | Protocol::Udp
        ),
        "idle" => path == Protocol::Daemon,
        "leases" => matches!(path, Protocol::Lease | Protocol::Daemon),
        "protect" => match path {
            Protocol::Tcp | Protocol::TcpTls => lab.protection == Protection::None,
            _ => matches!(path, Protocol::Daemon | Protocol::UdpDaemon),
        },
        _ => matches!(
            path,
            Protocol::Tcp
                | Protocol::Lease
                | Protocol::Daemon
                | Protocol::Udp
                | Protocol::UdpDaemon
        ),
    }
}

/// Sizes of messages of the latency charts.
const SIZES: [usize; 8] = [
    1,
    64,
    1 << 10,
    4 << 10,
    16 << 10,
    64 << 10,
    256 << 10,
    1 << 20,
];
/// Sizes of writes of the bandwidth charts.
const WRITES: [usize; 5] = [1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10];

/// Returns the kind of waiting and the traffic of a benchmark's cases.
fn works(name: &str, quick: bool) -> Vec<(Wait, Work)> {
    let less = |full: u64, short: u64| if quick { short } else { full };
    let stream = |size| Work::Stream {
        millis: less(500, 200),
        size,
    };
    // About as much time for every size: fewer round trips of long messages.
    let ping = |size: usize| {
        let most = less(256 << 20, 32 << 20) / size as u64;
        Work::PingPong {
            size,
            count: most.clamp(less(100, 20), less(5_000, 1_000)),
        }
    };
    let send = |count, burst, pause_us| Work::Send {
        size: 1,
        count,
        burst,
        pause_us,
    };
    let whole = stream(256 << 10);
    match name {
        "pingpong" => {
            let sizes = if quick { &[1, 64 << 10][..] } else { &SIZES };
            let waits = [Wait::Block, Wait::Poll].into_iter();
            waits
                .flat_map(|wait| sizes.iter().map(move |&size| (wait, ping(size))))
                .collect()
        }
        "send" => vec![(Wait::Block, send(less(5_000, 1_000), 32, 20))],
        "send-idle" => vec![(Wait::Block, send(less(500, 100), 1, 1000))],
        "stream" => {
            let sizes = if quick { &WRITES[4..] } else { &WRITES };
            sizes.iter().map(|&s| (Wait::Block, stream(s))).collect()
        }
        "idle" => vec![(Wait::Block, ping(1)), (Wait::Block, whole)],
        "leases" | "protect" => vec![
            (Wait::Block, ping(1)),
            (Wait::Poll, ping(1)),
            (Wait::Block, whole),
        ],
        _ => vec![(Wait::Block, whole)],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_case_has_a_case_to_compare_with() -> Result<(), String> {
        for bench in plan(false, &[])? {
            let daemon_only = ["idle", "protect"].contains(&bench.about.name);
            for path in [Protocol::Daemon, Protocol::Lease] {
                let has = bench.cases.iter().any(|c| c.path == path);
                assert_eq!(
                    has,
                    path == Protocol::Daemon || !daemon_only,
                    "{}",
                    bench.about.name
                );
            }
            for case in bench
                .cases
                .iter()
                .filter(|c| matches!(c.path, Protocol::Daemon | Protocol::Lease))
            {
                let lab = bench.labs[case.lab];
                let tcp = [Protocol::Tcp, Protocol::TcpNoOffload]
                    .map(|path| bench.counterparts(case, path).len());
                let alone = ["idle", "leases"].contains(&bench.about.name);
                assert_eq!(tcp.contains(&1), !alone, "{}: {case:?}", bench.about.name);
                let raw = match (bench.about.name, case.work) {
                    ("pingpong", Work::PingPong { size, .. }) => {
                        usize::from(size + 41 <= lab.mtu as usize)
                    }
                    ("stream", _) => 2,
                    _ => 0,
                };
                assert_eq!(
                    bench.counterparts(case, Protocol::Raw).len(),
                    raw,
                    "{}: {case:?}",
                    bench.about.name
                );
                assert_eq!(
                    bench.without_loss(case).len(),
                    usize::from(lab.loss_ppm > 0),
                    "{}: {case:?}",
                    bench.about.name
                );
                assert_eq!(
                    bench.without_held(case).len(),
                    usize::from(lab.held > 0),
                    "{}: {case:?}",
                    bench.about.name
                );
                assert_eq!(
                    bench.without_leases(case).len(),
                    usize::from(lab.leases > 0),
                    "{}: {case:?}",
                    bench.about.name
                );
            }
        }
        Ok(())
    }

    #[test]
    fn under_loss_all_are_measured_without_offload() -> Result<(), String> {
        for bench in plan(false, &[])? {
            for case in &bench.cases {
                let off = bench.about.name == "loss" || case.path == Protocol::TcpNoOffload;
                assert_eq!(case.offload, !off, "{}: {case:?}", bench.about.name);
            }
        }
        Ok(())
    }

    #[test]
    fn only_named_benchmarks_are_planned() -> Result<(), String> {
        let benches = plan(true, &["loss".into(), "send".into()])?;
        assert_eq!(
            benches.iter().map(|b| b.about.name).collect::<Vec<_>>(),
            ["send", "loss"]
        );
        let error = plan(true, &["speed".into()]).expect_err("the name is unknown");
        assert!(
            error.contains("`speed`") && error.contains("pingpong"),
            "{error}"
        );
        Ok(())
    }
}
