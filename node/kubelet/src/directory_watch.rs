//! The kernel's notes about directories: something changed there. What it was is found by reading the directory.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use tokio::net::unix::pipe;

/// Editors write in several steps; one look after the last is enough.
const SETTLE: Duration = Duration::from_millis(50);

pub struct DirectoryWatch {
    inotify: Inotify,
    /// The same notes as a stream of bytes that can be waited for: a descriptor like a pipe's.
    notes: pipe::Receiver,
}

impl DirectoryWatch {
    pub fn new() -> io::Result<Self> {
        let inotify = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)?;
        let notes: OwnedFd = inotify.as_fd().try_clone_to_owned()?;
        Ok(Self { inotify, notes: pipe::Receiver::from_owned_fd_unchecked(notes)? })
    }

    /// Once is enough; again changes nothing.
    pub fn add(&self, directory: &Path) -> io::Result<()> {
        let flags = AddWatchFlags::IN_CLOSE_WRITE
            | AddWatchFlags::IN_MOVE
            | AddWatchFlags::IN_DELETE
            | AddWatchFlags::IN_CREATE;
        self.inotify.add_watch(directory, flags)?;
        Ok(())
    }

    pub async fn changed(&mut self) {
        if self.notes.readable().await.is_err() {
            return std::future::pending().await;
        }
        tokio::time::sleep(SETTLE).await;
        let mut discarded = [0; 4096];
        while self.notes.try_read(&mut discarded).is_ok_and(|count| count > 0) {}
    }
}

/// Waits for ever where there is no watch.
pub async fn changed(watch: &mut Option<DirectoryWatch>) {
    match watch {
        Some(watch) => watch.changed().await,
        None => std::future::pending().await,
    }
}
