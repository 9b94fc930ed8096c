//! Frames that no conforming station sends: each is dropped, counted by reason, and affects no
//! other.

mod cases;
mod datagrams;
mod floods;
mod forged;
mod live;
mod malformed;
