//! `--discover --ethers`: lines of /etc/ethers for the nodes that answer.
//!
//! The announcements of nodes are not authenticated, so only names without contradiction become
//! lines, and existing lines of a file are never changed.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::{self, File, Metadata, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};
use std::path::Path;

use esp_client::{MacAddr, NodeAddr};

use super::discover::{Ask, Node, find};
use super::wire::Wire;
use crate::out::{self, Context, Failure, Verdict, printable};
use crate::signal::Interrupt;

/// Maximum length of a file to merge with, in bytes; the limit of the lookup of names.
const MAX_FILE: u64 = 1 << 20;
/// Permissions of a new file.
const MODE: u32 = 0o644;

/// Prints the lines, or adds them to this file; prints problems to standard error.
pub(super) fn run(
    wires: &mut [impl Wire],
    ask: &Ask,
    interrupt: &Interrupt,
    file: Option<&Path>,
) -> Result<Verdict, Failure> {
    let mut heard = Heard::default();
    find(wires, ask, interrupt, |node| {
        heard.add(node);
        Ok(())
    })?;
    let mut table = heard.table();
    match file {
        None => {
            for (name, mac) in &table.lines {
                out::line(format_args!("{mac} {name}"))?;
            }
        }
        Some(file) if interrupt.is_set() => {
            return Err(Failure::new(format_args!(
                "interrupted before the last answers: {} is unchanged",
                file.display()
            )));
        }
        Some(file) => {
            let (added, kept) = update(file, &mut table)?;
            out::line(format_args!(
                "{}: {added} lines added, {kept} already present",
                file.display()
            ))?;
        }
    }
    for remark in &table.remarks {
        out::note(format_args!("esping: {remark}"));
    }
    for problem in &table.problems {
        out::note(format_args!("esping: {problem}; left out"));
    }
    Ok(if table.problems.is_empty() {
        Verdict::Done
    } else {
        Verdict::Partly
    })
}

/// An address with a name, as announced.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Claim {
    /// Interface of this node. It is compared first, so that a peer's line does not depend on the
    /// time of its answers.
    interface: String,
    mac: MacAddr,
    incarnation: u64,
    name: String,
}

/// All announcements of nodes.
#[derive(Default)]
struct Heard(BTreeSet<Claim>);

/// The lines, and the reasons for answers that have none.
#[derive(Debug, Default, PartialEq, Eq)]
struct Table {
    /// Names and addresses, in the order of the names.
    lines: Vec<(String, MacAddr)>,
    /// Answers without a line because of a contradiction or an invalid name.
    problems: Vec<String>,
    /// Answers without a line because the format has no field for them.
    remarks: Vec<String>,
}

impl Heard {
    fn add(&mut self, node: Node) {
        if let NodeAddr::Mac(mac) = node.addr {
            self.0.insert(Claim {
                interface: node.interface,
                mac,
                incarnation: node.info.incarnation,
                name: node.info.name,
            });
        }
    }

    fn table(&self) -> Table {
        let mut table = Table::default();
        let mut names_of: BTreeMap<MacAddr, BTreeSet<&str>> = BTreeMap::new();
        for claim in &self.0 {
            names_of.entry(claim.mac).or_default().insert(&claim.name);
        }
        for (mac, names) in &names_of {
            table.problems.extend(address_problem(*mac, names));
        }
        let mut claims: BTreeMap<String, Vec<&Claim>> = BTreeMap::new();
        for claim in &self.0 {
            let is_only = names_of.get(&claim.mac).is_some_and(|n| n.len() == 1);
            if is_only && is_host_name(&claim.name) {
                let name = claim.name.to_ascii_lowercase();
                claims.entry(name).or_default().push(claim);
            }
        }
        for claims in claims.values() {
            table.add(claims);
        }
        table.lines.sort_by(|a, b| order(&a.0).cmp(&order(&b.0)));
        table
    }
}

impl Table {
    /// Adds the line of a name, or the reason why it has none.
    fn add(&mut self, claims: &[&Claim]) {
        let Some(first) = claims.first() else {
            return;
        };
        let others: BTreeSet<MacAddr> = claims.iter().map(|claim| claim.mac).collect();
        let others: Vec<_> = others.into_iter().filter(|mac| *mac != first.mac).collect();
        let name = &first.name;
        let is_one_node = claims.iter().all(|c| c.incarnation == first.incarnation);
        if !others.is_empty() && !is_one_node {
            self.problems.push(format!(
                "conflict: the name `{name}` is announced by {} and {}: set another `node_name` \
                 in the config of one of them",
                first.mac,
                listed(&others)
            ));
            return;
        }
        if !others.is_empty() {
            self.remarks.push(format!(
                "`{name}` has further interfaces, {}: the line has that of {}",
                listed(&others),
                first.interface
            ));
        }
        self.lines.push((name.clone(), first.mac));
    }
}

fn listed(addresses: &[MacAddr]) -> String {
    let texts: Vec<_> = addresses.iter().map(MacAddr::to_string).collect();
    texts.join(" and ")
}

/// Returns the reason why an address that announces these names has no line; `None` if it may have
/// one.
fn address_problem(mac: MacAddr, names: &BTreeSet<&str>) -> Option<String> {
    let quoted: Vec<_> = names
        .iter()
        .map(|name| format!("`{}`", printable(name)))
        .collect();
    let mut each = names.iter();
    match (each.next(), each.next()) {
        (Some(&""), None) => Some(format!("{mac} announces no name")),
        (Some(name), None) if is_host_name(name) => None,
        (Some(_), None) => Some(format!(
            "{mac} announces {}, which is not a host name (letters, digits, `-` and `.`): set \
             `node_name` in the config of its daemon",
            quoted.concat()
        )),
        _ => Some(format!(
            "conflict: {mac} announces the names {}: two nodes have this address, or one was \
             renamed in the meantime",
            quoted.join(" and ")
        )),
    }
}

