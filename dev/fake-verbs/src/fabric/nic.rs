//! An interface of the fabric, under the names of verbs.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::net::{End, Net, Request};
use crate::nic::{
    About, Completion, FLUSHED, MAX_DATAGRAM, Nic, NicError, Place, PostMode, Queue, Registered,
    Remote, Sge, Source, Verb,
};

/// An interface of the fabric.
#[derive(Debug)]
pub struct FabricNic {
    pub(super) net: Arc<Mutex<Net>>,
    pub(super) at: usize,
    pub(super) about: About,
    pub(super) fd: OwnedFd,
}

impl FabricNic {
    fn lock(&self) -> MutexGuard<'_, Net> {
        self.net.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl FabricNic {
    fn request(&mut self, queue: Queue, request: Request) -> Result<(), NicError> {
        let at = self.at;
        let mut net = self.lock();
        if !net.nodes[at].alive {
            // Its completion is not reported any more.
            return Ok(());
        }
        let Some(end) = net.nodes[at].queues.get_mut(&queue.0) else {
            return Err(NicError::new("ibv_post_send", libc::ENOTCONN));
        };
        // An unsignaled request keeps its place until a later one completes.
        if end.waiting.len() + end.unsignaled >= end.depth {
            return Err(NicError::new("ibv_post_send", libc::ENOMEM));
        }
        end.waiting.push_back(request);
        if end.broken {
            net.break_off(at, queue.0, FLUSHED);
        } else {
            net.run(at, queue.0);
        }
        Ok(())
    }
}

impl Nic for FabricNic {
    fn about(&self) -> &About {
        &self.about
    }

    unsafe fn register(
        &mut self,
        address: usize,
        length: usize,
        remote: bool,
    ) -> Result<Registered, NicError> {
        let at = self.at;
        let mut net = self.lock();
        let node = &mut net.nodes[at];
        let sum: u64 = node.memory.values().map(|memory| memory.1).sum();
        if sum.saturating_add(length as u64) > node.limit {
            return Err(NicError::new("ibv_reg_mr", node.refusal));
        }
        node.next += 1;
        node.registrations += 1;
        // Keys differ from node to node, so that a key used at the wrong node is detected.
        let key = node.next << 8 | (at as u32 & 0xff);
        node.memory
            .insert(key, (address as u64, length as u64, remote));
        Ok(Registered {
            id: key.into(),
            lkey: key,
            rkey: key,
        })
    }

    fn deregister(&mut self, id: u64) {
        let at = self.at;
        self.lock().nodes[at].memory.remove(&(id as u32));
    }

    fn open(&mut self, number: u32, depth: usize) -> Result<(Queue, u32), NicError> {
        let at = self.at;
        let mut net = self.lock();
        let node = &mut net.nodes[at];
        node.next += 1;
        let qpn = node.next;
        let end = End {
            number,
            peer: None,
            depth,
            receives: 0,
            waiting: VecDeque::new(),
            unsignaled: 0,
            broken: false,
        };
        node.queues.insert(qpn, end);
        Ok((Queue(qpn), qpn))
    }

    fn connect(&mut self, queue: Queue, remote: &Remote) -> Result<(), NicError> {
        let at = self.at;
        let mut net = self.lock();
        let mut eight = [0; 8];
        eight.copy_from_slice(&remote.place.gid[8..]);
        let to = (u64::from_be_bytes(eight) as usize).wrapping_sub(1);
        let Some(end) = net.nodes[at].queues.get_mut(&queue.0) else {
            return Ok(());
        };
        end.peer = Some((to, remote.qpn));
        net.run_towards(at);
        Ok(())
    }

    fn stop(&mut self, queue: Queue) {
        let at = self.at;
        self.lock().break_off(at, queue.0, FLUSHED);
    }

    fn close(&mut self, queue: Queue) {
        let at = self.at;
        let mut net = self.lock();
        net.nodes[at].queues.remove(&queue.0);
        net.run_towards(at);
    }

    unsafe fn post(
        &mut self,
        queue: Queue,
        id: u64,
        verb: Verb,
        local: &[Sge],
        remote: (u64, u32),
        mode: PostMode,
    ) -> Result<(), NicError> {
        let mut request = Request {
            id,
            verb,
            local: local.to_vec(),
            carried: None,
            signaled: mode != PostMode::Inline { signaled: false },
            remote,
        };
        if mode != PostMode::Registered {
            let mut bytes = Vec::new();
            for sge in request.local.drain(..) {
                let start: *const u8 = ptr::with_exposed_provenance(sge.address as usize);
                let length = sge.length as usize;
                // SAFETY: guaranteed by the caller.
                bytes.extend_from_slice(unsafe { std::slice::from_raw_parts(start, length) });
            }
            if bytes.len() > self.about.inline {
                return Err(NicError::new("ibv_post_send", libc::ENOMEM));
            }
            request.carried = Some(bytes);
        }
        self.request(queue, request)
    }

    fn expect(&mut self, queue: Queue, count: usize) -> Result<(), NicError> {
        let at = self.at;
        let mut net = self.lock();
        if let Some(end) = net.nodes[at].queues.get_mut(&queue.0) {
            end.receives += count;
        }
        net.run_towards(at);
        Ok(())
    }

    unsafe fn share(&mut self, index: u32, buffer: Sge, _most: usize) -> Result<(), NicError> {
        let at = self.at;
        let mut net = self.lock();
        net.nodes[at].uses_shared = true;
        net.nodes[at].shared.push_back((index, buffer));
        net.run_towards(at);
        Ok(())
    }

    fn datagram(&mut self, to: &Place, bytes: &[u8]) -> Result<(), NicError> {
        let mut eight = [0; 8];
        eight.copy_from_slice(&to.gid[8..]);
        let to = (u64::from_be_bytes(eight) as usize).wrapping_sub(1);
        let mut net = self.lock();
        if net.loss > 0 {
            net.seed ^= net.seed << 13;
            net.seed ^= net.seed >> 7;
            net.seed ^= net.seed << 17;
            if net.seed % 1_000_000 < net.loss {
                return Ok(());
            }
        }
        let Some(node) = net.nodes.get_mut(to) else {
            return Err(NicError::new("ibv_create_ah", libc::EHOSTUNREACH));
        };
        if node.alive {
            let place = self.about.place;
            let from = Source {
                gid: Some(place.gid),
                lid: place.lid,
                qpn: place.qpn,
            };
            let bytes = bytes.get(..MAX_DATAGRAM).unwrap_or(bytes).to_vec();
            node.complete(Completion::Datagram { from, bytes });
        }
        Ok(())
    }

    fn poll(&mut self, most: usize, out: &mut Vec<Completion>) -> Result<(), NicError> {
        let at = self.at;
        let mut net = self.lock();
        let inbox = &mut net.nodes[at].inbox;
        let count = inbox.len().min(most);
        out.extend(inbox.drain(..count));
        Ok(())
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    fn arm(&mut self) {
        let at = self.at;
        self.lock().nodes[at].armed = true;
    }

    fn calm(&mut self) {
        let mut eight = [0; 8];
        let _ = rustix::io::read(&self.fd, &mut eight);
    }
}

impl Drop for FabricNic {
    fn drop(&mut self) {
        let at = self.at;
        self.lock().end(at);
    }
}
