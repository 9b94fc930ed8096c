//! The crates of this workspace, as `cargo metadata` lists them.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::outcome::{Failure, failed};
use crate::process::{cargo, output};

/// The root folder of the project.
pub(crate) fn root() -> PathBuf {
    let own = env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    own.ancestors().nth(2).map_or(own.clone(), Path::to_owned)
}

/// Purpose of a dependency.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Normal,
    Dev,
    Build,
}

/// One line of a crate's dependency tables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Dependency {
    pub(crate) package: String,
    pub(crate) kind: Kind,
}

/// A crate of the workspace.
#[derive(Clone, Debug)]
pub(crate) struct Package {
    pub(crate) name: String,
    pub(crate) dir: PathBuf,
    pub(crate) dependencies: Vec<Dependency>,
    pub(crate) features: Vec<String>,
}

/// The crates of this workspace.
#[derive(Clone, Debug, Default)]
pub(crate) struct Workspace {
    pub(crate) packages: Vec<Package>,
    /// Where cargo builds.
    pub(crate) target: PathBuf,
}

impl Workspace {
    /// Runs `cargo metadata`.
    pub(crate) fn load() -> Result<Workspace, Failure> {
        let text = output(
            cargo(["metadata", "--format-version=1", "--no-deps", "--quiet"]).current_dir(root()),
        )?;
        let Ok(value) = serde_json::from_str::<Value>(&text) else {
            return failed("`cargo metadata` did not print JSON");
        };
        match Workspace::parse(&value) {
            Some(workspace) if !workspace.packages.is_empty() => Ok(workspace),
            _ => failed("`cargo metadata` printed something this program does not understand"),
        }
    }

    fn parse(value: &Value) -> Option<Workspace> {
        let packages = value["packages"]
            .as_array()?
            .iter()
            .map(Package::parse)
            .collect::<Option<_>>()?;
        Some(Workspace {
            packages,
            target: PathBuf::from(value["target_directory"].as_str()?),
        })
    }

    pub(crate) fn package(&self, name: &str) -> Result<&Package, Failure> {
        match self.packages.iter().find(|p| p.name == name) {
            Some(package) => Ok(package),
            None => failed(format!("the workspace has no crate `{name}`")),
        }
    }

    /// Returns the crates that depend on `name` directly.
    pub(crate) fn depending_on(&self, name: &str) -> impl Iterator<Item = &Package> {
        self.packages
            .iter()
            .filter(move |package| package.dependencies.iter().any(|d| d.package == name))
    }

    /// Makes a workspace for tests of the gates, of pairs (name, dependencies).
    #[cfg(test)]
    pub(crate) fn made_of(packages: &[(&str, &[(&str, Kind)])]) -> Workspace {
        let packages = packages.iter().map(|&(name, dependencies)| Package {
            name: name.to_owned(),
            dir: PathBuf::from(name),
            dependencies: dependencies
                .iter()
                .map(|&(package, kind)| Dependency {
                    package: package.to_owned(),
                    kind,
                })
                .collect(),
            features: Vec::new(),
        });
        Workspace {
            packages: packages.collect(),
            target: PathBuf::new(),
        }
    }
}

impl Package {
    fn parse(value: &Value) -> Option<Package> {
        let dependencies = value["dependencies"].as_array()?.iter().map(|d| {
            let kind = match d["kind"].as_str() {
                None => Kind::Normal,
                Some("dev") => Kind::Dev,
                Some("build") => Kind::Build,
                Some(_) => return None,
            };
            let package = d["name"].as_str()?.to_owned();
            Some(Dependency { package, kind })
        });
        Some(Package {
            name: value["name"].as_str()?.to_owned(),
            dir: PathBuf::from(value["manifest_path"].as_str()?)
                .parent()?
                .to_owned(),
            dependencies: dependencies.collect::<Option<_>>()?,
            features: value["features"].as_object()?.keys().cloned().collect(),
        })
    }
}

/// Returns the files below `dir` that `wanted` accepts, sorted, without hidden and generated ones.
pub(crate) fn files(dir: &Path, wanted: &dyn Fn(&Path) -> bool) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut open = vec![dir.to_owned()];
    while let Some(dir) = open.pop() {
        for entry in fs::read_dir(&dir).into_iter().flatten().flatten() {
            let path = entry.path();
            let name = entry.file_name();
            let name = name.to_string_lossy();
            let made = ["target", "corpus", "artifacts"].contains(&name.as_ref());
            if path.is_dir() {
                if !name.starts_with('.') && !made {
                    open.push(path);
                }
            } else if wanted(&path) {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// Names a file from the root of the project.
pub(crate) fn shown(path: &Path) -> String {
    path.strip_prefix(root())
        .unwrap_or(path)
        .display()
        .to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_of_the_real_workspace_is_understood() {
        let workspace = Workspace::load().expect("cargo metadata works");
        let proto = workspace.package("esp-proto").expect("it is there");
        assert!(!proto.dependencies.is_empty());
        assert!(workspace.package("no-such-crate").is_err());
        assert!(root().join("Cargo.toml").is_file());
    }
}
