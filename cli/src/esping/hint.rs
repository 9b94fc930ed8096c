//! Hints for an unknown name: a similar known name, or a node that announces this name.

use std::time::Duration;

use esp_client::NodeAddr;

use super::discover;
use super::wire::Datagrams;
use crate::names::Names;
use crate::suggest::closest;

/// Maximum wait for answers to a broadcast.
const WAIT: Duration = Duration::from_millis(250);

/// Returns a hint to the name that the user may have meant. If no known name is similar, searches
/// the names that the nodes of the segment announce.
pub(crate) fn of(name: &str, names: &Names) -> Option<String> {
    if let Some(known) = closest(name, names.all()) {
        return Some(format!("did you mean `{known}`?"));
    }
    // Without a daemon, there is no hint; the caller's error about the name suffices.
    let mut wires = Datagrams::everywhere(None).ok()?;
    let found = discover::names(&mut wires, WAIT).ok()?;
    discovered(name, &found)
}

fn discovered(name: &str, found: &[(String, NodeAddr)]) -> Option<String> {
    let known = closest(name, found.iter().map(|(name, _)| name.as_str()))?;
    let (_, addr) = found.iter().find(|(name, _)| name == known)?;
    Some(format!(
        "the node that calls itself `{known}` has the address {addr}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn similar_names_of_found_nodes_come_with_their_address() {
        let addr = NodeAddr::Mac(esp_client::MacAddr([2, 0, 0, 0, 0, 7]));
        let found = [("node7".to_owned(), addr)];
        let hint = Some("the node that calls itself `node7` has the address 02:00:00:00:00:07");
        for name in ["node7", "nod7"] {
            assert_eq!(discovered(name, &found).as_deref(), hint, "{name}");
        }
        assert_eq!(discovered("storage", &found), None);
        assert_eq!(discovered("node7", &[]), None);
    }
}
