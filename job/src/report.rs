//! Printable report of how a process reaches its peers.

use std::collections::BTreeMap;
use std::fmt;
use std::io::Write;

use p2p::PathReport;

/// Decisions made while the job started.
#[derive(Clone, Debug)]
pub struct Report {
    /// Rank of this process.
    pub rank: u32,
    /// Number of processes of the job.
    pub size: u32,
    /// Launcher: `pmix`, `pmi1`, `fixed` or `single`.
    pub launcher: &'static str,
    /// Names of the nodes that were looked up at the start, by rank.
    pub nodes: BTreeMap<u32, String>,
    /// Transports that could not be created, and why.
    pub without: Vec<(&'static str, String)>,
    /// Protection of packets over UDP, such as `are encrypted by a key of the job`.
    pub protection: Option<String>,
    /// Origin of the thresholds of shared memory.
    pub thresholds_from: String,
    /// Paths by peer and transport at the start: used or not, and why.
    pub paths: Vec<PathReport>,
}

impl Report {
    /// Returns the name of this process's node.
    pub fn node(&self) -> &str {
        name(&self.nodes, self.rank)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (node, launcher) = (self.node(), self.launcher);
        let alone = match launcher {
            "single" => ", no launcher: a job of one",
            _ => "",
        };
        let start = format!("esp: rank {}", self.rank);
        let size = self.size;
        writeln!(
            f,
            "{start} of {size} on {node} (started by {launcher}{alone})"
        )?;
        for (name, why) in &self.without {
            // The job has started, so this is information, not an error.
            let without = "all peers are reached without it";
            writeln!(f, "{start}: no transport {name}, {without}: {why}")?;
        }
        if let Some(protection) = &self.protection {
            writeln!(f, "{start}: packets over UDP {protection}")?;
        }
        for path in &self.paths {
            writeln!(f, "{}", self::path(self.rank, &self.nodes, path))?;
        }
        if self.paths.iter().any(|p| p.used && p.transport == "shm") {
            writeln!(f, "{start}: thresholds of shm: {}", self.thresholds_from)?;
        }
        Ok(())
    }
}

fn name(nodes: &BTreeMap<u32, String>, rank: u32) -> &str {
    nodes.get(&rank).map_or("?", String::as_str)
}

/// Returns the line of a path.
pub(crate) fn path(own: u32, nodes: &BTreeMap<u32, String>, path: &PathReport) -> String {
    format!("esp: rank {own}: {} has {path}", name(nodes, path.peer))
}

/// Returns the transports that could not be created and the reasons, a line each.
pub(crate) fn missing(without: &[(&'static str, String)]) -> String {
    let line = |(transport, why): &(_, _)| format!("\n{transport}: not available: {why}");
    without.iter().map(line).collect()
}

/// Writes to standard error by one call, so that lines of several processes do not mix. Errors are
/// ignored.
pub(crate) fn say(text: &str) {
    let _ = std::io::stderr().write_all(text.as_bytes());
}
