//! Framing of the control messages, for both ends of the socket. Nothing here blocks.
//!
//! Input is hostile until decoded: lengths are checked before anything is stored, and descriptors
//! that no message names are closed.

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

use super::messages::{Envelope, MAX_MESSAGE, MAX_REQUEST, Reply, Request};

/// Maximum number of descriptors of a message.
pub const MAX_DESCRIPTORS: usize = 4;
/// Length of the length field in front of each message, in bytes.
pub const LENGTH_BYTES: usize = 4;
/// Maximum number of descriptors that the kernel passes in one message (SCM_MAX_FD).
const SCM_MAX_FD: usize = 253;
/// Maximum number of bytes that one call reads from the socket.
const CHUNK: usize = 16 << 10;

/// Body of an [`Envelope`].
pub trait Message: Serialize + DeserializeOwned {
    /// Maximum length of the JSON text, in bytes.
    const MAX_LEN: usize;
    /// Returns the number of descriptors that travel with the message.
    fn descriptors(&self) -> usize;
}

impl Message for Request {
    const MAX_LEN: usize = MAX_REQUEST;
    fn descriptors(&self) -> usize {
        match self {
            Request::ResumeStream { .. } | Request::ResumeEdp { .. } => 1,
            _ => 0,
        }
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

/// Error of [`encode`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EncodeError {
    /// The message is longer than the receiver accepts.
    #[error("the control message has {len} bytes; at most {max} are allowed")]
    TooLong {
        /// Its length in bytes.
        len: usize,
        /// The limit in bytes.
        max: usize,
    },
    /// A value cannot be written as JSON.
    #[error("the control message cannot be written as JSON: {0}")]
    Json(String),
}

/// Error in received bytes or descriptors.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The length field exceeds the limit.
    #[error("the length of a control message is {len} bytes; at most {max} are allowed")]
    Oversized {
        /// Value of the length field in bytes.
        len: usize,
        /// The limit in bytes.
        max: usize,
    },
    /// The text is not a message of this version. The next message can still be decoded.
    #[error("a control message is malformed: {what}")]
    Malformed {
        /// Its id, if readable.
        id: Option<u64>,
        /// Text of the parser.
        what: String,
    },
    /// A message arrived with too few descriptors.
    #[error("a control message arrived with {got} of its {expected} descriptors")]
    MissingDescriptors {
        /// Number the message names.
        expected: usize,
        /// Number that arrived.
        got: usize,
    },
    /// Descriptors arrived that belong to no message. They are closed.
    #[error("{got} descriptors arrived that belong to no control message")]
    UnexpectedDescriptors {
        /// Their number.
        got: usize,
    },
    /// The stream ended inside a message.
    #[error("the control socket was closed inside a message, after {have} bytes of it")]
    HalfWritten {
        /// Number of bytes of the unfinished message.
        have: usize,
    },
}

impl DecodeError {
    /// Returns true if no further message can be decoded: the connection must be closed.
    pub fn is_fatal(&self) -> bool {
        !matches!(self, DecodeError::Malformed { .. })
    }
}

/// Returns the bytes of a message, including the length field.
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

/// Decodes messages from received bytes. Holds at most one message and the bytes of one read.
#[derive(Debug)]
pub struct Decoder<T> {
    bytes: BytesMut,
    descriptors: VecDeque<OwnedFd>,
    /// The kernel dropped descriptors of the next message.
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
    /// Returns an empty decoder.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds received bytes and descriptors. Call [`Decoder::next`] until it returns `None` before
    /// the next push; then the memory held is at most one message and one push.
    pub fn push(&mut self, bytes: &[u8], descriptors: impl IntoIterator<Item = OwnedFd>) {
        if self.failed.is_some() {
            return;
        }
        self.bytes.extend_from_slice(bytes);
        self.descriptors.extend(descriptors);
        // More than this message and the next one may have. They would wait until all messages
        // before them are decoded, which may take long.
        let got = self.descriptors.len();
        if got > 2 * MAX_DESCRIPTORS {
            self.fail(&DecodeError::UnexpectedDescriptors { got });
        }
    }

    /// Ends the stream with a fatal error.
    fn fail(&mut self, error: &DecodeError) {
        self.failed = Some(error.clone());
        self.bytes = BytesMut::new();
        self.descriptors.clear();
    }

    /// Returns the next complete message with its descriptors; `None` if more bytes are needed.
    ///
    /// # Errors
    /// A fatal error ([`DecodeError::is_fatal`]) is returned by all later calls, too.
    #[allow(clippy::should_implement_trait)] // not an iterator: `None` is not the end
    pub fn next(&mut self) -> Result<Option<Received<T>>, DecodeError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let result = self.step();
        if let Err(error) = &result
            && error.is_fatal()
        {
            self.fail(error);
        }
        result
    }

    /// Checks that the stream did not end inside a message. Call it at the end of the stream.
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

    /// Checks that no descriptors wait without a started message.
    fn check_surplus(&self, empty: bool) -> Result<Option<Received<T>>, DecodeError> {
        let got = self.descriptors.len();
        if got > if empty { 0 } else { MAX_DESCRIPTORS } {
            return Err(DecodeError::UnexpectedDescriptors { got });
        }
        Ok(None)
    }
}

/// Reads from the socket into the decoder once, without waiting. Returns the number of bytes; 0 if
/// the other side closed the socket. Descriptors get `FD_CLOEXEC`.
///
/// # Errors
/// `WouldBlock` if there is nothing to read, else the error of the system call.
pub fn receive<T: Message>(socket: impl AsFd, decoder: &mut Decoder<T>) -> io::Result<usize> {
    receive_admitted(socket, decoder, Some)
}

/// Reads like [`receive`], and passes each descriptor through `admit`. If that keeps one, the
/// decoder fails: the other side has sent a descriptor that no message can need, which must not be
/// closed here, because that may block.
///
/// # Errors
/// Those of [`receive`].
pub fn receive_admitted<T: Message>(
    socket: impl AsFd,
    decoder: &mut Decoder<T>,
    admit: impl FnMut(OwnedFd) -> Option<OwnedFd>,
) -> io::Result<usize> {
    let mut bytes = [0u8; CHUNK];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(SCM_MAX_FD))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let message = rustix::net::recvmsg(
        socket,
        &mut [io::IoSliceMut::new(&mut bytes)],
        &mut control,
        RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC,
    )?;
    let descriptors: Vec<Option<OwnedFd>> = control
        .drain()
        .filter_map(|part| match part {
            RecvAncillaryMessage::ScmRights(rights) => Some(rights),
            _ => None,
        })
        .flatten()
        .map(admit)
        .collect();
    let kept = descriptors.iter().filter(|fd| fd.is_none()).count();
    let bytes = bytes.get(..message.bytes).unwrap_or_default();
    decoder.push(bytes, descriptors.into_iter().flatten());
    if kept > 0 {
        decoder.fail(&DecodeError::UnexpectedDescriptors { got: kept });
    }
    if message.flags.contains(ReturnFlags::CTRUNC) {
        // At the limit of open files. The next message with descriptors is returned without any,
        // so that one request fails instead of the connection.
        decoder.lost = true;
    }
    Ok(message.bytes)
}

/// Writes to the socket once, without waiting, and returns the number of bytes written. The
/// `descriptors` (at most [`MAX_DESCRIPTORS`]) are sent with the first byte: pass them with the
/// first call for a message only.
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
