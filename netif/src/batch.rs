//! Batches: many frames in one system call, without an allocation for each.

mod recv;
mod send;

pub use recv::{FrameKind, RawFrame, RecvBatch};
pub use send::{HEAD_LEN, SendBatch};
