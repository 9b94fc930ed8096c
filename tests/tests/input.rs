//! What people and shells do to every program: wrong units, misspelt names, closed pipes, no
//! terminal, `NO_COLOR`, Ctrl-C, and a daemon of another version.

use std::fs::File;
use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::net::UnixListener;
use std::process::{Command, Stdio};
use std::thread;

use esp_client::control::codec::{encode, send};
use esp_client::control::{Envelope, Reply, VERSION};
use esp_tests::process::{Finished, Killed, TempFile, output, programs, signal};
use esp_tests::{client, lab_or_skip, wait_until};
use lab::{Lab, LabOptions};
use rustix::process::Signal;

/// Programs whose help and version are checked.
const ALL: [&str; 9] = [
    "esp",
    "esping",
    "espstat",
    "esptop",
    "espcat",
    "esperf",
    "esplab",
    "esprun",
    "esp-daemon",
];

fn command(lab: &Lab, line: &str) -> Command {
    let mut words = line.split_whitespace();
    let program = programs().join(words.next().expect("a program"));
    let mut command = lab.command(0, program).expect("a command of the node");
    command.args(words).env_remove("NO_COLOR");
    command
}

fn run(lab: &Lab, line: &str) -> Finished {
    output(&mut command(lab, line))
}

/// Runs a line of a shell in node 0, where the programs are found by their names.
fn shell(lab: &Lab, line: &str) -> Finished {
    let mut command = lab.command(0, "bash").expect("a command of the node");
    let path = std::env::var("PATH").unwrap_or_default();
    let path = format!("{}:{path}", programs().display());
    command.env("PATH", path).env_remove("NO_COLOR");
    output(command.args(["-o", "pipefail", "-c", line]))
}

#[test]
fn wrong_values_are_refused_with_what_to_write() {
    let Some(lab) = lab_or_skip("wrong_values", &LabOptions::new(1)) else {
        return;
    };
    for (line, says) in [
        ("esping -i 5x node0", "invalid duration `5x`: write"),
        ("esping -W=-1 node0", "invalid duration `-1`: write"),
        ("esping -s 1k9 node0", "invalid size `1k9`: write"),
        ("esping -s 1g node0", "invalid size 1073741824 for -s"),
        ("esping -c many node0", "invalid number `many`: write"),
        ("espstat -w 5x", "invalid duration `5x`: write"),
        ("espstat dport = x", "dport"),
        ("esptop -i 1furlong", "invalid duration `1furlong`: write"),
        ("esptop -i 1ms", "write at least 0.05 seconds"),
        ("espcat -w 5x node0 1", "invalid duration `5x`: write"),
        ("espcat node0 99999", "write a number from 1 to 65535"),
        ("esperf -c node0 -t 5x", "invalid duration `5x`: write"),
        ("esperf -c node0 -n 3zz", "invalid size `3zz`: write"),
        ("esperf -c node0 -l 9M", "invalid length"),
        ("esp dump -i eth0 -c few", "invalid number `few`: write"),
        ("esp dump -i eth9", "eth9"),
        ("esp doctor -I eth9", "eth9"),
        (
            "esplab up --rate 5furlong",
            "invalid rate `5furlong`: write",
        ),
        ("esplab up --loss 2", "invalid share `2`: write"),
        ("esplab up --nodes 0", "write 1 to 254"),
        ("esplab exec 77 true", "no node 77"),
        ("esprun", "PROGRAM"),
        ("esprun --tcp --rules /nonexistent true", "/nonexistent"),
    ] {
        let refused = run(&lab, line);
        assert_eq!(refused.code, Some(2), "{line}: {refused:?}");
        let all = format!("{}{}", refused.out, refused.err);
        assert!(all.contains(says), "{line}: {refused:?}");
        assert!(!all.contains("panicked"), "{line}: {refused:?}");
    }
}

#[test]
fn misspelt_nodes_are_answered_with_a_similar_name() {
    let Some(lab) = lab_or_skip("misspelt_nodes", &LabOptions::new(2)) else {
        return;
    };
    for line in [
        "esping -c 1 ndoe1",
        "esping --mtu ndoe1",
        "espcat ndoe1 7000",
        "espcat -u ndoe1 7000",
        "esperf -c ndoe1",
        "esp doctor --peer ndoe1",
        "esplab send ndoe1:7000",
    ] {
        let refused = run(&lab, line);
        assert_eq!(refused.code, Some(2), "{line}: {refused:?}");
        let all = format!("{}{}", refused.out, refused.err);
        assert!(
            all.contains("did you mean") && all.contains("node1"),
            "{line}: {refused:?}"
        );
    }
}

