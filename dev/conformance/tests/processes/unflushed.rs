//! A transport that loses its last message when its process exits, although `flush` returned true.

use std::io::IoSlice;

use btl::{Btl, HeldSends, NoticedPuts, PendingPeers, Rank, SendError, Tx, contiguous};
use btl_conformance::forward;

use crate::sockets::SocketBtl;

#[derive(Debug)]
pub(crate) struct Unflushed {
    inner: SocketBtl,
    /// A message was sent.
    used: bool,
    /// Sent before the next message.
    kept: Option<(Rank, Vec<u8>, Vec<u8>)>,
}

impl Unflushed {
    pub(crate) fn new(inner: SocketBtl) -> Unflushed {
        Unflushed {
            inner,
            used: false,
            kept: None,
        }
    }
}

impl Tx for Unflushed {
    fn send(&mut self, peer: Rank, header: &[u8], body: &[IoSlice<'_>]) -> Result<(), SendError> {
        if !self.used {
            self.inner.send(peer, header, body)?;
            self.used = true;
            return Ok(());
        }
        if let Some((peer, header, body)) = &self.kept {
            self.inner.send(*peer, header, &[IoSlice::new(body)])?;
        }
        self.kept = Some((peer, header.to_vec(), contiguous(body).into_owned()));
        Ok(())
    }
}

impl HeldSends for Unflushed {}

impl NoticedPuts for Unflushed {}

impl PendingPeers for Unflushed {}

impl Btl for Unflushed {
    forward!(
        inner => name capabilities address add_peer progress wait_fd arm drop_peer flush close
    );
}
