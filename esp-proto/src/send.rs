//! Sending half of a connection: segments cut from the stream and not yet acknowledged.
//!
//! Only metadata is kept. The bytes stay in the host's send buffer until
//! [`Progress::acked`](crate::Progress::acked) passes them, and every transmission refers to them
//! by stream offset.

use crate::seq::Seq;
use crate::time::Instant;
use alloc::collections::VecDeque;

/// One outstanding sequence number: data or FIN.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Segment {
    /// Stream offset of the first byte.
    pub(crate) offset: u64,
    /// Number of the last transmission, counted over the connection.
    pub(crate) tx_no: u64,
    /// Time of the last transmission.
    pub(crate) tx_time: Instant,
    /// Length in bytes; 0 for FIN.
    pub(crate) len: u16,
    /// Selectively acknowledged by the peer.
    pub(crate) sacked: bool,
    /// Found lost and not retransmitted yet.
    pub(crate) lost: bool,
    /// Sent more than once (Karn's algorithm, W-47).
    pub(crate) repeated: bool,
    /// True for the FIN.
    pub(crate) fin: bool,
}

/// State of our FIN.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum FinState {
    /// The program has not finished writing.
    #[default]
    Open,
    /// The program has finished; the FIN waits for earlier data, for credit or for the window.
    Wanted,
    /// The FIN has a sequence number.
    Sent,
    /// The FIN is acknowledged.
    Acked,
}

/// State of the sending half.
#[derive(Debug, Default)]
pub(crate) struct SendSide {
    /// Oldest outstanding sequence, or the next one when none is outstanding.
    pub(crate) una: Seq,
    /// Outstanding segments in sequence order; the first has sequence `una`.
    segments: VecDeque<Segment>,
    /// First sequence beyond the peer's credit (W-31).
    pub(crate) edge: Seq,
    /// Stream bytes the program has written.
    pub(crate) written: u64,
    /// Stream bytes that have been cut into segments.
    cut: u64,
    /// Stream bytes acknowledged.
    pub(crate) acked: u64,
    /// See [`FinState`].
    pub(crate) fin: FinState,
    /// Maximum number of sequences that were outstanding at once.
    max_outstanding: u16,
}

impl SendSide {
    /// Creates the sending half. `first` is the sequence after our SYN.
    pub(crate) fn new(first: Seq) -> Self {
        SendSide {
            una: first,
            edge: first,
            ..SendSide::default()
        }
    }

    /// Creates the sending half of a connection whose state was lost: all that the program wrote
    /// may have been sent (W-135).
    pub(crate) fn resumed(first: Seq, acked: u64, written: u64) -> Self {
        SendSide {
            written,
            cut: written,
            acked,
            ..SendSide::new(first)
        }
    }

    /// Returns the next sequence to be used.
    pub(crate) fn next(&self) -> Seq {
        self.una.plus(self.outstanding())
    }

    /// Returns the number of outstanding sequences, including lost and selectively acknowledged
    /// ones.
    pub(crate) fn outstanding(&self) -> u16 {
        // At most 4096 (W-31).
        self.segments.len() as u16
    }

    /// Returns true if a frame that is still on its way may acknowledge up to this sequence, which
    /// is older than `una` (W-33).
    pub(crate) fn may_be_old_ack(&self, ack: Seq) -> bool {
        self.una.ahead_of(ack) <= self.max_outstanding
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.segments.is_empty()
    }

    /// Sets the number of bytes written by the program. A value not above the previous one has no
    /// effect, nor has one after a FIN.
    pub(crate) fn set_written(&mut self, total: u64) {
        if self.fin == FinState::Open {
            self.written = self.written.max(total);
        }
    }

    /// Returns true when data or a FIN waits for a sequence number.
    pub(crate) fn has_new(&self) -> bool {
        self.cut < self.written || self.fin == FinState::Wanted
    }

    /// Returns the number of sequences within the peer's credit.
    pub(crate) fn credit(&self) -> u16 {
        self.edge.ahead_of(self.next())
    }

    /// Advances the peer's credit edge (W-39). Returns false when the new edge is not ahead.
    pub(crate) fn raise_edge(&mut self, edge: Seq) -> bool {
        let ahead = self.edge.is_before(edge);
        if ahead {
            self.edge = edge;
        }
        ahead
    }

    /// Cuts the next segment and assigns the next sequence. Segments are cut only when they are
    /// sent, so that small writes are combined while the window is closed. The caller has checked
    /// window and credit.
    pub(crate) fn cut(&mut self, payload: u16, tx_no: u64, now: Instant) -> Option<(Seq, Segment)> {
        let waiting = self.written - self.cut;
        let len = u16::try_from(waiting).unwrap_or(u16::MAX).min(payload);
        let fin = len == 0;
        if fin {
            if self.fin != FinState::Wanted {
                return None;
            }
            self.fin = FinState::Sent;
        }
        let segment = Segment {
            offset: self.cut,
            tx_no,
            tx_time: now,
            len,
            sacked: false,
            lost: false,
            repeated: false,
            fin,
        };
        let seq = self.next();
        self.cut += u64::from(len);
        self.segments.push_back(segment);
        self.max_outstanding = self.max_outstanding.max(self.outstanding());
        Some((seq, segment))
    }

    /// Returns true if a peer could have received `received` bytes in order, and our FIN if
    /// `finished` (W-106).
    pub(crate) fn may_have_received(&self, received: u64, finished: bool) -> bool {
        let in_reach = (self.acked..=self.cut).contains(&received);
        let sent = matches!(self.fin, FinState::Sent | FinState::Acked);
        let end = received == self.cut && self.cut == self.written;
        in_reach
            && if finished {
                sent && end
            } else {
                self.fin != FinState::Acked
            }
    }

