//! Protection of packets: suites of ESP, and TLS of the kernel to compare them with.

use std::io;
use std::net::{TcpListener, TcpStream};
use std::path::Path;

use nix::libc;
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::{TcpTlsRx, TcpTlsTx, TcpUlp, TlsCryptoInfo};
use serde::Serialize;

use crate::task::Role;

/// Protection of the packets between the daemons of a lab.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Protection {
    /// None.
    #[default]
    None,
    /// CRC-32C of each packet, which authenticates nothing.
    Checksum,
    /// Tag of AES-128-GCM; the content is readable.
    Integrity,
    /// AES-128-GCM.
    Encrypt,
}

impl Protection {
    /// All of them, from the weakest to the strongest.
    pub const ALL: [Protection; 4] = [
        Protection::None,
        Protection::Checksum,
        Protection::Integrity,
        Protection::Encrypt,
    ];

    /// Returns its name in rows.
    pub fn name(self) -> &'static str {
        match self {
            Protection::None => "none",
            Protection::Checksum => "checksum",
            Protection::Integrity => "integrity",
            Protection::Encrypt => "encrypt",
        }
    }

    /// Returns the bytes that it adds to a packet (W-140): session, counter and tag.
    pub(crate) fn overhead(self) -> u32 {
        match self {
            Protection::None => 0,
            Protection::Checksum | Protection::Integrity | Protection::Encrypt => 4 + 8 + 16,
        }
    }

    /// Returns true if the daemons need a key.
    pub(crate) fn has_key(self) -> bool {
        matches!(self, Protection::Integrity | Protection::Encrypt)
    }

    /// Returns the beginning of the daemons' configuration.
    pub(crate) fn config(self, key: &Path) -> String {
        match self {
            Protection::None => String::new(),
            Protection::Checksum => "checksum = \"require\"\n".into(),
            Protection::Integrity | Protection::Encrypt => {
                let key = key.display().to_string();
                format!(
                    "[auth]\nkey_files = [{key:?}]\nmode = \"{}\"\n",
                    self.name()
                )
            }
        }
    }
}

/// Returns the reason why connections of this machine cannot have TLS of the kernel.
pub fn without_kernel_tls() -> Option<String> {
    let attempt = || -> io::Result<()> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let stream = TcpStream::connect(listener.local_addr()?)?;
        start_tls(&stream, Role::Client)
    };
    let error = attempt().err()?;
    Some(format!("no TLS in the kernel (CONFIG_TLS): {error}"))
}

/// Key of one direction. There is no handshake: its cost is not measured.
fn direction(from: Role) -> TlsCryptoInfo {
    let byte = match from {
        Role::Client => 1,
        Role::Server => 2,
    };
    TlsCryptoInfo::Aes128Gcm(libc::tls12_crypto_info_aes_gcm_128 {
        info: libc::tls_crypto_info {
            version: libc::TLS_1_3_VERSION,
            cipher_type: libc::TLS_CIPHER_AES_GCM_128,
        },
        iv: [byte; libc::TLS_CIPHER_AES_GCM_128_IV_SIZE],
        key: [byte; libc::TLS_CIPHER_AES_GCM_128_KEY_SIZE],
        salt: [byte; libc::TLS_CIPHER_AES_GCM_128_SALT_SIZE],
        rec_seq: [0; libc::TLS_CIPHER_AES_GCM_128_REC_SEQ_SIZE],
    })
}

/// Makes the kernel encrypt both directions of a connection by AES-128-GCM with fixed keys.
pub(crate) fn start_tls(stream: &TcpStream, role: Role) -> io::Result<()> {
    let peer = match role {
        Role::Client => Role::Server,
        Role::Server => Role::Client,
    };
    setsockopt(stream, TcpUlp::default(), b"tls")?;
    setsockopt(stream, TcpTlsTx, &direction(role))?;
    setsockopt(stream, TcpTlsRx, &direction(peer))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};

    #[test]
    fn configurations_name_the_suite() {
        let config = |protection: Protection| protection.config(Path::new("/k/\"ey"));
        assert_eq!(config(Protection::None), "");
        assert_eq!(config(Protection::Checksum), "checksum = \"require\"\n");
        assert_eq!(
            config(Protection::Integrity),
            "[auth]\nkey_files = [\"/k/\\\"ey\"]\nmode = \"integrity\"\n"
        );
        assert!(config(Protection::Encrypt).ends_with("mode = \"encrypt\"\n"));
    }

    /// Where the kernel has no TLS, the reason is what rows note.
    #[test]
    fn both_directions_are_encrypted_or_the_reason_is_known() -> io::Result<()> {
        if let Some(reason) = without_kernel_tls() {
            assert!(reason.contains("CONFIG_TLS"), "{reason}");
            return Ok(());
        }
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let mut client = TcpStream::connect(listener.local_addr()?)?;
        let mut server = listener.accept()?.0;
        start_tls(&client, Role::Client)?;
        start_tls(&server, Role::Server)?;
        let mut bytes = [0; 4];
        client.write_all(b"ping")?;
        server.read_exact(&mut bytes)?;
        assert_eq!(&bytes, b"ping");
        server.write_all(b"pong")?;
        client.read_exact(&mut bytes)?;
        assert_eq!(&bytes, b"pong");
        Ok(())
    }
}
