//! [`Nic`] over libibverbs: the calls of the data path.

use std::ffi::c_int;
use std::os::fd::BorrowedFd;
use std::ptr;

use super::ffi::{
    ACCESS_ALL, ACCESS_LOCAL_WRITE, QPS_ERR, QPS_INIT, QPS_RTR, QPS_RTS, QPT_RC, Qp, QpAttr,
    RecvWr, SEND_INLINE, SEND_SIGNALED, SendWr, Sge, SrqInitAttr, WC_GRH, WC_RECV, WC_WITH_IMM,
    WR_RDMA_READ, WR_RDMA_WRITE, WR_RDMA_WRITE_WITH_IMM, WR_SEND, WR_SEND_WITH_IMM, Wc, mask,
};
use super::verbs::{
    BATCH, Connection, DATAGRAM, DATAGRAMS, GRH, INLINE, Object, PIECES, SHARED, SLOT, Verbs,
    check, create_qp,
};
use crate::nic::{
    About, Completion, GOOD, MAX_DATAGRAM, Nic, NicError, Place, PostMode, Queue, Registered,
    Remote, Source, Verb,
};

/// Number of receives posted by one call.
const CHAIN: usize = 8;

impl Verbs {
    fn connection(&self, queue: Queue) -> Option<&Connection> {
        self.connections.get(queue.0 as usize)?.as_ref()
    }

    /// Returns the event of a work completion.
    fn read(&mut self, wc: Wc) -> Option<Completion> {
        let (high, low) = ((wc.wr_id >> 32) as u32, wc.wr_id as u32);
        let status = u32::try_from(wc.status).unwrap_or(u32::MAX);
        // The opcode of a failed completion is undefined, but its id suffices.
        if high == DATAGRAM {
            let slot = low as usize;
            if slot >= DATAGRAMS {
                return None;
            }
            let (mut header, mut bytes) = (Vec::new(), Vec::new());
            let length = (wc.byte_len as usize).saturating_sub(GRH).min(SLOT - GRH);
            let good = status == GOOD
                && self.datagrams.read(slot * SLOT, GRH, &mut header)
                && self.datagrams.read(slot * SLOT + GRH, length, &mut bytes);
            // If the queue pair accepts no more receives, peers time out.
            let _ = self.receive_datagram(slot);
            let has_header = wc.wc_flags & WC_GRH != 0;
            let from = Source {
                gid: sender(&header).filter(|_| has_header),
                lid: wc.slid,
                qpn: wc.src_qp,
            };
            return good.then_some(Completion::Datagram { from, bytes });
        }
        let immediate =
            (status == GOOD && wc.wc_flags & WC_WITH_IMM != 0).then(|| u32::from_be(wc.imm_data));
        let (connection, shared) = if high == SHARED {
            let number = self.numbers.get(&wc.qp_num).copied();
            (number.unwrap_or(u32::MAX), Some((low, wc.byte_len)))
        } else {
            (high, None)
        };
        let received = shared.is_some() || low == 0 || status == GOOD && wc.opcode & WC_RECV != 0;
        Some(if received {
            Completion::Arrived {
                connection,
                status,
                immediate,
                shared,
            }
        } else {
            Completion::Done {
                id: wc.wr_id,
                status,
            }
        })
    }

    /// Posts receives, at most [`CHAIN`], by one call: without memory, or one with memory.
    fn post_recvs(
        &self,
        qp: &Object<Qp>,
        wr_id: u64,
        memory: Option<&mut Sge>,
        count: usize,
    ) -> Result<(), NicError> {
        let call = "ibv_post_recv";
        let post = self.ops().post_recv.ok_or_else(|| no_call(call))?;
        let num_sge = memory.is_some().into();
        let sg_list = memory.map_or(ptr::null_mut(), ptr::from_mut);
        let mut chain = [const { None }; CHAIN];
        let mut next = ptr::null_mut();
        for place in chain.iter_mut().take(count) {
            next = ptr::from_mut(place.insert(RecvWr {
                wr_id,
                next,
                sg_list,
                num_sge,
            }));
        }
        let mut bad = ptr::null_mut();
        // SAFETY: alive; the requests are copied by the call.
        check(call, unsafe { post(qp.ptr(), next, &raw mut bad) })
    }

    pub(super) fn receive_datagram(&mut self, slot: usize) -> Result<(), NicError> {
        let mut memory = Sge {
            address: (self.datagrams.address() + slot * SLOT) as u64,
            length: SLOT as u32,
            lkey: self.datagrams_key,
        };
        let id = u64::from(DATAGRAM) << 32 | slot as u64;
        self.post_recvs(&self.ud, id, Some(&mut memory), 1)
    }

