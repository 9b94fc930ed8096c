//! Assignment of cores to processes.

use std::fmt;

use rustix::thread::{CpuSet, sched_getaffinity};

/// Cores of the four processes of a case. An empty list binds nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cores {
    /// The worker in node 0.
    pub client: Vec<usize>,
    /// The worker in node 1.
    pub server: Vec<usize>,
    /// The daemon of node 0.
    pub client_daemon: Vec<usize>,
    /// The daemon of node 1.
    pub server_daemon: Vec<usize>,
}

impl Cores {
    /// Assigns the cores that this process may use.
    pub fn here() -> Cores {
        Cores::of(&allowed())
    }

    /// Assigns four cores to one process each, two to one node each.
    fn of(cores: &[usize]) -> Cores {
        let (client, client_daemon, server, server_daemon) = match *cores {
            [a, b, c, d, ..] => (a, b, c, d),
            [a, b, ..] => (a, a, b, b),
            [a] => (a, a, a, a),
            [] => return Cores::default(),
        };
        let one = |core| vec![core];
        Cores {
            client: one(client),
            server: one(server),
            client_daemon: one(client_daemon),
            server_daemon: one(server_daemon),
        }
    }

    /// Returns the daemons' cores by node, for [`lab::LabOptions`].
    pub fn daemons(&self) -> Vec<Vec<usize>> {
        vec![self.client_daemon.clone(), self.server_daemon.clone()]
    }
}

impl fmt::Display for Cores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = [
            ("client", &self.client),
            ("its daemon", &self.client_daemon),
            ("server", &self.server),
            ("its daemon", &self.server_daemon),
        ];
        for (i, (name, cores)) in named.into_iter().enumerate() {
            let cores = cores
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
                .join("+");
            let comma = if i == 0 { "" } else { ", " };
            write!(
                f,
                "{comma}{name} {}",
                if cores.is_empty() { "anywhere" } else { &cores }
            )?;
        }
        Ok(())
    }
}

/// Returns the cores that this process may run on, in order.
pub fn allowed() -> Vec<usize> {
    sched_getaffinity(None).map_or_else(
        |_| Vec::new(),
        |set| {
            (0..CpuSet::MAX_CPU)
                .filter(|&cpu| set.is_set(cpu))
                .collect()
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_share_cores_only_if_there_are_too_few() {
        assert_eq!(Cores::of(&[]), Cores::default());
        let two = Cores::of(&[3, 5]);
        assert_eq!(
            (
                two.client[0],
                two.client_daemon[0],
                two.server[0],
                two.server_daemon[0]
            ),
            (3, 3, 5, 5)
        );
        let four = Cores::of(&[0, 1, 2, 3, 4]);
        assert_eq!(
            (
                four.client[0],
                four.client_daemon[0],
                four.server[0],
                four.server_daemon[0]
            ),
            (0, 1, 2, 3)
        );
        assert_eq!(
            four.to_string(),
            "client 0, its daemon 1, server 2, its daemon 3"
        );
        assert_eq!(
            Cores::of(&[7]).to_string(),
            "client 7, its daemon 7, server 7, its daemon 7"
        );
    }
}
