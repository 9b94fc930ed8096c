//! Tests of faults of the daemon, the interfaces, the machine and Open MPI.

use super::*;

#[test]
fn a_healthy_node_has_no_finding() {
    assert_eq!(planted(|_| ()), []);
    assert_eq!(verdict(&check(&healthy())), Verdict::Done);
}

#[test]
fn faults_of_the_daemon_are_found() {
    let down: fn(&mut Facts, Unreached) = |facts, why| {
        facts.daemon.reached = Err(why);
        facts.daemon.lease = Lease::Unknown;
        facts.network = None;
    };
    for (why, check) in [
        (Unreached::NoSocket, "daemon.stopped"),
        (Unreached::Stale, "daemon.stale"),
        (Unreached::NoPermission, "daemon.permission"),
        (Unreached::Silent, "daemon.silent"),
        (
            Unreached::Version("it speaks version 3".into()),
            "daemon.control",
        ),
        (Unreached::Other("x".into()), "daemon.unreached"),
    ] {
        assert_eq!(planted(|facts| down(facts, why)), [(check, Level::Error)]);
    }
    all_found(&[
        (
            |facts| state(facts).version = "9.9.9".into(),
            &[("daemon.version", Level::Warning)],
        ),
        (
            |facts| facts.daemon.reached = Ok(Err("missing field".into())),
            &[("daemon.state", Level::Warning)],
        ),
        (
            |facts| facts.daemon.process.as_mut().expect("seen").capabilities = 0,
            &[("daemon.capability", Level::Warning)],
        ),
        (
            |facts| facts.daemon.lease = Lease::Forbidden,
            &[("daemon.lease", Level::Note)],
        ),
        (
            |facts| {
                facts.daemon.lease = Lease::Forbidden;
                facts.daemon.path = "lease".into();
            },
            &[("daemon.lease", Level::Error)],
        ),
        (
            |facts| facts.daemon.lease = Lease::Failed("limit".into()),
            &[("daemon.lease", Level::Warning)],
        ),
        (
            |facts| count(facts, "", "refused_limit", 3, 3),
            &[("daemon.limits", Level::Note)],
        ),
        (
            |facts| count(facts, "", "refused_limit", 3, 4),
            &[("daemon.limits", Level::Warning)],
        ),
        (
            |facts| count(facts, "", "programs_corrupted_memory", 1, 1),
            &[("daemon.corrupted", Level::Warning)],
        ),
    ]);
}

#[test]
fn another_daemon_of_the_namespace_is_named() {
    let mut facts = healthy();
    facts.daemon.reached = Err(Unreached::NoSocket);
    facts.daemon.others = vec![4711];
    let findings = check(&facts);
    assert!(findings[0].what.contains("process 4711"), "{findings:?}");
}

#[test]
fn faults_of_a_link_are_found() {
    all_found(&[
        (|facts| facts.links.clear(), &[("link.none", Level::Note)]),
        (
            |facts| facts.links[0].present = None,
            &[("link.elsewhere", Level::Note)],
        ),
        (
            |facts| {
                facts.links[0].present = None;
                facts.links[0].up_at_daemon = Some(false);
            },
            &[("link.gone", Level::Error)],
        ),
        (
            |facts| {
                facts.links[0].present = None;
                facts.links[0].up_at_daemon = None;
            },
            &[("link.unknown", Level::Error)],
        ),
        (
            |facts| link(facts).enabled = false,
            &[("link.down", Level::Error)],
        ),
        (
            |facts| link(facts).carrier = false,
            &[("link.carrier", Level::Error)],
        ),
        (
            |facts| facts.links[0].up_at_daemon = Some(false),
            &[("link.daemon", Level::Error)],
        ),
        (
            |facts| link(facts).duplex = Some("half".into()),
            &[("link.duplex", Level::Error)],
        ),
        (
            |facts| link(facts).speed = Some(100),
            &[("link.speed", Level::Warning)],
        ),
        (
            |facts| link(facts).ring = Some((256, 4096)),
            &[("link.ring", Level::Note)],
        ),
        (
            |facts| link(facts).device_later.rx_fifo = 9,
            &[("link.ring", Level::Warning)],
        ),
        (
            |facts| link(facts).coalescing = Some((100, false)),
            &[("link.coalescing", Level::Warning)],
        ),
        (
            |facts| link(facts).coalescing = Some((100, true)),
            &[("link.coalescing", Level::Note)],
        ),
        (
            |facts| link(facts).near_cores = Some(BTreeSet::from([8, 9])),
            &[("link.numa", Level::Warning)],
        ),
        (
            |facts| link(facts).near_cores = Some(BTreeSet::from([2, 3])),
            &[("link.numa", Level::Note)],
        ),
    ]);
}