    /// Restarts after the bytes that the peer has: outstanding data is cut again, under new
    /// sequences (W-106). Returns true when this acknowledges our FIN.
    pub(crate) fn restart(&mut self, received: u64, finished: bool, credit: u16) -> bool {
        self.una = self.next();
        self.segments.clear();
        (self.acked, self.cut) = (received, received);
        self.edge = self.una.plus(credit);
        let outstanding = self.fin == FinState::Sent;
        if outstanding {
            self.fin = if finished {
                FinState::Acked
            } else {
                FinState::Wanted
            };
        }
        outstanding && finished
    }

    /// Returns the outstanding segment with this sequence.
    pub(crate) fn get_mut(&mut self, seq: Seq) -> Option<&mut Segment> {
        self.segments.get_mut(usize::from(seq.ahead_of(self.una)))
    }

    /// Removes the oldest segment as acknowledged.
    pub(crate) fn pop_acked(&mut self) -> Option<Segment> {
        let segment = self.segments.pop_front()?;
        self.una = self.una.plus(1);
        self.acked = segment.offset + u64::from(segment.len);
        if segment.fin {
            self.fin = FinState::Acked;
        }
        Some(segment)
    }

    /// Returns all outstanding segments with their sequences. For rare paths (timeouts).
    pub(crate) fn iter_mut(&mut self) -> impl DoubleEndedIterator<Item = (Seq, &mut Segment)> {
        let una = self.una;
        self.segments
            .iter_mut()
            .enumerate()
            .map(move |(i, segment)| (una.plus(i as u16), segment))
    }

    /// Releases memory that an idle connection does not need.
    pub(crate) fn shrink(&mut self) {
        self.segments.shrink_to_fit();
    }

    /// Releases all memory: nothing will be sent any more.
    pub(crate) fn release(&mut self) {
        self.segments = VecDeque::new();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(send: &mut SendSide, payload: u16) -> Option<(Seq, u64, u16, bool)> {
        send.cut(payload, 0, Instant::ZERO)
            .map(|(seq, s)| (seq, s.offset, s.len, s.fin))
    }

    #[test]
    fn what_an_idle_connection_does_not_need_is_released() {
        let mut send = SendSide::new(Seq(0));
        send.set_written(300);
        while cut(&mut send, 100).is_some() {}
        send.shrink();
        assert_eq!(send.segments.len(), 3);
        while send.pop_acked().is_some() {}
        assert!(send.segments.capacity() > 0);
        send.shrink();
        assert_eq!(send.segments.capacity(), 0);
        send.set_written(301);
        assert!(cut(&mut send, 100).is_some());
        send.release();
        assert_eq!(send.segments.capacity(), 0);
    }

    #[test]
    fn small_writes_grow_together_and_fin_comes_last() {
        let mut send = SendSide::new(Seq(65535));
        assert_eq!(cut(&mut send, 100), None);
        send.set_written(30);
        send.set_written(150);
        send.fin = FinState::Wanted;
        send.set_written(999);
        assert_eq!(send.written, 150, "nothing after a FIN");
        assert_eq!(cut(&mut send, 100), Some((Seq(65535), 0, 100, false)));
        assert_eq!(cut(&mut send, 100), Some((Seq(0), 100, 50, false)));
        assert_eq!(cut(&mut send, 100), Some((Seq(1), 150, 0, true)));
        assert_eq!(cut(&mut send, 100), None);
        assert_eq!(send.outstanding(), 3);
        send.pop_acked();
        send.pop_acked();
        assert_eq!(
            (send.acked, send.una, send.fin),
            (150, Seq(1), FinState::Sent)
        );
        send.pop_acked();
        assert_eq!(
            (send.acked, send.una, send.fin),
            (150, Seq(2), FinState::Acked)
        );
        assert!(send.is_idle());
    }

    /// W-106.
    #[test]
    fn after_a_restart_the_rest_is_cut_under_new_sequences() {
        let mut send = SendSide::new(Seq(65534));
        send.set_written(250);
        send.fin = FinState::Wanted;
        while cut(&mut send, 100).is_some() {}
        assert_eq!((send.outstanding(), send.next()), (4, Seq(2)));
        assert!(send.may_have_received(0, false) && send.may_have_received(250, true));
        assert!(!send.may_have_received(251, false) && !send.may_have_received(249, true));
        assert!(!send.restart(130, false, 9));
        assert_eq!(
            (send.acked, send.una, send.credit(), send.fin),
            (130, Seq(2), 9, FinState::Wanted)
        );
        assert!(!send.may_have_received(129, false), "was acknowledged");
        assert_eq!(cut(&mut send, 60), Some((Seq(2), 130, 60, false)));
        assert_eq!(cut(&mut send, 60), Some((Seq(3), 190, 60, false)));
        assert_eq!(cut(&mut send, 60), Some((Seq(4), 250, 0, true)));
        assert!(send.restart(250, true, 0));
        assert_eq!(
            (send.acked, send.fin, send.is_idle()),
            (250, FinState::Acked, true)
        );
        assert!(
            !send.may_have_received(250, false),
            "the FIN was acknowledged"
        );
    }

    #[test]
    fn the_edge_never_moves_back() {
        let mut send = SendSide::new(Seq(65530));
        assert!(send.raise_edge(Seq(4)));
        assert_eq!(send.credit(), 10);
        assert!(!send.raise_edge(Seq(3)));
        assert!(!send.raise_edge(Seq(4)));
        assert_eq!(send.edge, Seq(4));
    }
}
