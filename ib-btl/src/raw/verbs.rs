//! A port over libibverbs: opening, limits, objects. The data path is in `post.rs`.

use std::collections::HashMap;
use std::ffi::{CStr, c_int};
use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};

use super::ffi::{
    Ah, AhAttr, CompChannel, Context, Cq, DeviceAttr, LINK_LAYER_ETHERNET, Mr, PORT_ACTIVE, Pd,
    PortAttr, QPS_INIT, QPS_RTR, QPS_RTS, QPT_UD, Qp, QpAttr, QpCap, QpInitAttr, Srq, Wc, mask,
};
use super::library::{Library, library};
use super::memory::Memory;
use crate::error::IbError;
use crate::nic::{About, NicError, Place};

/// High half of the ids of work requests for datagrams and for the shared receive queue.
pub(super) const DATAGRAM: u32 = u32::MAX;
pub(super) const SHARED: u32 = u32::MAX - 1;
/// Maximum number of datagrams waiting to be received; peers repeat lost ones.
pub(super) const DATAGRAMS: usize = 128;
/// Maximum number of reads in flight on a connection, in each direction.
const READS: c_int = 8;
/// Length of the header before every received datagram.
pub(super) const GRH: usize = 40;
pub(super) const SLOT: usize = 256;
/// Maximum number of completions taken by one call to `poll`.
pub(super) const BATCH: usize = 32;
/// Maximum number of inline bytes of a work request, if the device supports them.
pub(super) const INLINE: usize = 188;
/// Maximum number of memory pieces of a work request.
pub(super) const PIECES: usize = 8;

/// Converts the result of a call that returns an error number.
pub(super) fn check(call: &'static str, result: c_int) -> Result<(), NicError> {
    match result {
        0 => Ok(()),
        errno => Err(NicError::new(call, errno.abs())),
    }
}

/// An object of libibverbs, destroyed on drop.
pub(super) struct Object<T> {
    at: NonNull<T>,
    end: unsafe extern "C" fn(*mut T) -> c_int,
}

impl<T> Object<T> {
    /// Wraps the result of a call that returns an object, or NULL and sets errno.
    ///
    /// # Safety
    /// Unless it is null, `object` must be valid and owned by the caller until `end` is called for
    /// it.
    pub(super) unsafe fn new(
        call: &'static str,
        object: *mut T,
        end: unsafe extern "C" fn(*mut T) -> c_int,
    ) -> Result<Object<T>, NicError> {
        let errno = || io::Error::last_os_error().raw_os_error().unwrap_or(0);
        let at = NonNull::new(object).ok_or_else(|| NicError::new(call, errno()))?;
        Ok(Object { at, end })
    }

    pub(super) fn ptr(&self) -> *mut T {
        self.at.as_ptr()
    }

    pub(super) fn get(&self) -> &T {
        // SAFETY: valid until this is dropped.
        unsafe { self.at.as_ref() }
    }
}

impl<T> Drop for Object<T> {
    fn drop(&mut self) {
        // SAFETY: the object is alive and destroyed once; objects that depend on it have ended
        // before.
        unsafe { (self.end)(self.ptr()) };
    }
}

