//! Caches and sockets that CPUs share, from sysfs; the relation of two processes by the CPUs they
//! may run on; and the sizes above which one copy is faster than two (hybrid paper, section 4.1).

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

/// Closest resource that the CPUs of two processes share, in the worst case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Relation {
    /// A cache of the second level or higher.
    SharedCache,
    /// A socket, but no cache.
    SameSocket,
    /// Memory only.
    OtherSocket,
    /// Not known to the system.
    Unknown,
}

impl fmt::Display for Relation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Relation::SharedCache => "shared cache",
            Relation::SameSocket => "same socket",
            Relation::OtherSocket => "other socket",
            Relation::Unknown => "unknown topology",
        })
    }
}

/// Minimum length of a message that is copied once by the kernel instead of twice through shared
/// memory. Below it, the system call costs more than the second copy.
///
/// The defaults lie far above the paper's: a call with its page look-ups costs one to two
/// microseconds, and its copy reaches half the bandwidth with today's mitigations, while two copies
/// within a shared cache cost little more than one (docs/performance.md). `esplab tune` measures
/// the values of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thresholds {
    /// Threshold for CPUs that share a cache (second level or higher).
    pub shared_cache: usize,
    /// Threshold for CPUs of one socket without a shared cache.
    pub same_socket: usize,
    /// Threshold for CPUs of two sockets.
    pub other_socket: usize,
}

impl Default for Thresholds {
    fn default() -> Self {
        Thresholds {
            shared_cache: 128 * 1024,
            same_socket: 32 * 1024,
            other_socket: 16 * 1024,
        }
    }
}

impl Thresholds {
    /// Returns the threshold of a relation. An unknown relation counts as one socket.
    #[must_use]
    pub fn of(&self, relation: Relation) -> usize {
        match relation {
            Relation::SharedCache => self.shared_cache,
            Relation::SameSocket | Relation::Unknown => self.same_socket,
            Relation::OtherSocket => self.other_socket,
        }
    }
}

/// CPUs a process may run on.
pub type CpuSet = BTreeSet<u32>;

/// Reads the topology from sysfs, or from another folder in tests. Each CPU is read once.
#[derive(Clone, Debug)]
pub struct Topology {
    root: PathBuf,
    known: RefCell<BTreeMap<u32, Cpu>>,
}

/// One CPU: the CPUs that share its largest shared cache, and its socket.
#[derive(Clone, Debug)]
struct Cpu {
    cache: Option<CpuSet>,
    package: Option<i64>,
}

impl Default for Topology {
    fn default() -> Self {
        Topology::at("/sys/devices/system/cpu".into())
    }
}

/// Maximum CPU number; a file with a larger one is malformed.
const MAX_CPU: u32 = 65_535;

impl Topology {
    fn at(root: PathBuf) -> Topology {
        Topology {
            root,
            known: RefCell::default(),
        }
    }

    /// Returns the worst relation between any CPU of one set and any of the other.
    #[must_use]
    pub fn relation(&self, one: &CpuSet, other: &CpuSet) -> Relation {
        if one.is_empty() || other.is_empty() {
            return Relation::Unknown;
        }
        let both: CpuSet = one.union(other).copied().collect();
        let mut known = self.known.borrow_mut();
        for cpu in &both {
            known.entry(*cpu).or_insert_with(|| self.read(*cpu));
        }
        let all: Vec<&Cpu> = both.iter().filter_map(|cpu| known.get(cpu)).collect();
        let (cache, package) = (&all[0].cache, all[0].package);
        // A CPU shares everything with itself, whatever the files contain.
        if both.len() == 1 || cache.as_ref().is_some_and(|cache| both.is_subset(cache)) {
            Relation::SharedCache
        } else if all.iter().any(|cpu| cpu.package.is_none()) {
            Relation::Unknown
        } else if all.iter().all(|cpu| cpu.package == package) {
            Relation::SameSocket
        } else {
            Relation::OtherSocket
        }
    }

    /// Returns one pair of CPUs for each relation that occurs among `among`.
    #[must_use]
    pub fn pairs(&self, among: &CpuSet) -> Vec<(Relation, (u32, u32))> {
        let mut found: Vec<(Relation, (u32, u32))> = Vec::new();
        // The first CPU sees all relations on any machine whose sockets are alike.
        let Some(first) = among.first() else {
            return found;
        };
        for other in among.iter().skip(1) {
            let relation = self.relation(&[*first].into(), &[*other].into());
            if found.iter().all(|(known, _)| *known != relation) {
                found.push((relation, (*first, *other)));
            }
        }
        found.sort_unstable();
        found
    }

