//! Batches: many frames in one system call, without an allocation for each.

mod recv;
mod scatter;
mod send;

pub use recv::{FrameKind, Frames, RawFrame, RecvBatch};
pub use scatter::{ScatterBatch, ScatteredFrame};
pub use send::{HEAD_LEN, SendBatch};
