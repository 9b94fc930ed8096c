//! Tests of descriptors, of loading the library, and of the layout of its types.

use std::ffi::c_char;

use super::abi::*;
use super::*;

#[test]
fn a_descriptor_is_duplicated_and_an_invalid_one_refused() {
    use std::os::fd::AsRawFd;
    let file = std::fs::File::open("/dev/null").unwrap();
    let copy = duplicate(file.as_raw_fd()).unwrap();
    assert_ne!(copy.as_raw_fd(), file.as_raw_fd());
    assert!(duplicate(-1).is_err());
    assert!(duplicate(1 << 20).is_err());
}

#[test]
fn a_missing_library_names_the_package_to_install() {
    let text = load(&[
        "libno-such-thing.so.7".into(),
        "/nonexistent/libpmix.so.2".into(),
    ])
    .map(drop)
    .unwrap_err()
    .to_string();
    assert!(
        text.contains("apt install libpmix2") && text.contains("libno-such-thing.so.7"),
        "{text}"
    );
    assert_eq!(text.lines().count(), 1);
}

#[test]
fn another_library_is_refused() {
    let Err(error) = Pmix::init(&["libc.so.6".into()]) else {
        panic!("libc was accepted as libpmix")
    };
    assert!(error.to_string().contains("PMIx_Init"), "{error}");
}

/// Compiles a program with the headers of the system that prints sizes and offsets.
#[test]
fn the_layout_is_that_of_the_headers() {
    let source = r#"
#include <pmix.h>
#include <stddef.h>
#include <stdio.h>
int main(void) {
    pmix_status_t (*init)(pmix_proc_t *, pmix_info_t *, size_t) = PMIx_Init;
    pmix_status_t (*finalize)(const pmix_info_t *, size_t) = PMIx_Finalize;
    pmix_status_t (*abort_job)(int, const char *, pmix_proc_t *, size_t) = PMIx_Abort;
    pmix_status_t (*put)(pmix_scope_t, const char *, pmix_value_t *) = PMIx_Put;
    pmix_status_t (*commit)(void) = PMIx_Commit;
    pmix_status_t (*fence)(const pmix_proc_t *, size_t, const pmix_info_t *, size_t) = PMIx_Fence;
    pmix_status_t (*get)(const pmix_proc_t *, const char *, const pmix_info_t *, size_t, pmix_value_t **) = PMIx_Get;
    const char *(*text)(pmix_status_t) = PMIx_Error_string;
    (void)init; (void)finalize; (void)abort_job; (void)put; (void)commit; (void)fence; (void)get; (void)text;
    printf("%zu %zu %zu %zu %zu %zu %zu %zu %zu %zu %d %d %d %d %d %d %d %d %d %u %zu %zu %s %s %s %s", sizeof(pmix_proc_t), offsetof(pmix_proc_t, rank),
        sizeof(pmix_byte_object_t), sizeof(pmix_value_t), offsetof(pmix_value_t, data), sizeof(pmix_info_t),
        offsetof(pmix_info_t, flags), offsetof(pmix_info_t, value), sizeof(pmix_status_t), sizeof(pmix_scope_t),
        PMIX_SUCCESS, PMIX_ERR_NOT_FOUND, PMIX_ERR_TIMEOUT, PMIX_BOOL, PMIX_STRING, PMIX_INT, PMIX_UINT32,
        PMIX_BYTE_OBJECT, PMIX_GLOBAL, PMIX_RANK_WILDCARD, sizeof(pmix_nspace_t), sizeof(pmix_key_t),
        PMIX_COLLECT_DATA, PMIX_TIMEOUT, PMIX_IMMEDIATE, PMIX_JOB_SIZE);
    return 0;
}"#;
    let dir = std::env::temp_dir().join(format!("esp-pmix-abi-{}", std::process::id()));
    std::fs::create_dir(&dir).unwrap();
    let (file, program) = (dir.join("abi.c"), dir.join("abi"));
    std::fs::write(&file, source).unwrap();
    let mut cc = std::process::Command::new("cc");
    cc.args([
        "-Wall",
        "-Werror",
        "-c",
        "-I/usr/lib/x86_64-linux-gnu/pmix2/include",
    ]);
    cc.args(["-I/usr/lib/aarch64-linux-gnu/pmix2/include", "-o"])
        .arg(dir.join("abi.o"))
        .arg(&file);
    let probe = std::process::Command::new("cc")
        .args([
            "-E",
            "-x",
            "c",
            "-",
            "-I/usr/lib/x86_64-linux-gnu/pmix2/include",
        ])
        .args([
            "-I/usr/lib/aarch64-linux-gnu/pmix2/include",
            "-include",
            "pmix.h",
        ])
        .stdin(std::process::Stdio::null())
        .output();
    if !probe.is_ok_and(|out| out.status.success()) {
        std::fs::remove_dir_all(&dir).unwrap();
        let why =
            "no pmix.h here (Debian: apt install libpmix-dev; Fedora: dnf install pmix-devel)";
        assert!(
            std::env::var_os("ESP_TEST_REQUIRE_PRIVILEGE").is_none_or(|v| v != "1"),
            "{why}"
        );
        // Written past the capture of the test harness, so that it is counted.
        let text = format!("SKIPPED the_layout_is_that_of_the_headers: {why}\n");
        let _ = std::io::Write::write_all(&mut std::io::stderr(), text.as_bytes());
        return;
    }
    // The functions are only compiled: no library is needed to run the program.
    let compiled = cc.output().unwrap();
    assert!(
        compiled.status.success(),
        "{}",
        String::from_utf8_lossy(&compiled.stderr)
    );
    let linked = std::process::Command::new("cc")
        .args(["-Wl,--unresolved-symbols=ignore-all", "-no-pie", "-o"])
        .arg(&program)
        .arg(dir.join("abi.o"))
        .output()
        .unwrap();
    assert!(
        linked.status.success(),
        "{}",
        String::from_utf8_lossy(&linked.stderr)
    );
    let printed = std::process::Command::new(&program)
        .output()
        .unwrap()
        .stdout;
    std::fs::remove_dir_all(&dir).unwrap();
    let layout = LAYOUT.map(|n| n.to_string()).join(" ");
    let rest = format!(
        "{} {} {SUCCESS} {ERR_NOT_FOUND} {ERR_TIMEOUT} {TYPE_BOOL} {TYPE_STRING} {TYPE_INT} {TYPE_UINT32} \
         {TYPE_BYTE_OBJECT} {GLOBAL} {WHOLE_JOB} {NAME_ROOM} {KEY_ROOM} {COLLECT} {TIMEOUT} {IMMEDIATE} {JOB_SIZE}",
        size_of::<Status>(),
        size_of::<u8>(),
    );
    assert_eq!(
        String::from_utf8_lossy(&printed),
        format!("{layout} {rest}")
    );
}

