//! Nodes that authenticate their packets, and a station that sees and sends every frame.

mod attacks;
mod keys;
mod nodes;
mod programs;

use std::fs;
use std::os::unix::fs::PermissionsExt;

use esp_client::{Client, EspAddr, EspListener, EspStream};
use esp_tests::PATIENCE;
use esp_tests::process::TempFile;

/// Flag of a protected packet.
const SEC: u8 = 0x80;

/// A key file, accessible to its owner alone.
struct KeyFile(TempFile);

impl KeyFile {
    /// Creates a file with the key of 32 equal bytes.
    fn new(byte: u8) -> KeyFile {
        let file = KeyFile(TempFile::new(""));
        let private = fs::Permissions::from_mode(0o600);
        fs::set_permissions(file.0.path(), private).expect("chmod");
        file.set(byte);
        file
    }

    fn set(&self, byte: u8) {
        fs::write(self.0.path(), format!("{byte:02x}").repeat(32)).expect("write a key");
    }
}

/// Returns the configuration of a daemon with these keys. Idle connections are silent.
fn config(keys: &[&KeyFile], options: &str) -> String {
    let files: Vec<_> = keys.iter().map(|key| key.0.path()).collect();
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
