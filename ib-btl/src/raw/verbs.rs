//! A port by libibverbs: opening, its limits, its objects. The way of data is in `post.rs`.

use std::collections::HashMap;
use std::ffi::{CStr, c_int};
use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};

use super::ffi::{
    Ah, AhAttr, CompChannel, Context, Cq, DeviceAttr, LINK_LAYER_ETHERNET, Mr, PORT_ACTIVE, Pd,
    PortAttr, QPS_INIT, QPS_RTR, QPS_RTS, QPT_UD, Qp, QpAttr, QpCap, QpInitAttr, RecvWr, SendWr,
    Sge, Srq, Wc, mask,
};
use super::library::{Library, library};
use super::memory::Memory;
use crate::error::IbError;
use crate::nic::{About, Nic, NicError, Place, Queue};

/// Work requests whose high half is this belong to datagrams, and to the shared receive queue.
pub(super) const DATAGRAM: u32 = u32::MAX;
pub(super) const SHARED: u32 = u32::MAX - 1;
/// Datagrams that may wait to be received; peers repeat what gets lost.
pub(super) const DATAGRAMS: usize = 128;
/// Most reads under way on a connection, in each direction.
const READS: c_int = 8;
/// In front of every received datagram.
pub(super) const GRH: usize = 40;
pub(super) const SLOT: usize = 256;
/// Most work requests of a call to `poll`.
pub(super) const BATCH: usize = 32;
/// Bytes that a work request may carry itself, if the device can.
pub(super) const INLINE: usize = 188;
/// Most memory pieces of a work request.
pub(super) const PIECES: usize = 8;

fn last(call: &'static str) -> NicError {
    NicError {
        call,
        errno: io::Error::last_os_error().raw_os_error().unwrap_or(0),
    }
}

/// These calls return the error's number.
pub(super) fn check(call: &'static str, result: c_int) -> Result<(), NicError> {
    if result == 0 {
        Ok(())
    } else {
        Err(NicError {
            call,
            errno: result.abs(),
        })
    }
}

/// A result of a function that gives an object or NULL and errno.
pub(super) fn there<T>(call: &'static str, object: *mut T) -> Result<NonNull<T>, NicError> {
    NonNull::new(object).ok_or_else(|| last(call))
}

fn each_device<T>(
    mut look: impl FnMut(&Library, *mut super::ffi::Device) -> Option<T>,
) -> Result<Vec<T>, IbError> {
    let library = library().map_err(|why| IbError::NoLibrary(why.into()))?;
    let mut count = 0;
    // SAFETY: as documented.
    let list = unsafe { (library.ibv_get_device_list)(&raw mut count) };
    if list.is_null() {
        let error = io::Error::last_os_error();
        // The library is there and the kernel has no RDMA.
        let none = matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::ENOENT | 0));
        return Err(if none {
            IbError::NoDevices
        } else {
            IbError::Verbs(last("ibv_get_device_list"))
        });
    }
    let mut found = Vec::new();
    for index in 0..usize::try_from(count).unwrap_or(0) {
        // SAFETY: the list has that many.
        let device = unsafe { *list.add(index) };
        found.extend(look(library, device));
    }
    // SAFETY: made above; opened devices stay.
    unsafe { (library.ibv_free_device_list)(list) };
    if count == 0 {
        Err(IbError::NoDevices)
    } else {
        Ok(found)
    }
}

pub(super) struct Connection {
    pub(super) qp: NonNull<Qp>,
    pub(super) number: u32,
}

/// A port, opened.
pub(crate) struct Verbs {
    pub(super) library: &'static Library,
    pub(super) context: NonNull<Context>,
    pub(super) pd: Option<NonNull<Pd>>,
    pub(super) channel: Option<NonNull<CompChannel>>,
    pub(super) cq: Option<NonNull<Cq>>,
    pub(super) srq: Option<NonNull<Srq>>,
    pub(super) ud: Option<NonNull<Qp>>,
    pub(super) about: About,
    pub(super) gid_index: u8,
    /// Reads under way on a connection: the peer's, the own ones.
    pub(super) reads: [u8; 2],
    /// By [`Queue`].
    pub(super) connections: Vec<Option<Connection>>,
    /// By the number of the queue pair, for arrivals in the shared queue.
    pub(super) numbers: HashMap<u32, u32>,
    pub(super) registered: HashMap<u64, NonNull<Mr>>,
    pub(super) next_mr: u64,
    pub(super) ways: HashMap<[u8; 16], NonNull<Ah>>,
    /// Received datagrams, then room to send some from.
    pub(super) datagrams: Option<Memory>,
    pub(super) datagrams_key: u32,
    pub(super) sent: usize,
    pub(super) wc: [Wc; BATCH],
}

