//! Limit on what a node sends over UDP to an address that is not validated (W-123): no more bytes
//! than it received from there.

use super::Key;
use super::frame::{ACK, EXT, PRB, RST, SYN, View};
use esp_proto::MacAddr;
use std::collections::BTreeMap;

/// Bytes received from an address and sent to it.
#[derive(Clone, Copy, Debug, Default)]
struct Account {
    received: usize,
    sent: usize,
    /// A program of the node connects to it, or resumes a connection.
    connects: bool,
    /// The peer has shown that it receives at its address.
    validated: bool,
}

/// Accounts of all nodes: by the node's address and port, and those of the peer.
#[derive(Debug, Default)]
pub(super) struct Validation {
    accounts: BTreeMap<Key, Account>,
}

impl Validation {
    /// Records a packet that a node handles.
    pub(super) fn receives(&mut self, view: &View<'_>, len: usize, is_esp: bool) {
        let key = (view.dst, view.dst_port, view.src, view.src_port);
        let account = self.accounts.entry(key).or_default();
        account.received += len;
        account.validated |= is_esp && shows_address(view);
    }

    /// Checks a packet that a node sends.
    ///
    /// # Errors
    /// It has sent more bytes to this address than it received, and the address is not validated.
    pub(super) fn sends(
        &mut self,
        view: &View<'_>,
        len: usize,
        is_esp: bool,
    ) -> Result<(), String> {
        let key = (view.src, view.src_port, view.dst, view.dst_port);
        let account = self.accounts.entry(key).or_default();
        // Its program chose the address.
        account.connects |= is_esp && [SYN, SYN | PRB].contains(&(view.flags & !EXT));
        let is_request = !is_esp && !is_reply(view);
        if account.connects || account.validated || is_request {
            return Ok(());
        }
        account.sent += len;
        if account.sent > account.received {
            return Err(format!("W-123: {account:?} of an address not validated"));
        }
        Ok(())
    }

    /// Records that a node lost its memory.
    pub(super) fn forget(&mut self, mac: MacAddr) {
        self.accounts.retain(|key, _| key.0 != mac);
    }
}

/// Returns true for packets that contain numbers which their sender knows from received packets
/// alone: acknowledgements, cookies, and the nonces of a MOVE.
fn shows_address(view: &View<'_>) -> bool {
    let plain = view.flags & !EXT;
    let cookie = plain == SYN && view.set_up().is_ok_and(|set_up| set_up.peer_nonce != 0);
    plain == SYN | PRB || cookie || (view.flags & ACK != 0 && view.flags & RST == 0)
}

/// Returns true for a control datagram that answers one.
fn is_reply(view: &View<'_>) -> bool {
    let is_control = view.flags & 1 != 0;
    is_control && view.payload.first().is_some_and(|kind| kind % 2 == 0)
}
