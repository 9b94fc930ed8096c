//! Damage that the check sequence of Ethernet does not show: the switch of a lab alters bytes of
//! the frames that pass it, at random. (Virtual links carry no check sequence, so each frame
//! arrives as one with a correct one. UDP's checksum does not show it, either: the kernel does not
//! compute it for datagrams that stay in the machine.)
//!
//! With checksums (W-148) no wrong byte reaches a program. Without, wrong bytes do, which shows
//! that the tests can fail. (The random numbers are the kernel's: a run cannot be repeated. Every
//! bit of every kind of packet is damaged in `esp-engine/tests/secure.rs`.)

use std::fmt::Write as _;
use std::io::Read;
use std::time::Duration;

use esp_client::{Client, EdpSocket, EspAddr, EspListener, EspStream, MacAddr, Protection};
use esp_tests::process::{Daemon, bare_lab, nft_in_switch};
use esp_tests::{
    PATIENCE, byte, check_pattern, client, counter, lab_or_skip, pair, send_pattern, wait_until,
};
use lab::{Carriers, Lab, LabOptions, Node};

/// Bytes of a long stream.
const LENGTH: u64 = 64 << 20;
const REQUIRED: &str = "checksum = \"require\"\n";

/// Damage at a switch: two bytes of a frame are replaced by random ones, at each of these offsets
/// with a probability.
struct Damage {
    /// Condition of nftables for the frames.
    frames: &'static str,
    /// Offsets from the beginning of the frame: those of the header, and those of the payload.
    header: std::ops::Range<usize>,
    payload: std::ops::Range<usize>,
    /// Probability at each offset: one in this many.
    one_in: u32,
}

/// Bytes between two damaged offsets in the payload.
const STEP: usize = 48;

impl Damage {
    /// Returns the damage of raw frames: any byte, addresses and type included.
    fn raw(one_in: u32) -> Damage {
        Damage {
            frames: "ether type { 0x88b5, 0x88b6 }",
            header: 0..64,
            payload: 64..1500,
            one_in,
        }
    }

    /// Returns the damage of datagrams: any byte after the header of UDP, in the first one of each
    /// segmented buffer.
    fn udp(one_in: u32) -> Damage {
        Damage {
            frames: "ip protocol udp",
            header: 42..106,
            payload: 106..1450,
            one_in,
        }
    }

    /// Returns the same for the payload alone, so that connections survive it.
    fn of_payload(mut self) -> Damage {
        self.header = 0..0;
        self
    }

    /// Begins to damage the frames of the nodes.
    fn begin(&self, lab: &Lab) {
        let mut rules = String::from("table netdev damage {\n chain bytes {\n");
        let payload = self.payload.clone().step_by(STEP);
        for at in self.header.clone().step_by(2).chain(payload) {
            let (bit, one_in) = (at * 8, self.one_in);
            let chance = format!("numgen random mod {one_in} == 0");
            let change = format!("@ll,{bit},16 set numgen random mod 65536");
            writeln!(rules, "  {chance} {change} counter").expect("a string");
        }
        rules += " }\n";
        for node in 0..lab.state().nodes.len() {
            let hook = format!("type filter hook ingress device port{node} priority 0;");
            let frames = self.frames;
            writeln!(rules, " chain port{node} {{ {hook}").expect("a string");
            writeln!(rules, "  {frames} jump bytes\n }}").expect("a string");
        }
        rules += "}\n";
        nft_in_switch(lab, &rules);
    }
}

/// Ends the damage. Returns how many times the switch has altered a frame.
fn end(lab: &Lab) -> u64 {
    let rules = nft_in_switch(lab, "list table netdev damage");
    nft_in_switch(lab, "delete table netdev damage");
    let counts = rules.split("counter packets ").skip(1);
    counts
        .map(|rest| rest.split(' ').next().and_then(|n| n.parse::<u64>().ok()))
        .map(|count| count.expect("a number"))
        .sum()
}

