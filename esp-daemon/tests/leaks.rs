//! Programs that die leave nothing. Alone in its file: it counts the process's descriptors and
//! mappings.

mod support;

use support::program::{accept, connect};
use support::{Rig, eventually};

const ROUNDS: usize = 1000;

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

fn mappings() -> usize {
    std::fs::read_to_string("/proc/self/maps")
        .unwrap()
        .lines()
        .count()
}

#[test]
fn thousand_programs_die_and_nothing_is_left() {
    let rig = Rig::new("");
    let round = |n: usize| {
        let mut program = rig.program();
        let (listener, port) = program.listen(0);
        for _ in 0..3 {
            program.open(0);
        }
        program.bind(0);
        rig.engine.incoming(port, 1);
        program.ask(accept(listener));
        program.post(accept(listener)); // left waiting
        match n % 4 {
            0 => {}
            1 => drop(program.post(connect(0))), // dies with a request on the way
            2 => program.raw(&[9, 0, 0, 0, b'{']).unwrap(), // dies within a message
            _ => drop(rig.engine.incoming(port, 2)),
        }
        // The descriptor is closed without a message, as the kernel does for a killed process.
    };
    round(0);
    eventually("the first is gone", || rig.node.is_empty());
    let (files, maps) = (descriptors(), mappings());
    for n in 0..ROUNDS {
        round(n);
    }
    eventually("all came back", || {
        rig.node.is_empty() && rig.engine.books().is_empty()
    });
    eventually("no descriptor is left", || descriptors() <= files);
    // The allocator's own arenas may change.
    eventually("no mapping is left", || mappings() <= maps + 32);
    assert_eq!(rig.count("control_connections"), ROUNDS as u64 + 1);
}
