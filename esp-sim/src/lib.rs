//! Deterministic simulation of ESP endpoints over impaired links.
