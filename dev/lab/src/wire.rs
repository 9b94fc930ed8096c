//! Wire of a lab: a bridge in its own namespace and a veth pair to each node.
//!
//! Pure functions create the input of `ip`, `tc` and `nft`, which run inside the namespaces.

use std::fmt::Write;
use std::process::Command;
use std::time::{Duration, Instant};

use esp_client::MacAddr;
use serde::Deserialize;

use crate::error::LabError;
use crate::ip;
use crate::options::{Node, QUEUE_FRAMES, WireOptions};
use crate::process::ProcessRef;
use crate::tools::{IP, NFT, SH, TC};

/// Bytes of an Ethernet header with a VLAN tag, which the MTU does not include.
const ETHERNET: u32 = 18;
/// Microseconds that a port may send at line speed after a pause: kernel timers may be that late.
const BURST_TIME_US: u64 = 250;

/// Keeps `iptables` off the bridge. With the module `br_netfilter`, which container engines load, a
/// bridge passes IP packets, and so those of TCP alone, through its rules: 0.4 µs each.
const NO_RULES: &str = "for rules in iptables ip6tables arptables; do
    file=/proc/sys/net/bridge/bridge-nf-call-$rules
    [ ! -w $file ] || echo 0 > $file || true
done 2> /dev/null
";

/// Checks that the tools are installed.
pub(crate) fn check_tools(wire: &WireOptions) -> Result<(), LabError> {
    IP.find()?;
    if wire.rate.is_some() {
        TC.find()?;
    }
    if wire.loss_ppm > 0 {
        NFT.find()?;
    }
    Ok(())
}

/// Creates for each rail a bridge with a port for each node, whose peer is `ethN` in the node's
/// namespace.
pub(crate) fn build_switch(
    enter: impl Fn() -> Command,
    wire: &WireOptions,
    rails: usize,
    nodes: &[ProcessRef],
) -> Result<(), LabError> {
    SH.run(
        enter(),
        &["-s"],
        NO_RULES,
        "keeping iptables from the lab's switch",
    )?;
    if wire.routed && wire.ip.has_6() {
        SH.run(enter(), &["-s"], ip::ENABLE_6, "enabling IPv6")?;
    }
    for rail in 0..rails {
        let links = switch_links(wire, rail, nodes);
        IP.run(enter(), &["-batch", "-"], &links, "making the lab's switch")?;
    }
    if wire.routed {
        let what = "making the lab's router";
        SH.run(enter(), &["-s"], &ip::forwarding(wire.ip), what)?;
        IP.run(enter(), &["-batch", "-"], &ip::router(wire), what)?;
    }
    if wire.loss_ppm > 0 {
        NFT.run(
            enter(),
            &["-f", "-"],
            &loss_rules(wire.loss_ppm),
            "setting the loss",
        )?;
    }
    if let Some(rate) = wire.rate {
        for rail in 0..rails {
            TC.run(
                enter(),
                &["-batch", "-"],
                &rate_rules(wire, rail, rate),
                "setting the rate",
            )?;
        }
    }
    Ok(())
}

/// Brings up a node's own interfaces.
pub(crate) fn build_node(
    enter: impl Fn() -> Command,
    wire: &WireOptions,
    rails: usize,
    node: usize,
) -> Result<(), LabError> {
    let what = format!("setting up node {node}");
    if wire.ip.has_6() {
        SH.run(enter(), &["-s"], ip::ENABLE_6, &what)?;
    }
    let links = node_links(rails) + &ip::node(wire, node);
    IP.run(enter(), &["-batch", "-"], &links, &what).map(drop)
}

/// Returns the name of a node's port on the switch of a rail.
fn port(node: usize, rail: usize) -> String {
    if rail == 0 {
        format!("port{node}")
    } else {
        format!("port{node}r{rail}")
    }
}

/// Waits until every port of every bridge forwards.
pub(crate) fn await_forwarding(
    enter: impl Fn() -> Command,
    wire: &WireOptions,
    rails: usize,
) -> Result<(), LabError> {
    for segment in 0..wire.segments() {
        let nodes = (0..wire.nodes).filter(|&node| wire.segment(node) == segment);
        let nodes = nodes.count();
        (0..rails).try_for_each(|rail| await_bridge(&enter, &bridge(rail, segment), nodes))?;
    }
    Ok(())
}