    fn read(&self, cpu: u32) -> Cpu {
        let dir = self.root.join(format!("cpu{cpu}"));
        let package = read(&dir.join("topology/physical_package_id"));
        Cpu {
            cache: largest_cache(&dir.join("cache"), cpu),
            // -1 means that the firmware does not report it.
            package: package.and_then(|id| id.parse().ok()).filter(|id| *id >= 0),
        }
    }
}

/// Returns the CPUs of the largest cache of the second level or higher to which `cpu` belongs.
fn largest_cache(dir: &Path, cpu: u32) -> Option<CpuSet> {
    let mut best: Option<(u32, CpuSet)> = None;
    for index in 0..16 {
        let dir = dir.join(format!("index{index}"));
        let Some(level) = read(&dir.join("level")).and_then(|level| level.parse::<u32>().ok())
        else {
            continue;
        };
        let instructions = read(&dir.join("type")).is_some_and(|kind| kind == "Instruction");
        if level < 2 || instructions || best.as_ref().is_some_and(|(known, _)| *known >= level) {
            continue;
        }
        let shared = read(&dir.join("shared_cpu_list")).and_then(|list| parse_list(&list));
        if let Some(shared) = shared.filter(|shared| shared.contains(&cpu)) {
            best = Some((level, shared));
        }
    }
    best.map(|(_, shared)| shared)
}

fn read(path: &Path) -> Option<String> {
    fs::read_to_string(path)
        .ok()
        .map(|text| text.trim().to_owned())
}

/// Parses a list such as `0-3,8,10-11`.
fn parse_list(text: &str) -> Option<CpuSet> {
    let mut set = CpuSet::new();
    for part in text.split(',').filter(|part| !part.is_empty()) {
        let (low, high) = part.split_once('-').unwrap_or((part, part));
        let (low, high): (u32, u32) = (low.trim().parse().ok()?, high.trim().parse().ok()?);
        if low > high || high > MAX_CPU {
            return None;
        }
        set.extend(low..=high);
    }
    Some(set)
}

