//! Labs whose nodes have IPv6 addresses: on one segment and behind a router.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use esp_tests::process::{Finished, Killed, output, programs};

/// A lab made by `esplab up`, ended on drop.
struct Up(String);

impl Up {
    /// Creates a lab of two nodes with these options; `None` after printing SKIPPED.
    fn new(test: &str, number: usize, options: &[&str]) -> Option<Up> {
        if !rustix::process::geteuid().is_root() {
            netns::skip(test, "network namespaces need root");
            return None;
        }
        let lab = Up(format!("t-ip6-{}-{number}", std::process::id()));
        let made = lab.esplab(&["up", "--nodes", "2"], options);
        if made.err.contains("is not installed") {
            netns::skip(test, &made.err);
            return None;
        }
        assert_eq!(made.code, Some(0), "{made:?}");
        Some(lab)
    }

    fn command(&self, first: &[&str], rest: &[&str]) -> Command {
        let (action, before) = first.split_first().expect("a command of esplab");
        let mut command = Command::new(programs().join("esplab"));
        command.arg(action).args(["--name", &self.0]);
        command.args(before).args(rest).env_remove("ESPLAB");
        command
    }

    fn esplab(&self, first: &[&str], rest: &[&str]) -> Finished {
        output(&mut self.command(first, rest))
    }

    /// Returns a command in a node.
    fn node(&self, node: usize, words: &[&str]) -> Command {
        self.command(&["exec", &node.to_string(), "--"], words)
    }

    #[track_caller]
    fn succeeds(&self, node: usize, words: &[&str]) -> String {
        let finished = output(&mut self.node(node, words));
        assert_eq!(finished.code, Some(0), "{words:?}: {finished:?}");
        finished.out
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        let _ = lab::down(&self.0);
    }
}

/// Options of the labs: on one segment and behind a router, IPv6 alone and with IPv4.
const LABS: [&[&str]; 4] = [
    &["--ip", "6"],
    &["--ip", "6", "--routed"],
    &["--ip", "both"],
    &["--ip", "both", "--routed"],
];

#[test]
fn nodes_reach_each_other_at_once() {
    for (number, options) in LABS.into_iter().enumerate() {
        let bare = [options, &["--no-daemon"]].concat();
        let Some(lab) = Up::new("nodes_reach_each_other_at_once", number, &bare) else {
            return;
        };
        // The address can be bound immediately, because no duplicate address detection takes place.
        let shown = lab.succeeds(0, &["ip", "-6", "-json", "address", "show", "dev", "eth0"]);
        assert!(shown.contains("fd00:99::1"), "{shown}");
        assert!(!shown.contains("tentative"), "{shown}");
        let has_4 = lab.succeeds(0, &["ip", "-4", "address", "show", "dev", "eth0"]);
        assert_eq!(
            has_4.contains("10.99.0.1"),
            options.contains(&"both"),
            "{has_4}"
        );
        let names = lab.succeeds(0, &["getent", "ahosts", "node1"]);
        assert!(names.contains("fd00:99::2"), "{names}");
    }
}

#[test]
fn daemons_and_programs_exchange_by_ipv6() {
    for (number, options) in LABS.into_iter().enumerate() {
        let number = number + 10;
        let Some(lab) = Up::new("daemons_and_programs_exchange_by_ipv6", number, options) else {
            return;
        };
        let echo = ["esping", "-c", "3", "-i", "0.01", "[fd00:99::2]"];
        let echo = lab.succeeds(0, &echo);
        assert!(echo.contains("3 received"), "{echo}");

        let mut recv = lab.node(1, &["esplab", "recv", "7000"]);
        let mut recv = Killed(recv.stdout(Stdio::piped()).spawn().expect("esplab recv"));
        let mut said = BufReader::new(recv.0.stdout.take().expect("a pipe")).lines();
        assert!(said.next().is_some_and(|line| line.is_ok()), "it listens");
        let sent = ["esplab", "send", "--bytes", "4m", "[fd00:99::2]:7000"];
        let sent = lab.succeeds(0, &sent);
        assert!(sent.contains("content verified"), "{sent}");
        let received: Vec<String> = said.map_while(Result::ok).collect();
        assert!(received.concat().contains("[fd00:99::1]"), "{received:?}");
        assert!(recv.0.wait().expect("wait for it").success());
    }
}

/// A folder by which a job starts, removed on drop.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn jobs_without_a_daemon_use_ipv6() {
    for (number, options) in LABS[..2].iter().enumerate() {
        let (test, number) = ("jobs_without_a_daemon_use_ipv6", number + 20);
        let Some(lab) = Up::new(test, number, &[*options, &["--no-daemon"]].concat()) else {
            return;
        };
        let folder = Folder(std::env::temp_dir().join(&lab.0));
        std::fs::create_dir(&folder.0).expect("make a folder");
        let program = programs().join("examples/p2p-check");
        let program = program.to_str().expect("a path of text");
        let rank = |rank: usize| {
            let mut command = lab.node(rank, &["timeout", "-k", "5", "100", program]);
            command
                .env("ESP_JOB_SIZE", "2")
                .env("ESP_JOB_RANK", rank.to_string())
                .env("ESP_JOB_DIR", &folder.0)
                .env("ESP_BTL_VERBOSE", "1")
                .env_remove("ESP_BTL");
            command
        };
        let mut other = rank(1);
        let other = other.stdout(Stdio::null()).stderr(Stdio::null());
        let mut other = Killed(other.spawn().expect("start a rank"));
        let finished = output(&mut rank(0));
        assert_eq!(finished.code, Some(0), "{finished:?}");
        assert!(finished.out.contains("PASS "), "{finished:?}");
        assert!(finished.out.contains(": udp used: "), "{finished:?}");
        assert!(other.0.wait().expect("wait for it").success());
    }
}
