//! Checks of the interfaces: state, speed, receive ring, delays, drops.

use super::facts::{Daemon, Facts, Link, Present, State};
use super::finding::Finding;

/// Rate above which frames that are dropped or not for this node are a storm, in frames per second.
const STORM: f64 = 2000.0;
/// Minimum delay of interrupts that causes a warning, in microseconds.
const LONG_DELAY: u32 = 50;
/// Size of the receive ring below which bursts of several senders do not fit, in frames.
const SMALL_RING: u32 = 512;
/// Minimum speed of a link without a warning, in Mbit/s.
const SLOW: u32 = 1000;
/// Size of the socket buffers that the daemon requests, in bytes.
const BUFFER: u64 = 1024 * 9216;
/// Bit of `CAP_NET_ADMIN`.
const NET_ADMIN: u32 = 12;

/// Checks every interface.
pub(super) fn check(facts: &Facts, findings: &mut Vec<Finding>) {
    if facts.links.is_empty() {
        findings.push(Finding::note(
            "link.none",
            "no Ethernet interface is checked: the daemon has none, or does not answer",
        ));
    }
    let state = facts.daemon.state();
    for link in &facts.links {
        let mut of_link = Vec::new();
        match &link.present {
            None => of_link.push(absent(link)),
            Some(present) => {
                condition(link, present, &mut of_link);
                settings(link, present, &mut of_link);
                near(present, &facts.daemon, &mut of_link);
                device(link, present, &mut of_link);
            }
        }
        if let Some(state) = state {
            drops(facts, state, &link.name, &mut of_link);
            counters(state, &link.name, &mut of_link);
        }
        findings.extend(of_link.into_iter().map(|finding| finding.of(&link.name)));
    }
}

fn absent(link: &Link) -> Finding {
    let name = &link.name;
    match link.up_at_daemon {
        Some(true) => Finding::note(
            "link.elsewhere",
            "it is in the daemon's network namespace, not in this one: only its counters are known",
        ),
        Some(false) => Finding::error("link.gone", "the interface no longer exists")
            .fix("bring it back: the daemon attaches to an interface of this name by itself"),
        None => {
            Finding::error("link.unknown", format!("there is no interface {name}")).fix("ip link")
        }
    }
}

/// Checks that the interface is up.
fn condition(link: &Link, present: &Present, findings: &mut Vec<Finding>) {
    let name = &link.name;
    let text = if !present.enabled {
        let fix = format!("ip link set {name} up");
        findings.push(Finding::error("link.down", "the interface is disabled").fix(fix));
        return;
    } else if !present.carrier {
        let fix = format!("check cable and switch port; ethtool {name}");
        findings.push(Finding::error("link.carrier", "the interface has no carrier").fix(fix));
        return;
    } else {
        let speed = present.speed.map(|speed| format!(", {speed} Mbit/s"));
        let duplex = present.duplex.as_ref().map(|d| format!(", {d} duplex"));
        let rest = [speed, duplex].into_iter().flatten().collect::<String>();
        format!("up, MTU {}{rest}", present.mtu)
    };
    findings.push(Finding::ok("link.up", text));
    if link.up_at_daemon == Some(false) {
        findings.push(
            Finding::error(
                "link.daemon",
                "the daemon considers the interface down, although it is up",
            )
            .fix("systemctl restart esp-daemon"),
        );
    }
}

/// Checks speed, duplex, receive ring and interrupt delay.
fn settings(link: &Link, present: &Present, findings: &mut Vec<Finding>) {
    let name = &link.name;
    if present.duplex.as_deref() == Some("half") {
        findings.push(
            Finding::error(
                "link.duplex",
                "half duplex: frames collide and are lost when both ends send",
            )
            .fix(format!(
                "ethtool -s {name} autoneg on (at the switch port as well)"
            )),
        );
    }
    if let Some(speed) = present.speed.filter(|speed| (1..SLOW).contains(speed)) {
        findings.push(
            Finding::warning("link.speed", format!("the link runs at {speed} Mbit/s"))
                .fix(format!("check the cable; ethtool -s {name} autoneg on")),
        );
    }
    let lost = present.device_later.rx_fifo;
    if let Some((ring, max)) = present.ring
        && ring < max
        && (lost > 0 || ring < SMALL_RING)
    {
        let lost_text = match lost {
            0 => String::new(),
            lost => format!("; {lost} frames did not fit"),
        };
        let text = format!(
            "the receive ring has {ring} descriptors; the device supports {max}{lost_text}"
        );
        findings.push(
            Finding::warning_if(lost > 0, "link.ring", text)
                .fix(format!("ethtool -G {name} rx {max}")),
        );
    }
    if let Some((delay, adaptive)) = present.coalescing
        && delay > 0
    {
        let adapts = if adaptive {
            ", adapted to the load"
        } else {
            ""
        };
        let text = format!("interrupts of received frames wait up to {delay} µs{adapts}");
        findings.push(
            Finding::warning_if(delay >= LONG_DELAY && !adaptive, "link.coalescing", text).fix(
                format!("ethtool -C {name} adaptive-rx off rx-usecs 0 (costs CPU under load)"),
            ),
        );
    }
}

