//! What C code may pass: null pointers, objects of another class, numbers that do not exist.

use std::ffi::c_void;
use std::ptr::{null, null_mut};
use std::sync::Arc;

use crate::core::{Bound, Core, Operation, Operations};
use crate::ffi::*;
use crate::object::{Head, Object};
use crate::progress::ProgressThread;
use crate::queue::{Counter, Entry, Queue, deadline};
use crate::transfer::{Incoming, UNTAGGED};
use crate::wakeups::Wakeups;
use crate::{domain, endpoint, fabric, info, memory, provider, queues, vector};

/// The table of an object's first set of calls, as C reads it: the size, then the functions.
fn call(object: *mut c_void, place: usize) -> *const c_void {
    let object = object.cast::<Object<1, ()>>();
    // SAFETY: every object of the provider begins so.
    unsafe {
        let table: *const *const c_void = (*object).head.fid.ops.cast();
        *table.add(1 + place)
    }
}

fn close(object: *mut c_void) -> i32 {
    // SAFETY: the first call of every object closes it.
    unsafe {
        let close: unsafe extern "C" fn(*mut c_void) -> i32 = std::mem::transmute(call(object, 0));
        close(object)
    }
}

#[test]
fn null_pointers_and_wrong_objects_are_refused() {
    let mut place = null_mut();
    let none = null_mut();
    // SAFETY: the calls check what they get.
    unsafe {
        let info = info::getinfo(0, null(), null(), 0, null(), null_mut());
        assert_eq!(info, -EINVAL);
        assert_eq!(fabric::open(null_mut(), null_mut(), none), -EINVAL);
        assert_eq!(
            domain::open(none, null_mut(), &raw mut place, none),
            -EINVAL
        );
        assert_eq!(
            endpoint::open(none, null_mut(), &raw mut place, none),
            -EINVAL
        );
        assert_eq!(
            queues::open_queue(none, null_mut(), &raw mut place, none),
            -EINVAL
        );
        assert_eq!(
            queues::open_counter(none, null_mut(), &raw mut place, none),
            -EINVAL
        );
        assert_eq!(
            vector::open(none, null_mut(), &raw mut place, none),
            -EINVAL
        );
    }
    // SAFETY: as above.
    assert_eq!(unsafe { fabric::open(null_mut(), &raw mut place, none) }, 0);
    let fabric = place;
    // SAFETY: as above.
    unsafe {
        assert_eq!(endpoint::endpoint(fabric).err(), Some(-EINVAL));
        assert_eq!(queues::queue(fabric).err(), Some(-EINVAL));
        assert_eq!(domain::domain(fabric).err(), Some(-EINVAL));
        assert!(fabric::check(fabric).is_ok());
    }
    assert_eq!(close(fabric), 0);
}

#[test]
fn the_heads_are_those_of_the_headers() {
    // struct fid: class, context, ops.
    assert_eq!(size_of::<Fid>(), 24);
    // struct fid_ep: fid and seven tables; fid_domain: two; fid_cq and others: one.
    assert_eq!(size_of::<Head<7>>(), 24 + 7 * 8);
    assert_eq!(size_of::<CqTagged>(), 48);
    assert_eq!(std::mem::offset_of!(CqError, err_data), 64);
    assert_eq!(std::mem::offset_of!(Info, fabric_attr), 104);
    assert_eq!(std::mem::offset_of!(DomainAttr, mr_mode), 36);
    assert_eq!(std::mem::offset_of!(EpAttr, mem_tag_format), 56);
    assert_eq!(std::mem::offset_of!(MsgTagged, data), 56);
    // SAFETY: static.
    let provider = unsafe { &*provider() };
    assert!(provider.fi_version >= version(1, 1));
}

#[test]
fn numbers_of_operations_are_not_mistaken_for_later_ones() {
    let mut all = Operations::default();
    let first = all.insert(Operation::new(1, FI_SEND, true)).unwrap();
    assert_eq!(all.take(first).unwrap().context, 1);
    let second = all.insert(Operation::new(2, FI_SEND, true)).unwrap();
    assert!(all.take(first).is_none() && all.get_mut(u64::MAX).is_none());
    assert_eq!(all.take(second).unwrap().context, 2);
}

