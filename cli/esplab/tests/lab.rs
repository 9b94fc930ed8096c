//! The virtual cluster: `esplab up`, `exec`, `list`, `down`, and the behaviour of the wire.

mod common;

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::{Command, Stdio};
use std::time::Duration;

use common::{Downer, TestResult, bare, esplab, esplab_ends, programs, skip, unique, wait_until};
use lab::{Lab, LabError, Node, ProcessRef, State};
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::UdpGsoSegment;
use rustix::process::{Pid, Signal, kill_process};

/// Returns all processes that keep a lab alive.
fn holders(state: &State) -> Vec<ProcessRef> {
    state
        .nodes
        .iter()
        .map(|n| n.holder)
        .chain(state.switch)
        .collect()
}

/// Runs `esplab up`; returns false (and SKIPPED) if namespaces are not allowed.
fn up(name: &str, more: &[&str]) -> bool {
    let output = esplab(&[&["up", "--name", name, "--no-daemon"], more].concat());
    let text = String::from_utf8_lossy(&output.stderr);
    if text.contains("network namespace") && text.contains("needs CAP_SYS_ADMIN") {
        skip(&text);
        return false;
    }
    assert!(output.status.success(), "{text}");
    true
}

/// Returns the machine's own interfaces.
fn own_interfaces() -> Vec<String> {
    let entries = fs::read_dir("/sys/class/net")
        .into_iter()
        .flatten()
        .flatten();
    let mut names: Vec<String> = entries
        .map(|e| e.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

#[test]
fn life_of_a_lab() -> TestResult {
    let before = own_interfaces();
    let name = unique("life");
    let _downer = Downer(name.clone());
    if !up(&name, &["--nodes", "3", "--mtu", "9000"]) {
        return Ok(());
    }
    assert_eq!(
        own_interfaces(),
        before,
        "the machine's own network is left alone"
    );
    let state = lab::open(&name)?;
    assert!(holders(&state).into_iter().all(ProcessRef::is_alive));

    // Within a node: one interface, the addresses, the names, the environment.
    let exec =
        |args: &[&str], code| esplab_ends(&[&["exec", "--name", &name], args].concat(), code);
    let links: serde_json::Value =
        serde_json::from_str(&exec(&["1", "--", "ip", "-json", "address"], 0))?;
    assert_eq!(
        links.as_array().map(Vec::len),
        Some(2),
        "lo and eth0: {links}"
    );
    assert_eq!(links[1]["ifname"], "eth0");
    assert_eq!(links[1]["address"], "02:e5:00:00:00:02");
    assert_eq!(links[1]["mtu"], 9000);
    assert_eq!(
        links[1]["addr_info"].as_array().map(Vec::len),
        Some(1),
        "IPv4 alone: {links}"
    );
    assert_eq!(links[1]["addr_info"][0]["local"], "10.99.0.2");
    let ethers = exec(&["0", "--", "sh", "-c", "cat $ESP_ETHERS"], 0);
    assert_eq!(ethers.lines().nth(2), Some("02:e5:00:00:00:03 node2"));
    let env = exec(
        &[
            "2",
            "--",
            "sh",
            "-c",
            "echo $ESPLAB $ESPLAB_NODE $ESP_SOCKET; command -v esplab",
        ],
        0,
    );
    assert!(env.starts_with(&format!("{name} 2 ")), "{env}");
    assert!(env.contains("/here/esp.sock\n"), "{env}");
    // The path is equal in all nodes and refers to a different folder in each, even if the node is
    // entered by the program that launchers use instead of ssh.
    let lab_dir = exec(&["0", "--", "sh", "-c", "dirname $ESP_ETHERS"], 0);
    let folder = |node: usize| {
        let path = format!("{}/node{node}", lab_dir.trim());
        fs::metadata(path).map(|m| std::os::unix::fs::MetadataExt::ino(&m))
    };
    let look = "stat -c %i $(dirname $ESP_SOCKET); hostname";
    assert_eq!(
        exec(&["2", "--", "sh", "-c", look], 0),
        format!("{}\nnode2\n", folder(2)?)
    );
    let there = exec(
        &[
            "2",
            "--",
            "sh",
            "-c",
            &format!("$ESPLAB_RSH -x root@node1 '{look}; exit 5'"),
        ],
        5,
    );
    assert_eq!(there, format!("{}\nnode1\n", folder(1)?));
    assert!(
        env.ends_with(&format!("{}\n", programs().join("esplab").display())),
        "{env}"
    );

    // Exit codes are those of the command. From within a node, the others can be reached by number
    // only.
    exec(&["0", "--", "sh", "-c", "exit 7"], 7);
    assert!(exec(&["0", "--", "esplab", "exec", "2", "ip", "address"], 0).contains("10.99.0.3/24"));
    exec(&["node0", "--", "no-such-program"], 127);
    exec(&["3", "--", "true"], 2);

    let listed = esplab_ends(&["list", "--json"], 0);
    let mine = listed
        .lines()
        .filter_map(|l| serde_json::from_str::<serde_json::Value>(l).ok())
        .find(|l| l["name"] == *name);
    let mine = mine.ok_or("the lab is not listed")?;
    assert_eq!(
        (&mine["state"], &mine["nodes"], &mine["mtu"]),
        (&"up".into(), &3.into(), &9000.into())
    );

    // A second lab with this name is refused in one line and changes nothing.
    let again = esplab(&["up", "--name", &name, "--nodes", "2", "--no-daemon"]);
    assert_eq!(again.status.code(), Some(2));
    let text = String::from_utf8_lossy(&again.stderr);
    assert!(
        text.lines().count() == 1 && text.contains("exists already"),
        "{text}"
    );

    esplab_ends(&["down", "--name", &name], 0);
    assert!(
        !holders(&state).into_iter().any(ProcessRef::is_alive),
        "the holders have ended"
    );
    assert!(matches!(lab::open(&name), Err(LabError::NotFound { .. })));
    esplab_ends(&["down", "--name", &name], 2);
    assert_eq!(own_interfaces(), before);
    Ok(())
}

#[test]
fn output_into_a_closed_pipe_is_no_error() -> TestResult {
    let name = unique("pipe");
    let _downer = Downer(name.clone());
    if !up(&name, &["--nodes", "1"]) {
        return Ok(());
    }
    let mut list = Command::new(programs().join("esplab"))
        .arg("list")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    drop(list.stdout.take());
    let output = list.wait_with_output()?;
    assert!(
        output.status.success() && output.stderr.is_empty(),
        "{output:?}"
    );
    Ok(())
}

/// Kills `esplab up` during its work.
fn killed_up_leaves_nothing(signal: Signal) -> TestResult {
    let name = unique("kill");
    let _downer = Downer(name.clone());
    let args = ["up", "--name", &name, "--no-daemon", "--nodes", "100"];
    let mut child = Command::new(programs().join("esplab"))
        .args(args)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()?;
    let mut half = None;
    wait_until("the lab is partly created", || {
        half = lab::open(&name).ok().filter(|state| state.nodes.len() > 2);
        half.is_some() || child.try_wait().is_ok_and(|ended| ended.is_some())
    });
    let Some(half) = half else {
        let mut text = String::new();
        child
            .stderr
            .take()
            .ok_or("no pipe")?
            .read_to_string(&mut text)?;
        assert!(text.contains("network namespace"), "{text}");
        skip(&text);
        return Ok(());
    };
    assert!(!half.ready);
    let pid = Pid::from_raw(i32::try_from(child.id())?).ok_or("pid 0")?;
    kill_process(pid, signal)?;
    assert!(!child.wait()?.success(), "it was killed before its end");
    wait_until("the lab has ended", || {
        matches!(lab::open(&name), Err(LabError::NotFound { .. }))
    });
    wait_until("its processes have ended", || {
        !holders(&half).into_iter().any(ProcessRef::is_alive)
    });
    Ok(())
}

#[test]
fn up_killed_by_sigkill() -> TestResult {
    killed_up_leaves_nothing(Signal::KILL)
}

#[test]
fn up_interrupted_at_the_terminal() -> TestResult {
    killed_up_leaves_nothing(Signal::INT)
}

#[test]
fn remains_of_a_dead_lab_are_replaced() -> TestResult {
    let name = unique("dead");
    let _downer = Downer(name.clone());
    if !up(&name, &["--nodes", "1"]) {
        return Ok(());
    }
    for holder in holders(&lab::open(&name)?) {
        kill_process(Pid::from_raw(holder.pid).ok_or("pid 0")?, Signal::KILL)?;
        wait_until("the holder has ended", || !holder.is_alive());
    }
    let text = String::from_utf8_lossy(&esplab(&["exec", "--name", &name, "0", "true"]).stderr)
        .into_owned();
    assert!(
        text.contains("is broken") && text.contains("esplab down"),
        "{text}"
    );
    assert!(up(&name, &["--nodes", "2"]));
    assert_eq!(lab::open(&name)?.nodes.len(), 2);
    Ok(())
}

#[test]
fn dropping_a_lab_ends_it() -> TestResult {
    let Some(lab) = common::lab(&bare(2)) else {
        return Ok(());
    };
    let state = lab.state().clone();
    assert!(lab.dir().join("ethers").exists());
    let dir = lab.dir().to_owned();
    drop(lab);
    assert!(!dir.exists());
    assert!(!holders(&state).into_iter().any(ProcessRef::is_alive));
    Ok(())
}

#[test]
fn a_daemon_that_cannot_start_is_reported_with_its_log() -> TestResult {
    // A folder with an esp-daemon that only prints an error.
    let dir = std::env::temp_dir().join(unique("fake"));
    fs::create_dir(&dir)?;
    fs::copy(programs().join("esplab"), dir.join("esplab"))?;
    fs::write(
        dir.join("esp-daemon"),
        "#!/bin/sh\necho cannot open eth0: moon phase >&2\nexit 3\n",
    )?;
    Command::new("chmod")
        .arg("+x")
        .arg(dir.join("esp-daemon"))
        .status()?;
    let mut options = bare(2);
    options.daemon = true;
    options.programs = Some(dir.clone());
    options.name = Some(unique("fake"));
    let result = Lab::create(&options);
    fs::remove_dir_all(&dir)?;
    match result {
        Err(LabError::Forbidden(why)) => skip(&why),
        Err(e @ LabError::Daemon { .. }) => {
            let text = e.to_string();
            assert!(
                text.contains("moon phase")
                    && text.contains("exit status: 3")
                    && text.lines().count() == 1,
                "{text}"
            );
        }
        other => panic!("{:?}", other.map(|lab| lab.name().to_owned())),
    }
    let name = options.name.ok_or("it was named")?;
    assert!(
        matches!(lab::open(&name), Err(LabError::NotFound { .. })),
        "a lab remains"
    );
    Ok(())
}

/// Creates a UDP socket in each of two nodes; the first is connected to the second.
fn udp_pair(lab: &Lab) -> Result<(UdpSocket, UdpSocket), Box<dyn std::error::Error>> {
    let receiver = lab.run_in(1, || UdpSocket::bind((Node(1).ip(), 7000)))??;
    let sender = lab.run_in(0, || UdpSocket::bind((Node(0).ip(), 0)))??;
    sender.connect(SocketAddr::from((Node(1).ip(), 7000)))?;
    receiver.set_read_timeout(Some(Duration::from_secs(10)))?;
    Ok((sender, receiver))
}

/// Returns the number of frames that an interface of a node has received.
fn received_frames(lab: &Lab, node: usize) -> Result<u64, Box<dyn std::error::Error>> {
    let output = lab.run(node, "ip", ["-json", "-statistics", "link", "show", "eth0"])?;
    let links: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    links[0]["stats64"]["rx"]["packets"]
        .as_u64()
        .ok_or_else(|| "no statistics".into())
}

#[test]
fn the_wire_is_silent_and_carries_whole_jumbo_frames() -> TestResult {
    let mut options = bare(2);
    options.wire.mtu = lab::MAX_MTU;
    let Some(lab) = common::lab(&options) else {
        return Ok(());
    };
    let (sender, receiver) = udp_pair(&lab)?;
    assert_eq!(received_frames(&lab, 1)?, 0, "no frame was sent yet");
    let datagram = vec![7u8; 65507];
    assert_eq!(sender.send(&datagram)?, datagram.len());
    let mut buffer = vec![0u8; 70_000];
    assert_eq!(receiver.recv(&mut buffer)?, datagram.len());
    assert_eq!(received_frames(&lab, 1)?, 1, "in one frame");
    Ok(())
}

#[test]
fn loss_is_as_configured() -> TestResult {
    let mut options = bare(2);
    options.wire.loss_ppm = 50_000;
    let Some(lab) = common::lab(&options) else {
        return Ok(());
    };
    let (sender, receiver) = udp_pair(&lab)?;
    receiver.set_nonblocking(true)?;
    let (count, mut arrived) = (20_000u64, 0u64);
    let mut buffer = [0u8; 100];
    let mut take = |arrived: &mut u64| loop {
        match receiver.recv(&mut buffer) {
            Ok(_) => *arrived += 1,
            Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(()),
            Err(e) => return Err(e),
        }
    };
    for _ in 0..count {
        sender.send(&[0; 50])?;
        take(&mut arrived)?;
    }
    let lost = lab.frames_lost()?;
    // 5 % of 20000, with six standard deviations (of 31) on each side.
    assert!((800..1200).contains(&lost), "{lost} lost");
    wait_until("the rest has arrived", || {
        take(&mut arrived).is_ok() && arrived + lost >= count
    });
    assert_eq!(
        arrived + lost,
        count,
        "only frames that the rule dropped are missing"
    );
    Ok(())
}

#[test]
fn the_rate_limit_has_a_shallow_queue() -> TestResult {
    let mut options = bare(2);
    // A full frame takes 0.12 s, so that the queue does not change during a burst.
    options.wire.rate = Some(100_000);
    let Some(lab) = common::lab(&options) else {
        return Ok(());
    };
    let (sender, _receiver) = udp_pair(&lab)?;
    sender.set_nonblocking(true)?;
    let sent = (0..200).filter(|_| sender.send(&[0; 1400]).is_ok()).count() as u64;
    assert!(sent > 150, "{sent} of 200 sent");
    let dropped = lab.frames_overrun(1)?;
    // The bucket takes two frames, QUEUE_FRAMES wait, and some leave in the meantime.
    let max_lost = sent - 2 - u64::from(lab::QUEUE_FRAMES);
    assert!(
        (max_lost - 40..=max_lost).contains(&dropped),
        "{dropped} of {sent} dropped"
    );
    Ok(())
}

#[test]
fn tcp_runs_on_the_same_wire_with_and_without_offload() -> TestResult {
    let Some(lab) = common::lab(&bare(2)) else {
        return Ok(());
    };
    let listener = lab.run_in(1, || TcpListener::bind((Node(1).ip(), 7001)))??;
    let len: u64 = 4 << 20;
    let mut frames = Vec::new();
    for offload in [true, false] {
        lab.set_offload(0, offload)?;
        let before = received_frames(&lab, 1)?;
        let mut sender = lab.run_in(0, || TcpStream::connect((Node(1).ip(), 7001)))??;
        let (mut receiver, _) = listener.accept()?;
        let got = std::thread::scope(|scope| -> std::io::Result<u64> {
            let reader = scope.spawn(move || std::io::copy(&mut receiver, &mut std::io::sink()));
            sender.write_all(&vec![1u8; usize::try_from(len).unwrap_or(0)])?;
            drop(sender);
            reader.join().map_err(|_| ErrorKind::Other)?
        })?;
        assert_eq!(got, len);
        frames.push(received_frames(&lab, 1)? - before);
    }
    assert!(
        frames[1] >= len / 1460,
        "one frame for each segment: {frames:?}"
    );
    assert!(
        frames[0] < frames[1],
        "super-packets count as one: {frames:?}"
    );
    Ok(())
}

#[test]
fn udp_runs_on_the_same_wire_with_and_without_offload() -> TestResult {
    let Some(lab) = common::lab(&bare(2)) else {
        return Ok(());
    };
    let (sender, receiver) = udp_pair(&lab)?;
    setsockopt(&sender, UdpGsoSegment, &1000)?;
    let datagrams = 40;
    for (offload, expected) in [(true, 1), (false, datagrams), (true, 1)] {
        lab.set_offload(0, offload)?;
        let before = received_frames(&lab, 1)?;
        assert_eq!(sender.send(&[0; 40_000])?, 40_000);
        for _ in 0..datagrams {
            assert_eq!(receiver.recv(&mut [0; 2000])?, 1000);
        }
        let frames = received_frames(&lab, 1)? - before;
        assert_eq!(frames, expected, "offload: {offload}");
    }
    Ok(())
}

#[test]
fn a_lab_needs_no_privilege() -> TestResult {
    // Another user may have no access to the build folder, so the programs are copied to a public
    // one.
    let dir = std::env::temp_dir().join(unique("rootless"));
    fs::create_dir(&dir)?;
    let program = dir.join("esplab");
    fs::copy(programs().join("esplab"), &program)?;
    Command::new("chmod")
        .arg("755")
        .arg(&dir)
        .arg(&program)
        .status()?;
    let name = unique("rootless");
    let state_dir = dir.join("state");
    let root = rustix::process::geteuid().is_root();
    let unprivileged = [
        "--reuid",
        "65534",
        "--regid",
        "65534",
        "--clear-groups",
        "--inh-caps=-all",
    ];
    Command::new("mkdir")
        .arg("-m700")
        .arg(&state_dir)
        .status()?;
    if root {
        Command::new("chown")
            .arg("65534:65534")
            .arg(&state_dir)
            .status()?;
    }
    let run_with = |state: &std::path::Path, args: &[&str]| {
        let mut command = if root {
            Command::new("setpriv")
        } else {
            Command::new("env")
        };
        command
            .args(unprivileged.iter().filter(|_| root))
            .arg(&program)
            .args(args);
        command
            .env("ESPLAB_STATE", state)
            .env_remove("ESPLAB")
            .stdin(Stdio::null())
            .output()
    };
    let run = |args: &[&str]| run_with(&state_dir, args);
    if root {
        // The folder of root's labs as another user finds it.
        let roots = dir.join("roots");
        Command::new("mkdir").arg("-m700").arg(&roots).status()?;
        let refused = run_with(&roots, &["exec", "--name", "lab", "0", "id"])?;
        let text = String::from_utf8_lossy(&refused.stderr);
        assert_eq!(refused.status.code(), Some(2), "{text}");
        assert!(
            text.contains("belongs to another user") && text.contains("sudo esplab"),
            "{text}"
        );
    }
    let made = run(&[
        "up",
        "--name",
        &name,
        "--no-daemon",
        "--nodes",
        "2",
        "--loss",
        "1%",
        "--rate",
        "1gbit",
    ])?;
    let text = String::from_utf8_lossy(&made.stderr).into_owned();
    if text.contains("is not allowed to make a network namespace") {
        assert!(
            text.contains("run as root"),
            "the error says what to do: {text}"
        );
        skip(&text);
        return Ok(fs::remove_dir_all(&dir)?);
    }
    let checks = || -> TestResult {
        assert!(made.status.success(), "{text}");
        let inside = run(&[
            "exec",
            "--name",
            &name,
            "1",
            "--",
            "sh",
            "-c",
            "id -u; ip -json address show eth0; exit 5",
        ])?;
        assert_eq!(inside.status.code(), Some(5));
        let out = String::from_utf8_lossy(&inside.stdout);
        assert!(out.starts_with("0\n") && out.contains("10.99.0.2"), "{out}");
        let nested = run(&[
            "exec", "--name", &name, "1", "--", "esplab", "exec", "0", "ip", "address",
        ])?;
        assert!(
            String::from_utf8_lossy(&nested.stdout).contains("10.99.0.1/24"),
            "{nested:?}"
        );
        Ok(())
    };
    let checked = checks();
    let ended = run(&["down", "--name", &name])?;
    assert!(ended.status.success(), "{ended:?}");
    assert_eq!(fs::read_dir(&state_dir)?.count(), 0, "files are left");
    fs::remove_dir_all(&dir)?;
    checked
}
