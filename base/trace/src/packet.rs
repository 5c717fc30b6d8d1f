//! Records on their way from one server to another: the encoding of the history, deflated. A tenth of what JSON takes.

use std::fmt;
use std::io::{self, Read, Write};

use flate2::Compression;
use flate2::read::DeflateDecoder;
use flate2::write::DeflateEncoder;

use crate::history::codec::{Decoder, Encoder};
use crate::record::{Kept, Record};

pub const CONTENT_TYPE: &str = "application/vnd.ferry.spans";
const MAGIC: &[u8; 8] = b"FerryPk2";
/// What a packet may unfold to.
const MAX_BYTES: u64 = 4 << 20;
/// Records of a packet.
pub const MAX_RECORDS: usize = 2_048;

#[derive(Debug, PartialEq, Eq)]
pub struct Unreadable;

impl fmt::Display for Unreadable {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "no packet of at most {MAX_RECORDS} spans and {MAX_BYTES} bytes")
    }
}

impl std::error::Error for Unreadable {}

/// The caller bounds how many: [`MAX_RECORDS`].
pub fn pack<'a>(records: impl IntoIterator<Item = &'a Record>) -> io::Result<Vec<u8>> {
    let (mut encoder, mut plain) = (Encoder::default(), Vec::new());
    for record in records {
        let (head, facts) = record.take_apart();
        encoder.encode(Kept { head: &head, facts: facts.bytes() }, &mut plain);
    }
    let mut packet = DeflateEncoder::new(MAGIC.to_vec(), Compression::fast());
    packet.write_all(&plain)?;
    packet.finish()
}

pub fn unpack(packet: &[u8]) -> Result<Vec<Record>, Unreadable> {
    let deflated = packet.strip_prefix(MAGIC).ok_or(Unreadable)?;
    let mut plain = Vec::new();
    DeflateDecoder::new(deflated).take(MAX_BYTES + 1).read_to_end(&mut plain).map_err(|_| Unreadable)?;
    if plain.len() as u64 > MAX_BYTES {
        return Err(Unreadable);
    }
    let (mut decoder, mut rest, mut records) = (Decoder::default(), plain.as_slice(), Vec::new());
    while !rest.is_empty() {
        if records.len() == MAX_RECORDS {
            return Err(Unreadable);
        }
        records.push(decoder.decode(&mut rest).ok_or(Unreadable)?);
    }
    Ok(records)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::tests::record;

    #[test]
    fn what_is_packed_is_unpacked_and_nothing_else_is() {
        let records: Vec<Record> = (0..50).map(|start| record("step", start)).collect();
        let packet = pack(&records).unwrap();
        assert_eq!(unpack(&packet), Ok(records));
        assert_eq!(unpack(&pack(&[]).unwrap()), Ok(Vec::new()));
        assert_eq!(unpack(b"[]"), Err(Unreadable));
        assert_eq!(unpack(b""), Err(Unreadable));
        for length in 8..packet.len() {
            assert_eq!(unpack(&packet[..length]), Err(Unreadable), "cut at {length}");
        }
    }

    #[test]
    fn a_packet_cannot_unfold_to_more_than_its_share() {
        let many: Vec<Record> = (0..=MAX_RECORDS as u64).map(|start| record("step", start)).collect();
        assert_eq!(unpack(&pack(&many).unwrap()), Err(Unreadable));
        let mut zeros = DeflateEncoder::new(MAGIC.to_vec(), Compression::best());
        zeros.write_all(&vec![0; 64 << 20]).unwrap();
        assert_eq!(unpack(&zeros.finish().unwrap()), Err(Unreadable));
    }
}
