//! The log: segments in order, appended to at the end, dropped at the front.
//!
//! Space is allocated before it is written to, so a full disk shows before anything was done.
//! A part of it is kept back for deletions, which must go on when puts cannot. A segment that no other can follow, for
//! want of descriptors say, grows on until one can.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use super::files::{Directory, is_passing};
use super::frame::{FrameBuilder, Mark, Next, Record, SEGMENT_HEADER, parse_frame};
use super::index::{Index, Location, Version};
use super::manifest::{self, Manifest, Newest};
use super::segment::{Segment, file_name, parse_file_name};
use crate::{Error, Result, Revision};

/// A segment grows no further, whatever keeps the next one from being made.
const LARGEST: u64 = 1 << 30;

/// In what pieces the log takes space from the disk.
#[derive(Debug, Clone, Copy)]
pub struct Sizes {
    /// A segment that has grown to this is followed by a new one.
    pub segment: u64,
    /// Allocated at a time.
    step: u64,
    /// Kept back for deletions: about five thousand of them.
    reserve: u64,
}

impl Sizes {
    pub fn new(segment: u64) -> Self {
        Sizes { segment, step: (segment / 16).clamp(4 << 10, 1 << 20), reserve: 512 << 10 }
    }
}

/// What an append may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Space {
    Common,
    Reserve,
}

pub struct Log {
    directory: Arc<dyn Directory>,
    manifest: Manifest,
    sizes: Sizes,
    /// Everything before the active segment, oldest first.
    sealed: Vec<Sealed>,
    active: Arc<Segment>,
    /// Follows the active segment as soon as the manifest names it, with its size; until then nothing is written to it.
    next: Option<(Arc<Segment>, u64)>,
    /// Where the next frame goes.
    offset: u64,
    allocated: u64,
    durable: u64,
    /// Of the last frame.
    sequence: u32,
    /// The first segment that is still needed.
    oldest: u32,
    broken: bool,
}

struct Sealed {
    segment: Arc<Segment>,
    size: u64,
}

/// A log that was opened, and what was read from it.
pub struct Recovered {
    pub log: Log,
    pub index: Index,
    /// What the last frame said.
    pub mark: Mark,
    /// The last frame is the one that a clean end writes: nothing can be missing.
    pub clean: bool,
    /// Keys with a time to live: how long, which, and the version that set it.
    pub expiring: Vec<(Duration, Arc<str>, Revision)>,
    /// Keys with a lease, and which.
    pub leased: Vec<(Arc<str>, i64)>,
}

impl Log {
    /// Opens the log in a directory, or begins one.
    pub fn open(directory: Arc<dyn Directory>, sizes: Sizes) -> Result<Recovered> {
        let cannot_open = |error| cannot_open(&*directory, error);
        let names = directory.names().map_err(cannot_open)?;
        let (manifest, newest) = Manifest::open(&*directory, &names)?.unzip();
        let mut recovery = Recovery::default();
        let mut segments = recovery.read_all(&*directory, &names, newest.unwrap_or(Newest::Unnamed))?;
        let (active, offset) = match segments.pop() {
            Some(active) => (active, recovery.end as u64),
            None => {
                let segment = Segment::create(&*directory, 1, sizes.step).map_err(cannot_open)?;
                (Sealed { segment: Arc::new(segment), size: sizes.step }, SEGMENT_HEADER as u64)
            }
        };
        let manifest = match manifest {
            Some(manifest) => manifest,
            None => Manifest::create(&*directory).map_err(cannot_open)?,
        };
        if active.segment.id > newest.map_or(0, Newest::segment) {
            manifest.write(active.segment.id).and_then(|()| manifest.sync()).map_err(cannot_open)?;
        }
        let log = Log {
            directory: directory.clone(),
            manifest,
            sizes,
            sealed: segments,
            active: active.segment,
            next: None,
            offset,
            allocated: active.size,
            durable: 0,
            sequence: recovery.mark.sequence,
            oldest: recovery.mark.oldest.max(1),
            broken: false,
        };
        recovery.finish(log).map_err(cannot_open)
    }

