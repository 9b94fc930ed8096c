//! Exchanges messages of one byte through shared memory, with the point-to-point layer and with the
//! calls of libfabric in alternating rounds, and prints the time that the provider adds:
//!
//! ```sh
//! cargo test --release -p libfabric -- --nocapture cost
//! ```
//!
//! The figure is meaningful only if each of the two threads has a core of its own.

use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use job::endpoint::{OpenEndpoint, open, parse};
use p2p::{Context, Pattern, Target};

use super::objects::{Own, call};
use crate::ffi::*;
use crate::vector::padded;

const ROUNDS: usize = 11;
const EXCHANGES: u32 = 1_000;
/// Number of empty polls after which the other thread may run.
const EMPTY: u32 = 64;
/// The message.
static BODY: &[u8] = &[23];

fn layer(regions: Arc<p2p::Regions>) -> OpenEndpoint {
    let options = job::Options {
        transports: vec![job::Transport::Shm],
        ..job::Options::default()
    };
    open(&options, regions).unwrap()
}

/// Sends one byte and receives one, or the reverse.
fn exchange(first: bool, send: impl Fn(), receive: impl Fn()) {
    if first {
        send();
        receive();
    } else {
        receive();
        send();
    }
}

fn by_the_layer(own: &p2p::Endpoint, peer: p2p::Rank, first: bool) {
    let target = Target {
        peer,
        context: Context::ALL[0],
        tag: 1,
        data: None,
        sync: false,
    };
    let pattern = Pattern {
        peer: None,
        context: Context::ALL[0],
        tag: 1,
        ignore: 0,
    };
    let receive = || {
        let mut room = [0u8; 1];
        let (mut done, mut empty) = (false, 0);
        // SAFETY: the room outlives the receive, whose completion the loop waits for.
        unsafe { own.recv(room.as_mut_ptr(), 1, &pattern, 7) }.unwrap();
        while !done {
            own.poll(|completion| done |= completion.cookie == 7);
            empty += 1;
            if empty % EMPTY == 0 {
                std::thread::yield_now();
            }
        }
        assert_eq!(room, BODY);
    };
    let send = || {
        if !own.try_send(BODY, &target) {
            // SAFETY: static.
            let _started = unsafe { own.send(BODY.as_ptr(), 1, &target, 8) }.unwrap();
        }
    };
    for _ in 0..EXCHANGES {
        exchange(first, send, receive);
    }
}

/// Reads completions until there is one with these flags.
fn completed(own: &Own, flags: u64) {
    let mut entry = [0u64; 6];
    loop {
        let at = entry.as_mut_ptr().cast::<c_void>();
        let read = call!(own.queue, 0, 0, (*mut c_void, usize) -> isize, at, 1);
        if read == 1 && entry[1] & flags != 0 {
            return;
        }
        assert!(read == 1 || read == -(EAGAIN as isize));
    }
}

fn by_the_provider(own: &Own, first: bool) {
    let none = null_mut::<c_void>();
    let receive = || {
        let mut room = [0u8; 1];
        let at = room.as_mut_ptr().cast::<c_void>();
        let done = call!(own.endpoint, 4, 0,
            (*mut c_void, usize, *mut c_void, u64, u64, u64, *mut c_void) -> isize,
            at, 1, none, FI_ADDR_UNSPEC, 1, 0, none);
        assert_eq!(done, 0);
        completed(own, FI_RECV);
        assert_eq!(room, BODY);
    };
    let send = || {
        let at = BODY.as_ptr().cast::<c_void>();
        let done = call!(own.endpoint, 4, 3,
            (*const c_void, usize, *mut c_void, u64, u64, *mut c_void) -> isize,
            at, 1, none, 0, 1, none);
        assert_eq!(done, 0);
        completed(own, FI_SEND);
    };
    for _ in 0..EXCHANGES {
        exchange(first, send, receive);
    }
}

/// Returns the median of the times, in nanoseconds per message.
fn median(mut times: Vec<Duration>) -> f64 {
    times.sort_unstable();
    times[times.len() / 2].as_secs_f64() * 1e9 / f64::from(2 * EXCHANGES)
}

/// Objects that only one thread uses.
struct Sent(Own);
// SAFETY: see above.
unsafe impl Send for Sent {}

#[test]
fn cost() {
    let layers = [layer(Arc::default()), layer(Arc::default())];
    let own = [(); 2].map(|()| Sent(Own::open_with(0, layer)));
    for (place, side) in own.iter().enumerate() {
        let name = own[1 - place].0.core().name().unwrap();
        side.0.core().learn(0, &padded(&name));
    }
    let names = [1, 0].map(|other: usize| layers[other].name.clone());
    let barrier = Arc::new(Barrier::new(2));
    let threads = layers.into_iter().zip(own).zip(names).enumerate();
    let threads = threads.map(|(place, ((layer, side), name))| {
        let barrier = Arc::clone(&barrier);
        std::thread::spawn(move || {
            // The whole struct, not only its field, moves into the thread.
            let side: Sent = side;
            let (identity, addresses) = parse(&name).unwrap();
            let peer = layer.endpoint.add_peer(identity, addresses).unwrap();
            let (mut plain, mut provider) = (Vec::new(), Vec::new());
            for _ in 0..ROUNDS {
                barrier.wait();
                let begun = Instant::now();
                by_the_layer(&layer.endpoint, peer, place == 0);
                plain.push(begun.elapsed());
                barrier.wait();
                let begun = Instant::now();
                by_the_provider(&side.0, place == 0);
                provider.push(begun.elapsed());
            }
            barrier.wait();
            side.0.close();
            (median(plain), median(provider))
        })
    });
    let threads: Vec<_> = threads.collect();
    let times = threads.into_iter().map(|thread| thread.join().unwrap());
    let (plain, provider) = times.last().unwrap();
    println!(
        "layer {plain:.0} ns, provider {provider:.0} ns, cost {:.0} ns",
        provider - plain
    );
}