/// Returns the name of the bridge of a rail and segment.
pub(crate) fn bridge(rail: usize, segment: usize) -> String {
    match segment {
        0 => format!("br{rail}"),
        _ => format!("br{rail}s{segment}"),
    }
}

fn await_bridge(enter: impl Fn() -> Command, bridge: &str, nodes: usize) -> Result<(), LabError> {
    let what = "waiting for the lab's switch";
    let end = Instant::now() + Duration::from_secs(10);
    loop {
        let text = IP.run(
            enter(),
            &["-json", "-details", "link", "show", "master", bridge],
            "",
            what,
        )?;
        let forwarding = count_forwarding(&text);
        if forwarding == nodes {
            return Ok(());
        }
        if Instant::now() > end {
            let text = format!("only {forwarding} of {nodes} ports forward after 10 s");
            return Err(LabError::Tool {
                what: what.into(),
                tool: IP.name,
                text,
            });
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Reads the counter of the loss rule.
pub(crate) fn frames_lost(enter: Command) -> Result<u64, LabError> {
    let what = "reading the loss";
    let text = NFT.run(
        enter,
        &["list", "chain", "bridge", "esplab", "loss"],
        "",
        what,
    )?;
    count_lost(&text).ok_or_else(|| LabError::Tool {
        what: what.into(),
        tool: NFT.name,
        text: "no counter in its output".into(),
    })
}

/// Parses the number after `counter packets`.
fn count_lost(rules: &str) -> Option<u64> {
    rules
        .split_once("counter packets ")?
        .1
        .split_ascii_whitespace()
        .next()?
        .parse()
        .ok()
}

/// Reads the number of frames dropped at the full queue of a node's port.
pub(crate) fn frames_overrun(enter: Command, node: usize) -> Result<u64, LabError> {
    let what = "reading the queue";
    let text = TC.run(
        enter,
        &[
            "-statistics",
            "-json",
            "qdisc",
            "show",
            "dev",
            &format!("port{node}"),
        ],
        "",
        what,
    )?;
    let queues: Vec<Queue> = serde_json::from_str(&text).unwrap_or_default();
    let drops = queues.iter().find(|q| q.kind == "tbf").map(|q| q.drops);
    drops.ok_or_else(|| LabError::Tool {
        what: what.into(),
        tool: TC.name,
        text: "no queue in its output".into(),
    })
}

/// Fields read from `tc -statistics -json qdisc`. The drops of the outer queue include those of the
/// inner one.
#[derive(Deserialize)]
struct Queue {
    kind: String,
    drops: u64,
}

fn switch_links(wire: &WireOptions, rail: usize, nodes: &[ProcessRef]) -> String {
    let mtu = wire.mtu;
    let mut text = String::new();
    for segment in 0..wire.segments() {
        let bridge = bridge(rail, segment);
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "link add name {bridge} type bridge stp_state 0 forward_delay 0 mcast_snooping 0\n\
             link set dev {bridge} addrgenmode none"
        );
    }
    for (i, holder) in nodes.iter().enumerate() {
        let _ = writeln!(
            text,
            "link add name {port} mtu {mtu} type veth peer name eth{rail} mtu {mtu} address {mac} netns {pid}\n\
             link set dev {port} addrgenmode none\n\
             link set dev {port} master {bridge} up",
            bridge = bridge(rail, wire.segment(i)),
            port = port(i, rail),
            mac = MacAddr(Node(i).rail_mac(rail)),
            pid = holder.pid,
        );
    }
    for segment in 0..wire.segments() {
        let _ = writeln!(text, "link set dev {} mtu {mtu} up", bridge(rail, segment));
    }
    text
}

fn node_links(rails: usize) -> String {
    let mut text = String::from("link set dev lo up\n");
    for rail in 0..rails {
        let _ = writeln!(
            text,
            "link set dev eth{rail} addrgenmode none\nlink set dev eth{rail} up"
        );
    }
    text
}

/// Returns the loss rule. Every frame passes the bridge's forward hook once, in both directions.
fn loss_rules(ppm: u32) -> String {
    format!(
        "table bridge esplab {{\n\
         \tchain loss {{\n\
         \t\ttype filter hook forward priority 0; policy accept;\n\
         \t\tnumgen random mod 1000000 < {ppm} counter drop\n\
         \t}}\n\
         }}\n"
    )
}

/// Returns the token bucket of each port, with a short queue.
fn rate_rules(wire: &WireOptions, rail: usize, rate: u64) -> String {
    let frame = u64::from(wire.mtu + ETHERNET);
    let burst = (2 * frame).max(rate / 8 * BURST_TIME_US / 1_000_000);
    // The limit in bytes is above that of the inner queue in frames, which decides.
    let limit = u64::from(QUEUE_FRAMES + 2) * frame;
    let mut text = String::new();
    for i in 0..wire.nodes {
        let _ = writeln!(
            text,
            "qdisc add dev {port} root handle 1: tbf rate {rate}bit burst {burst} limit {limit}\n\
             qdisc add dev {port} parent 1:1 handle 10: pfifo limit {QUEUE_FRAMES}",
            port = port(i, rail)
        );
    }
    text
}

/// Fields read from `ip -json -details link`.
#[derive(Deserialize)]
struct Link {
    linkinfo: Option<LinkInfo>,
}

#[derive(Deserialize)]
struct LinkInfo {
    info_slave_data: Option<PortInfo>,
}

#[derive(Deserialize)]
struct PortInfo {
    state: Option<String>,
}

fn count_forwarding(json: &str) -> usize {
    // Unreadable output counts as not forwarding; the wait then ends with an error.
    let links: Vec<Link> = serde_json::from_str(json).unwrap_or_default();
    let state = |link: Link| link.linkinfo?.info_slave_data?.state;
    links
        .into_iter()
        .filter_map(state)
        .filter(|s| s == "forwarding")
        .count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ip::Ip;

    fn wire() -> WireOptions {
        WireOptions {
            nodes: 2,
            mtu: 1500,
            rate: None,
            loss_ppm: 0,
            offload: true,
            routed: false,
            ip: Ip::V4,
        }
    }

    #[test]
    fn both_ends_have_mtu_and_address() {
        let text = switch_links(
            &wire(),
            0,
            &[
                ProcessRef { pid: 11, start: 0 },
                ProcessRef { pid: 22, start: 0 },
            ],
        );
        assert!(
            text.contains(
                "name port1 mtu 1500 type veth peer name eth0 mtu 1500 address 02:e5:00:00:00:02 netns 22"
            ),
            "{text}"
        );
        assert!(text.ends_with("link set dev br0 mtu 1500 up\n"), "{text}");
        let second = switch_links(&wire(), 1, &[ProcessRef { pid: 11, start: 0 }]);
        assert!(second.contains(
            "port0r1 mtu 1500 type veth peer name eth1 mtu 1500 address 02:e5:00:00:01:01 netns 11"
        ));
        assert!(
            second.contains("link set dev port0r1 master br1 up"),
            "{second}"
        );
    }

    #[test]
    fn a_bucket_holds_at_least_two_frames_and_a_late_timer() {
        let slow = rate_rules(&wire(), 0, 10_000_000);
        assert!(slow.contains("rate 10000000bit burst 3036 "), "{slow}");
        let fast = rate_rules(&wire(), 0, 10_000_000_000);
        assert!(fast.contains(" burst 312500 "), "{fast}");
        assert_eq!(fast.matches("pfifo limit 64").count(), 2);
    }

    #[test]
    fn lost_frames_are_read() {
        assert_eq!(
            count_lost(
                "chain loss {\n numgen random mod 1000000 < 10000 counter packets 17 bytes 900 drop\n}"
            ),
            Some(17)
        );
        assert_eq!(count_lost(""), None);
    }

    #[test]
    fn forwarding_ports_are_counted() {
        let json = r#"[{"ifname":"port0","linkinfo":{"info_slave_data":{"state":"forwarding"}}},
                       {"ifname":"port1","linkinfo":{"info_slave_data":{"state":"disabled"}}},{"ifname":"x"}]"#;
        assert_eq!(count_forwarding(json), 1);
        assert_eq!(count_forwarding("nonsense"), 0);
    }
}