// SAFETY: libibverbs may be called from any thread, and this value is used by one at a time.
unsafe impl Send for Verbs {}

impl fmt::Debug for Verbs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Verbs")
            .field("about", &self.about)
            .finish_non_exhaustive()
    }
}

impl Verbs {
    /// Opens a port. `completions`: how many may wait at most.
    pub(crate) fn open(
        name: &str,
        port: u8,
        gid_index: Option<u8>,
        completions: usize,
    ) -> Result<Verbs, IbError> {
        let opened = each_device(|library, device| {
            // SAFETY: as in `devices`.
            let is =
                unsafe { CStr::from_ptr((*device).name.as_ptr()) }.to_bytes() == name.as_bytes();
            is.then(|| {
                // SAFETY: the device is of the list.
                let context = unsafe { (library.ibv_open_device)(device) };
                there("ibv_open_device", context)
            })
        })?;
        let context = opened
            .into_iter()
            .next()
            .ok_or_else(|| IbError::NoPort(format!("no device {name}")))??;
        let library = library().map_err(|why| IbError::NoLibrary(why.into()))?;
        let mut verbs = Verbs {
            library,
            context,
            pd: None,
            channel: None,
            cq: None,
            srq: None,
            ud: None,
            about: About {
                device: name.into(),
                port,
                ..About::default()
            },
            gid_index: 0,
            reads: [0; 2],
            connections: Vec::new(),
            numbers: HashMap::new(),
            registered: HashMap::new(),
            next_mr: 0,
            ways: HashMap::new(),
            datagrams: None,
            datagrams_key: 0,
            sent: 0,
            wc: [Wc::default(); BATCH],
        };
        verbs.look(gid_index)?;
        verbs.set_up(completions)?;
        Ok(verbs)
    }

    /// Limits and addresses.
    fn look(&mut self, gid_index: Option<u8>) -> Result<(), IbError> {
        let (name, port) = (self.about.device.clone(), self.about.port);
        // SAFETY: plain numbers, for which zeros are a value.
        let (mut device, mut attr): (DeviceAttr, PortAttr) =
            unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
        // SAFETY: the context is open.
        check("ibv_query_device", unsafe {
            (self.library.ibv_query_device)(self.context.as_ptr(), &raw mut device)
        })?;
        // SAFETY: likewise.
        let result =
            unsafe { (self.library.ibv_query_port)(self.context.as_ptr(), port, &raw mut attr) };
        check("ibv_query_port", result)?;
        if attr.state != PORT_ACTIVE {
            return Err(IbError::NoPort(format!(
                "port {port} of {name} is not active (state {})",
                attr.state
            )));
        }
        self.about.ethernet = attr.link_layer == LINK_LAYER_ETHERNET;
        self.about.mtu = u8::try_from(attr.active_mtu).unwrap_or(1).clamp(1, 5);
        self.about.max_message = attr.max_msg_sz as usize;
        // Limits of the device on concurrent reads, as responder and as initiator.
        let reads = |most: c_int| u8::try_from(most.clamp(0, READS)).unwrap_or(0);
        self.reads = [
            reads(device.max_qp_rd_atom),
            reads(device.max_qp_init_rd_atom),
        ];
        self.about.max_completions = usize::try_from(device.max_cqe).unwrap_or(0);
        self.about.bandwidth = bandwidth(attr.active_width, attr.active_speed);
        // RoCE: the entry with an IPv4 address, as routers want it; InfiniBand: the first.
        let mut gids = Vec::new();
        for index in 0..attr.gid_tbl_len.clamp(0, 32) {
            let mut gid = [0; 16];
            // SAFETY: the context is open; room for 16 bytes.
            if unsafe {
                (self.library.ibv_query_gid)(self.context.as_ptr(), port, index, &raw mut gid)
            } == 0
            {
                gids.push((u8::try_from(index).unwrap_or(0), gid));
            }
        }
        let mapped = |gid: &[u8; 16]| gid[..10] == [0; 10] && gid[10..12] == [0xff; 2];
        // An address may be listed for RoCE 1 and then for RoCE 2: the last one is taken.
        let by_address = gids
            .iter()
            .rev()
            .find(|(_, gid)| self.about.ethernet && mapped(gid));
        let wanted = gid_index.map(|index| gids.iter().find(|(at, _)| *at == index));
        let gid = wanted.unwrap_or(by_address.or(gids.first()));
        let (index, gid) = gid.filter(|(_, gid)| *gid != [0; 16]).ok_or_else(|| {
            IbError::NoPort(format!(
                "port {port} of {name} has no such global id: has its interface an address?"
            ))
        })?;
        (self.gid_index, self.about.place.gid, self.about.place.lid) = (*index, *gid, attr.lid);
        Ok(())
    }