/// Opens and inspects each device in turn, or only the one named `only`.
fn each_device<T>(
    only: Option<&str>,
    mut inspect: impl FnMut(&'static Library, &str, Result<Object<Context>, NicError>) -> Option<T>,
) -> Result<Vec<T>, IbError> {
    let library = library().map_err(|why| IbError::NoLibrary(why.into()))?;
    let mut count = 0;
    // SAFETY: as documented.
    let list = unsafe { (library.ibv_get_device_list)(&raw mut count) };
    if list.is_null() {
        let errno = io::Error::last_os_error().raw_os_error();
        // The library is present, but the kernel has no RDMA.
        return Err(match errno {
            Some(libc::ENOSYS | libc::ENOENT | 0) | None => IbError::NoDevices,
            Some(errno) => NicError::new("ibv_get_device_list", errno).into(),
        });
    }
    let mut found = Vec::new();
    for index in 0..usize::try_from(count).unwrap_or(0) {
        // SAFETY: the list has this many entries; the names are strings.
        let (device, name) = unsafe {
            let device = *list.add(index);
            (device, CStr::from_ptr((*device).name.as_ptr()))
        };
        let name = name.to_string_lossy();
        if only.is_none_or(|only| name == only) {
            // SAFETY: the device is in the list.
            let context = unsafe {
                let context = (library.ibv_open_device)(device);
                Object::new("ibv_open_device", context, library.ibv_close_device)
            };
            found.extend(inspect(library, &name, context));
        }
    }
    // SAFETY: returned above; opened devices stay valid.
    unsafe { (library.ibv_free_device_list)(list) };
    if count == 0 {
        Err(IbError::NoDevices)
    } else {
        Ok(found)
    }
}

fn query_port(
    library: &Library,
    context: &Object<Context>,
    port: u8,
) -> Result<PortAttr, NicError> {
    // SAFETY: plain numbers, for which zeros are a value; the context is open.
    unsafe {
        let mut attr: PortAttr = std::mem::zeroed();
        let result = (library.ibv_query_port)(context.ptr(), port, &raw mut attr);
        check("ibv_query_port", result).map(|()| attr)
    }
}

fn query_device(library: &Library, context: &Object<Context>) -> Result<DeviceAttr, NicError> {
    // SAFETY: plain numbers, for which zeros are a value; the context is open.
    unsafe {
        let mut device: DeviceAttr = std::mem::zeroed();
        let result = (library.ibv_query_device)(context.ptr(), &raw mut device);
        check("ibv_query_device", result).map(|()| device)
    }
}

pub(super) struct Connection {
    pub(super) qp: Object<Qp>,
    pub(super) number: u32,
}

/// An open port. Fields are dropped in this order, each before those it depends on.
pub(crate) struct Verbs {
    /// Connections by [`Queue`](crate::nic::Queue).
    pub(super) connections: Vec<Option<Connection>>,
    pub(super) ud: Object<Qp>,
    pub(super) srq: Option<Object<Srq>>,
    pub(super) address_handles: HashMap<[u8; 16], Object<Ah>>,
    pub(super) registered: HashMap<u64, Object<Mr>>,
    pub(super) cq: Object<Cq>,
    pub(super) channel: Object<CompChannel>,
    pub(super) pd: Object<Pd>,
    pub(super) context: Object<Context>,
    /// Buffers of received datagrams, then those of datagrams to send.
    pub(super) datagrams: Memory,
    pub(super) datagrams_key: u32,
    pub(super) library: &'static Library,
    pub(super) about: About,
    pub(super) gid_index: u8,
    /// Maximum number of reads in flight on a connection: the peer's, and this process's.
    pub(super) reads: [u8; 2],
    /// Connections by the number of the queue pair, for arrivals in the shared queue.
    pub(super) numbers: HashMap<u32, u32>,
    pub(super) next_mr: u64,
    pub(super) sent: usize,
    pub(super) wc: [Wc; BATCH],
}

// SAFETY: libibverbs may be called from any thread, and one thread at a time uses this value.
unsafe impl Send for Verbs {}

impl fmt::Debug for Verbs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Verbs")
            .field("about", &self.about)
            .finish_non_exhaustive()
    }
}

