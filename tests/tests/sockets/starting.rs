//! How esprun starts the program and the broker.

use super::*;

#[test]
fn the_broker_holds_no_descriptor_of_the_program() {
    let Some(lab) = bare_lab("the_broker_holds_no_descriptor", 1) else {
        return;
    };
    let esprun = programs().join("esprun");
    let script = format!(
        "exec 7</dev/zero; exec {} --tcp sh -c 'echo ready; read line'",
        esprun.display()
    );
    let mut command = lab.command(0, "sh").expect("a command");
    command.args(["-c", &script]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut program = Killed(command.spawn().expect("start it"));
    prints(&mut program.0, "ready");
    let holds = |process: u32| {
        let all = fs::read_dir(format!("/proc/{process}/fd")).expect("its descriptors");
        let mut files = all.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
        files.any(|file| file == Path::new("/dev/zero"))
    };
    let pid = program.0.id();
    assert!(holds(pid), "the program has it");
    assert!(!holds(broker_of(pid)));
}

#[test]
fn the_program_ignores_sigpipe_if_the_parent_of_esprun_did() {
    let Some(lab) = bare_lab("the_program_ignores_sigpipe", 1) else {
        return;
    };
    let esprun = programs().join("esprun");
    for (trap, ignored) in [("trap '' PIPE;", 1), ("", 0)] {
        let script = format!(
            "{trap} exec {} --tcp -v grep SigIgn /proc/self/status",
            esprun.display()
        );
        let mut command = lab.command(0, "sh").expect("a command");
        let ended = output(command.args(["-c", &script]));
        let set = ended.out.trim().rsplit('\t').next().expect("a set");
        let set = u64::from_str_radix(set, 16).expect("a number");
        assert_eq!((set >> 12) & 1, ignored, "{trap}: {ended:?}");
    }
    let missing = "trap '' PIPE; exec \"$0\" --tcp /no/such/program";
    let mut command = lab.command(0, "sh").expect("a command");
    let ended = output(command.args(["-c", missing]).arg(&esprun));
    assert_eq!(ended.code, Some(127), "{ended:?}");
}
