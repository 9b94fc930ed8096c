//! Reads the facts about interfaces.

use netif::Interface;

use super::files::{Files, cores};
use crate::esp::doctor::facts::{Daemon, Device, Link, Present};

/// Reads the facts about the named interfaces, or if none are named, about the daemon's Ethernet
/// interfaces, or without a daemon, about those that are in use.
pub(super) fn read(files: &Files, daemon: &Daemon, named: &[String]) -> Vec<Link> {
    let state = daemon.state();
    let all = Interface::list();
    let of_daemon = state.map(|state| {
        let ethernet = state.interfaces.iter().filter(|i| !i.addr.is_udp());
        ethernet.map(|i| i.name.clone()).collect::<Vec<_>>()
    });
    let in_use = || {
        let used = all
            .iter()
            .filter(|i| i.up && i.running && i.check_ethernet().is_ok());
        used.map(|i| i.name.clone()).collect()
    };
    let names = match (named, of_daemon) {
        ([], Some(names)) => names,
        ([], None) => in_use(),
        (named, _) => named.to_vec(),
    };
    let up = |name: &str| {
        let mut interfaces = state.into_iter().flat_map(|state| &state.interfaces);
        let found = interfaces.find(|i| i.name == name && !i.addr.is_udp());
        found.map(|interface| interface.up)
    };
    names
        .into_iter()
        .map(|name| Link {
            present: all
                .iter()
                .find(|i| i.name == name)
                .map(|i| present(files, i)),
            up_at_daemon: up(&name),
            name,
        })
        .collect()
}

/// Reads the counters again.
pub(super) fn read_again(files: &Files, links: &mut [Link]) {
    let text = files.text("proc/net/dev").unwrap_or_default();
    for link in links {
        if let Some(present) = &mut link.present {
            present.device_later = device(&text, &link.name).unwrap_or(present.device);
        }
    }
}

fn present(files: &Files, interface: &Interface) -> Present {
    let folder = format!("sys/class/net/{}", interface.name);
    // /sys may belong to another network namespace, whose interface of this name is a different
    // one.
    let is_own = files.number(format!("{folder}/ifindex")) == Some(interface.index);
    let sys = |file: &str| files.text(format!("{folder}/{file}")).filter(|_| is_own);
    let nodes = files.names("sys/devices/system/node");
    let is_node = |name: &&String| {
        let number = name.strip_prefix("node");
        number.is_some_and(|number| number.parse::<u32>().is_ok())
    };
    let numa = nodes.iter().filter(is_node).count() > 1;
    let text = files.text("proc/net/dev").unwrap_or_default();
    Present {
        enabled: interface.up,
        carrier: interface.running,
        mtu: interface.mtu,
        speed: sys("speed").and_then(|speed| speed.parse().ok()),
        duplex: sys("duplex").filter(|duplex| duplex != "unknown"),
        near_cores: sys("device/local_cpulist")
            .filter(|_| numa)
            .map(|list| cores(&list)),
        ring: interface
            .ring_size()
            .ok()
            .map(|ring| (ring.rx, ring.rx_max)),
        coalescing: interface
            .coalescing()
            .ok()
            .map(|c| (c.rx_usecs, c.adaptive_rx)),
        device: device(&text, &interface.name).unwrap_or_default(),
        device_later: Device::default(),
    }
}

/// Returns the counters of a device in the text of `/proc/net/dev`.
fn device(text: &str, name: &str) -> Option<Device> {
    let after = |line: &str| {
        let (device, numbers) = line.split_once(':')?;
        (device.trim() == name).then(|| numbers.to_owned())
    };
    let numbers: Vec<u64> = text
        .lines()
        .find_map(after)?
        .split_whitespace()
        .map_while(|number| number.parse().ok())
        .collect();
    // Received: bytes packets errs drop fifo frame …; sent, starting at the ninth: bytes packets
    // errs.
    let at = |index: usize| numbers.get(index).copied();
    Some(Device {
        rx_packets: at(1)?,
        rx_errors: at(2)?,
        rx_fifo: at(4)?,
        tx_errors: at(10)?,
    })
}

#[cfg(test)]
mod tests {
    use super::super::files::Planted;
    use super::*;

    const NET: &str = "sys/class/net/no-such-if0";

    /// Reads an interface that has index 0, with this index in `/sys`.
    fn read_planted(name: &str, index: &str) -> Present {
        let planted = Planted::new(
            name,
            &[
                (&format!("{NET}/ifindex"), index),
                (&format!("{NET}/speed"), "100\n"),
                (&format!("{NET}/duplex"), "half\n"),
                (&format!("{NET}/device/local_cpulist"), "4-7\n"),
                ("sys/devices/system/node/node0/cpulist", "0-3\n"),
                ("sys/devices/system/node/node1/cpulist", "4-7\n"),
                ("proc/net/dev", "no-such-if0: 1 2 3 4 5 6 7 8 9 10 11\n"),
            ],
        );
        let interface = Interface::described("no-such-if0".into(), [2; 6], 1500);
        present(&planted.files(), &interface)
    }

    #[test]
    fn settings_are_read_from_the_files_of_the_kernel() {
        let found = read_planted("own", "0\n");
        assert_eq!(
            (found.speed, found.duplex.as_deref()),
            (Some(100), Some("half"))
        );
        assert_eq!(found.near_cores, Some(cores("4-7")));
        assert_eq!(found.device.rx_errors, 3);
    }

    #[test]
    fn files_of_another_network_namespace_are_not_used() {
        let found = read_planted("other", "7\n");
        assert_eq!(
            (found.speed, found.duplex, found.near_cores),
            (None, None, None)
        );
    }

    #[test]
    fn counters_of_a_device_are_found_by_its_name() {
        let text = "Inter-|   Receive   |  Transmit\n face |bytes packets errs drop fifo frame \
                    compressed multicast|bytes packets errs\n  eth0: 1 20 3 4 5 6 7 8 9 10 11 12\n \
                    eth01:1 2\n";
        let found = device(text, "eth0");
        let expected = Device {
            rx_packets: 20,
            rx_errors: 3,
            rx_fifo: 5,
            tx_errors: 11,
        };
        assert_eq!(found, Some(expected));
        assert_eq!(device(text, "eth01"), None);
        assert_eq!(device(text, "eth9"), None);
    }
}