impl Verbs {
    /// Opens a port with room for `completions` completions.
    pub(crate) fn open(name: &str, port: u8, completions: usize) -> Result<Verbs, IbError> {
        let opened = each_device(Some(name), |library, _, context| Some((library, context)))?;
        let (l, context) = opened
            .into_iter()
            .next()
            .ok_or_else(|| IbError::NoPort(format!("no device {name}")))?;
        let context = context?;
        let no_port = |why: String| IbError::NoPort(format!("port {port} of {name} {why}"));
        let attr = query_port(l, &context, port)?;
        if attr.state != PORT_ACTIVE {
            return Err(no_port(format!("is not active (state {})", attr.state)));
        }
        let device = query_device(l, &context)?;
        let (gid_index, gid) = gid(l, &context, port, &attr).ok_or_else(|| {
            no_port("has no usable GID: does its network interface have an IP address?".into())
        })?;
        let max = usize::try_from(device.max_cqe).unwrap_or(0).max(1);
        let room = completions.saturating_add(DATAGRAMS * 2).min(max);
        let mut qkey = [0; 4];
        getrandom::fill(&mut qkey).map_err(|_| IbError::NoRandom)?;
        let about = About {
            device: name.into(),
            port,
            ethernet: attr.link_layer == LINK_LAYER_ETHERNET,
            place: Place {
                gid,
                lid: attr.lid,
                qpn: 0,
                // The highest bit is for the kernel's own queue pairs.
                qkey: u32::from_ne_bytes(qkey) & 0x7fff_ffff,
            },
            mtu: u8::try_from(attr.active_mtu).unwrap_or(1).clamp(1, 5),
            bandwidth: bandwidth(attr.active_width, attr.active_speed),
            max_completions: room.saturating_sub(DATAGRAMS * 2),
            inline: 0,
        };
        let memory = Memory::new(2 * DATAGRAMS * SLOT).ok_or(IbError::NoMemory)?;
        // SAFETY: the context is open.
        let pd = unsafe {
            let pd = (l.ibv_alloc_pd)(context.ptr());
            Object::new("ibv_alloc_pd", pd, l.ibv_dealloc_pd)
        }?;
        let (channel, cq) = create_cq(l, &context, room)?;
        let depth = DATAGRAMS as u32;
        let ud = create_qp(l, (&pd, &cq, None), QPT_UD, (depth, depth), 0)?;
        // Limits of the device on concurrent reads, as responder and as initiator.
        let reads = [device.max_qp_rd_atom, device.max_qp_init_rd_atom]
            .map(|max| u8::try_from(max.clamp(0, READS)).unwrap_or(0));
        let mut verbs = Verbs {
            connections: Vec::new(),
            ud,
            srq: None,
            address_handles: HashMap::new(),
            registered: HashMap::new(),
            cq,
            channel,
            pd,
            context,
            datagrams: memory,
            datagrams_key: 0,
            library: l,
            about,
            gid_index,
            reads,
            numbers: HashMap::new(),
            next_mr: 0,
            sent: 0,
            wc: [Wc::default(); BATCH],
        };
        verbs.open_datagrams()?;
        Ok(verbs)
    }

    fn open_datagrams(&mut self) -> Result<(), NicError> {
        let (address, length) = (self.datagrams.address(), self.datagrams.length());
        // SAFETY: the memory is kept until the registration has ended.
        let keys = unsafe { crate::nic::Nic::register(self, address, length, false) }?;
        self.datagrams_key = keys.lkey;
        let mut attr = QpAttr {
            qkey: self.about.place.qkey,
            port_num: self.about.port,
            ..QpAttr::default()
        };
        let init = mask::PKEY_INDEX | mask::PORT | mask::QKEY;
        for (state, what) in [(QPS_INIT, init), (QPS_RTR, 0), (QPS_RTS, mask::SQ_PSN)] {
            attr.qp_state = state;
            self.modify(&self.ud, attr, mask::STATE | what)?;
        }
        for slot in 0..DATAGRAMS {
            self.receive_datagram(slot)?;
        }
        self.about.place.qpn = self.ud.get().qp_num;
        Ok(())
    }

    pub(super) fn ops(&self) -> &super::ffi::Ops {
        &self.context.get().ops
    }

