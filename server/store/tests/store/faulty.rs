//! A disk in memory that fails when told to, and forgets what was not synced: each sector of 512 bytes on its own, so
//! pages are lost and reordered, and names of files that were made or removed since the directory was synced.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;

use ferry_store::embedded::files::{Directory, LogFile};
use parking_lot::Mutex;
use rand::RngExt;
use rand::rngs::StdRng;

const SECTOR: usize = 512;

pub const EIO: i32 = 5;
pub const EMFILE: i32 = 24;
pub const ENOSPC: i32 = 28;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Calls that can fail so do, and have no effect.
    Error(i32),
    /// A write ends half way with an error.
    Torn,
    /// A write takes only half of its bytes.
    Short,
    /// From here on nothing happens any more.
    PowerCut,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Call {
    Open,
    Write,
    Allocate,
    Sync,
    Remove,
}

impl Fault {
    fn hits(self, call: Call) -> bool {
        match self {
            Fault::Error(EMFILE) => call == Call::Open,
            Fault::Error(ENOSPC) => matches!(call, Call::Open | Call::Write | Call::Allocate),
            Fault::Error(_) | Fault::PowerCut => true,
            Fault::Torn | Fault::Short => call == Call::Write,
        }
    }
}

#[derive(Clone, Default)]
pub struct FaultyDisk(Arc<Mutex<Disk>>);

#[derive(Default)]
struct Disk {
    names: BTreeMap<String, Contents>,
    durable_names: BTreeMap<String, Contents>,
    steps: usize,
    /// Which steps fail, and how.
    fault: Option<(std::ops::Range<usize>, Fault)>,
}

type Contents = Arc<Mutex<Pages>>;

#[derive(Default)]
struct Pages {
    /// What a reader sees.
    now: Vec<u8>,
    /// What is on the disk for certain.
    durable: Vec<u8>,
    /// What each sector was since it was synced: any of these may be on the disk.
    unsynced: BTreeMap<usize, Vec<Vec<u8>>>,
}

impl FaultyDisk {
    /// From step `from` on, for so many steps, calls fail.
    pub fn fail(&self, from: usize, steps: usize, fault: Fault) {
        self.0.lock().fault = Some((from..from.saturating_add(steps), fault));
    }

    pub fn heal(&self) {
        self.0.lock().fault = None;
    }

    /// Calls so far.
    pub fn steps(&self) -> usize {
        self.0.lock().steps
    }

    pub fn files(&self) -> Vec<String> {
        self.0.lock().names.keys().cloned().collect()
    }

    /// What a power cut leaves, by the dice.
    pub fn power_cut(&self, random: &mut StdRng) -> FaultyDisk {
        let disk = self.0.lock();
        let mut names = BTreeMap::new();
        for (name, contents) in &disk.durable_names {
            if disk.names.get(name).is_some_and(|now| Arc::ptr_eq(now, contents)) || random.random() {
                names.insert(name.clone(), contents.lock().power_cut(random));
            }
        }
        for (name, contents) in &disk.names {
            if !names.contains_key(name) && random.random() {
                names.insert(name.clone(), contents.lock().power_cut(random));
            }
        }
        FaultyDisk::of(names)
    }

    /// The files as they are, but for one.
    pub fn without(&self, missing: Option<&str>) -> FaultyDisk {
        let disk = self.0.lock();
        let left = disk.names.iter().filter(|(name, _)| missing != Some(name.as_str()));
        FaultyDisk::of(left.map(|(name, contents)| (name.clone(), contents.lock().now.clone())).collect())
    }

    fn of(files: BTreeMap<String, Vec<u8>>) -> FaultyDisk {
        let contents = |bytes: Vec<u8>| {
            Arc::new(Mutex::new(Pages { durable: bytes.clone(), now: bytes, unsynced: BTreeMap::new() }))
        };
        let names: BTreeMap<_, _> = files.into_iter().map(|(name, bytes)| (name, contents(bytes))).collect();
        let disk = Disk { durable_names: names.clone(), names, ..Disk::default() };
        FaultyDisk(Arc::new(Mutex::new(disk)))
    }

    fn step(&self, call: Call) -> Result<Option<Fault>, io::Error> {
        let mut disk = self.0.lock();
        disk.steps += 1;
        let fault = match &disk.fault {
            Some((steps, fault)) if steps.contains(&disk.steps) && fault.hits(call) => *fault,
            _ => return Ok(None),
        };
        match fault {
            Fault::Error(code) => Err(io::Error::from_raw_os_error(code)),
            Fault::PowerCut => Err(io::Error::from_raw_os_error(EIO)),
            Fault::Torn | Fault::Short => Ok(Some(fault)),
        }
    }
}

