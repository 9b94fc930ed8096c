//! Listening again on a port that still has connections over a lease.

use esp_client::{Client, EspError, EspListener, EspStream, Path};
use esp_tests::process::configured_lab;
use esp_tests::program::Program;
use esp_tests::{PATIENCE, address, check_pattern, client, send_pattern, wait_until};
use lab::Lab;

const PROGRAM: &str = env!("CARGO_BIN_EXE_esp-test-program");
const ALL: &str = "[lease]\nallow = \"all\"\n";

fn join(here: &Client, listener: &EspListener, port: u16) -> (EspStream, EspStream) {
    let left = EspStream::builder()
        .connect_at(here, address(1, port))
        .unwrap();
    let (right, _) = listener.accept_timeout(PATIENCE).unwrap();
    assert_eq!(right.path(), Path::Lease);
    (left, right)
}

fn exchange((left, right): &(EspStream, EspStream)) {
    std::thread::scope(|scope| {
        scope.spawn(|| send_pattern(left, 200_000, 1));
        scope.spawn(|| send_pattern(right, 200_000, 2));
        scope.spawn(|| check_pattern(left, 200_000, 2));
        check_pattern(right, 200_000, 1);
    });
}

fn in_use(lab: &Lab, port: u16) {
    let steps = [
        "path:lease".to_owned(),
        format!("listen:{port}"),
        "path:daemon".to_owned(),
        format!("listen:{port}"),
    ];
    let steps: Vec<&str> = steps.iter().map(String::as_str).collect();
    let program = Program::start(PROGRAM, &lab.socket(1), &steps);
    for _ in 0..2 {
        program.says("ok path");
        let line = program.says("error listen");
        assert!(line.contains("InUse"), "{line}");
    }
}

#[test]
fn port_with_live_connections_can_be_listened_on_again() {
    let Some(lab) = configured_lab("lease_again", 2, ALL) else {
        return;
    };
    let (here, there) = (client(&lab, 0), client(&lab, 1));
    for path in [Path::Lease, Path::Auto] {
        let listen = || EspListener::builder().path(path).bind_at(&there, 7000);
        let first = listen().unwrap();
        let old = join(&here, &first, 7000);
        assert!(listen().is_err(), "one listener at a time");
        drop(first);
        // The port is still leased; its engine refuses connections over the wire.
        let error = EspStream::builder()
            .connect_at(&here, address(1, 7000))
            .unwrap_err();
        assert!(
            matches!(EspError::of(&error), Some(EspError::Refused { .. })),
            "{error}"
        );
        in_use(&lab, 7000);
        let error = EspListener::builder()
            .path(Path::Daemon)
            .bind_at(&there, 7000)
            .unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::AddrInUse, "{error}");
        let again = listen().unwrap();
        let new = join(&here, &again, 7000);
        exchange(&old);
        exchange(&new);
        // This node itself connects through the daemon.
        let near = EspStream::builder()
            .connect_at(&there, address(1, 7000))
            .unwrap();
        let (far, _) = again.accept_timeout(PATIENCE).unwrap();
        exchange(&(near, far));
        drop((old, new, again));
        wait_until("the port is free again", || {
            EspListener::builder()
                .path(Path::Daemon)
                .bind_at(&there, 7000)
                .is_ok()
        });
    }
}