/// Reads a pattern to its end. Returns the number of wrong bytes.
fn wrong_bytes(mut stream: &EspStream, salt: u64) -> (u64, u64) {
    let (mut at, mut wrong) = (0, 0);
    let mut block = vec![0; 1 << 16];
    loop {
        let n = stream.read(&mut block).expect("read");
        if n == 0 {
            return (at, wrong);
        }
        let right = |(at, found): (u64, &u8)| byte(at, salt) == *found;
        wrong += (at..).zip(&block[..n]).filter(|b| !right(*b)).count() as u64;
        at += n as u64;
    }
}

/// Connects a stream between the first interfaces of two clients.
fn connect(from: &Client, to: &Client) -> (EspStream, EspStream) {
    let listener = EspListener::builder().bind_at(to, 0).expect("listen");
    let addr = to.interface(None).expect("an interface").addr;
    let address = EspAddr::new(addr, listener.port());
    std::thread::scope(|scope| {
        let left = scope.spawn(|| EspStream::builder().connect_at(from, address));
        let (right, _) = listener.accept_timeout(PATIENCE).expect("accept");
        (left.join().expect("no panic").expect("connect"), right)
    })
}

/// Returns the number of packets that a node's checksums have refused, for whatever reason.
fn refused(client: &Client) -> u64 {
    let counters = client.status().expect("status").counters.into_iter();
    let refused = counters.filter(|c| c.name.starts_with("checksum_drop_"));
    refused.map(|c| c.value).sum()
}

fn carriers() -> [(Carriers, Damage); 2] {
    [
        (Carriers::Raw, Damage::raw(10_000)),
        (Carriers::Udp, Damage::udp(500)),
    ]
}

#[test]
fn with_checksums_every_byte_is_right() {
    for (carriers, damage) in carriers() {
        let mut options = LabOptions::new(2);
        options.carriers = carriers;
        options.daemon_config = REQUIRED.into();
        let Some(lab) = lab_or_skip("with_checksums_every_byte_is_right", &options) else {
            return;
        };
        damage.begin(&lab);
        let clients = [client(&lab, 0), client(&lab, 1)];
        let (left, right) = connect(&clients[0], &clients[1]);
        std::thread::scope(|scope| {
            scope.spawn(|| send_pattern(&left, LENGTH, 1));
            check_pattern(&right, LENGTH, 1);
        });
        let damaged = end(&lab);
        let refused: u64 = clients.iter().map(refused).sum();
        eprintln!("{carriers:?}: {damaged} frames damaged, {refused} packets refused");
        assert!(damaged > 50, "{carriers:?}: {damaged} frames damaged");
        // Addresses and types that are damaged reach no node, or another link.
        assert!(
            refused > damaged / 2,
            "{carriers:?}: {refused} of {damaged}"
        );
        assert!(counter(&clients[1], "checksum_drop_damaged") > 0);
    }
}

#[test]
fn without_checksums_wrong_bytes_arrive() {
    for (carriers, damage) in carriers() {
        let mut options = LabOptions::new(2);
        options.carriers = carriers;
        let Some(lab) = lab_or_skip("without_checksums_wrong_bytes_arrive", &options) else {
            return;
        };
        let (left, right) = connect(&client(&lab, 0), &client(&lab, 1));
        damage.of_payload().begin(&lab);
        let (read, wrong) = std::thread::scope(|scope| {
            scope.spawn(|| send_pattern(&left, LENGTH, 1));
            wrong_bytes(&right, 1)
        });
        let damaged = end(&lab);
        eprintln!("{carriers:?}: {damaged} frames damaged, {wrong} wrong bytes");
        assert_eq!(read, LENGTH, "{carriers:?}");
        assert!(wrong > 0, "{carriers:?}: {damaged} frames damaged");
    }
}

