//! A snapshot of the embedded store: one file, the records of all current keys, and a hash.
//!
//! ```text
//! magic 8 | format 4 | zero 4 | revision 8 | records as in the log … | count 8 | SHA-256 of all before, 32
//! ```

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use futures::stream::{BoxStream, StreamExt};
use sha2::{Digest, Sha256};
use tokio::sync::mpsc;

use super::Shared;
use super::files::{Directory, RealDirectory};
use super::frame::{
    FrameBuilder, Mark, RECORD_HEADER, frame_size, parse_record, record_size_of, u32_at, u64_at,
};
use super::log::{Log, Sizes, Space};
use super::segment::Located;
use crate::{Error, Result, Revision};

const MAGIC: &[u8; 8] = b"FERRYSNP";
const FORMAT: u32 = 1;
const HEADER: usize = 24;
const FOOTER: usize = 8 + 32;
/// Bytes handed out, or written to the new log, at a time.
const CHUNK: usize = 256 << 10;

/// What a snapshot holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Summary {
    pub revision: Revision,
    pub keys: u64,
    pub bytes: u64,
}

/// The snapshot of a running store, as a stream. What it needs stays readable though the store
/// moves on, because it holds the files open.
pub(super) fn stream(shared: &Shared) -> BoxStream<'static, Result<Bytes>> {
    let (revision, located) = {
        let state = shared.state.read();
        let revision = shared.published();
        let located: Vec<Located> =
            state.index.all_at(revision).map(|(key, version)| state.locate(key.clone(), version)).collect();
        (revision, located)
    };
    let (sender, mut receiver) = mpsc::channel(2);
    tokio::task::spawn_blocking(move || {
        if let Err(error) = produce(revision, &located, &sender) {
            sender.blocking_send(Err(error)).ok();
        }
    });
    futures::stream::poll_fn(move |context| receiver.poll_recv(context)).boxed()
}

fn produce(revision: Revision, located: &[Located], sender: &mpsc::Sender<Result<Bytes>>) -> Result<()> {
    let mut hash = Sha256::new();
    let mut chunk = Vec::with_capacity(CHUNK);
    chunk.extend_from_slice(MAGIC);
    chunk.extend_from_slice(&FORMAT.to_le_bytes());
    chunk.extend_from_slice(&[0; 4]);
    chunk.extend_from_slice(&revision.0.to_le_bytes());
    for located in located {
        let record = located.read_record()?;
        located.check(&record)?;
        chunk.extend_from_slice(&record);
        if chunk.len() >= CHUNK {
            hash.update(&chunk);
            let full = std::mem::replace(&mut chunk, Vec::with_capacity(CHUNK));
            if sender.blocking_send(Ok(full.into())).is_err() {
                return Ok(());
            }
        }
    }
    chunk.extend_from_slice(&(located.len() as u64).to_le_bytes());
    hash.update(&chunk);
    chunk.extend_from_slice(&hash.finalize());
    sender.blocking_send(Ok(chunk.into())).ok();
    Ok(())
}

/// Reads a snapshot from end to end; an error unless every byte is as it was saved.
pub fn verify(snapshot: &Path) -> Result<Summary> {
    Reader::open(snapshot)?.read_all(|_| Ok(()))
}

/// Makes a store out of a snapshot, in a directory that does not exist or is empty. The snapshot
/// is verified first, and the directory appears only when all of it is durable.
///
/// `bump` lifts the revision above what the lost store may have given away, so that whoever
/// watched it is told to list again and no revision means two things.
pub fn restore(snapshot: &Path, directory: &Path, bump: u64) -> Result<Summary> {
    let summary = verify(snapshot)?;
    let cannot_restore = |error| Error::unavailable(format!("restore into {}", directory.display()), error);
    let partial = Partial::create(directory).map_err(cannot_restore)?;
    let mut new = NewLog::begin(
        Log::open(super::open_directory(&partial.path, true)?, Sizes::new(super::DEFAULT_SEGMENT))?.log,
        Revision(summary.revision.0 + bump as i64),
    );
    let read = Reader::open(snapshot)?.read_all(|record| new.add(record).map_err(cannot_restore))?;
    if read != summary {
        return Err(Error::corrupt(format!("{} changed while it was read", snapshot.display())));
    }
    new.finish().and_then(|()| partial.finish(directory)).map_err(cannot_restore)?;
    Ok(summary)
}

struct Reader {
    input: BufReader<File>,
    path: PathBuf,
    size: u64,
}

