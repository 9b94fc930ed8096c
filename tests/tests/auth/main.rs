//! Nodes that authenticate their packets, and a station that sees and sends every frame.

mod attacks;
mod jobs;
mod keys;
mod nodes;
mod programs;

use esp_client::{Client, EspAddr, EspListener, EspStream};
use esp_tests::PATIENCE;
use esp_tests::protected::{KeyFile, SEC};

/// Returns the configuration of a daemon with these keys. Idle connections are silent.
fn config(keys: &[&KeyFile], options: &str) -> String {
    let files: Vec<_> = keys.iter().map(|key| key.path()).collect();
    format!("[timers]\nkeepalive = \"1h\"\n[auth]\nkey_files = {files:?}\n{options}\n")
}

/// Connects a stream between the first interfaces of two clients.
fn connect(from: &Client, to: &Client) -> std::io::Result<(EspStream, EspStream)> {
    let listener = EspListener::builder().bind_at(to, 0).expect("listen");
    let addr = to.interface(None).expect("an interface").addr;
    let left = EspStream::builder().connect_at(from, EspAddr::new(addr, listener.port()))?;
    let (right, _) = listener.accept_timeout(PATIENCE).expect("accept");
    Ok((left, right))
}

/// Returns the number of packets that a node's authentication has dropped.
fn refused(client: &Client) -> u64 {
    let counters = client.status().expect("status").counters.into_iter();
    let refused = counters.filter(|c| c.name.starts_with("auth_drop_"));
    refused.map(|c| c.value).sum()
}
