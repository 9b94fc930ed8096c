//! The esp-daemon of each node.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::error::{Context, LabError};
use crate::options::{Carriers, LabOptions, Node};
use crate::process::ProcessRef;
use crate::tools::one_line;

/// Time limit for a daemon to answer on its socket.
const READY: Duration = Duration::from_secs(15);
/// File name of the socket in the node's folder.
pub(crate) const SOCKET: &str = "esp.sock";
/// Maximum number of bytes of the log's end in an error.
const LOG_TAIL: u64 = 1500;

/// A started daemon.
pub(crate) struct Daemon {
    node: usize,
    dir: PathBuf,
    pub child: Child,
    pub process: ProcessRef,
}

/// Returns the folder of a node.
pub(crate) fn node_dir(lab: &Path, node: usize) -> PathBuf {
    lab.join(format!("node{node}"))
}

/// Returns the path of the daemon's socket.
pub(crate) fn socket(lab: &Path, node: usize) -> PathBuf {
    node_dir(lab, node).join(SOCKET)
}

/// Returns a daemon's config with the number of engines that `ESP_LAB_ENGINES` asks for, if its
/// options allow several: all tests can run over such daemons.
pub fn with_engines(config: &str) -> String {
    const EXCLUDED: [&str; 5] = ["engines", "udp", "[auth]", "checksum", "pcap"];
    match std::env::var("ESP_LAB_ENGINES") {
        Ok(number) if !EXCLUDED.iter().any(|option| config.contains(option)) => {
            format!("engines = {number}\n{config}")
        }
        _ => config.into(),
    }
}

impl Daemon {
    /// Starts the daemon by `enter`, a command that enters the node and runs its arguments.
    pub(crate) fn start(
        lab: &Path,
        node: usize,
        enter: Command,
        program: &Path,
        options: &LabOptions,
    ) -> Result<(Daemon, Vec<String>), LabError> {
        let dir = node_dir(lab, node);
        let doing = || format!("starting {} of node {node}", program.display());
        // A separate file, so that the machine's is not read.
        let file = dir.join("esp-daemon.toml");
        let config = match options.carriers {
            Carriers::Raw => with_engines(&options.daemon_config),
            _ => options.daemon_config.clone(),
        };
        fs::write(&file, format!("node_name = \"{}\"\n{config}", Node(node))).at(doing)?;
        let mut arguments = Vec::new();
        let mut add = |name: &str, value: &str| arguments.extend([name.into(), value.into()]);
        if options.carriers != Carriers::Udp {
            for rail in 0..options.rails {
                add("--interface", &format!("eth{rail}"));
            }
        }
        if options.carriers != Carriers::Raw {
            for version in options.wire.ip.versions() {
                add("--udp", version.network());
            }
        }
        add("--socket", &socket(lab, node).to_string_lossy());
        add("--config", &file.to_string_lossy());
        let daemon = Daemon::spawn(lab, node, enter, program, &arguments)?;
        Ok((daemon, arguments))
    }

    /// Starts a daemon with these arguments; its log is appended to that of the last one.
    pub(crate) fn spawn(
        lab: &Path,
        node: usize,
        mut enter: Command,
        program: &Path,
        arguments: &[String],
    ) -> Result<Daemon, LabError> {
        let dir = node_dir(lab, node);
        let doing = || format!("starting {} of node {node}", program.display());
        let log = File::options()
            .create(true)
            .append(true)
            .open(dir.join("daemon.log"));
        let out = log.at(doing)?;
        let err = out.try_clone().at(doing)?;
        enter.arg(program).args(arguments);
        // A separate process group: the terminal's Ctrl-C must not reach the daemon.
        enter
            .stdin(Stdio::null())
            .stdout(out)
            .stderr(err)
            .process_group(0);
        let child = enter.spawn().at(doing)?;
        let process = i32::try_from(child.id())
            .map_err(io::Error::other)
            .and_then(ProcessRef::of)
            .at(doing)?;
        Ok(Daemon {
            node,
            dir,
            child,
            process,
        })
    }

    /// Waits until the socket accepts connections.
    pub(crate) fn await_ready(&mut self) -> Result<(), LabError> {
        let socket = self.dir.join(SOCKET);
        let end = Instant::now() + READY;
        loop {
            // Not the last daemon's, which the kernel may still be closing.
            if UnixStream::connect(&socket).is_ok_and(|stream| self.serves(&stream)) {
                return Ok(());
            }
            if let Ok(Some(status)) = self.child.try_wait() {
                return Err(self.failure(format!("ended at once ({status})")));
            }
            if Instant::now() > end {
                return Err(self.failure(format!(
                    "did not answer on its socket within {} s",
                    READY.as_secs()
                )));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Returns true if this process listens on the other end's socket.
    fn serves(&self, stream: &UnixStream) -> bool {
        let listener = rustix::net::sockopt::socket_peercred(stream);
        listener.is_ok_and(|it| it.pid.as_raw_nonzero().get() == self.process.pid)
    }

    fn failure(&self, how: String) -> LabError {
        let log = tail(&self.dir.join("daemon.log")).unwrap_or_else(|e| format!("({e})"));
        LabError::Daemon {
            node: self.node,
            how,
            log,
        }
    }
}

/// Returns the last lines of a file as one line.
pub(crate) fn tail(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let len = fs::metadata(path)?.len();
    file.seek(SeekFrom::Start(len.saturating_sub(LOG_TAIL)))?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text.lines().collect();
    let text = one_line(&lines[lines.len().saturating_sub(8)..].join("\n"));
    Ok(if text.is_empty() {
        "(nothing)".into()
    } else {
        text
    })
}
