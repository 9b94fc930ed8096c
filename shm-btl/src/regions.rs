//! The memory that this process has registered, from which it may copy when a peer asks for help
//! (`coop.rs`).

/// The registered regions.
#[derive(Debug, Default)]
pub(crate) struct Regions {
    /// Address and length, by handle minus one.
    places: Vec<Option<(u64, u64)>>,
    free: Vec<usize>,
}

/// Number of regions that are searched. A process that registered more helps with some of them
/// only.
const LOOKS: usize = 1024;

impl Regions {
    /// Adds a region and returns an unused handle.
    pub(crate) fn add(&mut self, address: u64, length: u64) -> u64 {
        let region = Some((address, length));
        let at = match self.free.pop() {
            Some(at) => {
                self.places[at] = region;
                at
            }
            None => {
                self.places.push(region);
                self.places.len() - 1
            }
        };
        at as u64 + 1
    }

    /// Removes a region. Unknown handles are ignored.
    pub(crate) fn remove(&mut self, handle: u64) {
        let Some(at) = handle
            .checked_sub(1)
            .and_then(|at| usize::try_from(at).ok())
        else {
            return;
        };
        if self
            .places
            .get_mut(at)
            .is_some_and(|place| place.take().is_some())
        {
            self.free.push(at);
        }
    }

    /// Returns true if all of this range is registered as one region. May return false if very many
    /// are.
    pub(crate) fn holds(&self, from: u64, length: u64) -> bool {
        let Some(end) = from.checked_add(length) else {
            return false;
        };
        let holds = |(address, size): &(u64, u64)| {
            *address <= from && address.checked_add(*size).is_some_and(|limit| end <= limit)
        };
        self.places.iter().take(LOOKS).flatten().any(holds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_registered_now_is_held() {
        let mut regions = Regions::default();
        let (a, b) = (regions.add(1000, 100), regions.add(1000, 50));
        assert!(regions.holds(1000, 100) && regions.holds(1050, 50) && regions.holds(1100, 0));
        assert!(!regions.holds(999, 2) && !regions.holds(1050, 51) && !regions.holds(0, 1));
        assert!(!regions.holds(1050, u64::MAX));
        regions.remove(a);
        assert!(regions.holds(1000, 50) && !regions.holds(1000, 51));
        regions.remove(a);
        regions.remove(0);
        regions.remove(u64::MAX);
        let c = regions.add(u64::MAX - 10, 10);
        assert_eq!(c, a, "a place is used again, once");
        assert_ne!(regions.add(5, 5), a);
        assert!(regions.holds(u64::MAX - 10, 10) && !regions.holds(u64::MAX - 1, 2));
        regions.remove(b);
        assert!(!regions.holds(1000, 1));
    }
}
