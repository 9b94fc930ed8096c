//! Compiles the shim against the headers of Open MPI: those of the folder in `OMPI_INCLUDE`, else
//! those of `mpicc`.

use std::path::PathBuf;
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=shim");
    println!("cargo:rerun-if-env-changed=OMPI_INCLUDE");
    let Some(include) = include() else {
        println!(
            "cargo:warning=no headers of Open MPI: apt install libopenmpi-dev, or set OMPI_INCLUDE to the folder with openmpi/opal_config.h"
        );
        std::process::exit(1);
    };
    let mut shim = cc::Build::new();
    for file in ["shim/component.c", "shim/module.c", "shim/onesided.c"] {
        shim.file(file);
    }
    shim.include(&include)
        .include(include.join("openmpi"))
        .opt_level(2)
        .warnings(true)
        .extra_warnings(false);
    shim.flag_if_supported("-Wno-unused-parameter")
        .compile("espshim");
    // The component stays in memory until its process ends, because it may have threads.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}

/// Returns the folder that contains openmpi/opal_config.h.
fn include() -> Option<PathBuf> {
    let has = |dir: &PathBuf| dir.join("openmpi/opal_config.h").is_file();
    if let Some(dir) = std::env::var_os("OMPI_INCLUDE") {
        return Some(PathBuf::from(dir)).filter(has);
    }
    for compiler in ["mpicc.openmpi", "mpicc"] {
        let Ok(output) = Command::new(compiler).arg("--showme:incdirs").output() else {
            continue;
        };
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        if let Some(dir) = text.split_whitespace().map(PathBuf::from).find(has) {
            return Some(dir);
        }
    }
    None
}