    /// Whatever lies past the end, be it a torn frame or one whose append failed, must never be
    /// read as part of the log.
    fn discard_tail(&mut self) -> io::Result<()> {
        self.active.truncate(self.offset)?;
        self.allocated = self.offset;
        Ok(())
    }

    pub fn active(&self) -> &Arc<Segment> {
        &self.active
    }

    pub fn segments(&self) -> impl Iterator<Item = &Arc<Segment>> {
        self.sealed.iter().map(|sealed| &sealed.segment).chain([&self.active])
    }

    /// Bytes on disk.
    pub fn size(&self) -> u64 {
        let sealed: u64 = self.sealed.iter().map(|sealed| sealed.size).sum();
        sealed + self.allocated
    }

    /// Bytes of the log itself, without space that is only allocated.
    pub fn written(&self) -> u64 {
        self.size() - self.allocated + self.offset
    }

    /// Bytes that `prepare` would add to the log's size, about.
    pub fn growth(&self, bytes: usize) -> u64 {
        (self.offset + bytes as u64 + self.sizes.reserve).saturating_sub(self.allocated)
    }

    /// Makes room for a frame of up to `bytes`, in the active segment or a new one.
    pub fn prepare(&mut self, bytes: usize, space: Space) -> io::Result<()> {
        let needed = bytes as u64;
        if self.offset + needed + self.sizes.reserve <= self.allocated {
            return Ok(());
        }
        let full = self.offset + needed > self.sizes.segment && self.offset > SEGMENT_HEADER as u64;
        let grown = (self.offset + needed + self.sizes.reserve).next_multiple_of(self.sizes.step);
        let made = match full {
            true => self.rotate(needed + self.sizes.reserve),
            false => self.extend(grown),
        };
        let made = match made {
            Err(error) if full && !self.broken && is_passing(&error) && grown <= LARGEST => {
                self.extend(grown)
            }
            made => made,
        };
        match (made, space) {
            (Err(_), Space::Reserve) if !self.broken && self.offset + needed <= self.allocated => Ok(()),
            (Err(_), Space::Reserve) if !self.broken => self.extend(self.offset + needed),
            (made, _) => made,
        }
    }

    fn extend(&mut self, target: u64) -> io::Result<()> {
        self.active.allocate(self.allocated, target - self.allocated)?;
        self.allocated = target;
        Ok(())
    }

    fn rotate(&mut self, needed: u64) -> io::Result<()> {
        self.sync()?;
        let allocated = (SEGMENT_HEADER as u64 + needed).next_multiple_of(self.sizes.step);
        let (next, size) = match &mut self.next {
            Some((next, size)) => (next, size),
            None => {
                let next = Segment::create(&*self.directory, self.active.id + 1, allocated)?;
                let (next, size) = self.next.insert((Arc::new(next), allocated));
                (next, size)
            }
        };
        if *size < allocated {
            next.allocate(*size, allocated - *size)?;
            *size = allocated;
        }
        self.manifest.write(next.id)?;
        let named = self.manifest.sync();
        self.broken |= named.is_err();
        named?;
        let (next, allocated) = self.next.take().expect("it was just named");
        let active = std::mem::replace(&mut self.active, next);
        let size = self.offset;
        self.offset = SEGMENT_HEADER as u64;
        self.allocated = allocated;
        self.durable = 0;
        // Only gives back what was allocated and not used: no harm if it fails.
        if let Err(error) = active.truncate(size) {
            tracing::warn!(segment = active.id, %error, "cannot cut a finished segment to its size");
        }
        self.sealed.push(Sealed { segment: active, size });
        Ok(())
    }

    /// Where in the frame being built a record lies that is not in the log yet.
    pub fn unwritten(&self, location: Location) -> Option<usize> {
        let at = u64::from(location.offset).checked_sub(self.offset)?;
        (location.segment == self.active.id).then_some(at as usize)
    }

