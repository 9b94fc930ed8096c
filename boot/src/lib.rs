//! What the launcher of a job tells its processes.
