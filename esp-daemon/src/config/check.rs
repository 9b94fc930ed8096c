//! Conditions on the config file that the types of its keys do not express.

use super::{Auth, Checksum, Config, Ethertypes, LeaseAllow, Limits, RingOptions, Span};

/// A mistake in the file: key, description.
type Mistake = (String, String);

/// Returns a [`Mistake`] unless the condition is true.
macro_rules! ensure {
    ($condition:expr, $key:expr, $($what:tt)*) => {
        if !$condition {
            return Err(($key.into(), format!($($what)*)));
        }
    };
}

impl Config {
    /// Checks the conditions that the types do not express.
    pub(super) fn check(&self) -> Result<(), Mistake> {
        ensure!(
            self.udp_port != 0,
            "udp_port",
            "invalid UDP port 0: expected 1 to 65535"
        );
        self.check_interfaces()?;
        let node_name = self.node_name.as_deref().unwrap_or_default();
        ensure!(
            node_name.len() <= 64,
            "node_name",
            "too long: expected at most 64 bytes"
        );
        let has_path = !self.socket.path.as_os_str().is_empty();
        ensure!(has_path, "socket.path", "empty: expected a path");
        self.ethertypes.check()?;
        let RingOptions { default, max } = self.rings;
        ensure!(default <= max, "rings.default", "larger than rings.max");
        self.check_times()?;
        self.check_exclusions()?;
        ensure!(
            self.metrics.listen.is_some() || self.metrics.token_file.is_none(),
            "metrics.token_file",
            "no effect without metrics.listen: add that key, or remove this one"
        );
        self.limits.check()
    }

    /// Checks that the interfaces have names of Linux, each once.
    fn check_interfaces(&self) -> Result<(), Mistake> {
        for (at, name) in self.interfaces.iter().enumerate() {
            ensure!(
                (1..=15).contains(&name.len()),
                "interfaces",
                "invalid interface name `{name}`: expected 1 to 15 bytes, such as \"eth0\""
            );
            let earlier = self.interfaces.get(..at).unwrap_or_default();
            ensure!(
                !earlier.contains(name),
                "interfaces",
                "duplicate interface `{name}`"
            );
        }
        Ok(())
    }

    /// Checks that each time is in its range.
    fn check_times(&self) -> Result<(), Mistake> {
        let timers = &self.timers;
        for (key, Span(value), Span(min), Span(max)) in [
            (
                "timers.connect_timeout",
                timers.connect_timeout,
                Span::millis(1),
                Span::HOUR,
            ),
            (
                "timers.peer_timeout",
                timers.peer_timeout,
                Span::millis(10),
                Span::HOUR,
            ),
            (
                "timers.keepalive",
                timers.keepalive,
                Span::millis(1),
                Span::HOUR,
            ),
            (
                "timers.min_rto",
                timers.min_rto,
                Span::micros(100),
                timers.max_rto,
            ),
            (
                "timers.max_rto",
                timers.max_rto,
                Span::micros(100),
                Span::millis(60_000),
            ),
            (
                "idle.spin",
                self.idle.spin,
                Span::micros(0),
                Span::millis(1000),
            ),
            (
                "lease.grace",
                self.lease.grace,
                Span::micros(0),
                Span::millis(60_000),
            ),
        ] {
            ensure!(
                (min..=max).contains(&value),
                key,
                "{value:?} is out of range: expected {min:?} to {max:?}"
            );
        }
        Ok(())
    }

    /// Checks that the other options allow the number of engines.
    ///
    /// # Errors
    /// Description of the option that allows only one.
    pub fn check_engines(&self) -> Result<(), String> {
        let conflicts = [
            (!self.udp.is_empty(), "ESP in UDP (`udp`)"),
            (!self.auth.key_files.is_empty(), "keys (`auth.key_files`)"),
            (self.checksum != Checksum::Off, "checksums (`checksum`)"),
            (self.pcap.is_some(), "a pcap file (`pcap`)"),
        ];
        match conflicts.iter().find(|(is_set, _)| *is_set) {
            Some((_, what)) if self.engines.0 > 1 => Err(format!(
                "several engines cannot be combined with {what}: set `engines` to 1"
            )),
            _ => Ok(()),
        }
    }

    /// Checks the options that exclude each other: engines, leases, keys and checksums.
    fn check_exclusions(&self) -> Result<(), Mistake> {
        let has_keys = !self.auth.key_files.is_empty();
        let has_checksum = self.checksum != Checksum::Off;
        let leases_to_all = self.lease.allow == LeaseAllow::All;
        self.check_engines()
            .map_err(|what| ("engines".into(), what))?;
        ensure!(
            self.lease.allow == LeaseAllow::Root || self.lease.users.is_empty(),
            "lease.users",
            "no effect unless lease.allow is \"root\": remove one of the two keys"
        );
        ensure!(
            has_keys || self.auth == Auth::default(),
            "auth",
            "no effect without auth.key_files: add that key, or remove the table"
        );
        ensure!(
            !(has_keys && leases_to_all),
            "lease.allow",
            "programs with leases cannot authenticate their packets: remove this key or auth.key_files"
        );
        ensure!(
            !(has_keys && has_checksum),
            "checksum",
            "no effect with auth.key_files, whose tags detect damage, too: remove one of the two keys"
        );
        ensure!(
            !(has_checksum && leases_to_all),
            "lease.allow",
            "programs with leases send no checksums: remove this key or checksum"
        );
        Ok(())
    }
}

impl Ethertypes {
    fn check(&self) -> Result<(), Mistake> {
        /// IPv4, ARP, VLAN tags, IPv6, LLDP: using them would cut the node off.
        const TAKEN: [u16; 6] = [0x0800, 0x0806, 0x8100, 0x88A8, 0x86DD, 0x88CC];
        let Ethertypes { esp, edp } = *self;
        for (key, value) in [("ethertypes.esp", esp), ("ethertypes.edp", edp)] {
            ensure!(
                value >= 0x0600 && !TAKEN.contains(&value),
                key,
                "invalid EtherType {value:#06x}: expected at least 0x0600, and not that of another protocol"
            );
        }
        ensure!(
            esp != edp,
            "ethertypes.edp",
            "equal to ethertypes.esp: expected another EtherType"
        );
        Ok(())
    }
}

impl Limits {
    fn check(&self) -> Result<(), Mistake> {
        ensure!(
            self.requests_per_second != 0,
            "limits.requests_per_second",
            "0 would block all programs: expected at least 1"
        );
        for (uid, own) in &self.uid {
            ensure!(
                own.requests_per_second != Some(0),
                format!("limits.uid.{}.requests_per_second", uid.0),
                "0 would block the programs of this user: expected at least 1"
            );
        }
        Ok(())
    }
}