impl Reader {
    fn open(path: &Path) -> Result<Self> {
        let open = || {
            let file = File::open(path)?;
            let size = file.metadata()?.len();
            Ok((file, size))
        };
        let (file, size) = open()
            .map_err(|error: io::Error| Error::unavailable(format!("open {}", path.display()), error))?;
        Ok(Reader { input: BufReader::with_capacity(CHUNK, file), path: path.to_path_buf(), size })
    }

    fn read_all(mut self, mut each: impl FnMut(&[u8]) -> Result<()>) -> Result<Summary> {
        let Some(records_size) = self.size.checked_sub((HEADER + FOOTER) as u64) else {
            return Err(self.damaged("too short to be a snapshot"));
        };
        let mut hash = Sha256::new();
        let header = self.read(HEADER)?;
        if &header[..8] != MAGIC {
            return Err(self.damaged("not a snapshot of this store"));
        }
        let format = u32_at(&header, 8);
        if format != FORMAT {
            return Err(self.damaged(&format!("format {format}, this program reads {FORMAT}")));
        }
        hash.update(&header);
        let (mut keys, mut left) = (0, records_size);
        while left > 0 {
            if left < RECORD_HEADER as u64 {
                return Err(self.damaged("truncated"));
            }
            let mut record = self.read(RECORD_HEADER)?;
            let size = record_size_of(&record);
            if size as u64 > left {
                return Err(self.damaged("truncated or damaged"));
            }
            let rest = self.read(size - RECORD_HEADER)?;
            record.extend_from_slice(&rest);
            if parse_record(&record).is_none() {
                return Err(self.damaged("a record is damaged"));
            }
            hash.update(&record);
            each(&record)?;
            keys += 1;
            left -= size as u64;
        }
        let footer = self.read(FOOTER)?;
        hash.update(&footer[..8]);
        if u64_at(&footer, 0) != keys || footer[8..] != hash.finalize()[..] {
            return Err(self.damaged("its hash does not match"));
        }
        Ok(Summary { revision: Revision(u64_at(&header, 16) as i64), keys, bytes: self.size })
    }

    fn read(&mut self, size: usize) -> Result<Vec<u8>> {
        let mut bytes = vec![0; size];
        self.input
            .read_exact(&mut bytes)
            .map_err(|error| Error::unavailable(format!("read {}", self.path.display()), error))?;
        Ok(bytes)
    }

    fn damaged(&self, how: &str) -> Error {
        Error::corrupt(format!("snapshot {}: {how}", self.path.display()))
    }
}

/// A log that is filled from the beginning.
struct NewLog {
    log: Log,
    frame: FrameBuilder,
    revision: Revision,
}

impl NewLog {
    fn begin(log: Log, revision: Revision) -> Self {
        let mut frame = FrameBuilder::default();
        frame.begin();
        NewLog { log, frame, revision }
    }

    fn add(&mut self, record: &[u8]) -> io::Result<()> {
        self.frame.push_raw(record);
        if self.frame.len() >= CHUNK {
            self.append()?;
        }
        Ok(())
    }

    fn append(&mut self) -> io::Result<()> {
        self.log.prepare(frame_size(self.frame.len()), Space::Common)?;
        let mark = Mark {
            revision: self.revision,
            compacted: self.revision,
            ceiling: self.revision,
            ..Mark::default()
        };
        self.log.append(&mut self.frame, mark)?;
        self.frame.begin();
        Ok(())
    }

    fn finish(mut self) -> io::Result<()> {
        self.append()?;
        // An empty frame is how a log ends that nothing is missing from.
        self.append()?;
        self.log.sync()
    }
}

/// A directory being filled beside the one it will become.
struct Partial {
    path: PathBuf,
}

impl Partial {
    fn create(directory: &Path) -> io::Result<Self> {
        if directory.exists() && std::fs::read_dir(directory)?.next().is_some() {
            return Err(io::Error::new(io::ErrorKind::DirectoryNotEmpty, "it is not empty"));
        }
        let mut name = directory.as_os_str().to_owned();
        name.push(format!(".{}.part", std::process::id()));
        let path = PathBuf::from(name);
        super::create_directory(&path)?;
        Ok(Partial { path })
    }

    fn finish(self, directory: &Path) -> io::Result<()> {
        std::fs::rename(&self.path, directory)?;
        RealDirectory::open(super::parent(directory))?.sync()
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.path).ok();
    }
}
