//! Description of a benchmark.

/// Name, title and limits of a benchmark.
#[derive(Debug)]
pub struct About {
    /// Name for `--only` and the rows.
    pub name: &'static str,
    /// Quantity and conditions of the measurement.
    pub title: &'static str,
    /// Two sentences on what limits the figures.
    pub limits: &'static str,
}