#[test]
fn an_error_stops_reading_until_it_was_read() {
    let queue = Queue::default();
    let entry = |context, error| Entry {
        context,
        flags: 0,
        length: 0,
        buffer: 0,
        data: 0,
        tag: 0,
        source: 0,
        error,
        text: 0,
        excess: 0,
    };
    for (context, error) in [(1, 0), (2, EIO), (3, 0)] {
        queue.push(entry(context, error));
    }
    let mut read = Vec::new();
    assert_eq!(queue.read(9, |_, entry| read.push(entry.context)), Some(1));
    assert_eq!(queue.read(9, |_, _| ()), None);
    assert_eq!(queue.read_error().map(|entry| entry.context), Some(2));
    assert!(queue.read_error().is_none());
    assert_eq!(queue.read(9, |_, entry| read.push(entry.context)), Some(1));
    assert_eq!((read, queue.is_empty()), (vec![1, 3], true));
    assert!(!queue.wait(deadline(1)));
    let number = queue.keep_text("why\n");
    assert_eq!(
        queue
            .with_text(number, |text| text.clone())
            .unwrap()
            .as_c_str(),
        c"why "
    );
}

#[test]
fn names_are_padded_and_checked() {
    let name = vector::padded(&[1, 2, 3]);
    assert_eq!(name.len(), vector::NAME);
    assert!(vector::decode(&name).is_none() && vector::decode(&[0; vector::NAME]).is_none());
    assert!(vector::named("node1").is_none() && vector::named("esp://01").is_none());
}

/// Makes an endpoint without transports, which reaches only itself.
fn alone(bound: Bound) -> Arc<Core> {
    let endpoint = p2p::Endpoint::open(Vec::new(), 7, Arc::default(), &p2p::Config::default());
    let endpoint = endpoint.unwrap();
    let name = Vec::new();
    let core = Arc::new(Core::new(true, Arc::default()));
    let open = job::endpoint::OpenEndpoint { endpoint, name };
    core.enable(open, bound).unwrap();
    core
}

/// Starts to receive one message into `room`, which outlives the receive.
fn receive_into(core: &Core, room: &mut [u8], flags: u64) {
    let parts = [libc::iovec {
        iov_base: room.as_mut_ptr().cast(),
        iov_len: room.len(),
    }];
    let receive = Incoming {
        parts: &parts,
        from: FI_ADDR_UNSPEC,
        space: UNTAGGED,
        tag: 0,
        ignore: u64::MAX,
        context: 3,
        flags,
    };
    assert_eq!(core.receive(&receive), Ok(0));
}

fn send_to_itself(core: &Core, body: &'static [u8]) {
    let target = p2p::Target {
        peer: 0,
        context: UNTAGGED,
        tag: 0,
        data: None,
        sync: false,
    };
    let layer = core.layer().unwrap();
    // SAFETY: static.
    unsafe { layer.send(body.as_ptr(), body.len(), &target, u64::MAX) }.unwrap();
}

#[test]
fn a_thread_that_waits_for_a_counter_counts_by_itself() {
    let counter = Arc::new(Counter::default());
    let core = alone(Bound {
        counters: vec![(Arc::clone(&counter), FI_RECV)],
        ..Bound::default()
    });
    counter.sources.add(&core);
    let mut room = [0; 8];
    receive_into(&core, &mut room, 0);
    send_to_itself(&core, b"body");
    assert!(counter.wait(1, deadline(10_000)));
    assert_eq!(&room[..4], b"body");
    core.layer().unwrap().close().unwrap();
}

#[test]
fn an_endpoint_without_addresses_is_not_enabled() {
    let (mut fabric, mut domain, mut endpoint) = (null_mut(), null_mut(), null_mut());
    let none = null_mut();
    // SAFETY: zeros are valid for all fields, and the objects are open.
    unsafe {
        let mut info: Info = std::mem::zeroed();
        let info = &raw mut info;
        assert_eq!(fabric::open(null_mut(), &raw mut fabric, none), 0);
        assert_eq!(domain::open(fabric, info, &raw mut domain, none), 0);
        assert_eq!(endpoint::open(domain, info, &raw mut endpoint, none), 0);
        let control: unsafe extern "C" fn(*mut c_void, i32, *mut c_void) -> i32 =
            std::mem::transmute(call(endpoint, 2));
        for _ in 0..2 {
            assert_eq!(control(endpoint, FI_ENABLE, none), -FI_ENOAV);
        }
    }
    assert_eq!(close(endpoint), 0);
    assert_eq!((close(domain), close(fabric)), (0, 0));
}

