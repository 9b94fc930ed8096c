//! Identity of the process at the other end of a control connection.

use std::io;
use std::sync::Arc;

use tokio::net::UnixStream;

/// Credentials of the process that connected (SO_PEERCRED), in the daemon's own namespaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// User; determines permissions.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Process; `None` if it lives in a pid namespace that the daemon cannot see.
    pub pid: Option<u32>,
}

impl Credentials {
    /// Returns true for the superuser of the daemon's user namespace.
    pub fn is_root(self) -> bool {
        self.uid == 0
    }
}

/// Determines the credentials of a connection; replaced in tests.
pub type Identify = Arc<dyn Fn(&UnixStream) -> io::Result<Credentials> + Send + Sync>;

/// Returns the function that requests them from the kernel.
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
