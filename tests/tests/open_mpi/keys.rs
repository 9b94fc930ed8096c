//! Keys of programs: all packets between nodes are encrypted, and take UDP.

use esp_tests::frames::Tap;
use esp_tests::open_mpi::Program;
use esp_tests::process::{Finished, output, passed};
use esp_tests::protected::{KeyFile, is_in_udp, is_protected, is_raw};
use lab::Lab;

use super::{lab, mpirun};

/// Runs the program on two nodes with variables `NAME=VALUE`.
fn run(lab: &Lab, program: &Program, variables: &[String], more: &[&str]) -> Finished {
    let mut options = vec!["--mca", "btl_esp_verbose=1"];
    for variable in variables {
        options.extend(["-x", variable]);
    }
    options.extend(more);
    let mut command = mpirun(lab, 2, 2, "esp,self", &options, program.file());
    output(command.args(["100"]))
}

/// Leases are possible, and would carry short messages.
#[test]
fn a_key_encrypts_all_packets() {
    let test = "a_key_encrypts_all_packets";
    let Some(program) = Program::new(test, "pingpong") else {
        return;
    };
    let Some(lab) = lab(test, 2, 1500, "[lease]\nallow = \"all\"\n") else {
        return;
    };
    let key = KeyFile::new(1);
    let file = format!("ESP_KEY_FILE={}", key.text());
    for variables in [&[][..], std::slice::from_ref(&file)] {
        let has_key = !variables.is_empty();
        let mut tap = Tap::of_cable(&lab, 1);
        passed(&run(&lab, &program, variables, &[]));
        let frames = tap.all();
        let in_udp: Vec<_> = frames.iter().filter(|frame| is_in_udp(frame)).collect();
        assert!(in_udp.len() > 100, "{} frames", in_udp.len());
        let all = in_udp.iter().all(|frame| is_protected(frame));
        let raw = frames.iter().any(|frame| is_raw(frame));
        assert_eq!((all, raw), (has_key, !has_key));
    }
    let finished = run(&lab, &program, &[file], &["--mca", "btl_esp_carrier=raw"]);
    let said = format!("{finished:?}");
    assert!(!matches!(finished.code, Some(0 | 124 | 137)), "{said}");
    assert!(
        said.contains("ESP_KEY_FILE) does not protect its packets"),
        "{said}"
    );
}

/// A job does not start if a key file is not usable, or if a rank has another key.
#[test]
fn a_job_does_not_start_without_its_key() {
    let test = "a_job_does_not_start_without_its_key";
    let Some(program) = Program::new(test, "pingpong") else {
        return;
    };
    let Some(lab) = lab(test, 2, 1500, "") else {
        return;
    };
    let key = KeyFile::new(1);
    key.set_mode(0o640);
    for (variable, why) in [
        (format!("ESP_KEY_FILE={}", key.text()), "chmod 600"),
        (
            "ESP_AUTH=encrypt".to_owned(),
            "name its file in ESP_KEY_FILE",
        ),
    ] {
        let mut tap = Tap::of_cable(&lab, 0);
        let finished = run(&lab, &program, &[variable], &[]);
        let said = format!("{finished:?}");
        assert!(!matches!(finished.code, Some(0 | 124 | 137)), "{said}");
        assert!(said.contains(why), "{said}");
        let frames = tap.all();
        assert!(!frames.iter().any(|frame| is_in_udp(frame) || is_raw(frame)));
    }
}

/// Ranks with different keys say so. Each rank has the key of its number.
#[test]
fn ranks_with_different_keys_do_not_meet() {
    let test = "ranks_with_different_keys_do_not_meet";
    let Some(program) = Program::new(test, "pingpong") else {
        return;
    };
    let Some(lab) = lab(test, 2, 1500, "") else {
        return;
    };
    let keys = [KeyFile::new(1), KeyFile::new(2)];
    let [first, second] = keys.each_ref().map(|key| key.text());
    let script = format!(
        "[ $OMPI_COMM_WORLD_RANK = 0 ] && export ESP_KEY_FILE={first} || export \
         ESP_KEY_FILE={second}; exec {} 100",
        program.file().display()
    );
    let options = ["--mca", "btl_esp_verbose=1"];
    let mut command = mpirun(&lab, 2, 2, "esp,self", &options, "/bin/sh".as_ref());
    let finished = output(command.args(["-c", &script]));
    let said = format!("{finished:?}");
    assert!(!matches!(finished.code, Some(0 | 124 | 137)), "{said}");
    assert!(
        said.contains("by a key, those of this process by another key"),
        "{said}"
    );
}