    /// Queues.
    fn set_up(&mut self, completions: usize) -> Result<(), IbError> {
        let (l, context) = (self.library, self.context.as_ptr());
        // SAFETY: the context is open; each object is made from those before it.
        unsafe {
            let pd = there("ibv_alloc_pd", (l.ibv_alloc_pd)(context))?;
            self.pd = Some(pd);
            let channel = there(
                "ibv_create_comp_channel",
                (l.ibv_create_comp_channel)(context),
            )?;
            self.channel = Some(channel);
            let fd = BorrowedFd::borrow_raw(channel.as_ref().fd);
            rustix::fs::fcntl_setfl(fd, rustix::fs::OFlags::NONBLOCK).map_err(|e| NicError {
                call: "fcntl",
                errno: e.raw_os_error(),
            })?;
            let room = completions
                .saturating_add(DATAGRAMS * 2)
                .min(self.about.max_completions.max(1));
            // From now on, what this queue has.
            self.about.max_completions = room.saturating_sub(DATAGRAMS * 2);
            let room = c_int::try_from(room).unwrap_or(c_int::MAX);
            let cq = (l.ibv_create_cq)(context, room, ptr::null_mut(), channel.as_ptr(), 0);
            self.cq = Some(there("ibv_create_cq", cq)?);
        }
        let memory = Memory::new(2 * DATAGRAMS * SLOT).ok_or(IbError::NoMemory)?;
        // SAFETY: the memory is kept until the device is closed.
        let key = unsafe { self.register(memory.address(), memory.length(), false) }?;
        (self.datagrams, self.datagrams_key) = (Some(memory), key.lkey);
        self.open_datagrams()
    }

    fn open_datagrams(&mut self) -> Result<(), IbError> {
        let depth = DATAGRAMS as u32;
        let qp = self.create_qp(QPT_UD, depth, depth, None, 0)?;
        self.ud = Some(qp);
        let mut seed = [0; 4];
        getrandom::fill(&mut seed).map_err(|_| IbError::NoRandom)?;
        // The highest bit is for the kernel's own queue pairs.
        let qkey = u32::from_ne_bytes(seed) & 0x7fff_ffff;
        let base = QpAttr {
            qkey,
            port_num: self.about.port,
            qp_state: QPS_INIT,
            ..QpAttr::default()
        };
        self.modify(
            qp,
            base,
            mask::STATE | mask::PKEY_INDEX | mask::PORT | mask::QKEY,
        )?;
        self.modify(
            qp,
            QpAttr {
                qp_state: QPS_RTR,
                ..base
            },
            mask::STATE,
        )?;
        self.modify(
            qp,
            QpAttr {
                qp_state: QPS_RTS,
                ..base
            },
            mask::STATE | mask::SQ_PSN,
        )?;
        for slot in 0..DATAGRAMS {
            self.receive_datagram(slot)?;
        }
        // SAFETY: alive.
        self.about.place.qpn = unsafe { qp.as_ref() }.qp_num;
        self.about.place.qkey = qkey;
        Ok(())
    }

