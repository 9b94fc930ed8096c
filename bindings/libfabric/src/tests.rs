//! Tests of arguments that C code may pass: null pointers, objects of another class, numbers that
//! do not exist.

mod accesses;
mod cost;
mod objects;

use std::ffi::c_void;
use std::ptr::{null, null_mut};
use std::sync::Arc;

use crate::core::{Bound, Core};
use crate::ffi::*;
use crate::object::{Head, Object};
use crate::operations::{Operation, Operations};
use crate::progress::ProgressThread;
use crate::queue::{Counter, Entry, FULL, Queue, deadline};
use crate::transfer::{Incoming, UNTAGGED};
use crate::wakeups::Wakeups;
use crate::{domain, endpoint, fabric, info, provider, queues, vector};

/// Returns a call of an object's first table as C reads it: the size, then the functions.
fn call(object: *mut c_void, place: usize) -> *const c_void {
    let object = object.cast::<Object<1, ()>>();
    // SAFETY: every object of the provider begins with this head.
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
    // SAFETY: the calls check their arguments.
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

/// Opens an endpoint without transports, which reaches only itself.
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

/// A thread that waits for a counter takes no more numbers of peers than one that polls.
#[test]
fn a_thread_that_waits_accepts_nothing_while_the_queue_of_numbers_is_full() {
    let (counter, queue) = (Arc::new(Counter::default()), Arc::new(Queue::default()));
    let core = alone(Bound {
        rx: Some(Arc::clone(&queue)),
        counters: vec![(Arc::clone(&counter), FI_RECV)],
        ..Bound::default()
    });
    counter.sources.add(&core);
    for _ in 0..FULL {
        queue.push(Entry {
            flags: FI_REMOTE_WRITE,
            ..Entry::EMPTY
        });
    }
    let mut room = [0; 8];
    receive_into(&core, &mut room, 0);
    send_to_itself(&core, b"body");
    assert!(!counter.wait(1, deadline(20)), "it was taken");
    assert_eq!(queue.read(1, |_, _| ()), Some(1));
    assert!(counter.wait(1, deadline(10_000)));
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
    // The remaining room is smaller than the minimum.
    assert_eq!(read, [(FI_RECV | FI_MSG | FI_MULTI_RECV, 4)]);
    core.layer().unwrap().close().unwrap();
}

#[test]
fn a_cancelled_buffer_takes_at_most_the_message_that_has_it() {
    let queue = Arc::new(Queue::default());
    let core = alone(Bound {
        rx: Some(Arc::clone(&queue)),
        ..Bound::default()
    });
    queue.sources.add(&core);
    let mut read = Vec::new();
    let flags = FI_RECV | FI_MSG | FI_MULTI_RECV;
    let mut room = [0; 4096];
    // Nothing has arrived.
    receive_into(&core, &mut room, FI_MULTI_RECV);
    core.cancel(3).unwrap();
    assert!(queue.wait(deadline(10_000)));
    let error = queue.read_error().expect("it is cancelled");
    assert_eq!(
        (error.error, error.flags, error.length),
        (ECANCELED, flags, 0)
    );
    // A message has the buffer, and is not reported yet.
    receive_into(&core, &mut room, FI_MULTI_RECV);
    send_to_itself(&core, b"body");
    core.cancel(3).unwrap();
    assert!(queue.wait(deadline(10_000)));
    queue.read(9, |_, entry| read.push((entry.flags, entry.length)));
    assert_eq!(read, [(flags, 4)]);
    // It does not take the next one.
    send_to_itself(&core, b"next");
    assert!(!queue.wait(deadline(20)));
    // No receive has this context any longer.
    core.cancel(3).unwrap();
    core.layer().unwrap().close().unwrap();
}

#[test]
fn a_thread_that_waits_makes_the_progress_of_a_new_endpoint() {
    let queue = Arc::new(Queue::default());
    let bound = || Bound {
        rx: Some(Arc::clone(&queue)),
        ..Bound::default()
    };
    let (first, second) = (alone(bound()), alone(bound()));
    queue.sources.add(&first);
    let waiting = Arc::clone(&queue);
    let waits = std::thread::spawn(move || waiting.wait(deadline(60_000)));
    // The thread sleeps by now, or will find the second endpoint at once.
    std::thread::sleep(std::time::Duration::from_millis(50));
    let mut room = [0; 8];
    receive_into(&second, &mut room, 0);
    send_to_itself(&second, b"body");
    queue.sources.add(&second);
    let end = std::time::Instant::now() + std::time::Duration::from_secs(10);
    while queue.is_empty() && std::time::Instant::now() < end {
        std::thread::yield_now();
    }
    assert!(!queue.is_empty(), "the thread polls the first one only");
    assert!(waits.join().unwrap());
    for core in [first, second] {
        core.layer().unwrap().close().unwrap();
    }
}

/// A name of the endpoint that [`alone`] makes.
fn own_name() -> vector::Name {
    let mut name = vec![2];
    name.extend(7u64.to_le_bytes());
    name.extend([16 | 1, 1, 0, 255, 0, 4, 127, 0, 0, 1, 1, 0, 0, 2]);
    vector::padded(&name)
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
    // Another thread makes progress instead of the program.
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
