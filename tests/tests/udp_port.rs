//! The UDP port of a program that needs no daemon.

use std::io::ErrorKind;

use esp_client::Client;
use netns::TwoNodes;

#[test]
fn a_port_in_use_is_an_error_of_its_own_kind() {
    let Some(nodes) = TwoNodes::new_or_skip("a_port_in_use") else {
        return;
    };
    let node = &nodes.a;
    let address = format!("address add 10.0.0.1/24 dev {}", node.name());
    node.namespace().ip(&address).expect("an address");
    let _first = node.run(|| Client::udp_at(5000)).expect("a free port");
    let error = node.run(|| Client::udp_at(5000)).expect_err("in use");
    assert_eq!(error.kind(), ErrorKind::AddrInUse, "{error}");
    let text = error.to_string();
    assert!(
        text.starts_with("UDP port 5000 of 10.0.0.1 is in use by "),
        "{text}"
    );
}
