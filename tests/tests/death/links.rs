//! Links that go down, for a while or for good.

use std::thread;

use esp_client::{Client, EspError, EspStream};
use esp_tests::exchange::Bystander;
use esp_tests::process::{configured_lab, ip, ip_in_switch};
use esp_tests::{address, client, counter, lab_or_skip, pair, wait_until};
use lab::LabOptions;

use super::{IMPATIENT, read_to_error, typed, write_to_error};

fn is_up(client: &Client) -> bool {
    client.status().expect("status").interfaces[0].up
}

#[test]
fn a_link_that_goes_down_and_comes_back_loses_nothing() {
    let Some(lab) = lab_or_skip("a_link_that_comes_back", &LabOptions::new(2)) else {
        return;
    };
    let (here, there) = (client(&lab, 0), client(&lab, 1));
    let bystander = Bystander::new(&lab);
    bystander.during(|| {
        for round in 0..4 {
            let flowed = || counter(&here, "rx_data_bytes").min(counter(&there, "rx_data_bytes"));
            let goal = flowed() + (1 << 20);
            wait_until("bytes flow", || flowed() > goal);
            // Unplugged at the node, and at the switch.
            let set = |state: &str| match round % 2 {
                0 => ip(&lab, 0, &format!("link set dev eth0 {state}")),
                _ => ip_in_switch(&lab, &format!("link set dev port0 {state}")),
            };
            set("down");
            wait_until("the daemon sees it", || !is_up(&here));
            if round == 0 {
                let error = EspStream::builder()
                    .connect_at(&here, address(1, 7009))
                    .expect_err("no link");
                assert!(matches!(typed(&error), EspError::Denied { .. }), "{error}");
            }
            set("up");
            wait_until("the daemon sees it", || is_up(&here));
            let goal = flowed() + (1 << 20);
            wait_until("bytes flow again", || flowed() > goal);
        }
    });
}

#[test]
fn a_link_that_stays_down_is_noticed() {
    let Some(lab) = configured_lab("a_link_that_stays_down", 2, IMPATIENT) else {
        return;
    };
    let (here, there) = (client(&lab, 0), client(&lab, 1));
    let (idle, idle_peer) = pair(&lab, 0, 1, 7000);
    let (busy, busy_peer) = pair(&lab, 0, 1, 7001);
    thread::scope(|scope| {
        let ends = [
            scope.spawn(|| read_to_error(&idle).1),
            scope.spawn(|| read_to_error(&idle_peer).1),
            scope.spawn(|| write_to_error(&busy)),
            scope.spawn(|| read_to_error(&busy_peer).1),
        ];
        wait_until("bytes flow", || counter(&there, "rx_data_bytes") > 1 << 19);
        ip_in_switch(&lab, "link set dev port1 down");
        for end in ends {
            let error = end.join().unwrap();
            assert!(matches!(error, EspError::TimedOut { .. }), "{error:?}");
        }
    });
    for client in [&here, &there] {
        wait_until("the connections are gone", || {
            client.status().unwrap().connections.is_empty()
        });
        assert_eq!(counter(client, "connections_timed_out"), 2);
    }
}
