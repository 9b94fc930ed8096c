//! Programs that bring sockets of an earlier daemon: false claims are refused, harm only their
//! program, and leave nothing behind.

mod support;

use std::os::fd::{AsFd, OwnedFd};

use esp_client::control::{ErrorKind, Reply, Request, Rings};
use esp_engine::shm::{Region, RingSizes};
use esp_proto::{ConnImage, MacAddr, NodeAddr};
use rustix::fs::MemfdFlags;
use support::program::{Program, RINGS};
use support::{Rig, eventually, image};

const SIZES: RingSizes = RingSizes {
    tx: RINGS.tx,
    rx: RINGS.rx,
};

fn link(last: u8) -> NodeAddr {
    MacAddr([2, 0, 0, 0, 0, last]).into()
}

/// Returns the memory of a stream, as an earlier engine left it.
fn memory(image: &ConnImage, own: NodeAddr) -> OwnedFd {
    let (region, file) = Region::create(SIZES).unwrap();
    region.keep_image(image, own);
    file
}

fn stream(slot: u16, rings: Rings) -> Request {
    Request::ResumeStream { slot, rings }
}

#[track_caller]
fn refused(program: &mut Program, request: Request, file: &OwnedFd) -> ErrorKind {
    match program.ask_with(request, file.as_fd()) {
        Reply::Error(error) => error.kind,
        reply => panic!("{reply:?}"),
    }
}

#[test]
fn an_honest_program_continues() {
    let rig = Rig::new("");
    let mut program = rig.program();
    let file = memory(&image(40_000, link(9)), link(1));
    // The engine has the last word: the fake one refuses every connection.
    let kind = refused(&mut program, stream(3, RINGS), &file);
    assert_eq!(kind, ErrorKind::BadArgument);
    assert_eq!(rig.engine.books().resumed, 1);
    let edp = Request::ResumeEdp {
        interface: "net1".into(),
        port: 9000,
        slot: 5,
        rings: RINGS,
    };
    let (_, file) = Region::create(SIZES).unwrap();
    assert_eq!(program.ask_with(edp, file.as_fd()), Reply::Done);
    let close = program.ask(Request::CloseEdp { slot: 5 });
    assert_eq!(close, Reply::Done);
}

#[test]
fn memory_that_could_vanish_is_not_mapped() {
    let rig = Rig::new("");
    let mut program = rig.program();
    let plain = rustix::fs::memfd_create("lie", MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&plain, 3 * 4096).unwrap();
    let (_, other) = Region::create(RingSizes { tx: 8192, ..SIZES }).unwrap();
    for file in [&plain, &other] {
        let kind = refused(&mut program, stream(0, RINGS), file);
        assert_eq!(kind, ErrorKind::BadArgument);
    }
    assert_eq!(rig.engine.books().resumed, 0);
}

#[test]
fn lies_in_an_image_and_in_a_request_are_refused() {
    let rig = Rig::new("");
    let mut program = rig.program();
    let mut lie = |file: &OwnedFd, slot, rings| refused(&mut program, stream(slot, rings), file);
    // A port of the superuser, an address of another node, no image, slot and sizes.
    let file = memory(&image(80, link(9)), link(1));
    assert_eq!(lie(&file, 0, RINGS), ErrorKind::Permission);
    let file = memory(&image(40_000, link(9)), link(9));
    assert_eq!(lie(&file, 0, RINGS), ErrorKind::NotFound);
    let (_, file) = Region::create(SIZES).unwrap();
    assert_eq!(lie(&file, 0, RINGS), ErrorKind::BadArgument);
    let file = memory(&image(40_000, link(9)), link(1));
    assert_eq!(lie(&file, 4096, RINGS), ErrorKind::BadArgument);
    let tx = 3000;
    assert_eq!(lie(&file, 0, Rings { tx, ..RINGS }), ErrorKind::BadArgument);
    let tx = 8192;
    assert_eq!(lie(&file, 0, Rings { tx, ..RINGS }), ErrorKind::BadArgument);
    assert_eq!(rig.engine.books().resumed, 0);
    drop(program);
    eventually("nothing is held", || rig.node.is_empty());
}

#[test]
fn ports_of_others_and_limits_hold() {
    let rig = Rig::new("[limits]\nstreams = 2\n");
    let mut owner = rig.program_of(1001);
    owner.listen(40_000);
    let mut thief = rig.program_of(1002);
    let file = memory(&image(40_000, link(9)), link(1));
    let kind = refused(&mut thief, stream(0, RINGS), &file);
    assert_eq!(kind, ErrorKind::InUse);
    thief.open(0);
    thief.open(0);
    let file = memory(&image(40_001, link(9)), link(1));
    let kind = refused(&mut thief, stream(9, RINGS), &file);
    assert_eq!(kind, ErrorKind::Limit);
    assert_eq!(rig.engine.books().resumed, 0);
}
