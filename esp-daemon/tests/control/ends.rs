//! Ends of the daemon and of its engine.

use esp_client::control::{ErrorKind, Reply, Request};

use crate::support::program::{accept, bind, connect, listen};
use crate::support::{Rig, eventually};

#[test]
fn stopping_daemon_answers_everything() {
    let mut rig = Rig::new("");
    let mut program = rig.program();
    let (listener, _) = program.listen(0);
    let id = program.post(accept(listener));
    program.open(0);
    rig.stop();
    let (reply, _) = program.reply_to(id);
    assert!(matches!(reply, Reply::Error(e) if e.kind == ErrorKind::Unavailable));
    assert_eq!(program.cut_off(), ErrorKind::Unavailable);
    eventually("everything came back", || rig.node.is_empty());
}

#[test]
fn a_dead_engine_is_reported_and_leaves_nothing() {
    let rig = Rig::new("");
    let mut program = rig.program();
    let (slot, _) = program.open(0);
    rig.engine.die();
    for request in [
        listen(0),
        connect(0),
        bind(0),
        Request::Status,
        Request::Abort { slot },
    ] {
        assert_eq!(program.refused(request).0, ErrorKind::Unavailable);
    }
    drop(program);
    eventually("everything came back", || rig.node.is_empty());
}
