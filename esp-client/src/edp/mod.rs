//! Datagrams: the socket, and requests to the echo and information service of nodes (section 9 of
//! the wire format).

mod node_info;
mod socket;

pub use node_info::NodeInfo;
pub use socket::{
    DEFAULT_EDP_RING, DatagramInfo, EdpBuilder, EdpSocket, NODE_PORT, monotonic_nanos,
};
