//! The manifest names the newest segment. A gap in the sequence numbers of frames reveals a missing segment, except the
//! newest, after which none follows. Therefore the manifest names a segment before anything is written to it.
//!
//! ```text
//! MANIFEST   two sectors, each of "0000000005.log" | space | crc of that in hexadecimal 8 | newline | zeros
//! ```
//!
//! Segments take turns, so the line of the one before is still there when a write fails half way.

use std::io;

use super::files::{Directory, LogFile};
use super::segment::{file_name, parse_file_name};
use crate::{Error, Result};

pub const NAME: &str = "MANIFEST";

const SECTOR: usize = 512;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Newest {
    Unnamed,
    Segment(u32),
    Damaged,
}

impl Newest {
    /// The segment that is named; 0 for none.
    pub fn segment(self) -> u32 {
        match self {
            Newest::Segment(id) => id,
            Newest::Unnamed | Newest::Damaged => 0,
        }
    }
}

pub struct Manifest {
    file: Box<dyn LogFile>,
}

impl Manifest {
    /// The manifest and the newest segment that it names. `None`: older versions of Ferry wrote no manifest, or this is
    /// a new store.
    pub fn open(directory: &dyn Directory, names: &[String]) -> Result<Option<(Self, Newest)>> {
        if !names.iter().any(|name| name == NAME) {
            return Ok(None);
        }
        let path = directory.path().join(NAME);
        let unreadable = |error| Error::unavailable(format!("read {}", path.display()), error);
        let file = directory.open(NAME).map_err(unreadable)?;
        let mut bytes = Vec::new();
        file.read_all(&mut bytes).map_err(unreadable)?;
        let newest = match bytes.chunks(SECTOR).filter_map(parse).max() {
            Some(newest) => Newest::Segment(newest),
            // A crash right after it was made.
            None if bytes.iter().all(|byte| *byte == 0) => Newest::Unnamed,
            None => Newest::Damaged,
        };
        Ok(Some((Manifest { file }, newest)))
    }

    pub fn create(directory: &dyn Directory) -> io::Result<Self> {
        let manifest = Manifest { file: directory.create(NAME)? };
        directory.sync()?;
        Ok(manifest)
    }

    pub fn write(&self, newest: u32) -> io::Result<()> {
        let offset = u64::from(newest % 2) * SECTOR as u64;
        self.file.write_all_at(line(newest).as_bytes(), offset)
    }

    pub fn sync(&self) -> io::Result<()> {
        self.file.sync()
    }
}

fn line(newest: u32) -> String {
    let name = file_name(newest);
    format!("{name} {:08x}\n", crc32fast::hash(name.as_bytes()))
}

fn parse(sector: &[u8]) -> Option<u32> {
    let (found, _) = sector.split_at_checked(line(0).len())?;
    let (name, _) = std::str::from_utf8(found).ok()?.split_once(' ')?;
    let newest = parse_file_name(name)?;
    (line(newest).as_bytes() == found).then_some(newest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_reads_back_and_no_other_does() {
        for newest in [1, 42, u32::MAX] {
            let line = line(newest).into_bytes();
            assert_eq!(parse(&line), Some(newest));
            for at in 0..line.len() {
                let mut damaged = line.clone();
                damaged[at] ^= 1;
                assert_eq!(parse(&damaged), None, "byte {at}");
                assert_eq!(parse(&line[..at]), None, "cut at {at}");
            }
        }
    }
}
