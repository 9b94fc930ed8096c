//! Tests of the queue of frames and of the bytes of each.

use super::*;

fn batch_of(marks: &[u8]) -> SendBatch {
    let mut batch = SendBatch::new(4);
    for mark in marks {
        batch.head().unwrap()[..60].fill(*mark);
        batch.push_inline(60);
    }
    batch
}

fn marks(batch: &SendBatch) -> Vec<u8> {
    (0..batch.len())
        .map(|index| {
            let mut frame = [0; 60];
            assert_eq!(batch.copy_frame(index, &mut frame), Some(60));
            assert_eq!(frame, [frame[0]; 60]);
            frame[0]
        })
        .collect()
}

#[test]
fn unsent_frames_keep_their_order_and_bytes() {
    let mut batch = batch_of(&[1, 2, 3, 4]);
    assert!(batch.is_full());
    assert!(batch.head().is_none());
    batch.remove(2);
    assert_eq!(marks(&batch), [3, 4]);
    for mark in [5, 6] {
        batch.head().unwrap()[..60].fill(mark);
        batch.push_inline(60);
    }
    assert_eq!(marks(&batch), [3, 4, 5, 6]);
    batch.remove(2);
    batch.skip();
    assert_eq!(marks(&batch), [6]);
    batch.clear();
    assert!(batch.is_empty());
    assert_eq!(batch.copy_frame(0, &mut [0; 60]), None);
}

#[test]
fn frame_is_prefix_payload_and_tail() {
    let payload = [7u8; 5];
    let mut batch = SendBatch::new(1);
    let head = batch.head().unwrap();
    head[..4].copy_from_slice(&[1, 2, 3, 4]);
    // SAFETY: the payload outlives the batch.
    unsafe { batch.push(3, Some((NonNull::from(&payload).cast(), 5)), 1) };
    let mut whole = [0; 16];
    assert_eq!(batch.copy_frame(0, &mut whole), Some(9));
    assert_eq!(whole[..9], [1, 2, 3, 7, 7, 7, 7, 7, 4]);
    let mut part = [0; 6];
    assert_eq!(batch.copy_frame(0, &mut part), Some(9));
    assert_eq!(part, [1, 2, 3, 7, 7, 7]);
}

#[test]
fn a_single_short_frame_is_sent_contiguously() {
    let payload = [7u8; HEAD_LEN];
    for (length, whole) in [
        (0, true),
        (5, true),
        (HEAD_LEN - 4, true),
        (HEAD_LEN - 3, false),
    ] {
        let mut batch = SendBatch::new(2);
        batch.head().unwrap()[..4].copy_from_slice(&[1, 2, 3, 4]);
        // SAFETY: the payload outlives the batch.
        unsafe { batch.push(3, Some((NonNull::from(&payload).cast(), length)), 1) };
        let expected = [&[1, 2, 3][..], &payload[..length], &[4]].concat();
        // Two rounds: the first frame may have to be sent twice.
        for _ in 0..2 {
            assert_eq!(batch.alone(), whole.then_some(&expected[..]));
            let mut frame = [0; HEAD_LEN + 1];
            assert_eq!(batch.copy_frame(0, &mut frame), Some(expected.len()));
            assert_eq!(frame[..expected.len()], expected);
        }
        batch.push_inline(60);
        assert_eq!(batch.alone(), None, "two");
    }
    assert_eq!(SendBatch::new(1).alone(), None, "none");
}

#[test]
fn lengths_beyond_the_head_are_truncated() {
    let mut batch = SendBatch::new(0);
    assert_eq!(batch.capacity(), 1);
    batch.push_inline(HEAD_LEN + 1);
    batch.push_inline(60);
    assert_eq!(batch.len(), 1, "the second found it full");
    let mut frame = [0; 2 * HEAD_LEN];
    assert_eq!(batch.copy_frame(0, &mut frame), Some(HEAD_LEN));
}
