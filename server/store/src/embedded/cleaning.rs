//! Reclaims space: appends the live records of the oldest segment again, then deletes the segment.
//!
//! Always the oldest: so a deletion is dropped only after every older version of its key is. For
//! that, a version that moves to the end takes all newer versions of its key along, and each
//! version in the log, needed or not, keeps having its successor behind it.

use std::collections::HashSet;
use std::sync::Arc;

use super::State;
use super::frame::FrameBuilder;
use super::index::{Index, Location};
use crate::{Result, Revision};

/// Bytes moved at a time.
const STEP: usize = 256 << 10;

/// What decides whether the oldest segment should be cleaned, in bytes.
pub struct Situation {
    /// What the log takes on disk, and what of it is written.
    pub size: u64,
    pub written: u64,
    /// What of that is still needed, in all and in the oldest segment.
    pub retained: u64,
    pub retained_in_oldest: u64,
    pub segment: u64,
    pub quota: u64,
}

impl Situation {
    /// Half of the log may be waste, and a little more: so each byte is moved about once for
    /// each byte that becomes waste. Near the quota space is dearer than work.
    pub fn wants_cleaning(&self) -> bool {
        let waste = self.written.saturating_sub(self.retained);
        let near_quota = self.size + 2 * self.segment > self.quota;
        self.retained_in_oldest == 0
            || waste > self.retained + 2 * self.segment
            || (near_quota && waste > 2 * self.segment + self.quota / 16)
    }
}

pub struct Cleaning {
    /// What lay in the segment when cleaning began, last first.
    left: Vec<(Arc<str>, Revision, Location)>,
}

/// A copied version: key, revision, and where in the frame it begins, with its size.
pub type Moved = (Arc<str>, Revision, usize, usize);

impl Cleaning {
    pub fn begin(index: &Index, segment: u32) -> Self {
        let mut left = index.in_segment(segment);
        left.sort_unstable_by_key(|(_, _, location)| std::cmp::Reverse(location.offset));
        Cleaning { left }
    }

    pub fn is_done(&self) -> bool {
        self.left.is_empty()
    }

    /// Bytes of records that the next step moves, at most.
    pub fn next_size(&self, index: &Index) -> usize {
        let mut size = 0;
        for (key, modified, location) in self.left.iter().rev() {
            if size >= STEP {
                break;
            }
            size += chain_size(index, key, *modified, *location);
        }
        size
    }

    /// Copies about a step's worth of records into a frame.
    pub fn copy_next(&mut self, state: &State, frame: &mut FrameBuilder) -> Result<Vec<Moved>> {
        let mut moved = Vec::new();
        let mut copied = HashSet::new();
        let mut size = 0;
        while size < STEP
            && let Some((key, modified, location)) = self.left.pop()
        {
            size += chain_size(&state.index, &key, modified, location);
            for version in state.index.chain_from(&key, modified, location) {
                // Not yet at its new place in the index, but perhaps already in this frame.
                if !copied.insert((key.clone(), version.modified)) {
                    continue;
                }
                let located = state.locate(key.clone(), *version);
                let record = located.read_record()?;
                located.check(&record)?;
                let at = frame.push_raw(&record);
                moved.push((key.clone(), version.modified, at, record.len()));
            }
        }
        Ok(moved)
    }
}

fn chain_size(index: &Index, key: &str, modified: Revision, location: Location) -> usize {
    index.chain_from(key, modified, location).iter().map(|version| version.location.size as usize).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MB: u64 = 1 << 20;

    fn wants(written: u64, retained: u64, retained_in_oldest: u64, quota: u64) -> bool {
        let size = written + MB;
        Situation { size, written, retained, retained_in_oldest, segment: 16 * MB, quota }.wants_cleaning()
    }

    #[test]
    fn a_log_is_cleaned_when_more_than_half_of_it_is_waste_or_space_is_short() {
        let ample = 8192 * MB;
        assert!(!wants(130 * MB, 100 * MB, MB, ample));
        assert!(!wants(231 * MB, 100 * MB, MB, ample));
        assert!(wants(233 * MB, 100 * MB, MB, ample));
        assert!(wants(100 * MB, 99 * MB, 0, ample), "what nobody needs costs nothing to drop");
        assert!(!wants(190 * MB, 150 * MB, MB, 200 * MB));
        assert!(wants(190 * MB, 140 * MB, MB, 200 * MB));
    }
}
