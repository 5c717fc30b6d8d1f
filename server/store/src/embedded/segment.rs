//! A segment: one file of the log.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;

use super::files::{Directory, LogFile};
use super::frame::{self, RECORD_HEADER, Record};
use super::index::{Location, Version};
use crate::{Error, KeyValue, Result, Revision};

static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

pub struct Segment {
    pub id: u32,
    pub salt: u64,
    pub path: PathBuf,
    file: Box<dyn LogFile>,
}

impl Segment {
    /// Creates a segment with `allocated` bytes of zeros, ready to be written to. Its header and its name are durable.
    pub fn create(directory: &dyn Directory, id: u32, allocated: u64) -> io::Result<Self> {
        let name = file_name(id);
        let file = match directory.create(&name) {
            // Nothing was ever written to it: it was to be the next one, and could not be made or removed again.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                directory.remove(&name)?;
                directory.create(&name)?
            }
            created => created?,
        };
        let segment = Segment { id, salt: rand::random(), path: directory.path().join(&name), file };
        let prepared = segment
            .allocate(0, allocated)
            .and_then(|()| segment.write_at(0, &frame::segment_header(id, segment.salt)))
            .and_then(|()| segment.file.sync())
            .and_then(|()| directory.sync());
        if let Err(error) = prepared {
            if let Err(error) = directory.remove(&name) {
                tracing::warn!(segment = id, %error, "cannot remove a segment that could not be made");
            }
            return Err(error);
        }
        Ok(segment)
    }

    /// Opens a segment and reads all of it into `bytes`. `None`: it never got as far as a header.
    pub fn open(directory: &dyn Directory, id: u32, bytes: &mut Vec<u8>) -> Result<Option<Self>> {
        let name = file_name(id);
        let path = directory.path().join(&name);
        let file = directory
            .open(&name)
            .and_then(|file| file.read_all(bytes).map(|()| file))
            .map_err(|error| Error::unavailable(format!("read {}", path.display()), error))?;
        let salt = frame::parse_segment_header(bytes, id)?;
        Ok(salt.map(|salt| Segment { id, salt, path, file }))
    }

    /// Makes sure that `length` bytes from `offset` on exist, are zero, and cannot run into a
    /// full disk later. The zeros are really written: a sync of what later replaces them then
    /// has no metadata to write, which makes it about twice as fast.
    pub fn allocate(&self, offset: u64, length: u64) -> io::Result<()> {
        self.file.allocate(offset, length)?;
        let end = offset + length;
        let mut at = offset;
        while at < end {
            let piece = &ZEROS[..ZEROS.len().min((end - at) as usize)];
            self.write_at(at, piece)?;
            at += piece.len() as u64;
        }
        Ok(())
    }

    pub fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all_at(bytes, offset)
    }

    pub fn sync(&self) -> io::Result<()> {
        self.file.sync()
    }

    /// Cuts the file, so that nothing of what was written past `length` is ever read again.
    pub fn truncate(&self, length: u64) -> io::Result<()> {
        self.file.truncate(length)
    }

    pub fn read_exact_at(&self, offset: u64, size: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; size];
        self.file.read_exact_at(&mut bytes, offset)?;
        Ok(bytes)
    }

    fn read_cached(&self, offset: u64, size: usize) -> Option<Vec<u8>> {
        let mut bytes = vec![0; size];
        self.file.read_cached(&mut bytes, offset).then_some(bytes)
    }
}

/// A version of a key together with the file it lies in: its value can be read after the index has moved on, and
/// even after the file was removed.
#[derive(Clone)]
pub struct Located {
    pub(super) key: Arc<str>,
    pub(super) version: Version,
    pub(super) segment: Arc<Segment>,
}

impl Located {
    pub fn key(&self) -> &Arc<str> {
        &self.key
    }

    pub fn create_revision(&self) -> Revision {
        self.version.created
    }

    pub fn mod_revision(&self) -> Revision {
        self.version.modified
    }

    pub fn version(&self) -> i64 {
        self.version.version
    }

    /// Its place among the changes of its revision.
    pub fn sub(&self) -> u32 {
        self.version.sub
    }

    /// Reads the value; may wait for the disk.
    pub fn read(&self) -> Result<KeyValue> {
        self.key_value(self.read_record()?)
    }

    /// Reads the value if that needs no waiting.
    pub(super) fn read_cached(&self) -> Option<Result<KeyValue>> {
        if self.version.is_deletion() {
            return Some(self.key_value(Vec::new()));
        }
        let Location { offset, size, .. } = self.version.location;
        let record = self.segment.read_cached(u64::from(offset), size as usize)?;
        Some(self.key_value(record))
    }

    /// The bytes of the record as they are in the log.
    pub(super) fn read_record(&self) -> Result<Vec<u8>> {
        let Location { offset, size, .. } = self.version.location;
        self.segment
            .read_exact_at(u64::from(offset), size as usize)
            .map_err(|error| Error::unavailable(format!("read {}", self.segment.path.display()), error))
    }

    pub(super) fn key_value(&self, record: Vec<u8>) -> Result<KeyValue> {
        let (value, lease) = if self.version.is_deletion() {
            (Bytes::new(), 0)
        } else {
            let lease = self.check(&record)?.lease;
            (Bytes::from(record).slice(RECORD_HEADER + self.key.len()..), lease)
        };
        Ok(KeyValue {
            key: self.key.clone(),
            value,
            create_revision: self.version.created,
            mod_revision: self.version.modified,
            version: self.version.version,
            lease,
        })
    }

    pub(super) fn check<'a>(&self, record: &'a [u8]) -> Result<Record<'a>> {
        match frame::parse_record(record) {
            Some((found, _)) if *found.key == *self.key && found.revision == self.version.modified => {
                Ok(found)
            }
            _ => Err(Error::corrupt(format!(
                "{} at revision {} (offset {} of {})",
                self.key,
                self.version.modified,
                self.version.location.offset,
                self.segment.path.display()
            ))),
        }
    }
}

pub fn file_name(id: u32) -> String {
    format!("{id:010}.log")
}

pub fn parse_file_name(name: &str) -> Option<u32> {
    let id = name.strip_suffix(".log")?.parse().ok()?;
    (file_name(id) == name).then_some(id)
}
