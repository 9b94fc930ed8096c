//! Idle connections, or idle leased ports.

use std::io::{self, Read};

use esp_client::{EspListener, EspStream, MacAddr, Path};

use crate::task::{HOLDING, LISTENING, Protocol, Role, Task, TaskResult};
use lab::Node;

/// Opens (or accepts) `count` connections, over leases `count` listeners with a leased port each,
/// and keeps them until standard input ends.
pub(super) fn work(
    task: &Task,
    count: usize,
    mut say: impl FnMut(&str) -> io::Result<()>,
) -> io::Result<TaskResult> {
    if task.path == Protocol::Lease {
        let lease = |_| EspListener::builder().path(Path::Lease).bind(0);
        let _held = (0..count).map(lease).collect::<io::Result<Vec<_>>>()?;
        say(HOLDING)?;
        let _ = io::stdin().read(&mut [0; 1]);
        return Ok(TaskResult::default());
    }
    if task.path != Protocol::Daemon {
        return Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "only ESP connections are held",
        ));
    }
    let mut held = Vec::with_capacity(count);
    match task.role {
        Role::Server => {
            let listener = EspListener::builder()
                .path(Path::Daemon)
                .backlog(1024)
                .bind(task.port)?;
            say(LISTENING)?;
            for _ in 0..count {
                held.push(listener.accept()?.0);
            }
        }
        Role::Client => {
            for _ in 0..count {
                let builder = EspStream::builder().path(Path::Daemon);
                held.push(builder.connect((MacAddr(Node(task.node).mac()), task.port))?);
            }
        }
    }
    say(HOLDING)?;
    let _ = io::stdin().read(&mut [0; 1]);
    Ok(TaskResult::default())
}
