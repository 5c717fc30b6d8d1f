//! A file of the history: batches of records, and beside it, once it is full, its index.
//!
//! ```text
//! 0000000000000007.spans   "FerryTr2" { length u32, crc32 u32, records }…
//! 0000000000000007.index   written when the segment is full
//! ```
//!
//! A reader finds all whole batches at any time, and a torn end costs the batch that was torn. A later record says of
//! texts and traces that they were in an earlier one, so what is behind a torn batch cannot be read.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::codec::{Decoder, Encoder};
use super::index::{Index, IndexBuilder};
use crate::block::Block;
use crate::record::Record;

const MAGIC: &[u8; 8] = b"FerryTr2";
/// Its length and its checksum.
const BATCH_HEAD: usize = 8;
/// For the next batch.
const KEPT_ROOM: usize = 64 << 10;

/// Names of everybody's objects are for the owner of the cluster.
pub fn make_directory(directory: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)
}

/// A segment that is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    pub id: u64,
    directory: PathBuf,
}

pub fn list(directory: &Path) -> io::Result<Vec<Segment>> {
    let mut segments = Vec::new();
    for entry in fs::read_dir(directory)? {
        let name = entry?.file_name();
        let id = name.to_str().and_then(|name| name.strip_suffix(".spans")?.parse().ok());
        segments.extend(id.map(|id| Segment { id, directory: directory.to_owned() }));
    }
    segments.sort_by_key(|segment| segment.id);
    Ok(segments)
}

impl Segment {
    fn path(&self) -> PathBuf {
        self.directory.join(format!("{:016}.spans", self.id))
    }

    fn index_path(&self) -> PathBuf {
        self.directory.join(format!("{:016}.index", self.id))
    }

    /// Of both files.
    pub fn bytes(&self) -> u64 {
        let length = |path: PathBuf| fs::metadata(path).map_or(0, |found| found.len());
        length(self.path()) + length(self.index_path())
    }