/// Checks that the daemon runs near the device.
fn near(present: &Present, daemon: &Daemon, findings: &mut Vec<Finding>) {
    let (Some(near), Some(process)) = (&present.near_cores, &daemon.process) else {
        return;
    };
    if near.is_empty() || process.cores.is_empty() {
        return;
    }
    let first = near.first().copied().unwrap_or(0);
    if process.cores.is_disjoint(near) {
        findings.push(
            Finding::warning(
                "link.numa",
                "the daemon may only use cores of another NUMA node than the device's",
            )
            .fix(format!("[idle] core = {first} in esp-daemon.toml")),
        );
    } else if !process.cores.is_subset(near) {
        findings.push(Finding::note(
            "link.numa",
            format!(
                "the device is near {} cores, the first of which is {first}",
                near.len()
            ),
        ));
    }
}

/// Checks the kernel's counters of the device.
fn device(link: &Link, present: &Present, findings: &mut Vec<Finding>) {
    let (before, now) = (present.device, present.device_later);
    if now.rx_errors > 0 {
        let rising = now.rx_errors > before.rx_errors;
        let many = now.rx_errors.saturating_mul(10_000) > now.rx_packets;
        findings.push(
            Finding::warning_if(
                rising || many,
                "link.damaged",
                format!("{} damaged frames were received", now.rx_errors),
            )
            .fix(format!(
                "replace cable or transceiver; ethtool -S {}",
                link.name
            )),
        );
    }
    if now.tx_errors > 0 {
        findings.push(
            Finding::warning_if(
                now.tx_errors > before.tx_errors,
                "link.send",
                format!("{} frames could not be sent", now.tx_errors),
            )
            .fix(format!("ethtool -S {}", link.name)),
        );
    }
}

/// Checks for frames for which the daemon's socket had no room.
fn drops(facts: &Facts, state: &State, name: &str, findings: &mut Vec<Finding>) {
    let dropped = state.counter(name, "socket_rx_dropped");
    if dropped == 0 {
        return;
    }
    let rising = state.rise(name, "socket_rx_dropped") > 0;
    let many = dropped.saturating_mul(1000) > state.counter(name, "rx_frames");
    let process = facts.daemon.process.as_ref();
    let may_force = process.is_some_and(|p| p.capabilities & (1 << NET_ADMIN) != 0);
    let small = facts.host.rmem_max.is_some_and(|max| max < BUFFER) && !may_force;
    let fix = if small {
        "sysctl -w net.core.rmem_max=16777216 net.core.wmem_max=16777216; restart the daemon"
    } else {
        "give the daemon a core of its own: [idle] core and spin in esp-daemon.toml"
    };
    findings.push(
        Finding::warning_if(
            rising || many,
            "link.dropped",
            format!("{dropped} frames were dropped because the daemon's socket was full"),
        )
        .fix(fix),
    );
}

/// Checks the daemon's counters for faults of the segment.
fn counters(state: &State, name: &str, findings: &mut Vec<Finding>) {
    let count = |counter: &str| state.counter(name, counter);
    let echo = count("rx_drop_echo");
    if echo > 0 {
        findings.push(
            Finding::error(
                "link.duplicate",
                format!(
                    "{echo} frames with this node's own address arrived from the wire: another \
                     node has it, or the segment has a loop"
                ),
            )
            .fix(format!(
                "ip link show {name}; set another address there, or look for a loop"
            )),
        );
    }
    let long = count("link_rx_truncated") + count("rx_drop_too_long");
    if long > 0 {
        findings.push(
            Finding::warning(
                "link.long",
                format!("{long} frames were longer than this node's MTU: a peer has a larger one"),
            )
            .fix("esp doctor --all shows the MTU of each node"),
        );
    }
    let version = count("rx_drop_version");
    if version > 0 {
        findings.push(
            Finding::warning(
                "link.version",
                format!("{version} connection requests had another version of ESP"),
            )
            .fix("install one version on all nodes; esp doctor --all shows them"),
        );
    }
    let damaged = count("checksum_drop_damaged") + count("checksum_drop_setup_damaged");
    if damaged > 0 {
        findings.push(
            Finding::warning(
                "link.checksum",
                format!(
                    "{damaged} packets were damaged in transit, and the check sequence of Ethernet \
                     did not show it; their checksum did"
                ),
            )
            .fix("replace the switch, adapter or memory common to the nodes that report this"),
        );
    }
    let given_up = count("link_tx_given_up") + count("link_tx_rejected");
    if given_up > 0 {
        findings.push(
            Finding::warning_if(
                state.rise(name, "link_tx_given_up") + state.rise(name, "link_tx_rejected") > 0,
                "link.refused",
                format!("{given_up} frames were refused by the device"),
            )
            .fix(format!(
                "ip -s link show {name}; tc -s qdisc show dev {name}"
            )),
        );
    }
    storm(state, name, findings);
}

/// Checks the rate of frames that this node drops.
fn storm(state: &State, name: &str, findings: &mut Vec<Finding>) {
    let dropped = |counter: &&(String, String)| {
        let (interface, counter) = *counter;
        interface == name && (counter.starts_with("rx_drop_") || counter == "link_rx_foreign")
    };
    let rise = |(_, counter): &(String, String)| state.rise(name, counter);
    let rise: u64 = state.later.keys().filter(dropped).map(rise).sum();
    let seconds = state.between.as_secs_f64();
    if seconds <= 0.0 || rise as f64 / seconds < STORM {
        return;
    }
    let rate = rise as f64 / seconds;
    findings.push(
        Finding::warning(
            "link.storm",
            format!("this node has to drop {rate:.0} of the frames that arrive per second"),
        )
        .fix(format!(
            "esp dump -i {name} shows the frames, espstat --counters the reasons"
        )),
    );
}
