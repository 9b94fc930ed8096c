//! Moves messages of any length between two ranks, by two copies or by one, over any transport: the
//! minimum work of a point-to-point layer for a long message.

use btl::{Btl, Envelope, Events, PeerError, Rank, SendError, Tx};
use std::io::IoSlice;

const DATA: u8 = 1;
const READY: u8 = 2;
const ACK: u8 = 3;
const PING: u8 = 4;
const STOP: u8 = 5;

/// Alignment of offsets in bytes.
const PAGE: usize = 4096;

fn header(kind: u8, length: usize) -> [u8; 16] {
    header_at(kind, length, 0)
}

fn header_at(kind: u8, length: usize, offset: usize) -> [u8; 16] {
    let mut header = [0; 16];
    header[0] = kind;
    header[4..8].copy_from_slice(&u32::try_from(offset / PAGE).unwrap_or(0).to_le_bytes());
    header[8..].copy_from_slice(&(length as u64).to_le_bytes());
    header
}

fn page(header: &[u8]) -> usize {
    let mut page = [0; 4];
    if let Some(bytes) = header.get(4..8) {
        page.copy_from_slice(bytes);
    }
    u32::from_le_bytes(page) as usize * PAGE
}

fn open(header: &[u8]) -> (u8, usize) {
    let mut length = [0; 8];
    if let Some(bytes) = header.get(8..16) {
        length.copy_from_slice(bytes);
    }
    (
        header.first().copied().unwrap_or(0),
        usize::try_from(u64::from_le_bytes(length)).unwrap_or(0),
    )
}

/// One side of a transfer.
#[derive(Debug)]
pub(super) struct Mover {
    /// Target of messages, as long as the longest one.
    buffer: Vec<u8>,
    got: usize,
    /// Body of answers to pings.
    reply: [u8; 1024],
    /// Number of messages for each reply.
    acks: u64,
    /// A reply that found no room.
    owed: Option<(Rank, usize)>,
    stopped: bool,
    /// Error after which this side cannot continue.
    error: Option<String>,
}

impl Mover {
    /// Creates a side for messages of up to this many bytes.
    pub(super) fn new(longest: usize) -> Self {
        Mover {
            buffer: vec![1; longest],
            got: 0,
            reply: [1; 1024],
            acks: 0,
            owed: None,
            stopped: false,
            error: None,
        }
    }

    fn reply(&mut self, tx: &mut dyn Tx, peer: Rank, length: usize) {
        match tx.send(
            peer,
            &header(ACK, 0),
            &[IoSlice::new(self.reply.get(..length).unwrap_or(&[]))],
        ) {
            Ok(()) => {}
            Err(SendError::Busy) => self.owed = Some((peer, length)),
            Err(error) => self.error = Some(error.to_string()),
        }
    }

    fn step(&mut self, btl: &mut dyn Btl) -> Result<(), String> {
        if btl.progress(self) == 0 {
            std::hint::spin_loop();
        }
        if let Some((peer, length)) = self.owed.take() {
            self.reply(btl, peer, length);
        }
        self.error.clone().map_or(Ok(()), Err)
    }

    fn send(
        &mut self,
        btl: &mut dyn Btl,
        peer: Rank,
        header: &[u8],
        body: &[u8],
    ) -> Result<(), String> {
        loop {
            match btl.send(peer, header, &[IoSlice::new(body)]) {
                Ok(()) => return Ok(()),
                Err(SendError::Busy) => self.step(btl)?,
                Err(error) => return Err(error.to_string()),
            }
        }
    }

    fn wait(&mut self, btl: &mut dyn Btl) -> Result<(), String> {
        let before = self.acks;
        while self.acks == before {
            self.step(btl)?;
        }
        Ok(())
    }

    /// Answers until the other side stops it.
    pub(super) fn serve(&mut self, btl: &mut dyn Btl) -> Result<(), String> {
        self.stopped = false;
        while !self.stopped {
            self.step(btl)?;
        }
        Ok(())
    }

