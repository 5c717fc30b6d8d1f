//! Network namespaces: opened by path, made without a name, entered by a thread of their own.

use std::{
    fs::File,
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd},
    path::Path,
    thread,
};

use nix::sched::{CloneFlags, setns, unshare};

use super::{Error, Result};

/// A handle that keeps a network namespace alive.
#[derive(Debug)]
pub struct Namespace {
    file: File,
}

impl Namespace {
    pub fn open(path: &Path) -> Result<Self> {
        let attempt = || format!("opening the network namespace {}", path.display());
        let file = File::open(path).map_err(|e| Error::new(attempt(), e))?;
        let stat = nix::sys::statfs::fstatfs(&file).map_err(|e| Error::new(attempt(), e.into()))?;
        // A plain file (the bind mount is gone, its mount point is left) is no namespace any more.
        if stat.filesystem_type() != nix::sys::statfs::NSFS_MAGIC
            && stat.filesystem_type() != nix::sys::statfs::PROC_SUPER_MAGIC
        {
            return Err(Error::new(attempt(), io::Error::from_raw_os_error(libc::ENOENT)));
        }
        Ok(Self { file })
    }

    /// The calling thread's namespace.
    pub fn current() -> Result<Self> {
        Self::open(Path::new("/proc/thread-self/ns/net"))
    }

    /// A new, empty namespace without a name: it lives as long as a handle, a process or a mount does.
    pub fn create() -> Result<Self> {
        let made = thread::scope(|scope| {
            scope
                .spawn(|| {
                    unshare(CloneFlags::CLONE_NEWNET)
                        .map_err(|e| Error::new("making a network namespace", e.into()))?;
                    Self::current()
                })
                .join()
        });
        made.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    /// Runs `work` inside this namespace, on a thread that ends with it: whatever happens, the caller's
    /// own thread is never left in a foreign namespace. Processes started there live there too.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T> {
        let outcome = thread::scope(|scope| {
            scope
                .spawn(|| {
                    setns(&self.file, CloneFlags::CLONE_NEWNET)
                        .map_err(|e| Error::new("entering a network namespace", e.into()))?;
                    Ok(work())
                })
                .join()
        });
        outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    /// Moves the calling thread into this namespace, for good.
    pub fn enter(&self) -> Result<()> {
        setns(&self.file, CloneFlags::CLONE_NEWNET)
            .map_err(|e| Error::new("entering a network namespace", e.into()))
    }

    /// A path by which any process of this machine can open the namespace while the handle lives.
    pub fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd())
    }
}

impl AsFd for Namespace {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}