#[test]
fn counters_of_a_link_are_judged() {
    all_found(&[
        (
            |facts| {
                link(facts).device_later.rx_errors = 1;
                link(facts).device.rx_errors = 1;
                link(facts).device_later.rx_packets = 1_000_000;
            },
            &[("link.damaged", Level::Note)],
        ),
        (
            |facts| link(facts).device_later.rx_errors = 1,
            &[("link.damaged", Level::Warning)],
        ),
        (
            |facts| link(facts).device_later.tx_errors = 1,
            &[("link.send", Level::Warning)],
        ),
        (
            |facts| count(facts, "eth0", "socket_rx_dropped", 10, 10),
            &[("link.dropped", Level::Note)],
        ),
        (
            |facts| count(facts, "eth0", "socket_rx_dropped", 10, 11),
            &[("link.dropped", Level::Warning)],
        ),
        (
            |facts| count(facts, "eth0", "socket_rx_dropped", 10_000, 10_000),
            &[("link.dropped", Level::Warning)],
        ),
        (
            |facts| count(facts, "eth0", "rx_drop_echo", 1, 1),
            &[("link.duplicate", Level::Error)],
        ),
        (
            |facts| count(facts, "eth0", "link_rx_truncated", 1, 1),
            &[("link.long", Level::Warning)],
        ),
        (
            |facts| count(facts, "eth0", "rx_drop_version", 1, 1),
            &[("link.version", Level::Warning)],
        ),
        (
            |facts| count(facts, "eth0", "checksum_drop_damaged", 1, 1),
            &[("link.checksum", Level::Warning)],
        ),
        (
            |facts| count(facts, "eth0", "link_tx_given_up", 1, 2),
            &[("link.refused", Level::Warning)],
        ),
        (
            |facts| count(facts, "eth0", "rx_drop_edp_port", 0, 3000),
            &[("link.storm", Level::Warning)],
        ),
        // Counters of another interface do not affect this one.
        (|facts| count(facts, "eth1", "rx_drop_echo", 1, 1), &[]),
        (|facts| count(facts, "eth0", "rx_drop_edp_port", 0, 30), &[]),
    ]);
}

#[test]
fn faults_of_the_machine_are_found() {
    all_found(&[
        (
            |facts| facts.host.memlock = Some(64 << 10),
            &[("host.memlock", Level::Note)],
        ),
        (
            |facts| {
                facts.host.memlock = Some(64 << 10);
                facts.host.rdma = vec!["mlx5_0".into()];
            },
            &[("host.memlock", Level::Warning)],
        ),
        (
            |facts| facts.host.ptrace_scope = Some(2),
            &[("host.ptrace", Level::Warning)],
        ),
        (
            |facts| {
                facts.host.ptrace_scope = Some(2);
                facts.host.capabilities = 1 << 19;
            },
            &[],
        ),
        (
            |facts| facts.host.ptrace_scope = Some(3),
            &[("host.ptrace", Level::Warning)],
        ),
        (
            |facts| facts.host.cross_memory = Some("Operation not permitted".into()),
            &[("host.cma", Level::Warning)],
        ),
        (
            |facts| {
                let key = ("powersave".to_owned(), "acpi-cpufreq".to_owned());
                facts.host.governors = BTreeMap::from([(key, 4)]);
            },
            &[("host.governor", Level::Warning)],
        ),
        (
            |facts| {
                let key = ("powersave".to_owned(), "intel_pstate".to_owned());
                facts.host.governors = BTreeMap::from([(key, 4)]);
            },
            &[("host.governor", Level::Note)],
        ),
        (|facts| facts.host.load = 9.0, &[("host.load", Level::Note)]),
        (
            |facts| facts.host.quota = Some(1.5),
            &[("host.quota", Level::Note)],
        ),
        (
            |facts| facts.host.clock = Some("hpet".into()),
            &[("host.clock", Level::Warning)],
        ),
        (
            |facts| facts.host.rmem_max = Some(212_992),
            &[("host.buffers", Level::Note)],
        ),
    ]);
}

#[test]
fn a_component_for_another_open_mpi_is_found() {
    fn open_mpi(facts: &mut Facts) -> &mut OpenMpi {
        facts.mpi.open_mpi.as_mut().expect("it is installed")
    }
    all_found(&[
        (
            |facts| open_mpi(facts).version = "5.0.7".into(),
            &[("mpi.component", Level::Error)],
        ),
        (
            |facts| open_mpi(facts).version = "4.10.1".into(),
            &[("mpi.component", Level::Error)],
        ),
        (
            |facts| open_mpi(facts).component = None,
            &[("mpi.component", Level::Error)],
        ),
        (
            |facts| {
                open_mpi(facts).component = None;
                facts.mpi.components.clear();
            },
            &[("mpi.component", Level::Note)],
        ),
        (
            |facts| open_mpi(facts).dlopen = false,
            &[("mpi.dlopen", Level::Note)],
        ),
        (
            |facts| facts.mpi.open_mpi = None,
            &[("mpi.none", Level::Note)],
        ),
    ]);
}
