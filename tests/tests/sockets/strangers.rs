//! Attacks of other users of the node on a broker, and programs whose broker is out of threads.

use std::os::unix::fs::PermissionsExt;

use super::*;

/// A program that becomes another user. It passes sockets whose close blocks to the broker, sends
/// it a request that never ends, and opens many connections to each of its sockets. It prints
/// whether the first connections are still open after the last one has ended, and whether the
/// broker closed the connection of the endless request.
const STRANGER: &str = r#"
import encodings.idna, os, socket, struct, time
end = "control"
names = (line.rstrip().rpartition("@")[2] for line in open("/proc/net/unix"))
prefix = next(name for name in names if name.startswith("esp.") and name.endswith(end))[:-len(end)]
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
def connect(to, name=""):
    s = socket.socket(socket.AF_UNIX)
    if name:
        s.bind("\0" + prefix + name)
    s.connect("\0" + prefix + to)
    return s
def ended(s, flags=0):
    try:
        return not s.recv(1, flags)
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True
line = b'{"secret":"","request":"Sockets"}\n'
listener = socket.create_server(("127.0.0.1", 0))
def pass_one(to):
    s = socket.create_connection(listener.getsockname())
    s.setblocking(False)
    try:
        while True: s.send(bytes(65536))
    except BlockingIOError: pass
    s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 3600))
    try:
        socket.send_fds(to, [line], [s.fileno()])
    except OSError:
        # The kernel refuses descriptors for the broker, or the broker has closed its end.
        s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 0, 0))
passed = [connect("control"), connect("streams"), connect("streams", "s.1.x")]
for s in passed:
    pass_one(s)
assert ended(passed[0])
slow, is_cut = connect("control"), False
def drip():
    global is_cut
    try:
        slow.send(b" ")
    except OSError:
        is_cut = True
drip()
idle = [connect("control") for number in range(200)]
assert ended(idle[-1])
control = "open" if not ended(idle[0], socket.MSG_DONTWAIT) else "ended"
idle = [connect("streams", "s.1.%d" % number) for number in range(200)]
assert ended(idle[-1])
streams = "open" if not ended(idle[0], socket.MSG_DONTWAIT) else "ended"
for step in range(300):
    if not is_cut:
        time.sleep(0.1)
        drip()
print(control, streams, "cut" if is_cut else "endless")
"#;

#[test]
fn other_users_have_limits_in_a_broker() {
    let Some(lab) = bare_lab("other_users_have_limits", 1) else {
        return;
    };
    let mut program = esprun(&lab, 0, &["--tcp"], Path::new("sh"));
    program.args(["-c", "echo ready; read line"]);
    let mut program = Killed(program.stdin(Stdio::piped()).spawn().expect("start it"));
    prints(&mut program.0, "ready");
    let script = TempFile::new(STRANGER);
    let mut stranger = lab.command(0, "python3").expect("a command");
    let stranger = output(stranger.arg(script.path()));
    assert_eq!(stranger.out, "open open cut\n", "{stranger:?}");
    let mut command = lab
        .command(0, programs().join("esprun"))
        .expect("a command");
    let esprun = output(command.args(["--tcp", "true"]));
    assert_eq!(esprun.code, Some(0), "{esprun:?}");
}

/// A user that has no other processes.
const USER: u32 = 54321;

/// Returns the number of threads of [`USER`].
fn threads() -> u64 {
    let user = format!("Uid:\t{USER}\t");
    let all = fs::read_dir("/proc").expect("the processes").flatten();
    let texts = all.filter_map(|entry| fs::read_to_string(entry.path().join("status")).ok());
    let own = texts.filter(|text| text.contains(&user));
    let number = |text: String| {
        let line = text.lines().find_map(|line| line.strip_prefix("Threads:"));
        line.and_then(|count| count.trim().parse::<u64>().ok())
    };
    own.filter_map(number).sum()
}

/// Waits until the broker has no threads for requests or streams.
fn wait_for_rest(broker: u32) {
    wait_until("the broker serves nothing", || {
        let threads = fs::read_dir(format!("/proc/{broker}/task")).expect("its threads");
        let paths = threads.map(|thread| thread.expect("one").path().join("comm"));
        let mut names = paths.filter_map(|path| fs::read_to_string(path).ok());
        names.all(|name| !matches!(name.trim(), "request" | "stream" | "to-esp" | "connect"))
    });
}

#[test]
fn a_stream_without_a_thread_ends_by_an_error() {
    let Some(lab) = lab_or_skip("a_stream_without_a_thread", &LabOptions::new(2)) else {
        return;
    };
    // The mode does not depend on the umask.
    let socket = lab.socket(0);
    let folder = socket.parent().expect("a folder");
    fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).expect("open it for the user");
    let program = compiled("edges");
    let mut server = esprun(&lab, 1, &[], &program);
    let mut server = Killed(server.args(["reset", "2805"]).spawn().expect("start it"));
    let mut out = prints(&mut server.0, "ready");
    let mut client = lab.command(0, "env").expect("a command");
    // The user has no access to the parents of this folder, so the path is relative.
    client.current_dir(folder);
    client.args([
        "ESP_SOCKET=esp.sock",
        "setpriv",
        "--clear-groups",
        "--regid",
        &USER.to_string(),
    ]);
    client.args(["--reuid", &USER.to_string()]);
    client.arg(programs().join("esprun")).arg(&program);
    client.args(["without_threads", "2805", &Node(1).mac_text()]);
    client.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut client = Killed(client.spawn().expect("start it"));
    let mut steps = prints(&mut client.0, "ready");
    let broker = broker_of(client.0.id());
    wait_for_rest(broker);
    let mut input = client.0.stdin.take().expect("a pipe");
    // One more thread: for the request, or for the stream, which needs two.
    let max = threads() + 1;
    for (numbers, expected) in [
        (format!("{broker} {max}"), "failed\n"),
        (max.to_string(), "PASS\n"),
    ] {
        wait_for_rest(broker);
        // If this fails, the program's output shows why it has ended.
        let _ = writeln!(input, "{numbers}");
        let mut line = String::new();
        steps.read_line(&mut line).expect("read");
        assert_eq!(line, expected);
    }
    let mut line = String::new();
    out.read_line(&mut line).expect("read");
    assert_eq!(line, "PASS\n");
}