    /// Ends the other side's [`Mover::serve`].
    pub(super) fn stop(&mut self, btl: &mut dyn Btl, peer: Rank) -> Result<(), String> {
        self.send(btl, peer, &header(STOP, 0), &[])
    }

    /// Sends a message of this many bytes there and back.
    pub(super) fn ping(
        &mut self,
        btl: &mut dyn Btl,
        peer: Rank,
        body: &[u8],
    ) -> Result<(), String> {
        self.send(btl, peer, &header(PING, body.len()), body)?;
        self.wait(btl)
    }

    /// Moves `data` by messages of at most `piece` bytes, and waits for the receiver's reply.
    pub(super) fn two_copies(
        &mut self,
        btl: &mut dyn Btl,
        peer: Rank,
        data: &[u8],
        piece: usize,
    ) -> Result<(), String> {
        let header = header(DATA, data.len());
        // Leaves room for the longest header, so that bodies are whole pages.
        for piece in data.chunks(piece - btl::MAX_HEADER) {
            self.send(btl, peer, &header, piece)?;
        }
        self.wait(btl)
    }

    /// Moves `length` bytes of a region, starting at a multiple of 4096, to the matching offset in
    /// the receiver's buffer by offering them, and waits for the receiver's reply.
    pub(super) fn one_copy(
        &mut self,
        btl: &mut dyn Btl,
        peer: Rank,
        key: &[u8],
        (offset, length): (usize, usize),
    ) -> Result<(), String> {
        self.send(btl, peer, &header_at(READY, length, offset), key)?;
        self.wait(btl)
    }

    /// Registers memory that the other side may read while `data` lives.
    pub(super) fn offer(btl: &mut dyn Btl, data: &mut [u8]) -> Result<Vec<u8>, String> {
        // SAFETY: the callers keep `data` until the other side has stopped.
        let region = unsafe { btl.register(data.as_mut_ptr(), data.len()) };
        region
            .map(|region| region.key)
            .map_err(|error| error.to_string())
    }
}

impl Events for Mover {
    fn message(&mut self, tx: &mut dyn Tx, peer: Rank, header: &[u8], body: &[u8]) {
        let (kind, length) = open(header);
        match kind {
            DATA => {
                if let Some(to) = self.buffer.get_mut(self.got..self.got + body.len()) {
                    to.copy_from_slice(body);
                }
                self.got += body.len();
                if self.got >= length {
                    self.got = 0;
                    self.reply(tx, peer, 0);
                }
            }
            READY => {
                let offset = page(header);
                let Some(to) = self.buffer.get_mut(offset..offset.saturating_add(length)) else {
                    self.error = Some("a message longer than the buffer".into());
                    return;
                };
                // SAFETY: the buffer is that long, and is not used before the reply, for which the
                // other side waits.
                let got =
                    unsafe { tx.get(peer, to.as_mut_ptr(), length, body, offset, peer.into()) };
                match got {
                    Ok(btl::Started::Done) => self.reply(tx, peer, 0),
                    Ok(btl::Started::Pending) => {}
                    other => self.error = Some(format!("get: {other:?}")),
                }
            }
            PING => self.reply(tx, peer, length),
            ACK => self.acks += 1,
            STOP => self.stopped = true,
            _ => self.error = Some("a message of unknown kind".into()),
        }
    }

    fn completed(&mut self, tx: &mut dyn Tx, token: u64, result: Result<(), PeerError>) {
        match (result, Rank::try_from(token)) {
            (Ok(()), Ok(peer)) => self.reply(tx, peer, 0),
            (result, _) => self.error = Some(format!("get: {result:?}")),
        }
    }

    fn received(
        &mut self,
        _: &mut dyn Tx,
        _: u64,
        _: Rank,
        _: Envelope,
        _: Result<usize, PeerError>,
    ) {
    }

    fn failed(&mut self, _: &mut dyn Tx, peer: Rank, error: PeerError) {
        self.stopped = true;
        self.error = Some(format!("rank {peer}: {error}"));
    }
}