    pub(super) fn receive_datagram(&mut self, slot: usize) -> Result<(), NicError> {
        let (Some(qp), Some(memory)) = (self.ud, &self.datagrams) else {
            return Ok(());
        };
        let address = (memory.address() + slot * SLOT) as u64;
        let sge = Sge {
            address,
            length: SLOT as u32,
            lkey: self.datagrams_key,
        };
        self.post_recv(qp, u64::from(DATAGRAM) << 32 | slot as u64, Some(sge))
    }

    pub(super) fn ops(&self) -> &super::ffi::Ops {
        // SAFETY: the context is open until this is dropped.
        unsafe { &(*self.context.as_ptr()).ops }
    }

    pub(super) fn create_qp(
        &self,
        kind: c_int,
        send: u32,
        recv: u32,
        srq: Option<NonNull<Srq>>,
        inline: usize,
    ) -> Result<NonNull<Qp>, NicError> {
        let (Some(pd), Some(cq)) = (self.pd, self.cq) else {
            return Err(NicError {
                call: "ibv_create_qp",
                errno: libc::EINVAL,
            });
        };
        let mut attr = QpInitAttr {
            qp_context: ptr::null_mut(),
            send_cq: cq.as_ptr(),
            recv_cq: cq.as_ptr(),
            srq: srq.map_or(ptr::null_mut(), NonNull::as_ptr),
            cap: QpCap {
                max_send_wr: send,
                max_recv_wr: recv,
                max_send_sge: PIECES as u32,
                max_recv_sge: 1,
                max_inline_data: inline as u32,
            },
            qp_type: kind,
            sq_sig_all: 0,
        };
        // SAFETY: all objects are alive.
        there("ibv_create_qp", unsafe {
            (self.library.ibv_create_qp)(pd.as_ptr(), &raw mut attr)
        })
    }

    pub(super) fn modify(
        &self,
        qp: NonNull<Qp>,
        mut attr: QpAttr,
        what: c_int,
    ) -> Result<(), NicError> {
        // SAFETY: alive.
        check("ibv_modify_qp", unsafe {
            (self.library.ibv_modify_qp)(qp.as_ptr(), &raw mut attr, what)
        })
    }

    pub(super) fn connection(&self, queue: Queue) -> Option<&Connection> {
        self.connections.get(queue.0 as usize)?.as_ref()
    }

    pub(super) fn post_recv(
        &self,
        qp: NonNull<Qp>,
        id: u64,
        sge: Option<Sge>,
    ) -> Result<(), NicError> {
        let mut sge = sge;
        let (list, count) = sge
            .as_mut()
            .map_or((ptr::null_mut(), 0), |sge| (ptr::from_mut(sge), 1));
        let mut wr = RecvWr {
            wr_id: id,
            next: ptr::null_mut(),
            sg_list: list,
            num_sge: count,
        };
        let mut bad = ptr::null_mut();
        let Some(post) = self.ops().post_recv else {
            return Err(NicError {
                call: "ibv_post_recv",
                errno: libc::ENOSYS,
            });
        };
        // SAFETY: alive; the request is copied by the call.
        check("ibv_post_recv", unsafe {
            post(qp.as_ptr(), &raw mut wr, &raw mut bad)
        })
    }

    pub(super) fn send(&self, qp: NonNull<Qp>, wr: &mut SendWr) -> Result<(), NicError> {
        let mut bad = ptr::null_mut();
        let Some(post) = self.ops().post_send else {
            return Err(NicError {
                call: "ibv_post_send",
                errno: libc::ENOSYS,
            });
        };
        // SAFETY: alive; the request is copied by the call.
        check("ibv_post_send", unsafe {
            post(qp.as_ptr(), wr, &raw mut bad)
        })
    }

    pub(super) fn address(&self, place: &Place) -> AhAttr {
        let half = |at: usize| {
            let mut eight = [0; 8];
            eight.copy_from_slice(&place.gid[at..at + 8]);
            u64::from_ne_bytes(eight)
        };
        // Within an InfiniBand subnet the local id is enough.
        let global = self.about.ethernet || place.lid == 0;
        AhAttr {
            dgid: [half(0), half(8)],
            sgid_index: self.gid_index,
            hop_limit: 64,
            dlid: place.lid,
            is_global: u8::from(global),
            port_num: self.about.port,
            ..AhAttr::default()
        }
    }