    /// Where a record that begins at `at` of the frame being built will lie.
    pub fn location(&self, at: usize, size: usize) -> Location {
        Location { segment: self.active.id, offset: (self.offset as usize + at) as u32, size: size as u32 }
    }

    /// Writes a frame into space that `prepare` made. On failure the log is as before.
    pub fn append(&mut self, frame: &mut FrameBuilder, mut mark: Mark) -> io::Result<()> {
        mark.durable = self.durable as u32;
        mark.sequence = self.sequence.wrapping_add(1);
        mark.oldest = self.oldest;
        let bytes = frame.finish(self.active.salt, mark);
        if let Err(error) = self.active.write_at(self.offset, bytes) {
            // A part of it may lie there, and the next frame would not cover all of that.
            let discarded = self.discard_tail();
            self.broken |= discarded.is_err();
            discarded?;
            return Err(error);
        }
        self.offset += bytes.len() as u64;
        self.sequence = mark.sequence;
        Ok(())
    }

    pub fn sync(&mut self) -> io::Result<()> {
        if self.durable < self.offset {
            let synced = self.active.sync();
            self.broken |= synced.is_err();
            synced?;
            self.durable = self.offset;
        }
        Ok(())
    }

    /// A sync has failed, or an unfinished write could not be cut off. What was written may be lost, and a later sync
    /// would not say so: the kernel reports such a failure once. Only reading the log anew tells what is left.
    pub fn is_broken(&self) -> bool {
        self.broken
    }

    /// The oldest segment, unless it is the active one.
    pub fn oldest(&self) -> Option<&Arc<Segment>> {
        self.sealed.first().map(|sealed| &sealed.segment)
    }

    /// Frames from now on say that the oldest segment is not needed.
    pub fn retire_oldest(&mut self) {
        if let Some(oldest) = self.oldest() {
            self.oldest = oldest.id + 1;
        }
    }

    /// Removes the oldest segment, once it is retired and that is durable.
    pub fn drop_oldest(&mut self) -> io::Result<()> {
        let Some(oldest) = self.oldest() else { return Ok(()) };
        self.directory.remove(&file_name(oldest.id))?;
        self.sealed.remove(0);
        // Were it to come back after a power cut without those removed after it, frames would seem to be missing.
        let synced = self.directory.sync();
        self.broken |= synced.is_err();
        synced
    }
}

#[derive(Default)]
struct Recovery {
    index: Index,
    /// Of the last frame; none while `frames` is zero.
    mark: Mark,
    frames: usize,
    clean: bool,
    /// Where the frames of the last segment end, and whether anything but zeros follows.
    end: usize,
    tail: bool,
    expiring: Vec<(Duration, Arc<str>, Revision)>,
    leased: Vec<(i64, Arc<str>, Revision)>,
}

fn cannot_open(directory: &dyn Directory, error: io::Error) -> Error {
    Error::unavailable(format!("open the log in {}", directory.path().display()), error)
}

impl Recovery {
    /// Reads all segments, the newest of which the manifest names. Removes one that a crash left half created.
    fn read_all(
        &mut self,
        directory: &dyn Directory,
        names: &[String],
        named: Newest,
    ) -> Result<Vec<Sealed>> {
        let path = |name: &str| directory.path().join(name);
        let missing = |id| Error::corrupt(format!("{} is missing", path(&file_name(id)).display()));
        let mut ids: Vec<u32> = names.iter().filter_map(|name| parse_file_name(name)).collect();
        ids.sort_unstable();
        let newest = named.segment();
        if newest > ids.last().copied().unwrap_or(0) {
            return Err(missing(newest));
        }
        let mut segments: Vec<Sealed> = Vec::new();
        let mut bytes = Vec::new();
        for (position, id) in ids.iter().enumerate() {
            let last = position + 1 == ids.len();
            match Segment::open(directory, *id, &mut bytes)? {
                Some(segment) => {
                    self.read(&segment, &bytes, last)?;
                    segments.push(Sealed { segment: Arc::new(segment), size: bytes.len() as u64 });
                }
                // Half created: nothing was written to it.
                None if last && *id > newest && bytes.iter().skip(SEGMENT_HEADER).all(|byte| *byte == 0) => {
                    let removed = directory.remove(&file_name(*id));
                    removed.map_err(|error| cannot_open(directory, error))?;
                }
                None => {
                    let path = path(&file_name(*id));
                    return Err(Error::corrupt(format!("the header of {}", path.display())));
                }
            }
        }
        if let Some(first) = ids.first()
            && self.frames > 0
            && *first > self.mark.oldest
        {
            return Err(missing(self.mark.oldest));
        }
        if named == Newest::Damaged && self.frames > 0 {
            return Err(Error::corrupt(format!("{} is damaged", path(manifest::NAME).display())));
        }
        Ok(segments)
    }

