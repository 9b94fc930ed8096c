//! The byte transport between processes of one node. **Not written yet: this crate is empty.**
//!
//! Its place in the workspace is kept so that the arrows between crates are checked from the start: it will implement
//! the contract of the crate `btl` over shared-memory queues and cross-memory attach (LiMIC, ICPP 2005, and its hybrid
//! successor), and import nothing else of the project.
#![forbid(unsafe_code)]
