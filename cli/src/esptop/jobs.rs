//! Determines the jobs of processes by the variables that launchers and batch systems set.

use std::fs::File;
use std::io::Read;

/// Maximum number of bytes that are read from an environment.
const MAX_ENVIRONMENT: u64 = 1 << 20;
/// Maximum length of a job's name, in characters.
const MAX_NAME: usize = 64;
/// Variables with the name of a job, and the programs that set them; the first one that is found
/// counts.
const VARIABLES: [(&str, &str); 5] = [
    ("SLURM_JOB_ID", "slurm"),
    ("PBS_JOBID", "pbs"),
    ("LSB_JOBID", "lsf"),
    ("PMIX_NAMESPACE", "pmix"),
    ("ESP_JOB_DIR", "dir"),
];

/// Returns the job of a process; `None` if it has none or this user may not read its environment.
pub(super) fn of(pid: u32) -> Option<String> {
    let mut bytes = Vec::new();
    let file = File::open(format!("/proc/{pid}/environ")).ok()?;
    file.take(MAX_ENVIRONMENT).read_to_end(&mut bytes).ok()?;
    in_environment(&bytes)
}

fn in_environment(bytes: &[u8]) -> Option<String> {
    let value = |name: &str| {
        let mut entries = bytes.split(|byte| *byte == 0);
        entries.find_map(|entry| entry.strip_prefix(name.as_bytes())?.strip_prefix(b"="))
    };
    let found = VARIABLES.iter().find_map(|(name, from)| {
        let value = value(name).filter(|value| !value.is_empty())?;
        Some(format!("{from} {}", String::from_utf8_lossy(value)))
    });
    found.map(|name| name.chars().take(MAX_NAME).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_batch_system_counts_before_the_launcher() {
        let long = format!("ESP_JOB_DIR={}", "x".repeat(5000));
        for (environment, wanted) in [
            (
                &b"A=1\0PMIX_NAMESPACE=7.1\0SLURM_JOB_ID=42\0"[..],
                Some("slurm 42"),
            ),
            (b"PMIX_NAMESPACE=prterun-a-1@1", Some("pmix prterun-a-1@1")),
            (b"SLURM_JOB_ID=\0ESP_JOB_DIR=/tmp/j", Some("dir /tmp/j")),
            (b"PBS_JOBID=\xff", Some("pbs \u{fffd}")),
            (long.as_bytes(), Some(&*format!("dir {}", "x".repeat(60)))),
            (b"XSLURM_JOB_ID=1\0SLURM_JOB_IDX=1\0SLURM_JOB_ID", None),
            (b"", None),
        ] {
            assert_eq!(in_environment(environment).as_deref(), wanted);
        }
    }

    #[test]
    fn a_process_that_is_gone_has_no_job() {
        assert_eq!(of(u32::MAX), None);
    }
}
