//! The Ethernet transport beyond its contract: connection set-up, refused peers, loss of daemons
//! and links. `eth_conformance.rs` tests the contract.

mod hostile;
mod impostor;
mod loss;
mod member;
mod paths;
mod set_up;
