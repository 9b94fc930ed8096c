//! Compiles the shim against the headers of Open MPI: those in the folder `OMPI_INCLUDE`, or else
//! those of `mpicc`. The version in these headers is the one that the component is for.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Release series that the shim supports, and the version of their BTL interface.
const SERIES: [(u32, u32, [u32; 3]); 3] = [(4, 1, [3, 1, 0]), (5, 0, [3, 3, 0]), (6, 0, [3, 3, 0])];

fn main() {
    println!("cargo:rerun-if-changed=shim");
    println!("cargo:rerun-if-env-changed=OMPI_INCLUDE");
    println!("cargo:rerun-if-env-changed=PMIX_INCLUDE");
    if let Err(error) = build() {
        println!("cargo:warning={error}");
        std::process::exit(1);
    }
    // The component stays in memory until its process ends, because it may have threads.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}

fn build() -> Result<(), String> {
    let include = include().ok_or(
        "no headers of Open MPI: apt install libopenmpi-dev, or set OMPI_INCLUDE to the folder \
         with openmpi/opal_config.h",
    )?;
    let config = include.join("openmpi/opal_config.h");
    println!("cargo:rerun-if-changed={}", config.display());
    let text =
        std::fs::read_to_string(&config).map_err(|e| format!("{}: {e}", config.display()))?;
    let number = |name: &str| {
        defined(&text, name).ok_or_else(|| format!("no {name} in {}", config.display()))
    };
    let major = number("OPAL_MAJOR_VERSION")?;
    let minor = number("OPAL_MINOR_VERSION")?;
    let release = number("OPAL_RELEASE_VERSION")?;
    let interface = SERIES.iter().find(|s| (s.0, s.1) == (major, minor));
    let (_, _, interface) = interface.ok_or_else(|| {
        format!("the component does not support Open MPI {major}.{minor}: use 4.1, 5.0 or 6.0")
    })?;
    for (name, value) in [
        ("MAJOR", major),
        ("MINOR", minor),
        ("RELEASE", release),
        ("BTL_MAJOR", interface[0]),
        ("BTL_MINOR", interface[1]),
        ("BTL_RELEASE", interface[2]),
    ] {
        println!("cargo:rustc-env=OMPI_{name}={value}");
    }
    // In programs that load MPI without making its symbols global, such as Python, the component
    // finds Open MPI's symbols only in libraries that it is linked to.
    let library = library(&include).ok_or_else(|| {
        format!(
            "no libopen-pal.so next to the headers in {}",
            include.display()
        )
    })?;
    println!("cargo:rustc-cdylib-link-arg={}", library.display());
    compile(&include, major)
}

fn compile(include: &Path, major: u32) -> Result<(), String> {
    let mut shim = cc::Build::new();
    for file in ["shim/component.c", "shim/module.c", "shim/onesided.c"] {
        shim.file(file);
    }
    shim.include(include).include(include.join("openmpi"));
    if major >= 5 {
        let pmix = pmix(include).ok_or(
            "no headers of PMIx: apt install libpmix-dev, or set PMIX_INCLUDE to the folder with \
             pmix.h",
        )?;
        // Searched after all others: installed headers have precedence.
        shim.flag("-idirafter").flag(pmix.display().to_string());
        shim.flag("-idirafter").flag("shim/threads");
    }
    shim.opt_level(2).warnings(true).extra_warnings(false);
    shim.flag_if_supported("-Wno-unused-parameter")
        .try_compile("espshim")
        .map_err(|e| format!("the shim does not compile: {e}"))
}

/// Returns the folder that contains openmpi/opal_config.h.
fn include() -> Option<PathBuf> {
    let has = |dir: &PathBuf| dir.join("openmpi/opal_config.h").is_file();
    if let Some(dir) = std::env::var_os("OMPI_INCLUDE") {
        return Some(PathBuf::from(dir)).filter(has);
    }
    for compiler in ["mpicc.openmpi", "mpicc"] {
        let words = words_of(Command::new(compiler).arg("--showme:incdirs"));
        if let Some(dir) = words.into_iter().map(PathBuf::from).find(has) {
            return Some(dir);
        }
    }
    None
}

/// Returns Open MPI's library of portable functions, in the installation that `include` belongs to.
/// It is linked by its whole path, so that no other library is taken from its folder.
fn library(include: &Path) -> Option<PathBuf> {
    // Debian: LIBRARIES/openmpi/include and LIBRARIES; otherwise PREFIX/include and PREFIX/lib.
    let beside = include.parent()?;
    let dirs = [
        beside.join("lib"),
        beside.join("lib64"),
        beside.parent()?.to_owned(),
    ];
    let files = dirs.iter().map(|dir| dir.join("libopen-pal.so"));
    files.into_iter().find(|file| file.is_file())
}

/// Returns the folder that contains pmix.h, in the installation that `include` belongs to.
fn pmix(include: &Path) -> Option<PathBuf> {
    let has = |dir: &PathBuf| dir.join("pmix.h").is_file();
    if let Some(dir) = std::env::var_os("PMIX_INCLUDE") {
        return Some(PathBuf::from(dir)).filter(has);
    }
    // Open MPI may include its own PMIx. Debian's is in LIBRARIES/pmix2/include, next to
    // LIBRARIES/openmpi/include.
    let mut dirs = vec![include.to_owned(), include.join("openmpi")];
    let libraries = include.parent().and_then(Path::parent);
    dirs.extend(libraries.map(|dir| dir.join("pmix2/include")));
    let flags = words_of(Command::new("pkg-config").args(["--cflags-only-I", "pmix"]));
    let flags = flags.iter().filter_map(|flag| flag.strip_prefix("-I"));
    dirs.extend(flags.map(PathBuf::from));
    dirs.push("/usr/include".into());
    dirs.into_iter().find(has)
}

/// Returns the words that a program prints; none if it cannot be run.
fn words_of(command: &mut Command) -> Vec<String> {
    let output = command.output().map(|output| output.stdout);
    let text = String::from_utf8_lossy(&output.unwrap_or_default()).into_owned();
    text.split_whitespace().map(str::to_owned).collect()
}

/// Returns the number that a header defines for a name.
fn defined(header: &str, name: &str) -> Option<u32> {
    header.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        (words.next() == Some("#define") && words.next() == Some(name))
            .then(|| words.next()?.parse().ok())
            .flatten()
    })
}