#[test]
fn dead_endpoints_do_not_count_as_sources() {
    let queue = Arc::new(Queue::default());
    let bound = || Bound {
        rx: Some(Arc::clone(&queue)),
        ..Bound::default()
    };
    let (dead, core) = (alone(bound()), alone(bound()));
    queue.sources.add(&dead);
    queue.sources.add(&core);
    drop(dead);
    let mut room = [0; 64];
    receive_into(&core, &mut room, FI_MULTI_RECV);
    send_to_itself(&core, b"body");
    assert!(queue.wait(deadline(10_000)));
    let mut read = Vec::new();
    queue.read(9, |_, entry| read.push((entry.flags, entry.length)));
    // Less than the least room is left.
    assert_eq!(read, [(FI_RECV | FI_MSG | FI_MULTI_RECV, 4)]);
    core.layer().unwrap().close().unwrap();
}

/// A name of the endpoint that [`alone`] makes.
fn own_name() -> vector::Name {
    let mut name = vec![2];
    name.extend(7u64.to_le_bytes());
    name.extend([16 | 1, 1, 0, 255, 0, 4, 127, 0, 0, 1, 1, 0, 0, 2]);
    vector::padded(&name)
}

/// An object of an endpoint that reaches only itself, by address 0, with a queue, and its domain.
struct Own {
    endpoint: *mut c_void,
    queue: *mut c_void,
    domain: *mut c_void,
    fabric: *mut c_void,
}

/// A call of an object's table of calls, as C makes it.
macro_rules! call {
    ($object:expr, $table:expr, $place:expr, ($($t:ty),*) -> $r:ty, $($argument:expr),*) => {{
        let object = $object.cast::<Object<7, ()>>();
        // SAFETY: the object has this table, and the call these arguments.
        unsafe {
            let table: *const *const c_void = (*object).head.tables[$table].cast();
            let at = *table.add(1 + $place);
            let f: unsafe extern "C" fn(*mut c_void, $($t),*) -> $r = std::mem::transmute(at);
            f($object, $($argument),*)
        }
    }};
}

impl Own {
    fn open(mode: i32) -> Own {
        let (mut fabric, mut domain, mut queue, mut endpoint) =
            (null_mut(), null_mut(), null_mut(), null_mut());
        let none = null_mut();
        // SAFETY: zeros are valid for all fields, and the objects are open.
        unsafe {
            let mut info: Info = std::mem::zeroed();
            let mut attr: DomainAttr = std::mem::zeroed();
            attr.mr_mode = mode;
            info.domain_attr = &raw mut attr;
            let info = &raw mut info;
            let mut cq: CqAttr = std::mem::zeroed();
            cq.format = 4;
            assert_eq!(fabric::open(null_mut(), &raw mut fabric, none), 0);
            assert_eq!(domain::open(fabric, info, &raw mut domain, none), 0);
            assert_eq!(
                queues::open_queue(domain, &raw mut cq, &raw mut queue, none),
                0
            );
            assert_eq!(endpoint::open(domain, info, &raw mut endpoint, none), 0);
            let found = endpoint::endpoint(endpoint).unwrap();
            let own = queues::queue(queue).unwrap();
            own.queue.sources.add(&found.core);
            let exposed = Arc::clone(&found.core.regions.exposed);
            let config = p2p::Config::default();
            let layer = p2p::Endpoint::open(Vec::new(), 7, exposed, &config).unwrap();
            let open = job::endpoint::OpenEndpoint {
                endpoint: layer,
                name: Vec::new(),
            };
            let bound = Bound {
                tx: Some(Arc::clone(&own.queue)),
                rx: Some(Arc::clone(&own.queue)),
                ..Bound::default()
            };
            found.core.enable(open, bound).unwrap();
            found.core.learn(0, &own_name());
            assert_eq!(found.core.peer(0), Ok(0));
        }
        Own {
            endpoint,
            queue,
            domain,
            fabric,
        }
    }

