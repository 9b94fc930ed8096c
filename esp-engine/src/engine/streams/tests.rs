//! Streams in virtual time: together with datagrams, and after their program has closed them.

use netns::TwoNodes;

use super::super::link::DATAGRAM_PLACES;
use super::super::resume::tests::{CLIENT, End, Rig, SIZES};
use super::ORPHAN_TIMEOUT;
use crate::Command;
use crate::LinkId;
use crate::shm::StreamState;
use esp_proto::{CloseReason, Duration};

/// Duration of a round: longer than a round trip, and short compared with all timers except the
/// shortest.
const STEP: Duration = Duration::from_millis(20);
const SLOT: u16 = 1;

fn poll(rig: &mut Rig<'_>) {
    rig.now = rig.now + STEP;
    for host in &mut rig.hosts {
        assert!(host.poll(rig.now));
    }
}

/// Returns both ends of an established stream.
fn connected(rig: &mut Rig<'_>) -> [End; 2] {
    let mut near = rig.connect(SLOT);
    let mut far = None;
    for _ in 0..1000 {
        poll(rig);
        if let Some(arrival) = rig.arrival(SLOT) {
            far = Some(rig.accept(SLOT, arrival));
        }
        if let Some(mut end) = far.take() {
            if near.is_established() && end.is_established() {
                return [near, end];
            }
            far = Some(end);
        }
    }
    panic!("not connected: {:?}", near.status.state());
}

/// A peer that takes some bytes now and then gets all of them, however long that takes; one that
/// takes none is reset.
#[test]
fn a_closed_stream_is_delivered_as_long_as_its_peer_reads() {
    let Some(nodes) = TwoNodes::new_or_skip("a_closed_stream_is_delivered") else {
        return;
    };
    for reads in [true, false] {
        let mut rig = Rig::new(&nodes);
        let [mut near, mut far] = connected(&mut rig);
        // Both rings full.
        let all = (SIZES.tx + SIZES.rx) as usize;
        let mut written = 0;
        for _ in 0..1000 {
            written += near.tx.write(&vec![7; all - written]);
            near.ring(&rig.hosts[0]);
            poll(&mut rig);
        }
        assert!(written > SIZES.rx as usize, "{written}");
        near.tx.finish();
        near.ring(&rig.hosts[0]);
        rig.hosts[0].send(Command::Close {
            client: CLIENT,
            slot: SLOT,
        });
        let mut received = 0;
        let mut next = rig.now + ORPHAN_TIMEOUT / 2;
        let end = rig.now + ORPHAN_TIMEOUT * 20;
        while rig.now < end && !far.rx.at_end() {
            poll(&mut rig);
            let over = matches!(far.status.state(), StreamState::Closed(_));
            if over && (!reads || far.rx.available() == 0) {
                break;
            }
            if reads && rig.now >= next {
                received += far.rx.read(&mut [0; 2500]);
                far.ring(&rig.hosts[1]);
                next = rig.now + ORPHAN_TIMEOUT / 2;
            }
        }
        let state = far.status.state();
        assert_eq!(
            received == written,
            reads,
            "{received} of {written}, {state:?}"
        );
        assert_eq!(far.rx.at_end(), reads, "{state:?}");
        let reset = matches!(state, StreamState::Closed(CloseReason::Reset(_)));
        assert!(reads || reset, "{state:?}");
    }
}

/// While the kernel refuses frames, each place of the batch that becomes free is filled again.
#[test]
fn streams_leave_room_in_a_batch_for_datagrams_that_wait() {
    let Some(nodes) = TwoNodes::new_or_skip("streams_leave_room_in_a_batch") else {
        return;
    };
    let mut rig = Rig::new(&nodes);
    let [mut near, _far] = connected(&mut rig);
    // The credit of the other side arrives.
    (0..4).for_each(|_| poll(&mut rig));
    near.tx.write(&[7; SIZES.tx as usize]);
    let now = rig.now;
    let engine = rig.hosts[0].engine.as_mut().expect("it has not ended");
    let link = engine.links.get_mut(LinkId(0)).expect("the only link");
    let ids: Vec<_> = link.streams.iter().flatten().map(|one| one.id()).collect();
    ids.into_iter().for_each(|id| link.serve_stream(now, id));
    let kept = link.tx.capacity() - DATAGRAM_PLACES;
    while link.tx.len() + 1 < kept {
        link.tx.push_inline(60);
    }
    link.unfinished.push(1, 6000);
    assert!(link.fill(now), "the streams have more");
    assert_eq!(link.tx.len(), kept);
    assert_eq!(link.unfinished.pop().map(|(port, _)| port), Some(6000));
    link.fill(now);
    assert!(link.tx.len() > kept, "all is for streams");
    link.tx.clear();
}
