//! Programs in processes of their own, to be killed or to run as another user; see
//! `src/bin/esp-test-program.rs`.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};

use lab::Lab;

use crate::PATIENCE;

/// A running `esp-test-program`. Killed on drop.
pub struct Program {
    child: Child,
    /// `hold` waits until it is closed.
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
}

impl Program {
    /// Starts a program that performs `steps` at the daemon of `socket`. `program` is
    /// `env!("CARGO_BIN_EXE_esp-test-program")`.
    ///
    /// # Panics
    /// When it cannot be started.
    pub fn start(program: &str, socket: &Path, steps: &[&str]) -> Program {
        Program::run(Command::new(program), socket, steps)
    }

    /// Starts a program in a node's network namespace; see [`Program::start`].
    ///
    /// # Panics
    /// When it cannot be started.
    pub fn start_in(lab: &Lab, node: usize, program: &str, steps: &[&str]) -> Program {
        let command = lab.command(node, program).expect("a command of the node");
        Program::run(command, &lab.socket(node), steps)
    }

    fn run(mut command: Command, socket: &Path, steps: &[&str]) -> Program {
        // Other users have no access to the lab's directory, so the program starts inside it and
        // gets the socket's name alone.
        let folder = socket.parent().expect("a socket lies in a folder");
        let mut child = command
            .current_dir(folder)
            .arg(socket.file_name().expect("a socket has a name"))
            .args(steps)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("start a program");
        let out = BufReader::new(child.stdout.take().expect("a pipe"));
        let (send, lines) = channel();
        std::thread::spawn(move || {
            for line in out.lines().map_while(Result::ok) {
                if send.send(line).is_err() {
                    break;
                }
            }
        });
        Program {
            stdin: child.stdin.take(),
            child,
            lines,
        }
    }

    /// Returns its next line; `None` when it has ended.
    ///
    /// # Panics
    /// After a timeout.
    pub fn line(&self) -> Option<String> {
        use std::sync::mpsc::RecvTimeoutError as E;
        match self.lines.recv_timeout(PATIENCE) {
            Ok(line) => Some(line),
            Err(E::Disconnected) => None,
            Err(E::Timeout) => panic!("the program says nothing"),
        }
    }

    /// Returns the next line, which must begin with `beginning`.
    ///
    /// # Panics
    /// When it does not.
    #[track_caller]
    pub fn says(&self, beginning: &str) -> String {
        let line = self
            .line()
            .unwrap_or_else(|| panic!("the program ended instead of {beginning:?}"));
        assert!(
            line.starts_with(beginning),
            "{line:?} instead of {beginning:?}"
        );
        line
    }

    /// Returns its process id.
    ///
    /// # Panics
    /// Never.
    pub fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).expect("a process id")
    }

    /// Kills it (`kill -9`) and waits for its end.
    ///
    /// # Panics
    /// When it cannot be killed.
    pub fn kill(&mut self) {
        self.child.kill().expect("kill the program");
        self.child.wait().expect("wait for the program");
    }

    /// Ends the step `hold`.
    pub fn release(&mut self) {
        self.stdin = None;
    }

    /// Ends a program in `hold`, if it has that step, and waits for its end.
    ///
    /// # Panics
    /// When it fails.
    pub fn finish(&mut self) {
        self.release();
        assert!(
            self.child.wait().expect("wait for the program").success(),
            "the program failed"
        );
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