/// One frame in four is damaged: set-ups of sessions and connections, their ends, datagrams and
/// echoes.
#[test]
fn short_connections_and_datagrams_are_right() {
    let mut options = LabOptions::new(2);
    options.daemon_config = REQUIRED.into();
    let Some(lab) = lab_or_skip("short_connections_and_datagrams_are_right", &options) else {
        return;
    };
    Damage::raw(200).begin(&lab);
    for number in 0..40u16 {
        let (left, right) = pair(
            &lab,
            usize::from(number % 2),
            usize::from(1 - number % 2),
            7000 + number,
        );
        std::thread::scope(|scope| {
            scope.spawn(|| send_pattern(&left, 10_000, number.into()));
            check_pattern(&right, 10_000, number.into());
        });
        send_pattern(&right, 100, number.into());
        check_pattern(&left, 100, number.into());
    }
    let sockets = [0, 1].map(|node| {
        let socket = EdpSocket::builder().bind_at(&client(&lab, node), 9000);
        socket.expect("bind")
    });
    let to = MacAddr(Node(1).mac());
    let (mut buffer, mut arrived) = ([0; 2048], 0);
    for number in 0..2000u64 {
        let content: Vec<u8> = (0..1000).map(|at| byte(at, number)).collect();
        let text = [&number.to_be_bytes()[..], &content].concat();
        sockets[0].send_to(&text, to, 9000).expect("send");
        while let Ok((len, _)) = sockets[1].recv_from_timeout(&mut buffer, Duration::from_millis(1))
        {
            let (number, content) = buffer[..len].split_first_chunk().expect("a number");
            let number = u64::from_be_bytes(*number);
            assert!(number < 2000 && content.len() == 1000, "{number}");
            assert!(
                (0..)
                    .zip(content)
                    .all(|(at, found)| byte(at, number) == *found)
            );
            arrived += 1;
        }
    }
    let damaged = end(&lab);
    assert!(
        damaged > 500 && arrived > 1000,
        "{damaged} damaged, {arrived} arrived"
    );
    let setups = |node| counter(&client(&lab, node), "checksum_setups_sent");
    assert!(setups(0) + setups(1) >= 2);
}

#[test]
fn nodes_with_and_without_checksums_talk_unless_these_are_required() {
    let test = "nodes_with_and_without_checksums_talk_unless_these_are_required";
    let Some(lab) = bare_lab(test, 4) else {
        return;
    };
    let offered = "checksum = \"offer\"\n[timers]\nconnect_timeout = \"500ms\"\n";
    let required = offered.replace("offer", "require");
    let daemons = [
        Daemon::start(&lab, 0, offered),
        Daemon::start(&lab, 1, offered),
        Daemon::start(&lab, 2, "[timers]\nconnect_timeout = \"500ms\"\n"),
        Daemon::start(&lab, 3, &required),
    ];
    let clients = daemons.each_ref().map(Daemon::client);
    for (from, to) in [(0, 1), (1, 0), (0, 2), (2, 1), (0, 3), (3, 1)] {
        let (left, right) = connect(&clients[from], &clients[to]);
        std::thread::scope(|scope| {
            scope.spawn(|| send_pattern(&left, 1 << 20, 1));
            check_pattern(&right, 1 << 20, 1);
        });
    }
    for (node, received) in [(0, true), (1, true), (3, true)] {
        let found = counter(&clients[node], "checksum_received");
        assert_eq!(found > 100, received, "node {node}: {found}");
    }
    let listener = EspListener::builder()
        .bind_at(&clients[3], 7000)
        .expect("listen");
    let address = esp_tests::address(3, listener.port());
    assert!(
        EspStream::builder()
            .connect_at(&clients[2], address)
            .is_err()
    );
    assert!(counter(&clients[3], "checksum_drop_plain") > 0);
}

#[test]
fn programs_without_a_daemon_have_checksums_of_their_own() {
    let Some(lab) = bare_lab("programs_without_a_daemon_have_checksums_of_their_own", 2) else {
        return;
    };
    let clients = [0, 1].map(|node| {
        let opened = lab.run_in(node, || {
            Client::polled_udp(|_| true, Some(Protection::Checksum))
        });
        opened.expect("enter the node").expect("a UDP client").0
    });
    Damage::udp(200).begin(&lab);
    let (left, right) = connect(&clients[0], &clients[1]);
    std::thread::scope(|scope| {
        scope.spawn(|| send_pattern(&left, 8 << 20, 1));
        check_pattern(&right, 8 << 20, 1);
    });
    let damaged = end(&lab);
    let refused = || -> u64 {
        let counters = clients
            .iter()
            .flat_map(|client| client.key_counters().expect("counters"));
        counters.map(|counters| counters.auth_drop_forged).sum()
    };
    assert!(damaged > 0);
    wait_until("damaged packets are counted", || refused() > 0);
}
