//! Description of a benchmark.

/// Name, title and limits of a benchmark.
#[derive(Debug)]
pub struct About {
    /// Name for `--only` and the rows.
    pub name: &'static str,
    /// What is measured.
    pub title: &'static str,
    /// Two sentences on what limits the figures.
    pub limits: &'static str,
}
