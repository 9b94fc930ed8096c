//! Joins a job.