    /// Indexes every frame of a segment.
    fn read(&mut self, segment: &Segment, bytes: &[u8], last: bool) -> Result<()> {
        let corrupt = |what: &str, offset| {
            Error::corrupt(format!("{what} at offset {offset} of {}", segment.path.display()))
        };
        self.end = SEGMENT_HEADER;
        loop {
            let frame = match parse_frame(bytes, self.end, segment.salt) {
                Ok(Next::Frame(frame)) => frame,
                Ok(Next::End) => break,
                Ok(Next::Torn) if last => {
                    self.clean = false;
                    break;
                }
                Ok(Next::Torn) => return Err(corrupt("missing frame", self.end)),
                Err(_) => return Err(corrupt("damaged frame", self.end)),
            };
            if self.frames > 0 && frame.mark.sequence != self.mark.sequence.wrapping_add(1) {
                return Err(corrupt("frames are missing", self.end));
            }
            for (at, size, record) in &frame.records {
                let location = Location { segment: segment.id, offset: *at as u32, size: *size as u32 };
                self.add(record, location);
            }
            self.mark = frame.mark;
            self.frames += 1;
            self.clean = frame.records.is_empty() && frame.mark.ceiling == frame.mark.revision;
            self.end = frame.end;
        }
        self.tail = bytes[self.end..].iter().any(|byte| *byte != 0);
        Ok(())
    }

    fn add(&mut self, record: &Record<'_>, location: Location) {
        self.index.recover(
            record.key,
            Version {
                modified: record.revision,
                created: record.created,
                version: record.version,
                sub: record.sub,
                location,
            },
        );
        if let Some(ttl) = record.ttl {
            self.expiring.push((ttl, Arc::from(record.key), record.revision));
        }
        if record.lease != 0 {
            self.leased.push((record.lease, Arc::from(record.key), record.revision));
        }
    }

    fn finish(mut self, mut log: Log) -> io::Result<Recovered> {
        // What an earlier process wrote is in the kernel's memory, and perhaps not on the disk. If a sync failed then,
        // the kernel takes it for written, and would not write it now: so it is written again.
        if !self.clean && self.end > SEGMENT_HEADER {
            let from = (self.mark.durable as usize).clamp(SEGMENT_HEADER, self.end);
            let written = log.active.read_exact_at(from as u64, self.end - from)?;
            log.active.write_at(from as u64, &written)?;
        }
        log.sync()?;
        if self.tail {
            tracing::info!(segment = log.active.id, "dropping an unfinished write");
            log.discard_tail()?;
        }
        self.index.recovered(self.mark.compacted);
        let index = self.index;
        let is_current = |key: &str, revision: &Revision| {
            index.head(key).is_some_and(|version| version.modified == *revision)
        };
        self.expiring.retain(|(_, key, revision)| is_current(key, revision));
        self.leased.retain(|(_, key, revision)| is_current(key, revision));
        let leased = self.leased.into_iter().map(|(lease, key, _)| (key, lease)).collect();
        Ok(Recovered { log, index, mark: self.mark, clean: self.clean, expiring: self.expiring, leased })
    }
}
