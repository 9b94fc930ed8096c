//! The header in C and C++ compilers, and C programs linked with the library.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Time limit, longer than anything here takes on a machine busy with other tests.
const PATIENCE: Duration = Duration::from_secs(60);

/// A temporary folder, removed on drop.
struct Temp(PathBuf);

impl Temp {
    fn new() -> Temp {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path =
            std::env::temp_dir().join(format!("esp-capi-test-{}-{number}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        let private = <std::fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode(0o700);
        std::fs::set_permissions(&path, private).unwrap();
        Temp(path)
    }
}

impl Drop for Temp {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn here(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// Returns the path of the library that was built with this test.
fn library(name: &str) -> PathBuf {
    let exe = std::env::current_exe().unwrap();
    let deps = exe.parent().unwrap();
    let places = [deps.join(name), deps.parent().unwrap().join(name)];
    let found: Vec<_> = places.iter().filter(|p| p.exists()).collect();
    // Cargo keeps both up to date, but only one of them is certain to exist.
    found
        .first()
        .unwrap_or_else(|| panic!("none of {places:?}"))
        .to_path_buf()
}

fn run(command: &mut Command) -> Output {
    let output = command
        .stdin(Stdio::null())
        .output()
        .unwrap_or_else(|e| panic!("{command:?}: {e}"));
    let words = [&output.stdout[..], &output.stderr].concat();
    assert!(
        output.status.success(),
        "{command:?}: {}: {}",
        output.status,
        String::from_utf8_lossy(&words)
    );
    output
}

/// Builds a C program with the shared library (by its versioned name, as installed) or the archive.
fn build(dir: &Path, source: &Path, shared: bool) -> PathBuf {
    let program = dir.join("program");
    let mut cc = Command::new("cc");
    cc.args([
        "-std=c11",
        "-O1",
        "-g",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-pedantic",
        "-I",
    ])
    .arg(here("include"));
    cc.arg("-o").arg(&program).arg(source);
    if shared {
        for name in ["libesp.so", "libesp.so.0"] {
            std::os::unix::fs::symlink(library("libesp.so"), dir.join(name)).unwrap();
        }
        cc.arg("-L")
            .arg(dir)
            .arg("-lesp")
            .arg(format!("-Wl,-rpath,{}", dir.display()));
    } else {
        let pc = std::fs::read_to_string(here("esp.pc.in")).unwrap();
        let libs = pc
            .lines()
            .find_map(|line| line.strip_prefix("Libs.private: "))
            .unwrap();
        cc.arg(library("libesp.a")).args(libs.split(' '));
    }
    run(&mut cc);
    program
}

fn wait(child: Child) -> Output {
    let deadline = Instant::now() + PATIENCE;
    let mut child = child;
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > deadline {
            let _ = child.kill();
            panic!("a process hangs: {:?}", child.wait_with_output());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    child.wait_with_output().unwrap()
}

/// Runs a program as a job of `size` processes, without a launcher.
fn job(program: &Path, size: u32) -> Vec<Output> {
    let dir = Temp::new();
    let children: Vec<Child> = (0..size)
        .map(|rank| start(program, &dir, rank, size))
        .collect();
    children.into_iter().map(wait).collect()
}

/// Starts a process of a job that has no launcher.
fn start(program: &Path, dir: &Temp, rank: u32, size: u32) -> Child {
    let mut command = Command::new(program);
    clean(&mut command)
        .env("ESP_JOB_RANK", rank.to_string())
        .env("ESP_JOB_SIZE", size.to_string());
    command
        .env("ESP_JOB_DIR", &dir.0)
        .env("ESP_BOOT", "fixed")
        .env("ESP_BTL", "shm");
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// A process that is ended on drop.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Removes variables of the tests' own environment.
fn clean(command: &mut Command) -> &mut Command {
    for name in [
        "ESP_BTL",
        "ESP_BTL_VERBOSE",
        "ESP_BOOT",
        "PMI_FD",
        "PMI_PORT",
        "PMIX_NAMESPACE",
    ] {
        command.env_remove(name);
    }
    command.env("ESP_TUNE", "").env("ESP_BOOT_TIMEOUT", "50")
}

#[test]
fn the_header_is_c_and_cxx() {
    let dir = Temp::new();
    let file = dir.0.join("twice.c");
    std::fs::write(
        &file,
        "#include <esp.h>\n#include <esp.h>\nint main(void) { return ESP_SUCCESS; }\n",
    )
    .unwrap();
    let strict = [
        "-Wall",
        "-Wextra",
        "-Werror",
        "-pedantic",
        "-Wstrict-prototypes",
        "-fsyntax-only",
    ];
    for (compiler, language) in [
        ("cc", "-std=c99"),
        ("cc", "-std=c17"),
        ("c++", "-std=c++11"),
        ("c++", "-std=c++20"),
    ] {
        let mut command = Command::new(compiler);
        command.args(
            strict
                .iter()
                .filter(|flag| compiler == "cc" || **flag != "-Wstrict-prototypes"),
        );
        if compiler == "c++" {
            command.args(["-x", "c++"]);
        }
        run(command
            .arg(language)
            .arg("-I")
            .arg(here("include"))
            .arg(&file));
    }
}

/// The header declares every function of the library, and no other.
#[test]
fn the_header_declares_what_the_library_exports() {
    let header = std::fs::read_to_string(here("include/esp.h")).unwrap();
    let mut declared: Vec<&str> = header
        .split(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == '('))
        .filter_map(|word| {
            word.strip_prefix("esp_")
                .and_then(|w| w.split_once('('))
                .map(|(name, _)| name)
        })
        .filter(|name| {
            !header.contains(&format!("* esp_{name}(")) || header.contains(&format!("*esp_{name}("))
        })
        .collect();
    declared.sort_unstable();
    declared.dedup();
    let symbols = run(Command::new("nm")
        .args(["-D", "--defined-only"])
        .arg(library("libesp.so")))
    .stdout;
    let symbols = String::from_utf8(symbols).unwrap();
    let mut exported: Vec<&str> = symbols
        .lines()
        .filter_map(|l| l.split(' ').nth(2)?.strip_prefix("esp_"))
        .collect();
    exported.sort_unstable();
    assert!(exported.len() > 30, "{symbols}");
    assert_eq!(declared, exported);
}

#[test]
fn invalid_arguments_are_refused() {
    for shared in [true, false] {
        let dir = Temp::new();
        let program = build(&dir.0, &here("tests/refuse.c"), shared);
        let mut command = Command::new(&program);
        clean(&mut command)
            .env("ESP_BOOT", "single")
            .env("ESP_SOCKET", dir.0.join("no-daemon"))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let output = wait(command.spawn().unwrap());
        assert_eq!(
            String::from_utf8_lossy(&output.stdout),
            "fine\n",
            "shared: {shared}, {output:?}"
        );
    }
}

#[test]
fn the_example_runs_in_a_job_of_four() {
    let dir = Temp::new();
    let program = build(&dir.0, &here("examples/ring.c"), true);
    for (rank, output) in job(&program, 4).into_iter().enumerate() {
        assert!(output.status.success(), "rank {rank}: {output:?}");
        let output_text = String::from_utf8_lossy(&output.stdout);
        let expected = if rank == 0 {
            "4 processes, the token came back as 1003, the ranks' sum is 6\n"
        } else {
            ""
        };
        assert_eq!(output_text, expected, "rank {rank}");
    }
}

#[test]
fn abort_does_not_wait_for_finalize() {
    let dir = Temp::new();
    let program = build(&dir.0, &here("tests/abort.c"), true);
    let folder = Temp::new();
    let _second = Ended(start(&program, &folder, 1, 2));
    let output = wait(start(&program, &folder, 0, 2));
    assert_eq!(output.status.code(), Some(7), "{output:?}");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("in or after esp_finalize: enough"), "{text}");
}

#[test]
fn a_job_that_cannot_start_is_an_error() {
    let dir = Temp::new();
    let program = build(&dir.0, &here("examples/ring.c"), true);
    let mut command = Command::new(&program);
    clean(&mut command)
        .env("ESP_BTL", "tcp")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let output = wait(command.spawn().unwrap());
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let output_text = String::from_utf8_lossy(&output.stderr);
    assert!(
        output_text.contains("could not be joined") && output_text.contains("ESP_BTL=tcp"),
        "{output_text}"
    );
}