    /// Registers memory. Returns the object and its key.
    fn register(&self, memory: &mut [u64], access: u64, key: u64) -> (*mut c_void, u64) {
        let mut place = null_mut();
        let at = memory.as_mut_ptr().cast();
        let length = size_of_val(memory);
        // SAFETY: the tests keep the memory until they close the object.
        unsafe {
            let domain = self.domain;
            let none = null_mut();
            let done =
                memory::register(domain, at, length, access, 0, key, 0, &raw mut place, none);
            assert_eq!(done, 0);
            // struct fid_mr: fid, descriptor, key.
            (place, *place.cast::<u64>().add(4))
        }
    }

    fn write(&self, from: &[u64], address: u64, key: u64) -> isize {
        let (at, length) = (from.as_ptr().cast::<c_void>(), size_of_val(from));
        let none = null_mut::<c_void>();
        call!(self.endpoint, 3, 3,
            (*const c_void, usize, *mut c_void, u64, u64, u64, *mut c_void) -> isize,
            at, length, none, 0, address, key, none)
    }

    fn read(&self, into: &mut [u64], address: u64, key: u64) -> isize {
        let (at, length) = (into.as_mut_ptr().cast::<c_void>(), size_of_val(into));
        let none = null_mut::<c_void>();
        call!(self.endpoint, 3, 0,
            (*mut c_void, usize, *mut c_void, u64, u64, u64, *mut c_void) -> isize,
            at, length, none, 0, address, key, none)
    }

    /// Returns the flags of the next completion, or its error.
    fn completion(&self) -> Result<u64, i32> {
        // SAFETY: an open queue.
        let queue = unsafe { queues::queue(self.queue) }.unwrap();
        assert!(queue.queue.wait(deadline(10_000)));
        let mut flags = 0;
        match queue.queue.read(1, |_, entry| flags = entry.flags) {
            Some(_) => Ok(flags),
            None => Err(queue.queue.read_error().unwrap().error),
        }
    }

    fn close(self) {
        for object in [self.endpoint, self.queue, self.domain, self.fabric] {
            assert_eq!(close(object), 0);
        }
    }
}

#[test]
fn registrations_are_checked_at_every_access() {
    for mode in [FI_MR_SCALABLE, FI_MR_BASIC] {
        let own = Own::open(mode);
        let mut memory = [1u64, 2, 3, 4];
        let both = FI_REMOTE_READ | FI_REMOTE_WRITE;
        let (region, key) = own.register(&mut memory, both, 77);
        assert_eq!(key == 77, mode == FI_MR_SCALABLE);
        let base = if mode == FI_MR_BASIC {
            memory.as_ptr() as u64
        } else {
            0
        };
        assert_eq!(own.write(&[9, 8], base + 8, key), 0);
        assert_eq!(own.completion(), Ok(FI_RMA | FI_WRITE));
        let mut got = [0; 4];
        assert_eq!(own.read(&mut got, base, key), 0);
        assert_eq!(own.completion(), Ok(FI_RMA | FI_READ));
        assert_eq!(got, [1, 9, 8, 4]);
        for (address, key, error) in [
            (base + 24, key, EINVAL),
            (base.wrapping_sub(8), key, EINVAL),
            (base, key + 1, EACCES),
        ] {
            assert_eq!(own.write(&[5, 5], address, key), 0);
            assert_eq!(own.completion(), Err(error));
            assert_eq!(own.read(&mut got, address, key), 0);
            assert_eq!(own.completion(), Err(error));
        }
        assert_eq!(close(region), 0);
        assert_eq!(own.write(&[5, 5], base, key), 0);
        assert_eq!(own.completion(), Err(EACCES));
        let (region, key) = own.register(&mut memory, FI_REMOTE_READ, 78);
        assert_eq!(own.write(&[5], base, key), 0);
        assert_eq!(own.completion(), Err(EACCES));
        assert_eq!(close(region), 0);
        assert_eq!((memory, got), ([1, 9, 8, 4], [1, 9, 8, 4]));
        own.close();
    }
}

