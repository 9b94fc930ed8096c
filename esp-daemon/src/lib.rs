//! The per-node ESP service.
