//! A directory in memory, for a store that is lost when the process exits.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};

use super::files::{Directory, LogFile};

#[derive(Default)]
pub struct MemoryDirectory {
    files: Mutex<BTreeMap<String, MemoryFile>>,
}

#[derive(Clone, Default)]
struct MemoryFile(Arc<RwLock<Vec<u8>>>);

impl Directory for MemoryDirectory {
    fn path(&self) -> &Path {
        Path::new("memory")
    }

    fn names(&self) -> io::Result<Vec<String>> {
        Ok(self.files.lock().keys().cloned().collect())
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn LogFile>> {
        let mut files = self.files.lock();
        if files.contains_key(name) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let file = MemoryFile::default();
        files.insert(name.to_owned(), file.clone());
        Ok(Box::new(file))
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn LogFile>> {
        let file = self.files.lock().get(name).cloned();
        Ok(Box::new(file.ok_or(io::ErrorKind::NotFound)?))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.files.lock().remove(name).map(drop).ok_or(io::ErrorKind::NotFound.into())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}

impl LogFile for MemoryFile {
    fn size(&self) -> io::Result<u64> {
        Ok(self.0.read().len() as u64)
    }

    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        let contents = self.0.read();
        let rest = contents.get(offset as usize..).unwrap_or_default();
        let size = rest.len().min(bytes.len());
        bytes[..size].copy_from_slice(&rest[..size]);
        Ok(size)
    }

    fn read_cached(&self, bytes: &mut [u8], offset: u64) -> bool {
        self.read_at(bytes, offset).is_ok_and(|size| size == bytes.len())
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        let (mut contents, start) = (self.0.write(), offset as usize);
        let end = start + bytes.len();
        if contents.len() < end {
            contents.resize(end, 0);
        }
        contents[start..end].copy_from_slice(bytes);
        Ok(bytes.len())
    }

    /// There is nothing to run out of before the process does.
    fn allocate(&self, _offset: u64, _length: u64) -> io::Result<()> {
        Ok(())
    }

    fn truncate(&self, length: u64) -> io::Result<()> {
        self.0.write().truncate(length as usize);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}