    pub(super) fn modify(
        &self,
        qp: &Object<Qp>,
        mut attr: QpAttr,
        what: c_int,
    ) -> Result<(), NicError> {
        // SAFETY: alive.
        check("ibv_modify_qp", unsafe {
            (self.library.ibv_modify_qp)(qp.ptr(), &raw mut attr, what)
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

    /// Returns the address handle of a port.
    pub(super) fn address_handle(&mut self, to: &Place) -> Result<*mut Ah, NicError> {
        let mut key = to.gid;
        key[0] ^= (to.lid >> 8) as u8;
        key[1] ^= to.lid as u8;
        if let Some(handle) = self.address_handles.get(&key) {
            return Ok(handle.ptr());
        }
        let mut attr = self.address(to);
        let l = self.library;
        // SAFETY: alive.
        let handle = unsafe {
            let handle = (l.ibv_create_ah)(self.pd.ptr(), &raw mut attr);
            Object::new("ibv_create_ah", handle, l.ibv_destroy_ah)
        }?;
        let at = handle.ptr();
        self.address_handles.insert(key, handle);
        Ok(at)
    }
}

/// Creates a completion queue with this room, and its channel, whose descriptor does not block.
fn create_cq(
    library: &Library,
    context: &Object<Context>,
    room: usize,
) -> Result<(Object<CompChannel>, Object<Cq>), NicError> {
    let room = c_int::try_from(room).unwrap_or(c_int::MAX);
    // SAFETY: the context is open, and the channel belongs to it.
    unsafe {
        let channel = (library.ibv_create_comp_channel)(context.ptr());
        let end = library.ibv_destroy_comp_channel;
        let channel = Object::new("ibv_create_comp_channel", channel, end)?;
        let fd = BorrowedFd::borrow_raw(channel.get().fd);
        rustix::fs::fcntl_setfl(fd, rustix::fs::OFlags::NONBLOCK)
            .map_err(|e| NicError::new("fcntl", e.raw_os_error()))?;
        let cq = (library.ibv_create_cq)(context.ptr(), room, ptr::null_mut(), channel.ptr(), 0);
        let cq = Object::new("ibv_create_cq", cq, library.ibv_destroy_cq)?;
        Ok((channel, cq))
    }
}

/// Creates a queue pair with these numbers of requests and receives.
pub(super) fn create_qp(
    library: &Library,
    (pd, cq, srq): (&Object<Pd>, &Object<Cq>, Option<&Object<Srq>>),
    kind: c_int,
    (send, recv): (u32, u32),
    inline: usize,
) -> Result<Object<Qp>, NicError> {
    let mut attr = QpInitAttr {
        qp_context: ptr::null_mut(),
        send_cq: cq.ptr(),
        recv_cq: cq.ptr(),
        srq: srq.map_or(ptr::null_mut(), Object::ptr),
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
    unsafe {
        let qp = (library.ibv_create_qp)(pd.ptr(), &raw mut attr);
        Object::new("ibv_create_qp", qp, library.ibv_destroy_qp)
    }
}

/// Returns index and value of the global id to use. RoCE: the last entry with an IPv4 address,
/// which routers need (an address may be listed for RoCE 1 and then for RoCE 2); InfiniBand: the
/// first entry.
fn gid(
    library: &Library,
    context: &Object<Context>,
    port: u8,
    attr: &PortAttr,
) -> Option<(u8, [u8; 16])> {
    let mut gids = Vec::new();
    for index in 0..attr.gid_tbl_len.clamp(0, 32) {
        let mut gid = [0; 16];
        // SAFETY: the context is open; room for 16 bytes.
        let result = unsafe { (library.ibv_query_gid)(context.ptr(), port, index, &raw mut gid) };
        if result == 0 {
            gids.push((u8::try_from(index).unwrap_or(0), gid));
        }
    }
    let ethernet = attr.link_layer == LINK_LAYER_ETHERNET;
    let mapped = |gid: &[u8; 16]| gid[..10] == [0; 10] && gid[10..12] == [0xff; 2];
    let by_address = gids.iter().rev().find(|(_, gid)| ethernet && mapped(gid));
    let found = *by_address.or(gids.first())?;
    (found.1 != [0; 16]).then_some(found)
}

/// Returns the bandwidth of a port in MB/s, from the codes of its width and speed (InfiniBand
/// specification, PortInfo).
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

/// Returns the meaning of a status.
pub(crate) fn status_text(status: u32) -> String {
    let number = c_int::try_from(status).unwrap_or(c_int::MAX);
    let text = library().ok().map(|library| {
        // SAFETY: the library returns a constant string for every number.
        unsafe { CStr::from_ptr((library.ibv_wc_status_str)(number)) }
            .to_string_lossy()
            .into_owned()
    });
    text.unwrap_or_else(|| format!("status {status}"))
}

/// Returns the active ports of this machine, in the order of the devices.
///
/// # Errors
/// There is no library, no device, or no active port.
pub fn ports() -> Result<Vec<(String, u8)>, IbError> {
    let mut refused = None;
    let each = each_device(None, |library, name, context| {
        let context = context.map_err(|error| refused = Some(error)).ok()?;
        let ports =
            (1..=8).map_while(|port| Some((port, query_port(library, &context, port).ok()?)));
        let active = ports.filter(|(_, attr)| attr.state == PORT_ACTIVE);
        Some(
            active
                .map(|(port, _)| (name.to_owned(), port))
                .collect::<Vec<_>>(),
        )
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
