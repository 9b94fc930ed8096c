//! The Ethernet transport beyond its contract: connection set-up, refused peers, release of
//! connections, loss of daemons and links. `eth_conformance.rs` tests the contract.

mod hostile;
mod impostor;
mod loss;
mod member;
mod paths;
mod release;
mod set_up;