    fn send(&self, qp: &Object<Qp>, wr: &mut SendWr) -> Result<(), NicError> {
        let call = "ibv_post_send";
        let post = self.ops().post_send.ok_or_else(|| no_call(call))?;
        let mut bad = ptr::null_mut();
        // SAFETY: alive; the request is copied by the call.
        check(call, unsafe { post(qp.ptr(), wr, &raw mut bad) })
    }
}

/// Returns the error of a call that the device does not support.
fn no_call(call: &'static str) -> NicError {
    NicError::new(call, libc::ENOSYS)
}

/// Returns the global id in the 40 bytes before a datagram: an IPv6 header's source (InfiniBand,
/// RoCE 1, RoCE 2 over IPv6), or for RoCE 2 over IPv4 an IPv4 header in the last 20 bytes,
/// recognized by its checksum as in libibverbs' `ibv_init_ah_from_wc`. Where rxe passes packets to
/// its own device there is no checksum, and the bytes before are zero.
fn sender(header: &[u8]) -> Option<[u8; 16]> {
    let last: &[u8; 20] = header.get(20..GRH)?.try_into().ok()?;
    let sum: u32 = last
        .chunks(2)
        .map(|two| u32::from(two[0]) << 8 | u32::from(two[1]))
        .sum();
    if last[0] == 0x45 && ((sum & 0xffff) + (sum >> 16) == 0xffff || header[0] >> 4 != 6) {
        let mut gid = [0; 16];
        gid[10..12].fill(0xff);
        gid[12..].copy_from_slice(&last[12..16]);
        return Some(gid);
    }
    header.get(8..24)?.try_into().ok()
}

impl Nic for Verbs {
    fn about(&self) -> &About {
        &self.about
    }

    unsafe fn register(
        &mut self,
        address: usize,
        length: usize,
        remote: bool,
    ) -> Result<Registered, NicError> {
        let access = if remote {
            ACCESS_ALL
        } else {
            ACCESS_LOCAL_WRITE
        };
        let memory = ptr::with_exposed_provenance_mut(address);
        let l = self.library;
        // SAFETY: alive; the rest is guaranteed by the caller.
        let mr = unsafe {
            let mr = (l.ibv_reg_mr)(self.pd.ptr(), memory, length, access);
            Object::new("ibv_reg_mr", mr, l.ibv_dereg_mr)
        }?;
        self.next_mr += 1;
        let made = Registered {
            id: self.next_mr,
            lkey: mr.get().lkey,
            rkey: mr.get().rkey,
        };
        self.registered.insert(made.id, mr);
        Ok(made)
    }

    fn deregister(&mut self, id: u64) {
        self.registered.remove(&id);
    }

    fn open(&mut self, number: u32, depth: usize) -> Result<(Queue, u32), NicError> {
        let depth = u32::try_from(depth).unwrap_or(u32::MAX);
        let recv = if self.srq.is_some() { 1 } else { depth };
        let create = |inline| {
            let objects = (&self.pd, &self.cq, self.srq.as_ref());
            let qp = create_qp(self.library, objects, QPT_RC, (depth, recv), inline);
            qp.map(|qp| (qp, inline))
        };
        // A device that does not support this many inline bytes refuses.
        let (qp, inline) = match self.connections.is_empty() {
            true => create(INLINE).or_else(|_| create(0)),
            false => create(self.about.inline),
        }?;
        self.about.inline = inline;
        let attr = QpAttr {
            qp_state: QPS_INIT,
            port_num: self.about.port,
            qp_access_flags: ACCESS_ALL as u32,
            ..QpAttr::default()
        };
        let what = mask::STATE | mask::PKEY_INDEX | mask::PORT | mask::ACCESS;
        self.modify(&qp, attr, what)?;
        let qpn = qp.get().qp_num;
        let queue = Queue(u32::try_from(self.connections.len()).unwrap_or(u32::MAX));
        self.connections.push(Some(Connection { qp, number }));
        self.numbers.insert(qpn, number);
        Ok((queue, qpn))
    }

