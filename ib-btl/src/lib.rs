//! The byte transport over InfiniBand verbs. **Not written yet: this crate is empty.**
//!
//! Its place in the workspace is kept so that the arrows between crates are checked from the start: it will implement
//! the contract of the crate `btl` with the protocols of VIA-RPI and MPICH2-CH3-VAPI (eager credits, rendezvous by RDMA,
//! registration cache), and import nothing else of the project.
#![forbid(unsafe_code)]
