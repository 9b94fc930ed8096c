//! RDMA interfaces inside one process: an implementation of [`ib_btl::nic`] without hardware, for
//! tests.
#![allow(unsafe_code)] // Copies between memory that tests have lent.

mod fabric;

// `fabric` names the trait `crate::nic`, because the unit tests of ib-btl include it, too.
use ib_btl::nic;

pub use fabric::{Fabric, FabricNic};