#[test]
fn a_closed_pipe_ends_programs_silently() {
    let Some(lab) = lab_or_skip("closed_pipe", &LabOptions::new(2)) else {
        return;
    };
    // Each prints more than the one line that is read.
    for line in [
        "esping -c 100 -i 0.01 node1",
        "esping --discover -c 2 -W 0.1 --json",
        "espstat --counters --all",
        "espstat -w 0.05",
        "esptop --once -i 0.05",
        "esp doctor --all",
        "esp doctor --all --json",
        "esplab list",
        "esperf -s",
        "esp dump -i eth0",
    ] {
        // Something for the programs that wait for others.
        let other = match line.split(' ').next() {
            Some("esperf") => {
                "timeout 15 bash -c 'until esperf -c node0 -t 0.2; do sleep 0.1; done' >/dev/null 2>&1 & "
            }
            Some("esp") => {
                "timeout 5 esplab exec 1 -- esping -q -c 100 -i 0.02 node0 >/dev/null & "
            }
            _ => "",
        };
        let piped = shell(&lab, &format!("{other}timeout 20 {line} | head -n 1"));
        assert_eq!(piped.code, Some(0), "{line}: {piped:?}");
        let mut said = piped.err.lines();
        assert!(
            said.all(|said| said.starts_with("listening on")),
            "{line}: {piped:?}"
        );
    }
    for program in ALL {
        for option in ["--help", "--version"] {
            let piped = shell(&lab, &format!("{program} {option} | true"));
            assert_eq!(
                (piped.code, piped.err.as_str()),
                (Some(0), ""),
                "{program} {option}"
            );
        }
    }
}

#[test]
fn versions_name_the_control_protocol() {
    let Some(lab) = lab_or_skip("versions", &LabOptions::new(1)) else {
        return;
    };
    for program in ALL {
        let shown = run(&lab, &format!("{program} --version"));
        let wanted = format!("(control protocol {VERSION})");
        assert!(shown.out.contains(&wanted), "{program}: {shown:?}");
    }
}

/// Lines whose output has colours or a bar in a terminal.
const COLOURED: [&str; 8] = [
    "esping --help",
    "esping -c 2 -i 0.01 node1",
    "espstat -i",
    "esptop --once -i 0.05",
    "esp doctor --all",
    "esp dump --help",
    "esperf -c nowhere",
    "esplab exec 77 true",
];

#[test]
fn colours_are_for_terminals_of_people_that_want_them() {
    let Some(lab) = lab_or_skip("colours", &LabOptions::new(2)) else {
        return;
    };
    let colours = |shown: &Finished| {
        let all = format!("{}{}", shown.out, shown.err);
        // Select Graphic Rendition, other than bold, underline and their end.
        let codes = all.split("\x1b[").skip(1);
        let codes = codes.filter_map(|rest| rest.split_once('m').map(|(code, _)| code));
        let is_colour = |code: &str| {
            let mut numbers = code.split(';').map(str::parse::<u8>);
            numbers.any(|number| matches!(number, Ok(30..=49 | 90..=107)))
        };
        codes.filter(|code| is_colour(code)).count()
    };
    let mut coloured = 0;
    for line in COLOURED {
        let plain = run(&lab, line);
        assert!(!plain.out.contains('\x1b'), "{line}: {plain:?}");
        assert!(!plain.err.contains('\x1b'), "{line}: {plain:?}");
        if !std::path::Path::new("/usr/bin/script").exists() {
            continue;
        }
        let terminal = |variable: &str| {
            let line = format!("{variable} TERM=xterm-256color script -qec '{line}' /dev/null");
            shell(&lab, &line)
        };
        coloured += colours(&terminal(""));
        let none = terminal("NO_COLOR=1");
        assert_eq!(colours(&none), 0, "{line}: {none:?}");
    }
    if std::path::Path::new("/usr/bin/script").exists() {
        assert!(
            coloured > 0,
            "no colour in a terminal, so nothing was tested"
        );
    }
}

#[test]
fn an_interrupt_ends_programs_and_leaves_nothing() {
    let Some(lab) = lab_or_skip("interrupt", &LabOptions::new(2)) else {
        return;
    };
    let here = client(&lab, 0);
    let held = || {
        let status = here.status().expect("status");
        status.connections.len() + status.listeners.len() + status.edp.len()
    };
    wait_until("nothing is open", || held() == 0);
    // Exit codes of a program that prints a summary of what it did, has a last echo without an
    // answer yet, or breaks off.
    for (line, opens, codes) in [
        ("esping -i 0.05 node1", true, &[0, 1][..]),
        ("esping -f node1", true, &[0, 1]),
        ("esping --discover -c 1000", true, &[0]),
        ("espstat -w 0.1", false, &[0]),
        ("esp dump -i eth0", false, &[0]),
        ("espcat -l 7000", true, &[0, 1, 130]),
        ("espcat -u -l 7001", true, &[0, 1, 130]),
        ("esperf -s", true, &[0]),
        ("esplab recv 7002", true, &[0, 1, 2, 130]),
    ] {
        let mut started = command(&lab, line);
        started.stdin(Stdio::null()).stdout(Stdio::null());
        let mut child = Killed(started.stderr(Stdio::piped()).spawn().expect("start it"));
        if opens {
            wait_until("it has opened a socket", || held() > 0);
        } else {
            wait_until("it watches for signals", || blocks_interrupts(child.0.id()));
        }
        signal(
            i32::try_from(child.0.id()).expect("a process id"),
            Signal::INT,
        );
        let mut code = None;
        wait_until(line, || {
            let status = child.0.try_wait().expect("its status");
            code = status.map(|status| status.code().unwrap_or(130));
            code.is_some()
        });
        let mut said = String::new();
        let mut pipe = child.0.stderr.take().expect("its messages");
        pipe.read_to_string(&mut said).expect("text");
        assert!(
            code.is_some_and(|code| codes.contains(&code)),
            "{line}: {code:?} {said}"
        );
        assert!(!said.contains("panicked"), "{line}: {said}");
        wait_until("its sockets are closed", || held() == 0);
    }
}