    fn connect(&mut self, queue: Queue, remote: &Remote) -> Result<(), NicError> {
        let Some(Connection { qp, .. }) = self.connection(queue) else {
            return Ok(());
        };
        let attr = QpAttr {
            qp_state: QPS_RTR,
            path_mtu: c_int::from(remote.mtu.min(self.about.mtu)),
            dest_qp_num: remote.qpn,
            rq_psn: remote.psn[0],
            max_dest_rd_atomic: self.reads[0],
            // 0.64 ms
            min_rnr_timer: 12,
            ah_attr: self.address(&remote.place),
            ..QpAttr::default()
        };
        let what =
            mask::AV | mask::PATH_MTU | mask::DEST_QPN | mask::RQ_PSN | mask::MAX_DEST_RD_ATOMIC;
        self.modify(qp, attr, what | mask::STATE | mask::MIN_RNR_TIMER)?;
        let attr = QpAttr {
            qp_state: QPS_RTS,
            timeout: remote.timeout,
            retry_cnt: remote.retries,
            // A peer without receives is late, not gone: retry without a limit.
            rnr_retry: 7,
            sq_psn: remote.psn[1],
            max_rd_atomic: self.reads[1],
            ..QpAttr::default()
        };
        let what =
            mask::TIMEOUT | mask::RETRY_CNT | mask::RNR_RETRY | mask::SQ_PSN | mask::MAX_RD_ATOMIC;
        self.modify(qp, attr, what | mask::STATE)
    }

    fn stop(&mut self, queue: Queue) {
        let attr = QpAttr {
            qp_state: QPS_ERR,
            ..QpAttr::default()
        };
        if let Some(Connection { qp, .. }) = self.connection(queue) {
            let _ = self.modify(qp, attr, mask::STATE);
        }
    }

    fn close(&mut self, queue: Queue) {
        let place = self.connections.get_mut(queue.0 as usize);
        if let Some(connection) = place.and_then(Option::take) {
            self.numbers
                .retain(|_, number| *number != connection.number);
        }
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
        let failed = |errno| NicError::new("ibv_post_send", errno);
        let connection = self.connection(queue).ok_or(failed(libc::ENOTCONN))?;
        if local.len() > PIECES {
            return Err(failed(libc::EINVAL));
        }
        let (opcode, immediate) = match verb {
            Verb::Write(None) => (WR_RDMA_WRITE, 0),
            Verb::Write(Some(immediate)) => (WR_RDMA_WRITE_WITH_IMM, immediate),
            Verb::Read => (WR_RDMA_READ, 0),
            Verb::Send(immediate) => (WR_SEND_WITH_IMM, immediate),
        };
        let send_flags = match mode {
            PostMode::Registered => SEND_SIGNALED,
            PostMode::Inline { signaled: true } => SEND_INLINE | SEND_SIGNALED,
            PostMode::Inline { signaled: false } => SEND_INLINE,
        };
        let mut wr = SendWr {
            wr_id: id,
            next: ptr::null_mut(),
            // Only read.
            sg_list: local.as_ptr().cast_mut(),
            num_sge: local.len() as c_int,
            opcode,
            send_flags,
            imm_data: immediate.to_be(),
            target: remote.0,
            key: remote.1,
            qkey: 0,
            rest: [0; 9],
        };
        self.send(&connection.qp, &mut wr)
    }

    fn expect(&mut self, queue: Queue, count: usize) -> Result<(), NicError> {
        let Some(Connection { qp, number }) = self.connection(queue) else {
            return Ok(());
        };
        let mut left = if self.srq.is_some() { 0 } else { count };
        while left > 0 {
            let now = left.min(CHAIN);
            self.post_recvs(qp, u64::from(*number) << 32, None, now)?;
            left -= now;
        }
        Ok(())
    }

    unsafe fn share(&mut self, index: u32, buffer: Sge, max: usize) -> Result<(), NicError> {
        let l = self.library;
        if self.srq.is_none() {
            let mut attr = SrqInitAttr {
                srq_context: ptr::null_mut(),
                max_wr: u32::try_from(max).unwrap_or(u32::MAX),
                max_sge: 1,
                srq_limit: 0,
            };
            // SAFETY: alive.
            self.srq = Some(unsafe {
                let srq = (l.ibv_create_srq)(self.pd.ptr(), &raw mut attr);
                Object::new("ibv_create_srq", srq, l.ibv_destroy_srq)
            }?);
        }
        let call = "ibv_post_srq_recv";
        let (Some(srq), Some(post)) = (&self.srq, self.ops().post_srq_recv) else {
            return Err(no_call(call));
        };
        let mut sge = buffer;
        let mut wr = RecvWr {
            wr_id: u64::from(SHARED) << 32 | u64::from(index),
            next: ptr::null_mut(),
            sg_list: &raw mut sge,
            num_sge: 1,
        };
        let mut bad = ptr::null_mut();
        // SAFETY: alive; the request is copied by the call; the buffer is guaranteed by the caller.
        check(call, unsafe { post(srq.ptr(), &raw mut wr, &raw mut bad) })
    }