#[test]
fn values_are_taken_and_freed() {
    /// Creates a value as the library does.
    fn made(kind: u16, data: Data) -> *mut Value {
        // SAFETY: room for one, which is written before use.
        unsafe {
            let value = libc::malloc(size_of::<Value>()).cast::<Value>();
            value.write(Value { kind, data });
            value
        }
    }
    fn bytes(length: usize) -> Data {
        // SAFETY: room for `length` bytes, all written.
        let bytes = unsafe {
            let bytes = libc::malloc(length.max(1)).cast::<c_char>();
            bytes.write_bytes(7, length);
            bytes
        };
        Data {
            bytes: ByteObject {
                bytes,
                size: length,
            },
        }
    }
    // SAFETY: each value is complete, from malloc, and passed to `take` only.
    unsafe {
        assert_eq!(
            take(made(TYPE_UINT32, Data { uint32: 5 }), 9),
            Found::Number(5)
        );
        assert_eq!(
            take(made(TYPE_BYTE_OBJECT, bytes(3)), 9),
            Found::Bytes(vec![7; 3])
        );
        assert_eq!(
            take(made(TYPE_BYTE_OBJECT, bytes(0)), 9),
            Found::Bytes(Vec::new())
        );
        assert_eq!(
            take(made(TYPE_BYTE_OBJECT, bytes(10)), 9),
            Found::TooLong(10)
        );
        assert_eq!(
            take(made(TYPE_BOOL, Data { flag: true }), 9),
            Found::Other(TYPE_BOOL)
        );
    }
}
