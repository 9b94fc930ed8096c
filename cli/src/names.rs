//! Names of nodes: `MAC name` lines of the file in which `esp-client` looks up names.

use std::collections::HashMap;
use std::fs;

use esp_client::NodeAddr;
use esp_client::ethers_path;

/// Names by address, for output only: invalid entries are skipped.
#[derive(Clone, Debug, Default)]
pub struct Names(HashMap<NodeAddr, String>);

impl Names {
    /// Reads the file at [`ethers_path`]; no names if it cannot be read.
    pub fn load() -> Names {
        Names::parse(&fs::read_to_string(ethers_path()).unwrap_or_default())
    }

    pub(crate) fn parse(text: &str) -> Names {
        let entry = |line: &str| {
            let mut words = line.split('#').next()?.split_whitespace();
            Some((words.next()?.parse().ok()?, words.next()?.to_owned()))
        };
        let mut names = HashMap::new();
        for (mac, name) in text.lines().filter_map(entry) {
            names.entry(mac).or_insert(name);
        }
        Names(names)
    }

    /// Returns the name of an address.
    pub fn of(&self, mac: NodeAddr) -> Option<&str> {
        self.0.get(&mac).map(String::as_str)
    }

    /// Returns all names, in no order.
    pub fn all(&self) -> impl Iterator<Item = &str> {
        self.0.values().map(String::as_str)
    }

    /// Formats `name (address)`, or only the address if it has no name.
    pub fn show(&self, mac: NodeAddr) -> String {
        self.of(mac)
            .map_or_else(|| mac.to_string(), |name| format!("{name} ({mac})"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_name_of_an_address_counts() {
        let names = Names::parse(
            "02:e5:00:00:00:01 node0 # first\n#02:e5:00:00:00:02 no\nrubbish\n02:e5:00:00:00:01 other\n",
        );
        let mac = NodeAddr::Mac(esp_client::MacAddr([2, 0xe5, 0, 0, 0, 1]));
        assert_eq!(names.show(mac), "node0 (02:e5:00:00:00:01)");
        assert_eq!(
            names.show(esp_client::MacAddr([2, 0xe5, 0, 0, 0, 2]).into()),
            "02:e5:00:00:00:02"
        );
    }
}