    pub fn remove(&self) -> io::Result<()> {
        fs::remove_file(self.path())?;
        match fs::remove_file(self.index_path()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Nothing where it has none yet, or none that can be read.
    pub fn index(&self) -> io::Result<Option<Index>> {
        match fs::read(self.index_path()) {
            Ok(bytes) => Ok(Index::from_bytes(&bytes)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The records that are wanted, of all whole batches.
    pub fn records(&self, mut wanted: impl FnMut(&Record) -> bool) -> io::Result<Vec<Record>> {
        let mut found = Vec::new();
        self.each(|record| {
            if wanted(&record) {
                found.push(record);
            }
        })?;
        Ok(found)
    }

    fn each(&self, mut act: impl FnMut(Record)) -> io::Result<()> {
        let bytes = fs::read(self.path())?;
        let Some(mut batches) = bytes.strip_prefix(MAGIC) else { return Ok(()) };
        let mut decoder = Decoder::default();
        while let Some(mut rest) = batch(&mut batches) {
            while !rest.is_empty() {
                let Some(record) = decoder.decode(&mut rest) else { return Ok(()) };
                act(record);
            }
        }
        Ok(())
    }

    /// Gives a segment that a crash left without an index the one it lacks.
    pub fn complete(&self) -> io::Result<()> {
        if self.index()?.is_some() {
            return Ok(());
        }
        let mut index = IndexBuilder::default();
        self.each(|record| index.add(&record))?;
        self.write_index(&index.build())
    }

    fn write_index(&self, index: &Index) -> io::Result<()> {
        let (path, partial) = (self.index_path(), self.directory.join("partial"));
        let mut file = private().truncate(true).create(true).open(&partial)?;
        file.write_all(&index.to_bytes())?;
        file.sync_data()?;
        fs::rename(partial, path)
    }
}

/// Nothing at the end, or where it is torn.
fn batch<'a>(from: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (length, rest) = from.split_first_chunk()?;
    let (sum, rest) = rest.split_first_chunk()?;
    let (batch, rest) = rest.split_at_checked(usize::try_from(u32::from_le_bytes(*length)).ok()?)?;
    *from = rest;
    (crc32fast::hash(batch) == u32::from_le_bytes(*sum)).then_some(batch)
}

/// The segment that is being written.
pub struct Open {
    segment: Segment,
    file: File,
    encoder: Encoder,
    index: IndexBuilder,
    batch: Vec<u8>,
    bytes: u64,
}

impl Open {
    pub fn create(directory: &Path, id: u64) -> io::Result<Open> {
        let segment = Segment { id, directory: directory.to_owned() };
        let mut file = private().create_new(true).open(segment.path())?;
        file.write_all(MAGIC)?;
        Ok(Open {
            segment,
            file,
            encoder: Encoder::default(),
            index: IndexBuilder::default(),
            batch: Vec::new(),
            bytes: MAGIC.len() as u64,
        })
    }

    /// What is to be written next.
    pub fn add(&mut self, spans: &Block) {
        if self.batch.is_empty() {
            self.batch.resize(BATCH_HEAD, 0);
        }
        for kept in spans.all() {
            self.encoder.encode(kept, &mut self.batch);
            self.index.add(&kept);
        }
    }

    /// Writes what was added, and makes it durable.
    pub fn write(&mut self) -> io::Result<()> {
        let Some(records) = self.batch.get(BATCH_HEAD..) else { return Ok(()) };
        let length = u32::try_from(records.len()).map_err(io::Error::other)?;
        let sum = crc32fast::hash(records);
        self.batch[..4].copy_from_slice(&length.to_le_bytes());
        self.batch[4..BATCH_HEAD].copy_from_slice(&sum.to_le_bytes());
        self.bytes += self.batch.len() as u64;
        self.file.write_all(&self.batch)?;
        self.batch.clear();
        // A burst must not take its room for ever.
        self.batch.shrink_to(KEPT_ROOM);
        self.file.sync_data()
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// When its first record began: nanoseconds since 1970.
    pub fn began(&self) -> Option<u64> {
        self.index.began()
    }

    pub fn seal(self) -> io::Result<()> {
        self.segment.write_index(&self.index.build())
    }
}

fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true).mode(0o600);
    options
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::tests::record;

    fn written(directory: &Path) -> (Segment, Open, Vec<Record>) {
        let mut open = Open::create(directory, 1).unwrap();
        let records: Vec<Record> = (0..30).map(|start| record("step", start)).collect();
        for batch in records.chunks(10) {
            open.add(&Block::of(batch));
            open.write().unwrap();
        }
        (list(directory).unwrap().remove(0), open, records)
    }

    #[test]
    fn a_segment_is_read_while_it_is_written_and_after() {
        let directory = tempfile::tempdir().unwrap();
        let (segment, open, records) = written(directory.path());
        assert_eq!(segment.records(|_| true).unwrap(), records);
        assert_eq!(segment.index().unwrap(), None);
        open.seal().unwrap();
        assert_eq!(segment.records(|record| record.start < 3).unwrap(), records[..3]);
        let index = segment.index().unwrap().expect("is sealed");
        assert_eq!((index.first_start, index.last_end), (0, 30));
        segment.remove().unwrap();
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_batch_of_any_size_is_whole_as_soon_as_it_is_written() {
        let directory = tempfile::tempdir().unwrap();
        let mut open = Open::create(directory.path(), 1).unwrap();
        let mut written = 0;
        for size in [1, 5_000, 0, 20_000, 3] {
            let records: Vec<Record> = (0..size).map(|start| record("step", start)).collect();
            open.add(&Block::of(&records));
            open.write().unwrap();
            written += records.len();
            assert_eq!(list(directory.path()).unwrap()[0].records(|_| true).unwrap().len(), written);
        }
        open.seal().unwrap();
        assert_eq!(list(directory.path()).unwrap()[0].records(|_| true).unwrap().len(), written);
    }

    #[test]
    fn a_torn_end_costs_one_batch_at_most_and_damage_what_is_behind_it() {
        let directory = tempfile::tempdir().unwrap();
        let (segment, open, records) = written(directory.path());
        drop(open);
        let whole = fs::read(segment.path()).unwrap();
        let mut seen = Vec::new();
        for length in 0..whole.len() {
            fs::write(segment.path(), &whole[..length]).unwrap();
            let found = segment.records(|_| true).unwrap();
            assert!(records.starts_with(&found) && found.len() % 10 == 0, "cut at {length}");
            seen.push(found.len());
        }
        assert!(seen.is_sorted() && seen.contains(&20), "{seen:?}");
        for at in 8..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 0x55;
            fs::write(segment.path(), &damaged).unwrap();
            let found = segment.records(|_| true).unwrap();
            assert!(records.starts_with(&found), "damaged at {at}");
        }
        fs::write(segment.path(), &whole).unwrap();
        segment.complete().unwrap();
        assert!(segment.index().unwrap().is_some());
    }
}
