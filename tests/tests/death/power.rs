//! A node that loses power, and boots again.

use std::thread;
use std::time::Duration;

use esp_client::{EspError, EspListener, EspStream};
use esp_tests::process::{Daemon, bare_lab, ip_in_switch};
use esp_tests::{address, check_pattern, counter, pair, send_pattern, wait_until};

use super::{IMPATIENT, nothing_is_open, read_to_error, typed, write_to_error};

#[test]
fn peers_of_a_node_without_power_time_out_and_find_it_again() {
    let Some(lab) = bare_lab("a_node_without_power", 2) else {
        return;
    };
    let (other, mut daemon) = (
        Daemon::start(&lab, 0, IMPATIENT),
        Daemon::start(&lab, 1, IMPATIENT),
    );
    let here = other.client();
    let (idle, idle_peer) = pair(&lab, 0, 1, 7000);
    let (busy, busy_peer) = pair(&lab, 0, 1, 7001);
    let (reading, reading_peer) = pair(&lab, 0, 1, 7002);
    thread::scope(|scope| {
        let idle = scope.spawn(|| read_to_error(&idle).1);
        let busy = scope.spawn(|| write_to_error(&busy));
        let reading = scope.spawn(|| read_to_error(&reading).1);
        // Both end when their node does.
        scope.spawn(|| read_to_error(&busy_peer));
        scope.spawn(|| write_to_error(&reading_peer));
        wait_until("bytes flow", || counter(&here, "rx_data_bytes") > 1 << 19);
        ip_in_switch(&lab, "link set dev port1 down");
        idle_peer.client().set_daemon_wait(Duration::ZERO);
        daemon.kill();
        for end in [idle, busy, reading] {
            let error = end.join().unwrap();
            assert!(matches!(error, EspError::TimedOut { .. }), "{error:?}");
        }
    });
    wait_until("nothing of them remains", || nothing_is_open(&here));
    let error = EspStream::builder()
        .connect_at(&here, address(1, 7000))
        .expect_err("no node");
    let error = typed(&error);
    assert!(matches!(error, EspError::ConnectTimedOut(_)), "{error:?}");

    ip_in_switch(&lab, "link set dev port1 up");
    let again = Daemon::start(&lab, 1, IMPATIENT);
    let listener = EspListener::builder()
        .bind_at(&again.client(), 7000)
        .unwrap();
    let left = EspStream::builder()
        .connect_at(&here, address(1, 7000))
        .unwrap();
    let (right, _) = listener.accept().unwrap();
    send_pattern(&left, 1 << 20, 1);
    check_pattern(&right, 1 << 20, 1);
}
