//! The folder of a job without a launcher.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, fstat, linkat, openat, unlinkat};
use rustix::io::Errno;
use rustix::process::geteuid;

use crate::BootError;
use crate::detect::bad;
use crate::error::{Context, printable};

/// Maximum size of a file that is read, in bytes.
const MAX_FILE: u64 = 1 << 20;

/// An open folder that only this user can write to.
#[derive(Debug)]
pub(super) struct Folder {
    fd: OwnedFd,
    path: String,
}

impl Folder {
    /// Opens the folder and checks that no other user can write to it.
    pub(super) fn open(path: &str) -> Result<Folder, BootError> {
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
        let fd = openat(CWD, path, flags, Mode::empty()).context(|| {
            format!(
                "{}: opening the folder ESP_JOB_DIR={}",
                super::NAME,
                printable(path)
            )
        })?;
        let found = fstat(&fd).context(|| format!("inspecting {}", printable(path)))?;
        if found.st_uid != geteuid().as_raw() || found.st_mode & 0o022 != 0 {
            let want =
                "expected a folder of this user to which no other user can write (chmod 700)";
            return Err(bad("ESP_JOB_DIR", path, want));
        }
        Ok(Folder {
            fd,
            path: printable(path),
        })
    }

    /// Creates a file atomically. Returns false if one with this name exists.
    pub(super) fn create(&self, name: &str, content: &str, rank: u32) -> Result<bool, BootError> {
        let doing = || format!("{}: writing {}/{name}", super::NAME, self.path);
        let new = format!("new-{rank}-{}", std::process::id());
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
        let mut file =
            File::from(openat(&self.fd, &new, flags, Mode::RUSR | Mode::WUSR).context(doing)?);
        let written = file.write_all(content.as_bytes()).context(doing);
        // Unlike a rename, a link never replaces an existing file.
        let linked =
            written.and_then(
                |()| match linkat(&self.fd, &new, &self.fd, name, AtFlags::empty()) {
                    Ok(()) => Ok(true),
                    Err(Errno::EXIST) => Ok(false),
                    Err(e) => Err(e).context(doing),
                },
            );
        // Fails if the folder was removed with the file in it.
        let _ = unlinkat(&self.fd, &new, AtFlags::empty());
        linked
    }

    /// Returns the content of a file, or `None` if it does not exist.
    pub(super) fn read(&self, name: &str) -> Result<Option<String>, BootError> {
        let doing = || format!("{}: reading {}/{name}", super::NAME, self.path);
        // Opening does not block if the file is a pipe.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let fd = match openat(&self.fd, name, flags, Mode::empty()) {
            Ok(fd) => fd,
            Err(Errno::NOENT) => return Ok(None),
            Err(e) => return Err(e).context(doing),
        };
        if !FileType::from_raw_mode(fstat(&fd).context(doing)?.st_mode).is_file() {
            return Err(super::wrong(format!("{}/{name} is not a file", self.path)));
        }
        let mut text = String::new();
        File::from(fd)
            .take(MAX_FILE + 1)
            .read_to_string(&mut text)
            .context(doing)?;
        if text.len() as u64 > MAX_FILE {
            return Err(super::wrong(format!(
                "{}/{name} is longer than {MAX_FILE} bytes",
                self.path
            )));
        }
        Ok(Some(text))
    }
}
