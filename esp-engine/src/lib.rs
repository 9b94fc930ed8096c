//! Drives ESP endpoints over network interfaces; shared-memory rings between programs and engine.
