//! Framing of the control messages, for both ends of the socket.
//!
//! Whatever comes in is hostile until decoded: lengths are bounded before anything is stored,
//! descriptors are counted against what the message announces and closed when they are not wanted,
//! and every fault has a name. Nothing here blocks.

use std::collections::VecDeque;
use std::io;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use bytes::{Buf, BytesMut};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::control::{Envelope, MAX_MESSAGE, MAX_REQUEST, Reply, Request};

/// Most descriptors a message carries.
pub const MAX_DESCRIPTORS: usize = 4;
/// Bytes of the length in front of each message.
pub const LENGTH_BYTES: usize = 4;
/// Descriptors the kernel passes at most in one message (SCM_MAX_FD); room for all of them, so that
/// none is left behind.
const SCM_MAX_FD: usize = 253;
/// Bytes taken from the socket at a time.
const CHUNK: usize = 16 << 10;

/// What travels in an [`Envelope`].
pub trait Message: Serialize + DeserializeOwned {
    /// Longest JSON text, in bytes.
    const MAX_LEN: usize;
    /// Descriptors that travel with it.
    fn descriptors(&self) -> usize;
}

impl Message for Request {
    const MAX_LEN: usize = MAX_REQUEST;
    fn descriptors(&self) -> usize {
        0
    }
}

impl Message for Reply {
    const MAX_LEN: usize = MAX_MESSAGE;
    fn descriptors(&self) -> usize {
        match self {
            Reply::Hello { .. } | Reply::Lease { .. } => 4,
            Reply::Stream { .. } | Reply::Edp { .. } => 1,
            Reply::Listening { .. } | Reply::Done | Reply::Status(_) | Reply::Error(_) => 0,
        }
    }
}

/// A message that cannot be sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EncodeError {
    /// Longer than the other side takes.
    #[error("the control message is {len} bytes long, at most {max} are allowed")]
    TooLong {
        /// Its length.
        len: usize,
        /// The limit.
        max: usize,
    },
    /// A value JSON does not have.
    #[error("the control message cannot be written as JSON: {0}")]
    Json(String),
}

/// What is wrong with the bytes or descriptors that came in.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The length in front of a message is beyond the limit (or what came is no such message at
    /// all).
    #[error("a control message of {len} bytes was announced, at most {max} are allowed")]
    Oversized {
        /// The length announced.
        len: usize,
        /// The limit.
        max: usize,
    },
    /// The text is not a message of this version. The framing is intact: the next message can be
    /// decoded.
    #[error("a control message is malformed: {what}")]
    Malformed {
        /// Its id, if at least that could be read.
        id: Option<u64>,
        /// What the parser says.
        what: String,
    },
    /// Fewer descriptors came than the message names.
    #[error("a control message came with {got} of its {expected} descriptors")]
    MissingDescriptors {
        /// Number the message names.
        expected: usize,
        /// Number that came.
        got: usize,
    },
    /// Descriptors came that no message names.
    #[error("{got} descriptors came that belong to no control message")]
    UnexpectedDescriptors {
        /// Number of them; they are closed.
        got: usize,
    },
    /// The stream ended inside a message.
    #[error("the control socket was closed inside a message ({have} bytes of it came)")]
    HalfWritten {
        /// Bytes of the unfinished message.
        have: usize,
    },
}

impl DecodeError {
    /// True when the stream cannot be read on behind this error; the connection has to be ended.
    pub fn is_fatal(&self) -> bool {
        !matches!(self, DecodeError::Malformed { .. })
    }
}

/// The bytes of one message, length included.
pub fn encode<T: Message>(envelope: &Envelope<T>) -> Result<Vec<u8>, EncodeError> {
    let mut bytes = vec![0; LENGTH_BYTES];
    serde_json::to_writer(&mut bytes, envelope)
        .map_err(|error| EncodeError::Json(error.to_string()))?;
    let len = bytes.len() - LENGTH_BYTES;
    match u32::try_from(len) {
        Ok(word) if len <= T::MAX_LEN => {
            bytes[..LENGTH_BYTES].copy_from_slice(&word.to_le_bytes());
            Ok(bytes)
        }
        _ => Err(EncodeError::TooLong {
            len,
            max: T::MAX_LEN,
        }),
    }
}

/// A message with its descriptors.
pub type Received<T> = (Envelope<T>, Vec<OwnedFd>);

/// Takes messages apart as their bytes come in. Holds at most one message and one read's surplus.
#[derive(Debug)]
pub struct Decoder<T> {
    /// What is not decoded yet.
    bytes: BytesMut,
    descriptors: VecDeque<OwnedFd>,
    /// The kernel kept back some of the descriptors of the message that is coming.
    lost: bool,
    failed: Option<DecodeError>,
    message: PhantomData<fn() -> T>,
}

impl<T: Message> Default for Decoder<T> {
    fn default() -> Self {
        Decoder {
            bytes: BytesMut::new(),
            descriptors: VecDeque::new(),
            lost: false,
            failed: None,
            message: PhantomData,
        }
    }
}

