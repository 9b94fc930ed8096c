//! The point-to-point layer over byte transports.
