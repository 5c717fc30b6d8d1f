//! The file system calls of the log, as traits, so that tests can simulate a disk that fails, tears writes and loses
//! unsynced data. The cost of a virtual call is negligible beside a system call.

use std::fs::{File, OpenOptions};
use std::io::{self, IoSliceMut};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::FallocateFlags;
use rustix::io::{Errno, ReadWriteFlags};

/// The directory of a store.
pub trait Directory: Send + Sync + 'static {
    fn path(&self) -> &Path;
    fn names(&self) -> io::Result<Vec<String>>;
    /// Makes a file that does not exist yet.
    fn create(&self, name: &str) -> io::Result<Box<dyn LogFile>>;
    fn open(&self, name: &str) -> io::Result<Box<dyn LogFile>>;
    fn remove(&self, name: &str) -> io::Result<()>;
    /// Makes durable which files there are.
    fn sync(&self) -> io::Result<()>;
}

pub trait LogFile: Send + Sync {
    fn size(&self) -> io::Result<u64>;
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize>;
    /// Reads only if the kernel has all of it in memory.
    fn read_cached(&self, bytes: &mut [u8], offset: u64) -> bool;
    /// May write less than all.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize>;
    /// Takes the space for these bytes from the disk.
    fn allocate(&self, offset: u64, length: u64) -> io::Result<()>;
    /// Cuts the file, durably.
    fn truncate(&self, length: u64) -> io::Result<()>;
    /// Cuts the file.
    fn cut(&self, length: u64) -> io::Result<()> {
        self.truncate(length)
    }
    /// Makes the contents durable, and the length where that is needed to read them.
    fn sync(&self) -> io::Result<()>;
}

impl dyn LogFile {
    pub fn write_all_at(&self, mut bytes: &[u8], mut offset: u64) -> io::Result<()> {
        while !bytes.is_empty() {
            match self.write_at(bytes, offset) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => {
                    bytes = &bytes[written..];
                    offset += written as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    pub fn read_exact_at(&self, mut bytes: &mut [u8], mut offset: u64) -> io::Result<()> {
        while !bytes.is_empty() {
            match self.read_at(bytes, offset) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(read) => {
                    bytes = &mut bytes[read..];
                    offset += read as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// The whole file, in place of what `bytes` held.
    pub fn read_all(&self, bytes: &mut Vec<u8>) -> io::Result<()> {
        bytes.clear();
        bytes.resize(self.size()? as usize, 0);
        self.read_exact_at(bytes, 0)
    }
}

/// Whether what failed so can succeed a moment later, with nothing lost in between: descriptors, memory or space
/// were short. Never said of a failed sync, after which nobody knows what is on the disk.
pub fn is_passing(error: &io::Error) -> bool {
    use io::ErrorKind::{Interrupted, OutOfMemory, QuotaExceeded, StorageFull, WouldBlock};
    matches!(error.kind(), Interrupted | OutOfMemory | QuotaExceeded | StorageFull | WouldBlock)
        || matches!(Errno::from_io_error(error), Some(Errno::MFILE | Errno::NFILE))
}

/// A directory whose files are left to the kernel to write: what was acknowledged survives the end of the process, not
/// that of the machine. etcd's `--unsafe-no-fsync`.
pub struct Unsynced<D>(pub D);

struct UnsyncedFile(Box<dyn LogFile>);

impl<D: Directory> Directory for Unsynced<D> {
    fn path(&self) -> &Path {
        self.0.path()
    }

    fn names(&self) -> io::Result<Vec<String>> {
        self.0.names()
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn LogFile>> {
        Ok(Box::new(UnsyncedFile(self.0.create(name)?)))
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn LogFile>> {
        Ok(Box::new(UnsyncedFile(self.0.open(name)?)))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.0.remove(name)
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}

impl LogFile for UnsyncedFile {
    fn size(&self) -> io::Result<u64> {
        self.0.size()
    }

    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        self.0.read_at(bytes, offset)
    }

    fn read_cached(&self, bytes: &mut [u8], offset: u64) -> bool {
        self.0.read_cached(bytes, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        self.0.write_at(bytes, offset)
    }

    fn allocate(&self, offset: u64, length: u64) -> io::Result<()> {
        self.0.allocate(offset, length)
    }

    fn truncate(&self, length: u64) -> io::Result<()> {
        self.0.cut(length)
    }

    fn cut(&self, length: u64) -> io::Result<()> {
        self.0.cut(length)
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}

/// A directory of this machine. It stays open, so that syncing it needs no further descriptor.
pub struct RealDirectory {
    path: PathBuf,
    file: File,
}

impl RealDirectory {
    pub fn open(path: &Path) -> io::Result<Self> {
        Ok(RealDirectory { path: path.to_path_buf(), file: File::open(path)? })
    }
}

impl Directory for RealDirectory {
    fn path(&self) -> &Path {
        &self.path
    }

    fn names(&self) -> io::Result<Vec<String>> {
        let entries = std::fs::read_dir(&self.path)?;
        // A name that is not text is none of the store's.
        entries.map(|entry| Ok(entry?.file_name().into_string().unwrap_or_default())).collect()
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn LogFile>> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true).mode(0o600);
        Ok(Box::new(options.open(self.path.join(name))?))
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn LogFile>> {
        Ok(Box::new(OpenOptions::new().read(true).write(true).open(self.path.join(name))?))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        std::fs::remove_file(self.path.join(name))
    }

    fn sync(&self) -> io::Result<()> {
        repeat(|| self.file.sync_all())
    }
}

impl LogFile for File {
    fn size(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        FileExt::read_at(self, bytes, offset)
    }

    fn read_cached(&self, bytes: &mut [u8], offset: u64) -> bool {
        let size = bytes.len();
        let read = rustix::io::preadv2(self, &mut [IoSliceMut::new(bytes)], offset, ReadWriteFlags::NOWAIT);
        read == Ok(size)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        FileExt::write_at(self, bytes, offset)
    }

    fn allocate(&self, offset: u64, length: u64) -> io::Result<()> {
        repeat(|| match rustix::fs::fallocate(self, FallocateFlags::empty(), offset, length) {
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
            Err(error) => Err(error.into()),
        })
    }

    fn truncate(&self, length: u64) -> io::Result<()> {
        self.cut(length)?;
        repeat(|| self.sync_all())
    }

    fn cut(&self, length: u64) -> io::Result<()> {
        repeat(|| self.set_len(length))
    }

    fn sync(&self) -> io::Result<()> {
        repeat(|| self.sync_data())
    }
}

/// Goes on after a signal.
fn repeat(mut call: impl FnMut() -> io::Result<()>) -> io::Result<()> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            done => return done,
        }
    }
}