impl Pages {
    fn write(&mut self, bytes: &[u8], offset: usize) {
        let end = offset + bytes.len();
        if self.now.len() < end {
            self.now.resize(end, 0);
        }
        self.now[offset..end].copy_from_slice(bytes);
        for sector in offset / SECTOR..end.div_ceil(SECTOR) {
            let content = self.now[sector * SECTOR..((sector + 1) * SECTOR).min(self.now.len())].to_vec();
            if content.iter().any(|byte| *byte != 0) || self.unsynced.contains_key(&sector) {
                self.unsynced.entry(sector).or_default().push(content);
            }
        }
    }

    fn sync(&mut self) {
        self.durable.resize(self.now.len(), 0);
        for (sector, _) in std::mem::take(&mut self.unsynced) {
            let range = sector * SECTOR..((sector + 1) * SECTOR).min(self.now.len());
            self.durable[range.clone()].copy_from_slice(&self.now[range]);
        }
    }

    /// As Linux does it: what could not be written counts as written from now on. A part did reach the disk.
    fn lose(&mut self) {
        for (sector, versions) in std::mem::take(&mut self.unsynced) {
            if sector % 2 == 0 {
                place(&mut self.durable, sector, versions.last().expect("one at least"));
            }
        }
    }

    fn power_cut(&self, random: &mut StdRng) -> Vec<u8> {
        let mut left = self.durable.clone();
        if self.now.len() > left.len() && random.random() {
            left.resize(self.now.len(), 0);
        }
        // Mostly all is lost, or all but a little is not: a coin for each sector would leave nothing whole.
        let kept = [0.0, 0.5, 0.9, 1.0][random.random_range(0..4)];
        for (sector, versions) in &self.unsynced {
            if random.random_bool(kept) {
                place(&mut left, *sector, &versions[random.random_range(0..versions.len())]);
            }
        }
        left
    }
}

fn place(bytes: &mut Vec<u8>, sector: usize, content: &[u8]) {
    let end = sector * SECTOR + content.len();
    if bytes.len() < end {
        bytes.resize(end, 0);
    }
    bytes[sector * SECTOR..end].copy_from_slice(content);
}

impl Directory for FaultyDisk {
    fn path(&self) -> &Path {
        Path::new("/faulty")
    }

    fn names(&self) -> io::Result<Vec<String>> {
        Ok(self.files())
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn LogFile>> {
        self.step(Call::Open)?;
        let mut disk = self.0.lock();
        if disk.names.contains_key(name) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let contents = Contents::default();
        disk.names.insert(name.into(), contents.clone());
        Ok(Box::new(FaultyFile { disk: self.clone(), contents }))
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn LogFile>> {
        self.step(Call::Open)?;
        let contents = self.0.lock().names.get(name).cloned().ok_or(io::ErrorKind::NotFound)?;
        Ok(Box::new(FaultyFile { disk: self.clone(), contents }))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.step(Call::Remove)?;
        self.0.lock().names.remove(name).map(drop).ok_or(io::ErrorKind::NotFound.into())
    }

    fn sync(&self) -> io::Result<()> {
        self.step(Call::Sync)?;
        let mut disk = self.0.lock();
        disk.durable_names = disk.names.clone();
        Ok(())
    }
}

struct FaultyFile {
    disk: FaultyDisk,
    contents: Contents,
}

impl LogFile for FaultyFile {
    fn size(&self) -> io::Result<u64> {
        Ok(self.contents.lock().now.len() as u64)
    }

    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        let contents = self.contents.lock();
        let left = contents.now.get(offset as usize..).unwrap_or(&[]);
        let size = left.len().min(bytes.len());
        bytes[..size].copy_from_slice(&left[..size]);
        Ok(size)
    }

    fn read_cached(&self, bytes: &mut [u8], offset: u64) -> bool {
        self.read_at(bytes, offset).is_ok_and(|read| read == bytes.len())
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        let fault = self.disk.step(Call::Write)?;
        let size = if fault.is_some() && bytes.len() > 1 { bytes.len() / 2 } else { bytes.len() };
        self.contents.lock().write(&bytes[..size], offset as usize);
        match fault {
            Some(Fault::Torn) => Err(io::Error::from_raw_os_error(EIO)),
            _ => Ok(size),
        }
    }

    fn allocate(&self, offset: u64, length: u64) -> io::Result<()> {
        self.disk.step(Call::Allocate)?;
        let mut contents = self.contents.lock();
        let end = (offset + length) as usize;
        if contents.now.len() < end {
            contents.now.resize(end, 0);
        }
        Ok(())
    }

    fn truncate(&self, length: u64) -> io::Result<()> {
        self.disk.step(Call::Sync)?;
        let mut contents = self.contents.lock();
        let length = length as usize;
        contents.now.truncate(length);
        contents.unsynced.retain(|sector, _| sector * SECTOR < length);
        contents.sync();
        contents.durable.truncate(length);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        let synced = self.disk.step(Call::Sync).map(drop);
        let mut contents = self.contents.lock();
        match &synced {
            Ok(()) => contents.sync(),
            Err(_) => contents.lose(),
        }
        synced
    }
}
