//! Jobs of a user without any privilege: over a router by UDP, without a daemon and with nothing
//! installed; and over raw Ethernet in a lab of the user's own.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use esp_tests::process::{Killed, output, passed, programs};
use esp_tests::{lab_or_skip, open_mpi};
use lab::{Lab, LabOptions};

/// The user `nobody`.
const USER: u32 = 65534;
/// What makes a process one of an ordinary user: it keeps no capability and cannot regain one.
const WITHOUT_PRIVILEGE: [&str; 7] = [
    "--reuid=65534",
    "--regid=65534",
    "--clear-groups",
    "--inh-caps=-all",
    "--bounding-set=-all",
    "--no-new-privs",
    "--",
];

/// A folder of the user, removed on drop. Other folders of a test may not be readable for the user.
struct Home(PathBuf);

impl Home {
    fn new(test: &str) -> Home {
        let home = Home(std::env::temp_dir().join(format!("esp-{test}-{}", std::process::id())));
        fs::create_dir(&home.0).expect("make a folder");
        chown(&home.0, Some(USER), Some(USER)).expect("give it to the user");
        home
    }

    /// Copies a file into the folder. Returns the path of the copy.
    fn add(&self, file: &Path) -> PathBuf {
        let copy = self.0.join(file.file_name().expect("a name"));
        fs::copy(file, &copy).expect("copy a program");
        fs::set_permissions(&copy, fs::Permissions::from_mode(0o755)).expect("permissions");
        copy
    }

    /// Writes a shell script. Returns its path.
    fn script(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.join(name);
        fs::write(&path, format!("#!/bin/sh\n{text}")).expect("write a script");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("permissions");
        path
    }

    /// Returns a command of the user in a node.
    fn command(&self, lab: &Lab, node: usize, words: &[&str]) -> Command {
        let command = lab.command(node, "timeout").expect("a command of the node");
        self.as_user(command, words)
    }

