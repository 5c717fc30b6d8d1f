//! The byte format of the log. Pure: no I/O.
//!
//! A segment is a header and then frames. A frame is what one append writes, and is whole or not
//! there: a header, records, padding to eight bytes, a trailer. A record is one version of one
//! key, with its own checksum, so that it can be read alone.
//!
//! ```text
//! segment  magic 8 | format 4 | id 4 | salt 8 | zero 4 | crc 4
//! frame    magic 4 | crc 4 | length 4 | records 4 | revision 8 | compacted 8 | ceiling 8 | durable 4 | sequence 4 | oldest 4 | zero 4
//! record   crc 4 | key length 2 | flags 2 | value length 4 | sub 4 | revision 8 | created 8 | version 8 | ttl or lease 8 | key | value
//! trailer  8
//! ```
//!
//! All numbers are little-endian. Frame headers and trailers are keyed with the segment's random
//! salt, so that no value, whatever its bytes, can pass for a frame.

use std::time::Duration;

use crate::{Error, Result, Revision};

pub const SEGMENT_HEADER: usize = 32;
pub const FRAME_HEADER: usize = 56;
pub const FRAME_TRAILER: usize = 8;
pub const RECORD_HEADER: usize = 48;

const SEGMENT_MAGIC: &[u8; 8] = b"FERRYLOG";
const FORMAT: u32 = 1;
const FRAME_MAGIC: u32 = 0x6d_61_72_46;
/// The unit that a disk writes whole.
const SECTOR: usize = 512;
/// Marks a time to live, in milliseconds.
const TTL: u64 = 1 << 63;
/// Among the flags: the last number of the header is a lease and no time to live.
const LEASE: u16 = 1;
/// Older versions wrote a deadline by the machine's clock, and only for events, which live for an hour.
const TTL_OF_DEADLINE: Duration = Duration::from_secs(3600);

/// One version of one key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record<'a> {
    pub key: &'a str,
    pub value: &'a [u8],
    pub revision: Revision,
    pub created: Revision,
    /// Zero for a deletion.
    pub version: i64,
    /// The place of this change among those of its revision.
    pub sub: u32,
    /// From when it was put, or from when the store was opened. No clock of the machine is asked: it may be wrong by
    /// years when a machine starts.
    pub ttl: Option<Duration>,
    /// Zero for none. A key with a lease has no time of its own.
    pub lease: i64,
}

/// What a frame says of the whole store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Mark {
    pub revision: Revision,
    pub compacted: Revision,
    /// No revision above this one was given away before a later frame became durable.
    pub ceiling: Revision,
    /// Bytes of this segment known to be durable when the frame was written.
    pub durable: u32,
    /// Counts the frames of the whole log, so that a missing one shows.
    pub sequence: u32,
    /// The first segment that is still needed, so that a missing one shows.
    pub oldest: u32,
}

pub fn segment_header(id: u32, salt: u64) -> [u8; SEGMENT_HEADER] {
    let mut header = [0; SEGMENT_HEADER];
    header[0..8].copy_from_slice(SEGMENT_MAGIC);
    header[8..12].copy_from_slice(&FORMAT.to_le_bytes());
    header[12..16].copy_from_slice(&id.to_le_bytes());
    header[16..24].copy_from_slice(&salt.to_le_bytes());
    let crc = crc32fast::hash(&header[..28]);
    header[28..32].copy_from_slice(&crc.to_le_bytes());
    header
}

/// The salt of a segment, or `None` where there is no whole header of this segment.
pub fn parse_segment_header(bytes: &[u8], id: u32) -> Result<Option<u64>> {
    let Some(header) = bytes.get(..SEGMENT_HEADER) else {
        return Ok(None);
    };
    if &header[..8] != SEGMENT_MAGIC || crc32fast::hash(&header[..28]) != u32_at(header, 28) {
        return Ok(None);
    }
    let format = u32_at(header, 8);
    if format != FORMAT {
        return Err(Error::corrupt(format!("segment {id} has format {format}, this program reads {FORMAT}")));
    }
    if u32_at(header, 12) != id {
        return Ok(None);
    }
    Ok(Some(u64_at(header, 16)))
}

