//! Sending and receiving short messages does not allocate once all buffers have grown.

#[path = "common/variable.rs"]
mod variable;

use p2p::{Source, Tag};

#[test]
fn short_messages_allocate_nothing_in_steady_state() {
    let layers = variable::layers();
    let (a, b) = (layers[0].world(), layers[1].world());
    let mut buffer = [0; 8];
    let mut round = |n: i32| {
        // Received after and before its arrival, by wildcards, in the other direction, and probed.
        a.send(&[1; 8], 1, n % 5).unwrap();
        b.recv(&mut buffer, 0, n % 5).unwrap();
        // SAFETY: the buffer outlives the request, which is waited for.
        let id = unsafe { b.irecv_raw(buffer.as_mut_ptr(), 8, Source::Any, Tag::Any) }.unwrap();
        a.send(&[2; 8], 1, n % 7).unwrap();
        layers[1].wait(id).unwrap();
        b.send(&[3; 8], 0, 1).unwrap();
        assert!(a.probe(1, Tag::Any).is_ok());
        a.recv(&mut buffer, 1, Tag::Any).unwrap();
        a.send(&[4; 8], 0, 2).unwrap();
        a.recv(&mut buffer, Source::Any, 2).unwrap();
    };
    // Long enough for every kind of credit message to occur.
    (0..20_000).for_each(&mut round);
    let counted = allocation_counter::measure(|| (0..20_000).for_each(&mut round));
    assert_eq!((counted.count_total, counted.bytes_total), (0, 0));
    assert!(layers[1].stats().unexpected == 0 || layers[1].stats().unexpected_peak > 0);
    assert!(
        layers[0].stats().unexpected > 30_000,
        "some messages waited for their receive"
    );
}
