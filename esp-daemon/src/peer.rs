//! Who is at the other end of a control connection.

use std::io;
use std::sync::Arc;

use tokio::net::UnixStream;

/// What the kernel says about the process that connected (SO_PEERCRED), in the daemon's own namespaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// User; decides what is allowed.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Process; `None` if it lives in a pid namespace the daemon cannot see.
    pub pid: Option<u32>,
}

impl Credentials {
    /// The superuser of the daemon's user namespace.
    pub fn is_root(self) -> bool {
        self.uid == 0
    }
}

/// How the credentials of a connection are found; tests put other users here.
pub type Identify = Arc<dyn Fn(&UnixStream) -> io::Result<Credentials> + Send + Sync>;

/// Asks the kernel.
pub fn by_kernel() -> Identify {
    Arc::new(|stream| {
        let found = stream.peer_cred()?;
        let pid = found
            .pid()
            .and_then(|pid| u32::try_from(pid).ok())
            .filter(|pid| *pid != 0);
        Ok(Credentials {
            uid: found.uid(),
            gid: found.gid(),
            pid,
        })
    })
}