/// Bytes that a record takes for a key and a value of so many.
pub fn record_size(key: usize, value: usize) -> usize {
    RECORD_HEADER + key + value
}

/// Bytes that a record takes according to its header.
pub fn record_size_of(header: &[u8]) -> usize {
    RECORD_HEADER + u16_at(header, 4) as usize + u32_at(header, 8) as usize
}

/// Bytes that a frame takes for this many bytes of records.
pub fn frame_size(records: usize) -> usize {
    FRAME_HEADER + records.next_multiple_of(8) + FRAME_TRAILER
}

/// Builds a frame in a buffer that is kept between frames.
#[derive(Default)]
pub struct FrameBuilder {
    bytes: Vec<u8>,
    records: u32,
}

impl FrameBuilder {
    pub fn begin(&mut self) {
        self.bytes.clear();
        self.bytes.resize(FRAME_HEADER, 0);
        self.records = 0;
    }

    pub fn is_empty(&self) -> bool {
        self.records == 0
    }

    /// Bytes so far, header included.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Adds a record; returns where in the frame it begins.
    pub fn push(&mut self, record: &Record<'_>) -> usize {
        let at = self.bytes.len();
        append_record(&mut self.bytes, record);
        self.records += 1;
        at
    }

    /// A record that `push` has added, by the place it returned.
    pub fn record(&self, at: usize, size: usize) -> &[u8] {
        &self.bytes[at..at + size]
    }

    /// How far it is, for `truncate`.
    pub fn mark(&self) -> (usize, u32) {
        (self.bytes.len(), self.records)
    }

    /// Takes back what was added since.
    pub fn truncate(&mut self, (length, records): (usize, u32)) {
        self.bytes.truncate(length);
        self.records = records;
    }

    /// Adds a record that was read from elsewhere, as it is.
    pub fn push_raw(&mut self, record: &[u8]) -> usize {
        let at = self.bytes.len();
        self.bytes.extend_from_slice(record);
        self.records += 1;
        at
    }

    pub fn finish(&mut self, salt: u64, mark: Mark) -> &[u8] {
        let padded = self.bytes.len().next_multiple_of(8);
        self.bytes.resize(padded, 0);
        self.bytes.extend_from_slice(&trailer(salt));
        let length = (self.bytes.len() - FRAME_HEADER) as u32;
        let header = &mut self.bytes[..FRAME_HEADER];
        header[0..4].copy_from_slice(&FRAME_MAGIC.to_le_bytes());
        header[8..12].copy_from_slice(&length.to_le_bytes());
        header[12..16].copy_from_slice(&self.records.to_le_bytes());
        header[16..24].copy_from_slice(&mark.revision.0.to_le_bytes());
        header[24..32].copy_from_slice(&mark.compacted.0.to_le_bytes());
        header[32..40].copy_from_slice(&mark.ceiling.0.to_le_bytes());
        header[40..44].copy_from_slice(&mark.durable.to_le_bytes());
        header[44..48].copy_from_slice(&mark.sequence.to_le_bytes());
        header[48..52].copy_from_slice(&mark.oldest.to_le_bytes());
        let crc = frame_crc(header, salt);
        header[4..8].copy_from_slice(&crc.to_le_bytes());
        &self.bytes
    }

    /// Gives back the memory of an unusually large frame.
    pub fn shrink(&mut self, keep: usize) {
        if self.bytes.capacity() > keep {
            self.bytes = Vec::with_capacity(keep);
        }
    }
}

pub fn append_record(bytes: &mut Vec<u8>, record: &Record<'_>) {
    let at = bytes.len();
    bytes.extend_from_slice(&[0; 4]);
    bytes.extend_from_slice(&(record.key.len() as u16).to_le_bytes());
    let (flags, life) = match record.lease {
        0 => (0, ttl_to_number(record.ttl)),
        lease => (LEASE, lease as u64),
    };
    bytes.extend_from_slice(&flags.to_le_bytes());
    bytes.extend_from_slice(&(record.value.len() as u32).to_le_bytes());
    bytes.extend_from_slice(&record.sub.to_le_bytes());
    bytes.extend_from_slice(&record.revision.0.to_le_bytes());
    bytes.extend_from_slice(&record.created.0.to_le_bytes());
    bytes.extend_from_slice(&record.version.to_le_bytes());
    bytes.extend_from_slice(&life.to_le_bytes());
    bytes.extend_from_slice(record.key.as_bytes());
    bytes.extend_from_slice(record.value);
    let crc = crc32fast::hash(&bytes[at + 4..]);
    bytes[at..at + 4].copy_from_slice(&crc.to_le_bytes());
}

