//! What lies between the point-to-point layer and the transports. The contract is [`contract`]; read that.
//!
//! | module | what |
//! |---|---|
//! | [`contract`] | the rules, as traits and types |

pub mod contract;

pub use contract::*;
