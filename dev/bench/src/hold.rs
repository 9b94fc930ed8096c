//! Many open connections, or leased ports, that nobody uses.

use std::io::{self, Read};

use esp_client::{EspListener, EspStream, MacAddr, Path};

use crate::worker::{self, HOLDING, Job, LISTENING, Outcome, Role};
use lab::Node;

/// Opens (or takes) so many connections and keeps them until standard input ends; over leases so
/// many listeners, each with a leased port.
pub(super) fn work(
    job: &Job,
    count: usize,
    mut say: impl FnMut(&str) -> io::Result<()>,
) -> io::Result<Outcome> {
    if job.path == worker::Path::Lease {
        let lease = |_| EspListener::builder().path(Path::Lease).bind(0);
        let _held = (0..count).map(lease).collect::<io::Result<Vec<_>>>()?;
        say(HOLDING)?;
        let _ = io::stdin().read(&mut [0; 1]);
        return Ok(Outcome::default());
    }
    if job.path != worker::Path::Daemon {
        return Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "only ESP connections are held",
        ));
    }
    let mut held = Vec::with_capacity(count);
    match job.role {
        Role::Server => {
            let listener = EspListener::builder()
                .path(Path::Daemon)
                .backlog(1024)
                .bind(job.port)?;
            say(LISTENING)?;
            for _ in 0..count {
                held.push(listener.accept()?.0);
            }
        }
        Role::Client => {
            for _ in 0..count {
                let builder = EspStream::builder().path(Path::Daemon);
                held.push(builder.connect((MacAddr(Node(job.node).mac()), job.port))?);
            }
        }
    }
    say(HOLDING)?;
    let _ = io::stdin().read(&mut [0; 1]);
    Ok(Outcome::default())
}
