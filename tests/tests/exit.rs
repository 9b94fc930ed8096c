//! Programs with an embedded engine that write, end their stream and exit at once, on a network
//! that loses the last frames: the engine that would retransmit them ends with the program.

use std::io::{self, Read};

use esp_client::{Client, EspAddr, EspError, EspListener, EspStream};
use esp_tests::process::{bare_lab, configured_lab, nft_in_switch};
use esp_tests::program::Program;
use esp_tests::{PATIENCE, client, wait_until};
use lab::Lab;

const PROGRAM: &str = env!("CARGO_BIN_EXE_esp-test-program");
/// Number of bytes that the programs write.
const LENGTH: usize = 1000;
const WRITE: &str = "write:1000";
/// Steps by which a program ends its stream: it drops it and returns from `main`, or it exits with
/// the stream open whose writing it has finished.
const ENDS: [&[&str]; 2] = [&[], &["shutdown", "exit"]];

/// How a program reaches its peer without an engine of the daemon.
#[derive(Clone, Copy, Debug)]
enum Way {
    Lease,
    Udp,
}

/// Two nodes, with a listener on the second one.
struct Fixture {
    lab: Lab,
    way: Way,
    listener: EspListener,
}

impl Fixture {
    fn new(test: &str, way: Way) -> Option<Fixture> {
        let lab = match way {
            Way::Lease => configured_lab(test, 2, "[lease]\nallow = \"all\"\n"),
            Way::Udp => bare_lab(test, 2),
        }?;
        // Else a repeated end may pass the switch in one buffer with data before it.
        lab.set_offload(0, false).expect("no segmentation offload");
        let there = match way {
            Way::Lease => client(&lab, 1),
            Way::Udp => lab
                .run_in(1, || Client::udp_at(0).expect("a UDP client"))
                .expect("enter the node"),
        };
        let listener = EspListener::builder().bind_at(&there, 7000);
        let listener = listener.expect("listen");
        Some(Fixture { lab, way, listener })
    }

    /// Makes the switch lose the first `data` data frames and `ends` FINs of node 0.
    fn lose(&self, data: u32, ends: u32) {
        // Offsets of EtherType, length and flags, in bits.
        let (packet, length, flags) = match self.way {
            Way::Lease => ("@ll,96,16", "@ll,176,16", "@ll,192,8"),
            Way::Udp => ("meta l4proto udp @th,64,16", "@th,144,16", "@th,160,8"),
        };
        let rule = |what: &str, count| {
            let first = format!("numgen inc mod 4000000000 < {count}");
            format!("{packet} 0x88b5 {what} {first} counter drop\n")
        };
        let rules = [
            rule(&format!("{length} > 0 {flags} & 0x25 == 0"), data),
            rule(&format!("{flags} & 0x0d == 0x04"), ends),
        ];
        let hook = "type filter hook ingress device port0 priority 0;";
        let table = format!(
            "table netdev ends {{\nchain port0 {{\n{hook}\n{}}}\n}}\n",
            rules.concat()
        );
        nft_in_switch(&self.lab, &table);
    }

    /// Ends the loss. Returns how many frames were lost, of data and of FINs.
    fn lost(&self) -> [u64; 2] {
        let rules = nft_in_switch(&self.lab, "list table netdev ends");
        nft_in_switch(&self.lab, "delete table netdev ends");
        let mut counts = rules.split("counter packets ").skip(1).map(|rest| {
            let count = rest.split(' ').next().map(str::parse);
            count.expect("a word").expect("a number")
        });
        [(); 2].map(|()| counts.next().expect("two rules"))
    }

    /// Starts a program that connects, writes and ends its stream. Returns it with its peer.
    fn start(&self, ends: &[&str]) -> (Program, EspStream) {
        let address = self.listener.client().interface(None).expect("one").addr;
        let to = format!("to:{}", EspAddr::new(address, self.listener.port()));
        let way = match self.way {
            Way::Lease => ["client", "path:lease"],
            Way::Udp => ["udp", "path:lease"],
        };
        let steps = [&way, [to.as_str(), WRITE].as_slice(), ends].concat();
        let program = Program::start_in(&self.lab, 0, PROGRAM, &steps);
        let accepted = self.listener.accept_timeout(PATIENCE);
        (program, accepted.expect("accept").0)
    }
}

/// Reads to the end of the stream.
fn read_all(mut stream: &EspStream) -> io::Result<usize> {
    stream.read_to_end(&mut Vec::new())
}

#[test]
fn the_end_of_a_stream_is_repeated_when_its_program_exits() {
    for way in [Way::Lease, Way::Udp] {
        let test = "the_end_of_a_stream_is_repeated_when_its_program_exits";
        let Some(fixture) = Fixture::new(test, way) else {
            return;
        };
        for (ends, data) in ENDS.into_iter().flat_map(|ends| [(ends, 0), (ends, 1)]) {
            fixture.lose(data, 2);
            let (mut program, stream) = fixture.start(ends);
            let read = read_all(&stream).map_err(|error| error.to_string());
            assert_eq!(read, Ok(LENGTH), "{way:?} {ends:?}");
            program.finish();
            assert_eq!(fixture.lost(), [data.into(), 2], "{way:?} {ends:?}");
        }
    }
}

#[test]
fn a_program_that_exits_resets_what_its_peer_has_not_closed() {
    let test = "a_program_that_exits_resets_what_its_peer_has_not_closed";
    let Some(fixture) = Fixture::new(test, Way::Udp) else {
        return;
    };
    for ends in ENDS {
        let (mut program, stream) = fixture.start(ends);
        assert_eq!(read_all(&stream).expect("all bytes"), LENGTH);
        program.finish();
        wait_until("a reset", || stream.is_connected().is_err());
        let error = stream.is_connected().expect_err("a reset");
        let error = EspError::of(&error);
        let is_expected = match ends {
            [] => matches!(error, Some(EspError::Aborted(_))),
            _ => matches!(error, Some(EspError::PeerDied(_))),
        };
        assert!(is_expected, "{ends:?}: {error:?}");
        // The end is the same for a reader that comes later.
        assert_eq!(read_all(&stream).expect("the end"), 0);
    }
}

#[test]
fn a_program_exits_whose_peer_never_acknowledges_its_end() {
    for way in [Way::Lease, Way::Udp] {
        let test = "a_program_exits_whose_peer_never_acknowledges_its_end";
        let Some(fixture) = Fixture::new(test, way) else {
            return;
        };
        for ends in ENDS {
            fixture.lose(0, u32::MAX / 2);
            let (mut program, stream) = fixture.start(ends);
            program.finish();
            let error = read_all(&stream).expect_err("no end");
            assert_eq!(error.kind(), io::ErrorKind::ConnectionReset, "{error}");
            assert!(fixture.lost()[1] > 2, "{way:?} {ends:?}: not repeated");
        }
    }
}