impl<T: Message> Decoder<T> {
    /// An empty one.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes what one read gave. Call [`Decoder::next`] until it gives `None` before the next push;
    /// then the memory held stays below the longest message plus one push.
    pub fn push(&mut self, bytes: &[u8], descriptors: impl IntoIterator<Item = OwnedFd>) {
        if self.failed.is_some() {
            return;
        }
        self.bytes.extend_from_slice(bytes);
        self.descriptors.extend(descriptors);
    }

    /// Tells that descriptors of the last push did not come, because this process is at its limit
    /// of open files. The message is then given out without any, so that only its receiver fails
    /// and not the whole connection.
    pub fn descriptors_lost(&mut self) {
        self.lost = true;
    }

    /// The next complete message with its descriptors; `None`: more bytes are needed. After a fatal
    /// error ([`DecodeError::is_fatal`]) it is returned forever, and what is pushed is thrown away.
    #[allow(clippy::should_implement_trait)] // not an iterator: `None` is not the end
    pub fn next(&mut self) -> Result<Option<Received<T>>, DecodeError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let result = self.step();
        if let Err(error) = &result
            && error.is_fatal()
        {
            self.failed = Some(error.clone());
            self.bytes = BytesMut::new();
            self.descriptors.clear();
        }
        result
    }

    /// To be called when the stream has ended: an error if that was inside a message.
    pub fn finish(&self) -> Result<(), DecodeError> {
        match self.bytes.len() {
            0 => Ok(()),
            have => Err(DecodeError::HalfWritten { have }),
        }
    }

    fn step(&mut self) -> Result<Option<Received<T>>, DecodeError> {
        let Some((length, rest)) = self.bytes.split_first_chunk::<LENGTH_BYTES>() else {
            return self.check_surplus(self.bytes.is_empty());
        };
        let len = usize::try_from(u32::from_le_bytes(*length)).unwrap_or(usize::MAX);
        if len > T::MAX_LEN {
            return Err(DecodeError::Oversized {
                len,
                max: T::MAX_LEN,
            });
        }
        if rest.len() < len {
            return self.check_surplus(false);
        }
        self.bytes.advance(LENGTH_BYTES);
        let text = self.bytes.split_to(len);
        let envelope = serde_json::from_slice::<Envelope<T>>(&text).map_err(|error| {
            let id = serde_json::from_slice::<Envelope<serde::de::IgnoredAny>>(&text)
                .ok()
                .map(|e| e.id);
            DecodeError::Malformed {
                id,
                what: error.to_string(),
            }
        })?;
        let expected = envelope.body.descriptors();
        let got = self.descriptors.len();
        if expected > 0 && std::mem::take(&mut self.lost) {
            self.descriptors.clear();
            return Ok(Some((envelope, Vec::new())));
        }
        if got < expected {
            return Err(DecodeError::MissingDescriptors { expected, got });
        }
        Ok(Some((
            envelope,
            self.descriptors.drain(..expected).collect(),
        )))
    }

    /// No complete message is left: descriptors may only wait for one that has begun.
    fn check_surplus(&self, empty: bool) -> Result<Option<Received<T>>, DecodeError> {
        let got = self.descriptors.len();
        if got > if empty { 0 } else { MAX_DESCRIPTORS } {
            return Err(DecodeError::UnexpectedDescriptors { got });
        }
        Ok(None)
    }
}

/// One read from the socket into the decoder, without waiting. `Ok(0)`: the other side has closed.
/// `WouldBlock`: nothing is there. Descriptors get `FD_CLOEXEC`; see [`Decoder::descriptors_lost`].
pub fn receive<T: Message>(socket: impl AsFd, decoder: &mut Decoder<T>) -> io::Result<usize> {
    let mut bytes = [0u8; CHUNK];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(SCM_MAX_FD))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let message = rustix::net::recvmsg(
        socket,
        &mut [io::IoSliceMut::new(&mut bytes)],
        &mut control,
        RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC,
    )?;
    let mut descriptors = Vec::new();
    for part in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = part {
            descriptors.extend(rights);
        }
    }
    decoder.push(bytes.get(..message.bytes).unwrap_or_default(), descriptors);
    if message.flags.contains(ReturnFlags::CTRUNC) {
        decoder.descriptors_lost();
    }
    Ok(message.bytes)
}

/// One write to the socket, without waiting; returns the bytes taken. `descriptors` (at most
/// [`MAX_DESCRIPTORS`]) are sent with the first of them, so give them with the first call for a
/// message only, and call again with the rest.
pub fn send(socket: impl AsFd, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "too many descriptors for one control message",
        ));
    }
    let sent = rustix::net::sendmsg(
        socket,
        &[io::IoSlice::new(bytes)],
        &mut control,
        SendFlags::DONTWAIT | SendFlags::NOSIGNAL,
    )?;
    Ok(sent)
}
