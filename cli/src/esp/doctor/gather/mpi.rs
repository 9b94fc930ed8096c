//! Reads the facts about Open MPI from its `ompi_info`.

use std::io::Read;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::time::Duration;

use crate::esp::doctor::facts::{Mpi, OpenMpi};

/// Name of the component's file.
const COMPONENT: &str = "mca_btl_esp.so";
/// Variable with folders that Open MPI searches for components, in addition to its own.
const PATH: &str = "OMPI_MCA_mca_base_component_path";
/// Time limit of `ompi_info`, and maximum length of its output in bytes.
const LIMIT: Duration = Duration::from_secs(10);
const MAX_OUTPUT: u64 = 16 << 20;

/// Reads the facts.
pub(super) fn read() -> Mpi {
    let home = std::env::home_dir().map(|home| home.join(".openmpi/components"));
    let path = std::env::var(PATH).unwrap_or_default();
    let folders = home
        .into_iter()
        .chain(path.split(':').filter(|p| !p.is_empty()).map(PathBuf::from));
    let components = folders
        .map(|folder| folder.join(COMPONENT))
        .filter(|file| file.is_file())
        .collect();
    Mpi {
        open_mpi: run("ompi_info", &["--parsable"], LIMIT)
            .as_deref()
            .and_then(parse),
        components,
    }
}

/// Returns the standard output of a program; `None` if it cannot be started or does not end in
/// time.
fn run(program: &str, args: &[&str], limit: Duration) -> Option<String> {
    let mut command = Command::new(program);
    command
        .args(args)
        .stdin(Stdio::null())
        .stderr(Stdio::null());
    let mut child = command.stdout(Stdio::piped()).spawn().ok()?;
    let out = child.stdout.take()?;
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let mut text = Vec::new();
        let read = out.take(MAX_OUTPUT).read_to_end(&mut text);
        let _ = sender.send(read.map(|_| text));
    });
    let text = receiver.recv_timeout(limit);
    // Kill it, because it ignores Ctrl-C: doctor has blocked the signals.
    let _ = child.kill();
    let _ = child.wait();
    Some(String::from_utf8_lossy(&text.ok()?.ok()?).into_owned())
}

fn parse(text: &str) -> Option<OpenMpi> {
    let value = |name: &str| text.lines().find_map(|line| line.strip_prefix(name));
    let component = |line: &str| {
        let version = line.strip_prefix("mca:btl:esp:version:")?.trim_matches('"');
        Some(version.strip_prefix("component:")?.to_owned())
    };
    Some(OpenMpi {
        version: value("ompi:version:full:")?.trim().to_owned(),
        dlopen: value("option:dlopen:")?.trim() == "yes",
        component: text.lines().find_map(component),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_is_missing_or_does_not_end_has_no_output() {
        assert_eq!(run("no-such-program-anywhere", &[], LIMIT), None);
        assert_eq!(run("sleep", &["1000"], Duration::ZERO), None);
        assert_eq!(run("echo", &["x"], LIMIT).as_deref(), Some("x\n"));
    }

    #[test]
    fn the_output_of_ompi_info_is_parsed() {
        let text = "package:Open MPI\nompi:version:full:4.1.4\noption:dlopen:yes\n\
                    mca:btl:esp:version:\"mca:2.1.0\"\nmca:btl:esp:version:\"component:5.0.7\"\n";
        let expected = OpenMpi {
            version: "4.1.4".into(),
            dlopen: true,
            component: Some("5.0.7".into()),
        };
        assert_eq!(parse(text), Some(expected));
        let without = text.replace("btl:esp", "btl:tcp");
        assert_eq!(parse(&without).and_then(|info| info.component), None);
        assert_eq!(parse("MPICH Version: 4.0.2"), None);
    }
}
