//! The program that has a UDP port, for error texts.

use std::fs;
use std::net::{IpAddr, SocketAddr};

/// Maximum number of processes that are searched.
const MAX_PROCESSES: usize = 4096;
/// Maximum number of descriptors of a process that are searched.
const MAX_DESCRIPTORS: usize = 4096;

/// Describes the holder of a UDP port, with the details that this process can see.
pub(super) fn of(local: SocketAddr) -> String {
    let table = if local.is_ipv4() { "udp" } else { "udp6" };
    let found = fs::read_to_string(format!("/proc/net/{table}"))
        .ok()
        .and_then(|text| text.lines().find_map(|line| entry(line, local)));
    let Some((uid, inode)) = found else {
        return "another program".to_owned();
    };
    match process(&format!("socket:[{inode}]")) {
        Some((pid, name)) => format!("{name} (process {pid} of user {uid})"),
        None => format!("a program of user {uid}"),
    }
}

/// Returns user and inode of a line of `/proc/net/udp` if it has this address.
fn entry(line: &str, local: SocketAddr) -> Option<(u32, u64)> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let (ip, port) = fields.get(1)?.split_once(':')?;
    let is_any = ip.bytes().all(|digit| digit == b'0');
    let fits = is_any || ip.eq_ignore_ascii_case(&hexadecimal(local.ip()));
    if u16::from_str_radix(port, 16).ok()? != local.port() || !fits {
        return None;
    }
    Some((fields.get(7)?.parse().ok()?, fields.get(9)?.parse().ok()?))
}

/// Returns an address as the kernel prints it: words of 32 bits in the machine's byte order.
fn hexadecimal(ip: IpAddr) -> String {
    let octets = match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    };
    let words = octets.as_chunks::<4>().0.iter();
    words
        .map(|word| format!("{:08X}", u32::from_ne_bytes(*word)))
        .collect()
}

/// Returns id and name of a process that has this descriptor open.
fn process(link: &str) -> Option<(u32, String)> {
    let processes = fs::read_dir("/proc").ok()?.flatten();
    let mut ids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    ids.by_ref().take(MAX_PROCESSES).find_map(|pid| {
        let open = fs::read_dir(format!("/proc/{pid}/fd")).ok()?.flatten();
        let mut open = open.take(MAX_DESCRIPTORS);
        open.find(|fd| fs::read_link(fd.path()).is_ok_and(|to| to.as_os_str() == link))?;
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        Some((pid, name.trim_end().to_owned()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_found_in_the_kernels_table() {
        let line = "  10: 0100007F:0AF5 00000000:0000 07 00000000:00000000 00:00000000 00000000  1000        0 4242 2 0000000000000000 0";
        let at = |ip: [u8; 4], port| entry(line, SocketAddr::from((ip, port)));
        if cfg!(target_endian = "little") {
            assert_eq!(at([127, 0, 0, 1], 2805), Some((1000, 4242)));
        }
        assert_eq!(at([127, 0, 0, 1], 2806), None);
        assert_eq!(at([10, 0, 0, 1], 2805), None);
        let any = line.replace("0100007F", "00000000");
        assert_eq!(
            entry(&any, SocketAddr::from(([10, 0, 0, 1], 2805))),
            Some((1000, 4242))
        );
        assert_eq!(
            entry("sl local_address", SocketAddr::from(([0; 4], 1))),
            None
        );
    }

    #[test]
    fn the_holder_is_named() {
        let held = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let text = of(held.local_addr().unwrap());
        assert!(
            text.contains(&format!("process {}", std::process::id())),
            "{text}"
        );
    }
}