    fn datagram(&mut self, to: &Place, bytes: &[u8]) -> Result<(), NicError> {
        let handle = self.address_handle(to)?;
        let bytes = bytes.get(..MAX_DATAGRAM).unwrap_or(bytes);
        let slot = DATAGRAMS + self.sent % DATAGRAMS;
        self.sent += 1;
        // With this many datagrams in flight one would be overwritten, so treat it as lost: peers
        // repeat it.
        let _ = self.datagrams.write(slot * SLOT, bytes);
        let mut sge = Sge {
            address: (self.datagrams.address() + slot * SLOT) as u64,
            length: bytes.len() as u32,
            lkey: self.datagrams_key,
        };
        let mut wr = SendWr {
            wr_id: u64::from(DATAGRAM) << 32 | slot as u64,
            next: ptr::null_mut(),
            sg_list: &raw mut sge,
            num_sge: 1,
            opcode: WR_SEND,
            send_flags: SEND_SIGNALED,
            imm_data: 0,
            target: handle.expose_provenance() as u64,
            key: to.qpn,
            qkey: to.qkey,
            rest: [0; 9],
        };
        match self.send(&self.ud, &mut wr) {
            // No room, so treat it as lost.
            Err(error) if [libc::ENOMEM, libc::EAGAIN].contains(&error.errno) => Ok(()),
            other => other,
        }
    }

    fn poll(&mut self, max: usize, out: &mut Vec<Completion>) -> Result<(), NicError> {
        let Some(poll) = self.ops().poll_cq else {
            return Ok(());
        };
        let room = c_int::try_from(max.min(BATCH)).unwrap_or(0);
        // SAFETY: alive, and there is room for this number.
        let count = unsafe { poll(self.cq.ptr(), room, self.wc.as_mut_ptr()) };
        let count = usize::try_from(count).map_err(|_| NicError::new("ibv_poll_cq", -count))?;
        for at in 0..count.min(BATCH) {
            let read = self.read(self.wc[at]);
            out.extend(read);
        }
        Ok(())
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        // SAFETY: open as long as the channel.
        unsafe { BorrowedFd::borrow_raw(self.channel.get().fd) }
    }

    fn arm(&mut self) {
        if let Some(notify) = self.ops().req_notify_cq {
            // SAFETY: alive.
            unsafe { notify(self.cq.ptr(), 0) };
        }
    }

    fn calm(&mut self) {
        let (l, channel) = (self.library, self.channel.ptr());
        let (mut cq, mut context) = (ptr::null_mut(), ptr::null_mut());
        // Bounded: each `arm` causes at most one event.
        for _ in 0..16 {
            // SAFETY: alive; the descriptor does not block.
            if unsafe { (l.ibv_get_cq_event)(channel, &raw mut cq, &raw mut context) } != 0 {
                return;
            }
            // SAFETY: the event was of this queue.
            unsafe { (l.ibv_ack_cq_events)(cq, 1) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Uses the example of RFC 1071's checksum in an IPv4 header as it is on the wire.
    #[test]
    fn a_datagrams_sender_is_read_from_either_header() {
        let mut header = [0xeeu8; GRH];
        header[20..].copy_from_slice(&[
            0x45, 0x00, 0x00, 0x73, 0x00, 0x00, 0x40, 0x00, 0x40, 0x11, 0xb8, 0x61, 0xc0, 0xa8,
            0x00, 0x01, 0xc0, 0xa8, 0x00, 0xc7,
        ]);
        let mapped = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 168, 0, 1];
        assert_eq!(sender(&header), Some(mapped));
        // Without a checksum, and with bytes before it that are not an IPv6 header.
        header[30] ^= 1;
        assert_eq!(sender(&header), Some(mapped));
        // Anything else is an IPv6 header.
        header[0] = 0x60;
        assert_eq!(sender(&header).unwrap()[..12], [0xee; 12]);
        header[30] ^= 1;
        assert_eq!(sender(&header), Some(mapped));
        header[20] = 0x46;
        assert_eq!(sender(&header).unwrap()[..12], [0xee; 12]);
        assert_eq!(sender(&header[..39]), None);
    }

    #[test]
    fn a_source_is_a_place_by_global_id_or_local_id_and_queue_pair() {
        let place = Place {
            gid: [1; 16],
            lid: 7,
            qpn: 9,
            qkey: 0,
        };
        assert!(
            Source {
                gid: Some([1; 16]),
                lid: 0,
                qpn: 9
            }
            .is(&place)
        );
        assert!(
            Source {
                gid: None,
                lid: 7,
                qpn: 9
            }
            .is(&place)
        );
        assert!(
            !Source {
                gid: Some([2; 16]),
                lid: 7,
                qpn: 9
            }
            .is(&place)
        );
        assert!(
            !Source {
                gid: Some([1; 16]),
                lid: 7,
                qpn: 8
            }
            .is(&place)
        );
        assert!(
            !Source {
                gid: None,
                lid: 0,
                qpn: 9
            }
            .is(&Place { lid: 0, ..place })
        );
    }
}