/// Reads the record at the start of `bytes`; returns it and its size. `None`: not a whole record.
pub fn parse_record(bytes: &[u8]) -> Option<(Record<'_>, usize)> {
    let header = bytes.get(..RECORD_HEADER)?;
    let key_end = RECORD_HEADER + u16_at(header, 4) as usize;
    let size = record_size_of(header);
    let whole = bytes.get(..size)?;
    if crc32fast::hash(&whole[4..]) != u32_at(whole, 0) {
        return None;
    }
    let life = u64_at(header, 40);
    let leased = u16_at(header, 6) & LEASE != 0;
    let record = Record {
        key: std::str::from_utf8(&whole[RECORD_HEADER..key_end]).ok()?,
        value: &whole[key_end..],
        sub: u32_at(header, 12),
        revision: Revision(i64_at(header, 16)),
        created: Revision(i64_at(header, 24)),
        version: i64_at(header, 32),
        ttl: if leased { None } else { ttl_of_number(life) },
        lease: if leased { life as i64 } else { 0 },
    };
    Some((record, size))
}

fn ttl_to_number(ttl: Option<Duration>) -> u64 {
    ttl.map_or(0, |ttl| TTL | u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX))
}

fn ttl_of_number(number: u64) -> Option<Duration> {
    match number {
        0 => None,
        number if number & TTL != 0 => Some(Duration::from_millis(number & !TTL)),
        _ => Some(TTL_OF_DEADLINE),
    }
}

/// A whole frame found in a segment.
pub struct Frame<'a> {
    pub mark: Mark,
    /// Where the frame ends in the segment.
    pub end: usize,
    /// Each record with the place in the segment where it begins, and its size.
    pub records: Vec<(usize, usize, Record<'a>)>,
}

/// What is found where a frame should begin.
pub enum Next<'a> {
    Frame(Frame<'a>),
    /// Nothing was ever written here.
    End,
    /// An append that a crash cut short; it was never acknowledged.
    Torn,
}

/// Reads the frame at `offset` of a segment's bytes. A damaged frame that was durable once is an
/// error; one that was still being written is torn.
pub fn parse_frame(segment: &[u8], offset: usize, salt: u64) -> Result<Next<'_>> {
    let rest = segment.get(offset..).unwrap_or(&[]);
    if rest.iter().take(FRAME_HEADER).all(|byte| *byte == 0) && !followed(segment, offset, salt) {
        return Ok(Next::End);
    }
    if let Some(frame) = whole_frame(segment, offset, salt) {
        return Ok(Next::Frame(frame));
    }
    if followed(segment, offset, salt) || !is_torn(segment, offset, salt) {
        return Err(Error::corrupt(format!("frame at offset {offset}")));
    }
    Ok(Next::Torn)
}

fn whole_frame(segment: &[u8], offset: usize, salt: u64) -> Option<Frame<'_>> {
    let (mark, length, count) = parse_frame_header(segment.get(offset..)?, salt)?;
    let start = offset + FRAME_HEADER;
    let end = start.checked_add(length)?;
    let body = segment.get(start..end)?;
    let records_end = body.len().checked_sub(FRAME_TRAILER)?;
    if body[records_end..] != trailer(salt) {
        return None;
    }
    let mut records = Vec::with_capacity(count.min(length / RECORD_HEADER));
    let mut at = 0;
    for _ in 0..count {
        let (record, size) = parse_record(&body[at..records_end])?;
        records.push((start + at, size, record));
        at += size;
    }
    Some(Frame { mark, end, records })
}