    pub(super) fn way(&mut self, to: &Place) -> Result<NonNull<Ah>, NicError> {
        let mut key = to.gid;
        key[0] ^= (to.lid >> 8) as u8;
        key[1] ^= to.lid as u8;
        if let Some(way) = self.ways.get(&key) {
            return Ok(*way);
        }
        let Some(pd) = self.pd else {
            return Err(NicError {
                call: "ibv_create_ah",
                errno: libc::EINVAL,
            });
        };
        let mut attr = self.address(to);
        // SAFETY: alive.
        let way = there("ibv_create_ah", unsafe {
            (self.library.ibv_create_ah)(pd.as_ptr(), &raw mut attr)
        })?;
        self.ways.insert(key, way);
        Ok(way)
    }
}

/// MB/s of a port, from the codes of its width and speed (InfiniBand specification, PortInfo).
fn bandwidth(width: u8, speed: u8) -> u32 {
    let lanes = match width {
        1 => 1,
        2 => 4,
        4 => 8,
        8 => 12,
        16 => 2,
        _ => return 0,
    };
    let lane = match speed {
        1 => 250,
        2 => 500,
        4 | 8 => 1200,
        16 => 1700,
        32 => 3000,
        64 => 6200,
        128 => 12_500,
        _ => return 0,
    };
    lanes * lane
}

impl Drop for Verbs {
    fn drop(&mut self) {
        let l = self.library;
        for queue in 0..self.connections.len() {
            self.close(Queue(u32::try_from(queue).unwrap_or(u32::MAX)));
        }
        // SAFETY: each is alive and ends once; what stands on it has ended before.
        unsafe {
            self.ud.take().map(|qp| (l.ibv_destroy_qp)(qp.as_ptr()));
            self.srq.take().map(|srq| (l.ibv_destroy_srq)(srq.as_ptr()));
            for (_, way) in self.ways.drain() {
                (l.ibv_destroy_ah)(way.as_ptr());
            }
            for (_, mr) in self.registered.drain() {
                (l.ibv_dereg_mr)(mr.as_ptr());
            }
            self.cq.take().map(|cq| (l.ibv_destroy_cq)(cq.as_ptr()));
            self.channel
                .take()
                .map(|channel| (l.ibv_destroy_comp_channel)(channel.as_ptr()));
            self.pd.take().map(|pd| (l.ibv_dealloc_pd)(pd.as_ptr()));
            (l.ibv_close_device)(self.context.as_ptr());
        }
    }
}

/// Returns the meaning of a status.
pub(crate) fn status_text(status: u32) -> String {
    let number = c_int::try_from(status).unwrap_or(c_int::MAX);
    let text = library().ok().map(|library| {
        // SAFETY: the library gives a constant string for every number.
        unsafe { CStr::from_ptr((library.ibv_wc_status_str)(number)) }
            .to_string_lossy()
            .into_owned()
    });
    text.unwrap_or_else(|| format!("status {status}"))
}

/// Active ports of this machine, in the order of the devices.
///
/// # Errors
/// There is no library, no device, or no active port.
pub fn ports() -> Result<Vec<(String, u8)>, IbError> {
    let mut refused = None;
    let each = each_device(|library, device| {
        let mut active = Vec::new();
        // SAFETY: the device is of the list; what is opened is closed below.
        unsafe {
            let name = CStr::from_ptr((*device).name.as_ptr())
                .to_string_lossy()
                .into_owned();
            let context = match there("ibv_open_device", (library.ibv_open_device)(device)) {
                Ok(context) => context.as_ptr(),
                Err(error) => {
                    refused = Some(error);
                    return None;
                }
            };
            for port in 1..=8 {
                let mut attr: PortAttr = std::mem::zeroed();
                if (library.ibv_query_port)(context, port, &raw mut attr) != 0 {
                    break;
                }
                if attr.state == PORT_ACTIVE {
                    active.push((name.clone(), port));
                }
            }
            (library.ibv_close_device)(context);
        }
        Some(active)
    })?;
    let all: Vec<_> = each.into_iter().flatten().collect();
    match refused {
        Some(error) if all.is_empty() => Err(IbError::Verbs(error)),
        _ if all.is_empty() => Err(IbError::NoPort(
            "there are devices, but no active port (`rdma link`)".into(),
        )),
        _ => Ok(all),
    }
}
