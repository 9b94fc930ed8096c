//! What a program links to speak ESP: `EspStream`, `EspListener`, `EdpSocket`.
pub mod control;
