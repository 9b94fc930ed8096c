//! Reads the facts of Open MPI from its `ompi_info`.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::esp::doctor::facts::{Mpi, OpenMpi};

/// Name of the component's file.
const COMPONENT: &str = "mca_btl_esp.so";
/// Folders in which Open MPI looks for components, beside its own.
const PATH: &str = "OMPI_MCA_mca_base_component_path";

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
        open_mpi: run().as_deref().and_then(parse),
        components,
    }
}

/// Returns the output of `ompi_info`; `None` if there is none, or if it does not run here.
fn run() -> Option<String> {
    let mut command = Command::new("ompi_info");
    command.arg("--parsable");
    let output = command.stdin(Stdio::null()).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    output.status.success().then_some(text)
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
