//! Long copies, made of short ones. From about 2 KB on the C library copies with one instruction (`rep movsb`), which some
//! processors carry out far slower than its loop for less when source and destination are not aligned alike (glibc's
//! bug 30994, mended in 2.40): lists, which are copied three times on their way out, took a third more.

use std::io::IoSlice;

use bytes::BytesMut;

/// Below where the C library changes its way.
const PIECE: usize = 2048;

pub fn append(out: &mut BytesMut, bytes: &[u8]) {
    out.reserve(bytes.len());
    bytes.chunks(PIECE).for_each(|piece| out.extend_from_slice(piece));
}

/// The beginning of `bytes`, for a writer that copies what it is given.
pub fn slices<const N: usize>(bytes: &[u8]) -> [IoSlice<'_>; N] {
    let mut pieces = bytes.chunks(PIECE);
    std::array::from_fn(|_| IoSlice::new(pieces.next().unwrap_or(&[])))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_lost_between_pieces() {
        for length in [0, 1, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE + 5] {
            let bytes: Vec<u8> = (0..length).map(|at| at as u8).collect();
            let mut out = BytesMut::from(&b"x"[..]);
            append(&mut out, &bytes);
            assert_eq!(&out[1..], bytes);
            let cut = length.min(3 * PIECE);
            assert_eq!(slices::<3>(&bytes).map(|slice| slice.to_vec()).concat(), bytes[..cut]);
        }
    }
}