/// Returns true if a process blocks or catches SIGINT.
fn blocks_interrupts(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let has = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        let mask = line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
        mask.is_some_and(|mask| mask & 2 != 0)
    };
    has("SigBlk:") || has("SigCgt:")
}

/// Serves a socket like a daemon that speaks another version of the control protocol.
fn other_daemon(descriptors: bool, answer: impl Fn() -> Vec<u8> + Send + 'static) -> TempFile {
    let file = TempFile::new("");
    std::fs::remove_file(file.path()).expect("the place of the socket");
    let listener = UnixListener::bind(file.path()).expect("a socket");
    thread::spawn(move || {
        for mut program in listener.incoming().flatten() {
            let _ = program.read(&mut [0; 4096]);
            let null = File::open("/dev/null").expect("/dev/null");
            // As many as a welcome has.
            let descriptors = if descriptors {
                [null.as_fd(); 4].to_vec()
            } else {
                Vec::new()
            };
            let _ = send(&program, &answer(), &descriptors);
        }
    });
    file
}

/// Runs a program that finds this daemon's socket.
fn with_daemon(lab: &Lab, daemon: &TempFile, line: &str) -> Finished {
    let mut words = line.split_whitespace();
    let program = programs().join(words.next().expect("a program"));
    // The lab sets the variable for commands in its nodes, so it is set there again.
    let mut command = lab.command(0, "env").expect("a command of the node");
    let variable = format!("ESP_SOCKET={}", daemon.path().display());
    output(command.arg(variable).arg(program).args(words))
}

#[test]
fn a_daemon_of_another_version_is_named_with_its_version() {
    let Some(lab) = lab_or_skip("other_version", &LabOptions::new(1)) else {
        return;
    };
    let hello = |version| {
        let body = Reply::Hello {
            version,
            daemon: "9.9.9".into(),
            client: 1,
            incarnation: 1,
            engine: 0,
            interfaces: Vec::new(),
            leases: false,
        };
        encode(&Envelope { id: 1, body }).expect("a message")
    };
    let older = VERSION - 1;
    let newer = other_daemon(true, move || hello(VERSION + 1));
    let older_one = other_daemon(true, move || hello(older));
    let garbage = other_daemon(false, || b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec());
    for (daemon, says) in [
        (
            &newer,
            format!("it speaks version {}, this program {VERSION}", VERSION + 1),
        ),
        (
            &older_one,
            format!("it speaks version {older}, this program {VERSION}"),
        ),
        (&garbage, String::new()),
    ] {
        for line in [
            "esping -c 1 02:e5:00:00:00:02",
            "esping --discover",
            "espstat",
            "esptop --once",
            "espcat 02:e5:00:00:00:02 7000",
            "esperf -c 02:e5:00:00:00:02",
            "esperf -s",
            "esplab recv 7000",
        ] {
            let refused = with_daemon(&lab, daemon, line);
            assert_eq!(refused.code, Some(2), "{line}: {refused:?}");
            let text = refused.complaint();
            assert!(text.contains(&says), "{line}: {refused:?}");
            assert!(
                text.contains(&daemon.path().display().to_string()),
                "{line}: {text}"
            );
        }
        // Commands that need no daemon work, and `esp doctor` says what is missing.
        let doctor = with_daemon(&lab, daemon, "esp doctor");
        assert!(doctor.code.is_some_and(|code| code <= 2), "{doctor:?}");
        // Its lines are broken between words.
        let text = doctor.out.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(text.contains(&says), "{doctor:?}");
        assert!(doctor.out.contains("host"), "{doctor:?}");
        let udp = "espcat --carrier udp -w 0.2 127.0.0.1 7000";
        let udp = with_daemon(&lab, daemon, udp);
        assert_eq!(udp.code, Some(1), "no daemon is needed: {udp:?}");
    }
}