fn parse_frame_header(bytes: &[u8], salt: u64) -> Option<(Mark, usize, usize)> {
    let header = bytes.get(..FRAME_HEADER)?;
    if u32_at(header, 0) != FRAME_MAGIC || frame_crc(header, salt) != u32_at(header, 4) {
        return None;
    }
    let mark = Mark {
        revision: Revision(i64_at(header, 16)),
        compacted: Revision(i64_at(header, 24)),
        ceiling: Revision(i64_at(header, 32)),
        durable: u32_at(header, 40),
        sequence: u32_at(header, 44),
        oldest: u32_at(header, 48),
    };
    Some((mark, u32_at(header, 8) as usize, u32_at(header, 12) as usize))
}

/// A later frame tells that what was at `offset` was durable when it was written.
fn followed(segment: &[u8], offset: usize, salt: u64) -> bool {
    let magic = FRAME_MAGIC.to_le_bytes();
    (offset + 8..segment.len().saturating_sub(FRAME_HEADER))
        .step_by(8)
        .filter(|at| segment[*at..*at + 4] == magic)
        .filter_map(|at| parse_frame_header(&segment[at..], salt))
        .any(|(mark, ..)| mark.durable as usize > offset)
}

/// Space is zeroed before it is written to, so an append that was cut short leaves a sector, or
/// the trailer, of zeros behind. Damage to a finished frame does not look so.
fn is_torn(segment: &[u8], offset: usize, salt: u64) -> bool {
    let end = match parse_frame_header(&segment[offset..], salt) {
        Some((_, length, _)) => {
            let end = offset + FRAME_HEADER + length;
            match segment.get(end - FRAME_TRAILER..end) {
                Some([.., 0]) => return true,
                Some(_) => end,
                // The file itself ends before the frame does.
                None => return true,
            }
        }
        None => {
            let end = offset + FRAME_HEADER;
            match segment.get(end..end + FRAME_TRAILER) {
                // Cut within the header: nothing follows it.
                Some([0, 0, 0, 0, 0, 0, 0, 0]) | None => return true,
                Some(_) => end,
            }
        }
    };
    let mut at = offset;
    while at < end {
        let sector_end = (at / SECTOR + 1) * SECTOR;
        if segment[at..sector_end.min(end)].iter().all(|byte| *byte == 0) {
            return true;
        }
        at = sector_end;
    }
    false
}

fn trailer(salt: u64) -> [u8; FRAME_TRAILER] {
    // The last byte to be written is not zero.
    (salt | 1 << 63).to_le_bytes()
}

fn frame_crc(header: &[u8], salt: u64) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(&salt.to_le_bytes());
    crc.update(&header[8..FRAME_HEADER]);
    crc.finalize()
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(array_at(bytes, at))
}

pub fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(array_at(bytes, at))
}

pub fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(array_at(bytes, at))
}

pub fn i64_at(bytes: &[u8], at: usize) -> i64 {
    i64::from_le_bytes(array_at(bytes, at))
}

fn array_at<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes[at..at + N].try_into().expect("a slice of N bytes is an array of N bytes")
}

#[cfg(test)]
mod tests {
    use super::*;

    const SALT: u64 = 0x1234_5678_9abc_def0;

    fn record<'a>(key: &'a str, value: &'a [u8]) -> Record<'a> {
        Record {
            key,
            value,
            revision: Revision(7),
            created: Revision(5),
            version: 3,
            sub: 1,
            ttl: None,
            lease: 0,
        }
    }

    /// A segment of zeros with one frame of `values` at its start; returns the frame's end too.
    fn segment(values: &[&[u8]], durable: u32) -> (Vec<u8>, usize) {
        let mut segment = vec![0; 16 << 10];
        let end = write_frame(&mut segment, 0, values, durable);
        (segment, end)
    }

    fn write_frame(segment: &mut [u8], at: usize, values: &[&[u8]], durable: u32) -> usize {
        let mut builder = FrameBuilder::default();
        builder.begin();
        for value in values {
            builder.push(&record("/registry/pods/a", value));
        }
        let mark = Mark {
            revision: Revision(7),
            compacted: Revision(2),
            ceiling: Revision(1000),
            durable,
            sequence: 1,
            oldest: 1,
        };
        let frame = builder.finish(SALT, mark);
        segment[at..at + frame.len()].copy_from_slice(frame);
        at + frame.len()
    }

