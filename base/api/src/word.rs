//! Eight bytes of text looked at together. Each function marks bytes by their highest bit; a borrow from one that is marked
//! rightly may mark the next one too, so the lowest mark is right, and so is that there is none.

const ONES: u64 = u64::from_ne_bytes([0x01; 8]);
const HIGH: u64 = u64::from_ne_bytes([0x80; 8]);

/// The bytes that are less than `limit`, which is at most 0x80.
pub fn below(word: u64, limit: u8) -> u64 {
    word.wrapping_sub(ONES * u64::from(limit)) & !word & HIGH
}

/// The bytes that are this one.
pub fn equal(word: u64, byte: u8) -> u64 {
    below(word ^ (ONES * u64::from(byte)), 1)
}
