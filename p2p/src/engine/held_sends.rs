//! Held sends (VIA-RPI): eager messages that the transport sends from the program's memory.

use crate::ids::PeerId;
use btl::{SendError, Started};

use super::account::cost;
use super::outgoing::Attempt;
use super::request::{Outcome, Request, State};
use super::transfer::{Method, Operation, Transfer};
use super::transports::Engine;
use crate::memory::ReadMem;
use crate::wire::{self, ASK};

impl Engine {
    /// Sends an eager message without copying its body. `None`: the caller sends it by `send`.
    pub(super) fn send_held(
        &mut self,
        peer: PeerId,
        key: u64,
        request: &Request,
        memory: ReadMem,
    ) -> Option<Attempt> {
        let state = &mut self.protocol.peers[peer];
        if memory.len() < state.held_from || request.sync {
            return None;
        }
        let price = cost(memory.len());
        if !state.account.can_pay(price) {
            return Some(Attempt::Blocked);
        }
        let flags = if state.account.asks(price) { ASK } else { 0 };
        let header = wire::eager(flags, state.next_out, request.context, request.tag);
        let primary = state.primary()?;
        let mut transfer = Transfer::new(key, peer, primary);
        (transfer.method, transfer.open) = (Method::Held, 1);
        let transfer = self.protocol.transfers.insert(transfer);
        let length = memory.len();
        let token = self
            .protocol
            .operations
            .insert(Operation { transfer, length });
        let btl = &mut self.transports[primary].btl;
        // SAFETY: valid and unchanged until the request is over: not before completion.
        let result = unsafe { btl.send_held(peer.rank(), &header, memory.at(0), length, token) };
        if result != Ok(Started::Pending) {
            self.protocol.operations.remove(token, 0);
            self.protocol.transfers.remove(transfer, 0);
        }
        match result {
            Ok(started) => {
                let state = &mut self.protocol.peers[peer];
                state.account.pay(price);
                state.next_out = state.next_out.wrapping_add(1);
                self.protocol.stats.eager_sent += 1;
                if started == Started::Done {
                    self.protocol.end(key, Outcome::Done);
                } else if let Some(request) = self.protocol.requests.get_mut(key) {
                    (request.transfer, request.state) = (transfer, State::Moving);
                    self.protocol.stats.held_sent += 1;
                }
                Some(Attempt::Sent)
            }
            Err(SendError::Unsupported) => None,
            Err(error) => Some(self.refused(peer, error)),
        }
    }
}