/// Returns true for a host name according to RFC 1123 that cannot be confused with an IP address.
fn is_host_name(name: &str) -> bool {
    let is_label = |label: &str| {
        let allowed = label
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b == b'-');
        let at_edge = label.starts_with('-') || label.ends_with('-');
        (1..=63).contains(&label.len()) && allowed && !at_edge
    };
    let last = name.rsplit('.').next().unwrap_or_default();
    let is_number = last.bytes().all(|b| b.is_ascii_digit());
    name.len() <= 253 && name.split('.').all(is_label) && !is_number
}

/// Returns the sort key, with which `node2` precedes `node10`.
fn order(name: &str) -> (&str, usize, &str) {
    let head = name.trim_end_matches(|c: char| c.is_ascii_digit());
    let number = name.get(head.len()..).unwrap_or_default();
    (head, number.len(), number)
}

/// Adds the lines to the file. Returns the number of lines that were added, and that were already
/// present.
fn update(file: &Path, table: &mut Table) -> Result<(usize, usize), Failure> {
    let doing = || format!("cannot read {}", file.display());
    // A symbolic link is followed, so that its target is replaced.
    let (path, old) = match fs::canonicalize(file) {
        Ok(path) => {
            let metadata = fs::metadata(&path).doing(doing())?;
            if !metadata.is_file() {
                let not = "is not a regular file: name another file";
                return Err(Failure::new(format_args!("{} {not}", file.display())));
            }
            (path, Some(metadata))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => (file.to_owned(), None),
        Err(error) => return Err(error).doing(doing()),
    };
    let text = match old {
        Some(_) => read_bounded(&path).doing(doing())?,
        None => Vec::new(),
    };
    let merged = merge(&text, &table.lines, file);
    table.problems.extend(merged.problems);
    if merged.added > 0 {
        replace(&path, &merged.text, old.as_ref())
            .doing(format_args!("cannot write {}", file.display()))?;
    }
    Ok((
        merged.added,
        table.lines.len() - merged.added - merged.left_out,
    ))
}

fn read_bounded(path: &Path) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    File::open(path)?
        .take(MAX_FILE + 1)
        .read_to_end(&mut text)?;
    if text.len() as u64 > MAX_FILE {
        let kind = io::ErrorKind::FileTooLarge;
        return Err(io::Error::new(kind, "longer than 1 MiB"));
    }
    Ok(text)
}

/// The text of a file with the lines added.
struct Merged {
    text: Vec<u8>,
    added: usize,
    left_out: usize,
    problems: Vec<String>,
}

/// Appends the lines that are not in the file and do not contradict it. Existing lines stay
/// unchanged, even invalid ones.
fn merge(text: &[u8], lines: &[(String, MacAddr)], file: &Path) -> Merged {
    // In lookups, the first line of a name or an address counts.
    let mut by_name: HashMap<String, (usize, Option<MacAddr>)> = HashMap::new();
    let mut by_addr: HashMap<MacAddr, (usize, String)> = HashMap::new();
    for (number, line) in (1..).zip(text.split(|&b| b == b'\n')) {
        let line = String::from_utf8_lossy(line);
        let mut words = line
            .split('#')
            .next()
            .unwrap_or_default()
            .split_whitespace();
        let (Some(mac), Some(name)) = (words.next(), words.next()) else {
            continue;
        };
        let mac = mac.parse().ok();
        let entry = by_name.entry(name.to_ascii_lowercase());
        entry.or_insert((number, mac));
        if let Some(mac) = mac {
            by_addr.entry(mac).or_insert((number, printable(name)));
        }
    }
    let mut merged = Merged {
        text: text.to_vec(),
        added: 0,
        left_out: 0,
        problems: Vec::new(),
    };
    if text.last().is_some_and(|&b| b != b'\n') {
        merged.text.push(b'\n');
    }
    for (name, mac) in lines {
        let at = |number| format!("line {number} of {}", file.display());
        let contradiction = match (by_name.get(&name.to_ascii_lowercase()), by_addr.get(mac)) {
            (Some((_, Some(found))), _) if found == mac => continue,
            (Some((number, Some(found))), _) => {
                format!(
                    "{} has `{name}` at {found}, but {mac} announces it",
                    at(*number)
                )
            }
            (Some((number, None)), _) => {
                format!("{} has `{name}` without a valid address", at(*number))
            }
            (None, Some((number, found))) => {
                format!(
                    "{} names {mac} `{found}`, but it announces `{name}`",
                    at(*number)
                )
            }
            (None, None) => {
                merged.text.extend(format!("{mac} {name}\n").into_bytes());
                merged.added += 1;
                continue;
            }
        };
        merged.left_out += 1;
        let problem = format!("conflict: {contradiction}: remove that line to replace it");
        merged.problems.push(problem);
    }
    merged
}

/// Replaces the file atomically; the new one has the owner and permissions of the old one.
fn replace(path: &Path, text: &[u8], old: Option<&Metadata>) -> io::Result<()> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let mut new = tempfile::Builder::new()
        .prefix(".esping-")
        .permissions(Permissions::from_mode(MODE))
        .tempfile_in(folder)?;
    new.write_all(text)?;
    if let Some(old) = old {
        let owner = new.as_file().metadata()?;
        if (owner.uid(), owner.gid()) != (old.uid(), old.gid()) {
            fchown(new.as_file(), Some(old.uid()), Some(old.gid()))?;
        }
        new.as_file().set_permissions(old.permissions())?;
    }
    new.as_file().sync_all()?;
    new.persist(path).map_err(|error| error.error)?;
    Ok(())
}

#[cfg(test)]
mod tests;