    fn verdict(segment: &[u8]) -> &'static str {
        match parse_frame(segment, 0, SALT) {
            Ok(Next::Frame(_)) => "whole",
            Ok(Next::End) => "end",
            Ok(Next::Torn) => "torn",
            Err(_) => "corrupt",
        }
    }

    #[test]
    fn a_frame_reads_back_as_it_was_written() {
        let (segment, end) = segment(&[b"one", b"", &[0; 3000]], 0);
        let Ok(Next::Frame(frame)) = parse_frame(&segment, 0, SALT) else {
            panic!("not a whole frame");
        };
        assert_eq!(frame.end, end);
        assert_eq!(frame.mark.ceiling, Revision(1000));
        let values: Vec<_> = frame.records.iter().map(|(.., record)| record.value).collect();
        assert_eq!(values, [b"one".as_slice(), b"", &[0; 3000]]);
        for (at, size, record) in frame.records {
            assert_eq!(parse_record(&segment[at..at + size]).unwrap().0, record);
        }
    }

    #[test]
    fn a_time_to_live_reads_back_and_no_deadline_depends_on_the_clock() {
        for ttl in [None, Some(Duration::ZERO), Some(Duration::from_millis(1500)), Some(TTL_OF_DEADLINE)] {
            assert_eq!(ttl_of_number(ttl_to_number(ttl)), ttl);
        }
        assert!(ttl_of_number(ttl_to_number(Some(Duration::MAX))).unwrap() > Duration::from_secs(1 << 40));
        for deadline_of_an_older_version in [1, 1_700_000_000_000, 4_000_000_000_000] {
            assert_eq!(ttl_of_number(deadline_of_an_older_version), Some(TTL_OF_DEADLINE));
        }
    }

    #[test]
    fn every_cut_of_the_last_frame_is_torn_and_none_is_whole() {
        let (segment, end) = segment(&[&[7; 1500], &[9; 700]], 0);
        for written in 1..end {
            let mut cut = segment.clone();
            cut[written..].fill(0);
            assert!(matches!(verdict(&cut), "torn" | "end"), "cut at {written}");
        }
    }

    #[test]
    fn a_sector_that_never_reached_the_disk_is_torn() {
        let (mut segment, _) = segment(&[&[7; 3000]], 0);
        segment[1024..1536].fill(0);
        assert_eq!(verdict(&segment), "torn");
    }

    #[test]
    fn a_flipped_bit_is_corruption_and_not_a_torn_write() {
        let (segment, end) = segment(&[&[7; 1500], &[9; 700]], 0);
        for at in 0..end {
            let mut damaged = segment.clone();
            damaged[at] ^= 0x10;
            let padding = segment[at] == 0 && verdict(&damaged) == "whole";
            assert!(padding || verdict(&damaged) == "corrupt", "byte {at}");
        }
    }

    #[test]
    fn damage_below_a_later_durable_frame_is_corruption_even_if_it_looks_torn() {
        let (mut segment, end) = segment(&[&[7; 3000]], 0);
        write_frame(&mut segment, end, &[b"later"], end as u32);
        segment[1024..1536].fill(0);
        assert_eq!(verdict(&segment), "corrupt");
        segment[..end].fill(0);
        assert_eq!(verdict(&segment), "corrupt");
    }

    #[test]
    fn a_later_frame_that_was_not_synced_either_does_not_hide_a_torn_one() {
        let (mut segment, end) = segment(&[&[7; 3000]], 0);
        write_frame(&mut segment, end, &[b"later"], 0);
        segment[1024..1536].fill(0);
        assert_eq!(verdict(&segment), "torn");
    }

    #[test]
    fn a_value_cannot_pass_for_a_frame() {
        let (forged, end) = segment(&[b"forged"], 8);
        let mut segment = vec![0; 16 << 10];
        let mut other = FrameBuilder::default();
        other.begin();
        other.push(&record("k", &forged[..end]));
        let frame = other.finish(!SALT, Mark::default()).to_vec();
        segment[..frame.len()].copy_from_slice(&frame);
        segment[frame.len() - 8..].fill(0);
        assert!(matches!(parse_frame(&segment, 0, !SALT), Ok(Next::Torn)));
    }
}