#[test]
fn atomic_calls_return_the_old_values() {
    let own = Own::open(0);
    let mut memory = [40u64, 50];
    let both = FI_REMOTE_READ | FI_REMOTE_WRITE;
    let (region, key) = own.register(&mut memory, both, 5);
    let (sum, swap, u64s, none) = (2, 12, 7, null_mut::<c_void>());
    let (operands, comparands, mut old) = ([2u64, 3], [42u64, 0], [0u64; 2]);
    let at = |values: &[u64]| values.as_ptr().cast::<c_void>();
    let old_at = old.as_mut_ptr().cast::<c_void>();
    let done = call!(own.endpoint, 5, 4,
        (*const c_void, usize, *mut c_void, *mut c_void, *mut c_void, u64, u64, u64, i32, i32,
            *mut c_void) -> isize,
        at(&operands), 2, none, old_at, none, 0, 0, key, u64s, sum, none);
    assert_eq!((done, own.completion()), (0, Ok(FI_ATOMIC | FI_READ)));
    assert_eq!((memory, old), ([42, 53], [40, 50]));
    let old_at = old.as_mut_ptr().cast::<c_void>();
    let done = call!(own.endpoint, 5, 7,
        (*const c_void, usize, *mut c_void, *const c_void, *mut c_void, *mut c_void, *mut c_void,
            u64, u64, u64, i32, i32, *mut c_void) -> isize,
        at(&operands), 2, none, at(&comparands), none, old_at, none, 0, 0, key, u64s, swap, none);
    assert_eq!((done, own.completion()), (0, Ok(FI_ATOMIC | FI_READ)));
    assert_eq!((memory, old), ([2, 53], [42, 53]));
    // A plain call has no comparing operation, and no type has this number.
    for (datatype, op) in [(u64s, swap), (99, sum), (u64s, -1)] {
        let done = call!(own.endpoint, 5, 0,
            (*const c_void, usize, *mut c_void, u64, u64, u64, i32, i32, *mut c_void) -> isize,
            at(&operands), 1, none, 0, 0, key, datatype, op, none);
        assert_eq!(done, -(EOPNOTSUPP as isize));
    }
    let mut count = 0;
    let valid =
        call!(own.endpoint, 5, 10, (i32, i32, *mut usize) -> i32, u64s, sum, &raw mut count);
    assert_eq!((valid, count), (0, p2p::MAX_ATOMIC / 8));
    assert_eq!(close(region), 0);
    own.close();
}

#[test]
fn tagged_messages_take_no_multi_receive_buffers() {
    let core = alone(Bound::default());
    let mut room = [0u8; 8];
    let parts = [libc::iovec {
        iov_base: room.as_mut_ptr().cast(),
        iov_len: room.len(),
    }];
    let receive = Incoming {
        parts: &parts,
        from: FI_ADDR_UNSPEC,
        space: crate::transfer::TAGGED,
        tag: 0,
        ignore: 0,
        context: 0,
        flags: FI_MULTI_RECV,
    };
    assert_eq!(core.receive(&receive), Err(-EINVAL));
    core.layer().unwrap().close().unwrap();
}

/// Returns true if a descriptor becomes readable in this time.
fn is_readable(fd: i32, milliseconds: i32) -> bool {
    let mut list = libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one entry.
    unsafe { libc::poll(&raw mut list, 1, milliseconds) == 1 }
}

#[test]
fn a_queue_with_a_descriptor_wakes_its_program() {
    let queue = Arc::new(Queue::with_wakeups(Wakeups::new().unwrap()));
    let core = alone(Bound {
        rx: Some(Arc::clone(&queue)),
        ..Bound::default()
    });
    queue.sources.add(&core);
    let mut room = [0; 8];
    receive_into(&core, &mut room, 0);
    assert!(queue.prepare_sleep());
    let fd = queue.wakeups.as_ref().unwrap().fd();
    assert!(!is_readable(fd, 0));
    // Another thread makes the progress that the program would have made.
    std::thread::scope(|scope| {
        scope.spawn(|| {
            send_to_itself(&core, b"body");
            core.progress();
        });
        assert!(is_readable(fd, 10_000));
    });
    assert!(!queue.prepare_sleep() && !queue.is_empty());
    assert_eq!(queue.read(1, |_, _| ()), Some(1));
    assert!(queue.prepare_sleep());
    queue.signal();
    assert!(is_readable(fd, 10_000) && !queue.prepare_sleep());
    core.layer().unwrap().close().unwrap();
}

