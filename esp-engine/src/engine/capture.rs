//! The pcap file of all links.

use std::fs::File;
use std::io::{self, BufWriter};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use netif::PcapWriter;

use crate::command::EngineEvent;
use crate::config::EngineError;

/// Trace of the frames of all links, for diagnosis. Clones share it. It ends at the first error,
/// because the last record may then be incomplete.
#[derive(Clone)]
pub(super) struct Capture(Arc<Mutex<State>>);

struct State {
    path: PathBuf,
    writer: Option<PcapWriter<BufWriter<File>>>,
    error: Option<io::Error>,
}

impl Capture {
    /// Creates the file.
    pub(super) fn create(path: &Path) -> Result<Capture, EngineError> {
        let created = File::create(path).and_then(|file| PcapWriter::new(BufWriter::new(file)));
        let writer = created.map_err(|source| EngineError::Capture {
            path: path.to_owned(),
            source,
        })?;
        Ok(Capture(Arc::new(Mutex::new(State {
            path: path.to_owned(),
            writer: Some(writer),
            error: None,
        }))))
    }

    /// Adds a frame.
    pub(super) fn write(&self, frame: &[u8]) {
        let mut state = self.state();
        let Some(writer) = &mut state.writer else {
            return;
        };
        if let Err(error) = writer.write_frame(frame) {
            state.error = Some(error);
            state.writer = None;
        }
    }

    /// Returns the event that reports the end of the trace, once.
    pub(super) fn ended(&self) -> Option<EngineEvent> {
        let mut state = self.state();
        let error = state.error.take()?;
        Some(EngineEvent::CaptureEnded {
            path: state.path.clone(),
            why: error.to_string(),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_cannot_be_created_is_named() {
        let path = Path::new("/proc/no-such-folder/esp.pcap");
        let error = Capture::create(path).err().map(|error| error.to_string());
        let text = error.unwrap_or_default();
        assert!(text.contains("/proc/no-such-folder/esp.pcap"), "{text}");
    }

    #[test]
    fn a_full_disk_ends_the_trace_and_is_reported_once() {
        let path = Path::new("/dev/full");
        let capture = Capture::create(path).unwrap();
        let other = capture.clone();
        assert_eq!(capture.ended(), None);
        // More than the writer's buffer.
        for _ in 0..100 {
            capture.write(&[0; 1514]);
        }
        let Some(EngineEvent::CaptureEnded { path: named, why }) = other.ended() else {
            panic!("no event");
        };
        assert_eq!(named, path);
        assert!(why.contains("No space left"), "{why}");
        capture.write(&[0; 1514]);
        assert_eq!(capture.ended(), None);
    }
}
