//! The byte transport over Ethernet. **Not written yet: this crate is empty.**
//!
//! Its place in the workspace is kept so that the arrows between crates are checked from the start: it will implement
//! the contract of the crate `btl` over `esp-client` (streams for messages, EDP to verify each peer before first use), and
//! import nothing else of the project.
#![forbid(unsafe_code)]