#[test]
fn a_progress_thread_needs_no_calls() {
    let counter = Arc::new(Counter::default());
    let core = alone(Bound {
        counters: vec![(Arc::clone(&counter), FI_RECV)],
        ..Bound::default()
    });
    let thread = ProgressThread::start(&core).unwrap();
    let mut room = [0; 8];
    for count in 1..=3 {
        send_to_itself(&core, b"body");
        receive_into(&core, &mut room, 0);
        let until = deadline(10_000).unwrap();
        while counter.value.load(std::sync::atomic::Ordering::SeqCst) != count {
            assert!(std::time::Instant::now() < until);
            std::thread::yield_now();
        }
    }
    drop(thread);
    core.layer().unwrap().close().unwrap();
}

#[test]
fn a_claimed_message_is_put_back_after_an_error() {
    let queue = Arc::new(Queue::default());
    let core = alone(Bound {
        rx: Some(Arc::clone(&queue)),
        ..Bound::default()
    });
    send_to_itself(&core, b"body");
    core.progress();
    let mut room = [0u8; 8];
    let start = room.as_mut_ptr();
    let part = |length| libc::iovec {
        iov_base: start.cast(),
        iov_len: length,
    };
    let (fits, too_long) = ([part(8)], [part(usize::MAX), part(8)]);
    let claim = |parts, flags| {
        core.receive(&Incoming {
            parts,
            from: FI_ADDR_UNSPEC,
            space: UNTAGGED,
            tag: 0,
            ignore: u64::MAX,
            context: 3,
            flags,
        })
    };
    assert_eq!(claim(&[], FI_PEEK | FI_CLAIM), Ok(0));
    assert_eq!(claim(&too_long, FI_CLAIM), Err(-EMSGSIZE));
    assert_eq!(claim(&fits, FI_CLAIM), Ok(0));
    assert_eq!(claim(&fits, FI_CLAIM), Err(-EINVAL));
    core.progress();
    let mut lengths = Vec::new();
    queue.read(9, |_, entry| lengths.push(entry.length));
    assert_eq!((lengths, &room[..4]), (vec![4, 4], &b"body"[..]));
    core.layer().unwrap().close().unwrap();
}

#[test]
fn two_names_of_a_peer_are_one_source() {
    let core = alone(Bound::default());
    let mut other = own_name();
    // The port of its listener.
    other[10] = 2;
    core.learn(4, &own_name());
    core.learn(6, &other);
    assert_eq!((core.peer(4), core.peer(6)), (Ok(0), Ok(0)));
    assert_eq!(core.address(0), 4);
    core.forget(4);
    assert_eq!((core.peer(4), core.address(0)), (Err(-EINVAL), 6));
    core.forget(6);
    assert_eq!(core.address(0), FI_ADDR_UNSPEC);
    core.layer().unwrap().close().unwrap();
}

#[test]
fn old_programs_have_no_size_of_error_data() {
    for (api, written) in [(version(1, 4), false), (version(1, 5), true)] {
        let (mut fabric, mut domain, mut queue) = (null_mut(), null_mut(), null_mut());
        let none = null_mut();
        // SAFETY: zeros are valid for all fields, and the objects are open.
        unsafe {
            let mut info: Info = std::mem::zeroed();
            let mut attr: FabricAttr = std::mem::zeroed();
            attr.api_version = api;
            let mut cq: CqAttr = std::mem::zeroed();
            assert_eq!(fabric::open(&raw mut attr, &raw mut fabric, none), 0);
            assert_eq!(
                domain::open(fabric, &raw mut info, &raw mut domain, none),
                0
            );
            assert_eq!(
                queues::open_queue(domain, &raw mut cq, &raw mut queue, none),
                0
            );
            let failed = Entry {
                error: EIO,
                ..Entry::EMPTY
            };
            queues::queue(queue).unwrap().queue.push(failed);
            let mut error: CqError = std::mem::zeroed();
            error.err_data_size = 77;
            let at = (&raw mut error).cast::<c_void>();
            assert_eq!(queues::read_error(queue, at.cast(), 0), 1);
            assert_eq!(error.err, EIO);
            assert_eq!(error.err_data_size, if written { 0 } else { 77 });
        }
        for object in [queue, domain, fabric] {
            assert_eq!(close(object), 0);
        }
    }
}