/// Returns the CPUs that the calling thread (`None`) or a process may run on; empty if unknown.
#[must_use]
pub fn allowed(pid: Option<u32>) -> CpuSet {
    let of = pid.map(|pid| {
        i32::try_from(pid)
            .ok()
            .and_then(rustix::process::Pid::from_raw)
    });
    if of == Some(None) {
        return CpuSet::new();
    }
    let Ok(set) = rustix::thread::sched_getaffinity(of.flatten()) else {
        return CpuSet::new();
    };
    (0..rustix::thread::CpuSet::MAX_CPU)
        .filter(|cpu| set.is_set(*cpu))
        .filter_map(|cpu| u32::try_from(cpu).ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine of text files, removed on drop.
    struct Fake(PathBuf);

    impl Fake {
        fn new(name: &str) -> Self {
            let root = std::env::temp_dir()
                .join(format!("shm-btl-topology-{}-{name}", std::process::id()));
            fs::create_dir_all(&root).expect("a folder");
            Fake(root)
        }

        fn file(&self, path: &str, text: &str) -> &Self {
            let path = self.0.join(path);
            fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
            fs::write(path, text).expect("a file");
            self
        }

        fn cpu(&self, cpu: u32, package: i32, l2: &str, l3: Option<&str>) -> &Self {
            self.file(
                &format!("cpu{cpu}/topology/physical_package_id"),
                &format!("{package}\n"),
            );
            let caches = [
                ("1", "Data", "x"),
                ("1", "Instruction", "x"),
                ("2", "Unified", l2),
            ];
            let l3 = l3.map(|l3| ("3", "Unified", l3));
            for (index, (level, kind, list)) in caches.into_iter().chain(l3).enumerate() {
                self.file(
                    &format!("cpu{cpu}/cache/index{index}/level"),
                    &format!("{level}\n"),
                );
                self.file(
                    &format!("cpu{cpu}/cache/index{index}/type"),
                    &format!("{kind}\n"),
                );
                self.file(
                    &format!("cpu{cpu}/cache/index{index}/shared_cpu_list"),
                    &format!("{list}\n"),
                );
            }
            self
        }

        fn topology(&self) -> Topology {
            Topology::at(self.0.clone())
        }

        fn relation(&self, one: &[u32], other: &[u32]) -> Relation {
            self.topology().relation(
                &one.iter().copied().collect(),
                &other.iter().copied().collect(),
            )
        }
    }

    impl Drop for Fake {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    /// The paper's machine: two sockets of four, second-level caches shared by two, no third level.
    fn clovertown(name: &str) -> Fake {
        let fake = Fake::new(name);
        for cpu in 0..8u32 {
            let pair = cpu / 2 * 2;
            fake.cpu(
                cpu,
                i32::try_from(cpu / 4).expect("small"),
                &format!("{pair}-{}", pair + 1),
                None,
            );
        }
        fake
    }

    #[test]
    fn the_three_cases_of_the_paper() {
        let fake = clovertown("paper");
        assert_eq!(fake.relation(&[0], &[1]), Relation::SharedCache);
        assert_eq!(fake.relation(&[0], &[2]), Relation::SameSocket);
        assert_eq!(fake.relation(&[0], &[5]), Relation::OtherSocket);
        assert_eq!(fake.relation(&[3], &[3]), Relation::SharedCache);
        let pairs = fake.topology().pairs(&(0..8).collect());
        assert_eq!(
            pairs,
            [
                (Relation::SharedCache, (0, 1)),
                (Relation::SameSocket, (0, 2)),
                (Relation::OtherSocket, (0, 4)),
            ]
        );
    }

    #[test]
    fn a_cpu_is_read_once() {
        let fake = clovertown("once");
        let topology = fake.topology();
        let pair = CpuSet::from([0, 1]);
        assert_eq!(topology.relation(&pair, &pair), Relation::SharedCache);
        fs::remove_dir_all(fake.0.join("cpu0")).expect("it was there");
        assert_eq!(topology.relation(&pair, &pair), Relation::SharedCache);
        assert_eq!(fake.relation(&[0, 1], &[0, 1]), Relation::Unknown);
    }

    #[test]
    fn processes_that_may_move_have_their_worst_relation() {
        let fake = clovertown("moving");
        assert_eq!(fake.relation(&[0, 1], &[0, 1]), Relation::SharedCache);
        assert_eq!(fake.relation(&[0, 1], &[0, 2]), Relation::SameSocket);
        let all: Vec<u32> = (0..8).collect();
        assert_eq!(fake.relation(&all, &all), Relation::OtherSocket);
        assert_eq!(fake.relation(&[], &[0]), Relation::Unknown);
    }

    #[test]
    fn the_third_level_counts_where_there_is_one() {
        let fake = Fake::new("l3");
        fake.cpu(0, 0, "0", Some("0,2-3"))
            .cpu(1, 0, "1", Some("1"))
            .cpu(2, 0, "2", Some("0,2-3"));
        assert_eq!(fake.relation(&[0], &[2]), Relation::SharedCache);
        assert_eq!(fake.relation(&[0], &[1]), Relation::SameSocket);
    }

    #[test]
    fn malformed_and_missing_files_give_an_unknown_topology() {
        let fake = Fake::new("damaged");
        assert_eq!(fake.relation(&[0], &[1]), Relation::Unknown, "no files");
        fake.cpu(0, -1, "0-99999999999", None)
            .cpu(1, 0, "0-", None)
            .cpu(2, 0, "5-2", None)
            .cpu(3, 0, "\u{0}", None);
        assert_eq!(
            fake.relation(&[0], &[1]),
            Relation::Unknown,
            "not reported by the firmware"
        );
        assert_eq!(
            fake.relation(&[1], &[2]),
            Relation::SameSocket,
            "sockets are known, caches are not"
        );
        assert_eq!(fake.relation(&[1], &[3]), Relation::SameSocket);
        // A list that does not even contain its own CPU.
        fake.cpu(4, 0, "5-6", None).cpu(5, 0, "5-6", None);
        assert_eq!(fake.relation(&[4], &[5]), Relation::SameSocket);
    }

    #[test]
    fn lists() {
        assert_eq!(parse_list("0-2,7"), Some([0, 1, 2, 7].into()));
        assert_eq!(parse_list(""), Some(CpuSet::new()));
        for bad in ["a", "1-", "-1", "3-1", "0-70000", "0-4294967296", "1-2-3"] {
            assert_eq!(parse_list(bad), None, "{bad}");
        }
    }

    #[test]
    fn this_machine_has_a_topology() {
        let own = allowed(None);
        assert!(!own.is_empty());
        assert_eq!(own, allowed(Some(std::process::id())));
        assert_eq!(allowed(Some(u32::MAX)), CpuSet::new());
        let one: CpuSet = own.iter().take(1).copied().collect();
        assert_eq!(
            Topology::default().relation(&one, &one),
            Relation::SharedCache
        );
    }
}