    /// Adds the words as a command of the user to `timeout`.
    fn as_user(&self, mut command: Command, words: &[&str]) -> Command {
        command.args(["-k", "5", "150", "setpriv"]);
        command.args(WITHOUT_PRIVILEGE).args(words);
        command.env("HOME", &self.0).env("TMPDIR", &self.0);
        for variable in [
            "PMI_FD",
            "PMI_PORT",
            "PMIX_NAMESPACE",
            "ESP_SOCKET",
            "ESP_BTL",
        ] {
            command.env_remove(variable);
        }
        command
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Creates two nodes with a router between, without daemons; `None` after printing SKIPPED.
fn routed(test: &str) -> Option<Lab> {
    let mut options = LabOptions::new(2);
    (options.wire.routed, options.daemon) = (true, false);
    lab_or_skip(test, &options)
}

#[test]
fn the_user_has_no_privilege() {
    let test = "the_user_has_no_privilege";
    let Some(lab) = routed(test) else { return };
    let home = Home::new(test);
    let words = ["grep", "^Cap", "/proc/self/status"];
    let shown = output(&mut home.command(&lab, 0, &words)).out;
    let sets: Vec<&str> = shown.split_whitespace().skip(1).step_by(2).collect();
    assert_eq!(sets, ["0000000000000000"; 5], "{shown}");
}

#[test]
fn a_job_of_the_point_to_point_layer() {
    let test = "a_job_of_the_point_to_point_layer";
    let Some(lab) = routed(test) else { return };
    let home = Home::new(test);
    let program = home.add(&programs().join("examples/p2p-check"));
    let program = program.to_str().expect("a path of text");
    let rank = |rank: usize| {
        let mut command = home.command(&lab, rank, &[program]);
        command
            .env("ESP_JOB_SIZE", "2")
            .env("ESP_JOB_RANK", rank.to_string())
            .env("ESP_JOB_DIR", &home.0)
            .env("ESP_BTL_VERBOSE", "1");
        command
    };
    let mut other = rank(1);
    other.stdout(Stdio::null()).stderr(Stdio::null());
    let mut other = Killed(other.spawn().expect("start a rank"));
    let finished = output(&mut rank(0));
    passed(&finished);
    assert!(finished.out.contains(": udp used: "), "{finished:?}");
    assert!(other.0.wait().expect("wait for it").success());
}

/// `mpirun` starts its helper on the other node by a script in place of ssh: the script passes the
/// command to a process of the user that waits there.
#[test]
fn a_program_of_open_mpi() {
    let test = "a_program_of_open_mpi";
    let Some(program) = open_mpi::Program::new(test, "talk") else {
        return;
    };
    let Some(lab) = routed(test) else { return };
    let home = Home::new(test);
    let program = home.add(program.file());
    home.add(&programs().join("mca_btl_esp.so"));
    let folder = home.0.to_str().expect("a path of text");
    let waiting = home.script(
        "login",
        &format!("until [ -f {folder}/command ]; do sleep 0.05; done\nexec sh {folder}/command\n"),
    );
    let agent = home.script(
        "agent",
        &format!("shift\necho \"$*\" > {folder}/new && mv {folder}/new {folder}/command\n"),
    );
    let mut login = home.command(&lab, 1, &[waiting.to_str().expect("a path of text")]);
    login.stdin(Stdio::null());
    let _login = Killed(login.spawn().expect("start a shell"));
    let components = format!("SYSTEM_DEFAULT:{folder}");
    let words = [
        "mpirun.openmpi",
        "-n",
        "2",
        "--host",
        "node0,node1",
        "--bind-to",
        "none",
        "--mca",
        "plm_rsh_agent",
        agent.to_str().expect("a path of text"),
        "--mca",
        "oob_tcp_if_include",
        "eth0",
        "--mca",
        "mca_base_component_path",
        &components,
        "--mca",
        "pml",
        "ob1",
        "--mca",
        "btl",
        "esp,self",
        "--mca",
        "btl_esp_verbose",
        "1",
        program.to_str().expect("a path of text"),
    ];
    let finished = output(&mut home.command(&lab, 0, &words));
    passed(&finished);
    assert!(finished.err.contains("10.99.0.2"), "{finished:?}");
}

/// `esplab mpirun` makes namespaces, daemons and a job, all of them the user's: it passes on no
/// privilege that the test has.
#[test]
fn a_program_of_open_mpi_in_a_lab_of_the_user() {
    let test = "a_program_of_open_mpi_in_a_lab_of_the_user";
    let Some(program) = open_mpi::Program::new(test, "talk") else {
        return;
    };
    if !rustix::process::geteuid().is_root() {
        return netns::skip(test, "becoming another user needs root");
    }
    let home = Home::new(test);
    let [esplab, program] =
        [&*programs().join("esplab"), program.file()].map(|file| home.add(file));
    for name in ["esp-daemon", "mca_btl_esp.so"] {
        home.add(&programs().join(name));
    }
    let mut words = vec![esplab.to_str().expect("a path of text")];
    words.extend([
        "mpirun",
        "-n",
        "4",
        "--nodes",
        "2",
        "--mca",
        "btl_esp_verbose=1",
        "--",
    ]);
    words.push(program.to_str().expect("a path of text"));
    let mut command = home.as_user(Command::new("timeout"), &words);
    command.env("ESPLAB_STATE", home.0.join("labs"));
    command.env_remove("ESPLAB");
    command.current_dir(&home.0);
    let finished = output(&mut command);
    if finished
        .err
        .contains("not allowed to make a network namespace")
    {
        return netns::skip(test, &finished.err);
    }
    passed(&finished);
    assert!(finished.err.contains("eth0 to eth0 02:e5:"), "{finished:?}");
    let left = fs::read_dir(home.0.join("labs")).expect("the user's labs");
    assert_eq!(left.count(), 0, "labs");
}
