//! Replies to requests, and requests that are refused.

use std::os::fd::AsFd;

use esp_client::control::{ErrorKind, Reply, Request, Rings};
use esp_engine::shm::{ClientPage, Region, RingSizes};

use crate::support::engine::{EXISTS, PEER, TOO_MANY, UNLISTENABLE};
use crate::support::program::{RINGS, accept, connect, connect_to, listen};
use crate::support::{Rig, eventually};

#[test]
fn hello_returns_pages_and_links() {
    let rig = Rig::new("");
    let mut program = rig.connect();
    let descriptors = program.hello("a \u{7}program\n");
    assert_eq!(descriptors.len(), 4);
    ClientPage::open(descriptors[1].as_fd()).unwrap();
    let second = rig.program();
    assert_ne!(program.client, second.client);
    eventually("the engine has both", || {
        rig.engine.books().clients.len() == 2
    });
    let (kind, _) = program.refused(Request::Hello {
        version: esp_client::control::VERSION,
        program: String::new(),
        engine: None,
    });
    assert_eq!(kind, ErrorKind::BadRequest);
}

#[test]
fn other_version_is_refused_by_name() {
    let rig = Rig::new("");
    let mut program = rig.connect();
    program.post(Request::Hello {
        version: 99,
        program: "old".into(),
        engine: None,
    });
    let Some(Reply::Error(error)) = program.last_words() else {
        panic!("no error")
    };
    assert_eq!(error.kind, ErrorKind::Version);
    assert!(error.message.contains("99"), "{}", error.message);
}

#[test]
fn stream_reply_reports_the_ring_sizes() {
    let rig = Rig::new("[rings]\nmax = \"8KiB\"\ndefault = \"4KiB\"\n");
    let mut program = rig.program();
    let cases = [
        (Rings { tx: 0, rx: 0 }, Rings { tx: 4096, rx: 4096 }),
        (
            Rings {
                tx: 65536,
                rx: 65536,
            },
            Rings { tx: 8192, rx: 8192 },
        ),
    ];
    for (wanted, given) in cases {
        let Request::Connect {
            interface,
            local_port,
            peer,
            peer_port,
            key,
            ..
        } = connect(0)
        else {
            panic!()
        };
        let request = Request::Connect {
            interface,
            local_port,
            peer,
            peer_port,
            key,
            rings: wanted,
        };
        let (reply, descriptors) = program.ask_all(request);
        let Reply::Stream {
            rings,
            interface,
            peer,
            peer_port,
            local_port,
            ..
        } = reply
        else {
            panic!("{reply:?}")
        };
        assert_eq!(
            (rings, interface.as_str(), peer, peer_port),
            (given, "net0", PEER.into(), 9)
        );
        assert!(local_port >= 32768);
        Region::open(
            descriptors[0].as_fd(),
            RingSizes {
                tx: given.tx,
                rx: given.rx,
            },
        )
        .unwrap();
    }
    for bad in [
        Rings { tx: 5000, rx: 0 },
        Rings { tx: 0, rx: 2048 },
        Rings { tx: 1, rx: 1 },
    ] {
        let request = Request::BindEdp {
            interface: None,
            port: 0,
            rings: bad,
        };
        assert_eq!(program.refused(request).0, ErrorKind::BadArgument);
    }
}

#[test]
fn engine_has_the_last_word() {
    let rig = Rig::new("");
    let mut program = rig.program();
    assert_eq!(program.refused(connect_to(0, TOO_MANY)).0, ErrorKind::Limit);
    assert_eq!(
        program.refused(connect_to(5000, EXISTS)).0,
        ErrorKind::InUse
    );
    assert_eq!(program.refused(listen(UNLISTENABLE)).0, ErrorKind::InUse);
    drop(program);
    eventually("nothing is held", || rig.node.is_empty());
}

#[test]
fn arguments_are_checked() {
    let rig = Rig::new("");
    let mut program = rig.program();
    let long_key = vec![0; 33];
    let requests = [
        Request::Listen {
            interface: None,
            port: 5000,
            backlog: 0,
            key: vec![],
        },
        Request::Listen {
            interface: None,
            port: 5000,
            backlog: 1025,
            key: vec![],
        },
        Request::Listen {
            interface: None,
            port: 5000,
            backlog: 1,
            key: long_key.clone(),
        },
        connect_to(0, 0),
    ];
    for request in requests {
        assert_eq!(program.refused(request).0, ErrorKind::BadArgument);
    }
    for peer in [[0xff; 6], [1, 0, 0, 0, 0, 1], [0; 6]] {
        let key = long_key[..32].to_vec();
        let request = Request::Connect {
            interface: None,
            local_port: 0,
            peer: esp_proto::MacAddr(peer).into(),
            peer_port: 5,
            key,
            rings: RINGS,
        };
        assert_eq!(program.refused(request).0, ErrorKind::BadArgument);
    }
    let nothing = [
        Request::Close { slot: 0 },
        Request::Abort { slot: 4095 },
        Request::CloseEdp { slot: 65535 },
        Request::CloseListener { listener: 1 },
        accept(77),
    ];
    for request in nothing {
        assert_eq!(program.refused(request).0, ErrorKind::NotFound);
    }
    let (stream, _) = program.open(0);
    let (socket, _) = program.bind(0);
    assert_eq!(
        program.refused(Request::CloseEdp { slot: stream }).0,
        ErrorKind::NotFound
    );
    assert_eq!(
        program.refused(Request::Close { slot: socket }).0,
        ErrorKind::NotFound
    );
    assert_eq!(
        program.refused(Request::Abort { slot: socket }).0,
        ErrorKind::NotFound
    );
}

#[test]
fn a_program_cannot_use_resources_of_another() {
    let rig = Rig::new("");
    let mut owner = rig.program();
    let mut thief = rig.program();
    let (listener, _) = owner.listen(0);
    let (slot, _) = owner.open(0);
    assert_eq!(thief.refused(accept(listener)).0, ErrorKind::NotFound);
    assert_eq!(
        thief.refused(Request::CloseListener { listener }).0,
        ErrorKind::NotFound
    );
    assert_eq!(
        thief.refused(Request::Abort { slot }).0,
        ErrorKind::NotFound
    );
    owner.done(Request::Abort { slot });
}
