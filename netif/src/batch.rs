//! Batches: many frames for one system call, no allocation for each.

mod recv;
mod send;

pub use recv::{FrameKind, Frames, RawFrame, RecvBatch};
pub use send::{HEAD_LEN, SendBatch};
