//! Pool of buffers for the bodies of unexpected messages.

/// Length of the smallest buffer, in bytes.
const SMALLEST: usize = 64;
/// Number of sizes for each doubling: at most a fifth of a buffer is unused.
const STEPS: usize = 4;
/// Maximum of unused memory, in bytes.
const KEPT: usize = 16 << 20;

#[derive(Debug, Default)]
pub(crate) struct Pool {
    free: Vec<Vec<Vec<u8>>>,
    kept: usize,
}

/// Returns index and value of the smallest size that holds `length`.
fn size_for(length: usize) -> (usize, usize) {
    if length <= SMALLEST {
        return (0, SMALLEST);
    }
    // 2^bits < length <= 2^(bits + 1)
    let bits = (length - 1).ilog2() as usize;
    let base = 1usize << bits;
    let step = base / STEPS;
    let steps = (length - base).div_ceil(step);
    (
        (bits - SMALLEST.ilog2() as usize) * STEPS + steps,
        base + steps * step,
    )
}

impl Pool {
    /// Returns a buffer with a copy of `bytes`.
    pub(crate) fn copy(&mut self, bytes: &[u8]) -> Vec<u8> {
        if bytes.is_empty() {
            return Vec::new();
        }
        let (number, size) = size_for(bytes.len());
        let mut buffer = match self.free.get_mut(number).and_then(Vec::pop) {
            Some(buffer) => {
                self.kept -= size;
                buffer
            }
            None => Vec::with_capacity(size),
        };
        buffer.extend_from_slice(bytes);
        buffer
    }

    /// Takes back a buffer of [`copy`](Pool::copy).
    pub(crate) fn give_back(&mut self, mut buffer: Vec<u8>) {
        if buffer.is_empty() {
            return;
        }
        let (number, size) = size_for(buffer.len());
        if self.kept + size > KEPT {
            return;
        }
        if self.free.len() <= number {
            self.free.resize_with(number + 1, Vec::new);
        }
        buffer.clear();
        self.kept += size;
        self.free[number].push(buffer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_hold_what_they_are_for() {
        let mut before = (0, SMALLEST);
        for length in 1..20_000 {
            let (number, size) = size_for(length);
            assert!(
                size >= length && (length <= SMALLEST || size * 4 <= length * 5 + 4),
                "{length} in {size}"
            );
            assert!(
                (number, size) == before || (number == before.0 + 1 && size > before.1),
                "{length}: {number}, {size} after {before:?}"
            );
            before = (number, size);
        }
    }

    #[test]
    fn a_buffer_is_used_again() {
        let mut pool = Pool::default();
        let first = pool.copy(&[1; 100]);
        let at = first.as_ptr();
        pool.give_back(first);
        let second = pool.copy(&[2; 105]);
        assert_eq!((second.as_ptr(), second.as_slice()), (at, &[2; 105][..]));
    }
}
