//! A rank of a bare transport, without matching and requests of the layer above.

use std::io::IoSlice;
use std::time::{Duration, Instant};

use btl::{Btl, Events, PeerError, Rank, SendError, Tx};

use super::ours::Said;
use super::work::{Step, Work};

/// Kinds of message: the first byte of the header.
const DATA: usize = 0;
const READY: usize = 1;
const GO: usize = 2;
/// Time in which messages arrive at a rank that does not poll.
const UNDER_WAY: Duration = Duration::from_micros(100);
/// Bytes of a header, more than one of the layer above has.
const HEADER: usize = 16;

/// Received messages.
struct Inbox {
    /// Number of messages of each kind that have arrived and not been waited for yet.
    arrived: [usize; 3],
    /// Body of the last message.
    buffer: Vec<u8>,
    failed: Option<PeerError>,
}

impl Events for Inbox {
    fn message(&mut self, _: &mut dyn Tx, _: Rank, header: &[u8], body: &[u8]) {
        if let Some(place) = self.buffer.get_mut(..body.len()) {
            place.copy_from_slice(body);
        }
        let kind = header.first().map_or(DATA, |kind| usize::from(*kind));
        if let Some(arrived) = self.arrived.get_mut(kind) {
            *arrived += 1;
        }
    }

    fn completed(&mut self, _: &mut dyn Tx, _: u64, _: Result<(), PeerError>) {}

    fn failed(&mut self, _: &mut dyn Tx, _: Rank, error: PeerError) {
        self.failed = Some(error);
    }
}

/// One of two processes, 0 and 1, over a transport.
pub struct Bare<'a> {
    btl: &'a mut dyn Btl,
    rank: Rank,
    inbox: Inbox,
}

impl<'a> Bare<'a> {
    /// Creates a rank over a transport that has its peer already.
    pub fn new(btl: &'a mut dyn Btl, rank: Rank) -> Bare<'a> {
        Bare {
            btl,
            rank,
            inbox: Inbox {
                arrived: [0; 3],
                buffer: Vec::new(),
                failed: None,
            },
        }
    }

    /// Does this rank's part of the work. Returns an answer if this rank measured.
    pub fn run(&mut self, work: &Work) -> Result<Said, String> {
        match *work {
            Work::PingPong { size, count, batch } => self.pingpong(size, count, batch.max(1)),
            Work::Step {
                step,
                size,
                count,
                batch,
            } => self.step(step, size, count, batch.max(1)),
            _ => Err(format!("a bare transport cannot run `{work}`")),
        }
    }

    fn send(&mut self, kind: usize, body: &[u8]) -> Result<(), String> {
        let mut header = [0; HEADER];
        header[0] = kind as u8;
        loop {
            match self.btl.send(1 - self.rank, &header, &[IoSlice::new(body)]) {
                Ok(()) => return Ok(()),
                Err(SendError::Busy) => self.poll()?,
                Err(e) => return Err(e.to_string()),
            }
        }
    }

    fn poll(&mut self) -> Result<(), String> {
        self.btl.progress(&mut self.inbox);
        self.inbox
            .failed
            .as_ref()
            .map_or(Ok(()), |e| Err(e.to_string()))
    }

    fn wait(&mut self, kind: usize, count: usize) -> Result<(), String> {
        while self
            .inbox
            .arrived
            .get(kind)
            .is_some_and(|arrived| *arrived < count)
        {
            self.poll()?;
        }
        if let Some(arrived) = self.inbox.arrived.get_mut(kind) {
            *arrived -= count;
        }
        Ok(())
    }

    fn meet(&mut self) -> Result<(), String> {
        if self.rank == 0 {
            self.wait(READY, 1)?;
            self.send(GO, &[])
        } else {
            self.send(READY, &[])?;
            self.wait(GO, 1)
        }
    }

    fn pings(&mut self, body: &[u8], rounds: usize) -> Result<(), String> {
        for _ in 0..rounds {
            if self.rank == 0 {
                self.send(DATA, body)?;
                self.wait(DATA, 1)?;
            } else {
                self.wait(DATA, 1)?;
                self.send(DATA, body)?;
            }
        }
        Ok(())
    }

    fn pingpong(&mut self, size: usize, count: usize, batch: usize) -> Result<Said, String> {
        let body = vec![1; size];
        self.inbox.buffer = vec![1; size];
        self.meet()?;
        self.pings(&body, (count / 10).max(10))?;
        let mut times = [Vec::with_capacity(count), Vec::with_capacity(count / batch)];
        for (times, (samples, rounds)) in times.iter_mut().zip([(count, 1), (count / batch, batch)])
        {
            for _ in 0..samples {
                let start = Instant::now();
                self.pings(&body, rounds)?;
                times.push(nanos(start));
            }
        }
        let [times, batches] = times;
        Ok(if self.rank == 0 {
            vec![("times", times), ("batches", batches)]
        } else {
            Said::new()
        })
    }

    fn step(
        &mut self,
        step: Step,
        size: usize,
        count: usize,
        batch: usize,
    ) -> Result<Said, String> {
        let body = vec![1; size];
        self.inbox.buffer = vec![1; size];
        let measures = self.rank == Rank::from(step == Step::Receive);
        let mut times = Vec::with_capacity(count);
        for _ in 0..count {
            self.meet()?;
            if !measures {
                // The other rank receives the messages, or sends them.
                match step {
                    Step::Poll => {}
                    Step::Send => self.wait(DATA, batch)?,
                    Step::Receive => (0..batch).try_for_each(|_| self.send(DATA, &body))?,
                }
                continue;
            }
            if step == Step::Receive {
                let start = Instant::now();
                while start.elapsed() < UNDER_WAY {}
            }
            let start = Instant::now();
            match step {
                Step::Poll => (0..batch).try_for_each(|_| self.poll())?,
                Step::Send => (0..batch).try_for_each(|_| self.send(DATA, &body))?,
                Step::Receive => self.wait(DATA, batch)?,
            }
            times.push(nanos(start));
        }
        Ok(if measures {
            vec![("times", times)]
        } else {
            Said::new()
        })
    }
}

fn nanos(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use btl_conformance::loopback::{Limits, job};

    /// Runs both ranks on threads over the loopback transport.
    fn both(work: Work) -> Result<Vec<Said>, String> {
        let mut job = job(2, Limits::default());
        let cards: Vec<_> = job.iter().map(Btl::address).collect();
        std::thread::scope(|scope| {
            let ranks = job.iter_mut().zip(0..).map(|(btl, rank)| {
                let card = cards[1 - rank as usize].clone();
                scope.spawn(move || {
                    btl.add_peer(1 - rank, &card).map_err(|e| e.to_string())?;
                    Bare::new(btl, rank).run(&work)
                })
            });
            let ranks: Vec<_> = ranks.collect();
            ranks
                .into_iter()
                .map(|rank| rank.join().map_err(|_| "it panicked".to_owned())?)
                .collect()
        })
    }

    #[test]
    fn ping_pong_and_all_steps_are_measured_by_one_of_them() -> Result<(), String> {
        let said = both(Work::PingPong {
            size: 8,
            count: 20,
            batch: 4,
        })?;
        assert_eq!(
            (said[0][0].1.len(), said[0][1].1.len(), said[1].len()),
            (20, 5, 0)
        );
        for (step, who) in [(Step::Poll, 0), (Step::Send, 0), (Step::Receive, 1)] {
            let said = both(Work::Step {
                step,
                size: 100,
                count: 7,
                batch: 3,
            })?;
            assert_eq!(said[who][0].1.len(), 7, "{step:?}");
            assert!(said[1 - who].is_empty(), "{step:?}");
        }
        assert!(
            both(Work::Posted {
                backlog: 1,
                count: 1,
                batch: 1
            })
            .is_err()
        );
        Ok(())
    }
}
