//! Clients in Go that dial a socket by its path name that path as `:authority` of their requests, as it is
//! (`/run/kubelet.sock`) or with its slashes escaped; others name nothing. hyper takes neither for an authority and resets
//! the stream, so what comes in is looked through for such authorities and has them replaced by letters: as many as
//! there were, so that both ends agree on the size of the table that compresses headers (RFC 7541, 4.1).

use std::pin::Pin;
use std::sync::LazyLock;
use std::task::{Context, Poll, ready};
use std::{cmp, io};

use bytes::{Buf, BufMut, BytesMut};
use http::uri::Authority;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// What every connection begins with.
const PREFACE: usize = 24;
const FRAME_HEAD: usize = 9;
const HEADERS: u8 = 1;
const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;
/// The largest frame that hyper takes.
const MAX_FRAME: usize = 16_384;
/// `:authority` in the static table, with no value.
const AUTHORITY: usize = 1;

/// A client's connection, read with authorities that are some.
pub struct AuthorityFix<S> {
    stream: S,
    frames: Frames,
    ready: BytesMut,
}

impl<S> AuthorityFix<S> {
    pub fn new(stream: S) -> Self {
        Self { stream, frames: Frames { come: BytesMut::new(), pass: PREFACE }, ready: BytesMut::new() }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for AuthorityFix<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        while this.ready.is_empty() {
            let mut space = [0; 4096];
            let mut read = ReadBuf::new(&mut space);
            ready!(Pin::new(&mut this.stream).poll_read(context, &mut read))?;
            if read.filled().is_empty() {
                // the end; what is left is no whole frame
                return Poll::Ready(Ok(()));
            }
            this.frames.come.extend_from_slice(read.filled());
            this.frames.pass_on(&mut this.ready);
        }
        let length = cmp::min(this.ready.len(), buffer.remaining());
        buffer.put_slice(&this.ready.split_to(length));
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for AuthorityFix<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// The frames of a connection. Only those of headers are held until they are whole.
struct Frames {
    come: BytesMut,
    /// This much is passed on as it comes.
    pass: usize,
}

impl Frames {
    fn pass_on(&mut self, ready: &mut BytesMut) {
        loop {
            let length = cmp::min(self.pass, self.come.len());
            ready.extend_from_slice(&self.come.split_to(length));
            self.pass -= length;
            if self.come.len() < FRAME_HEAD {
                return;
            }
            let length = (&self.come[..3]).get_uint(3) as usize;
            let whole = FRAME_HEAD + length;
            if self.come[3] != HEADERS || length > MAX_FRAME {
                self.pass = whole;
            } else if self.come.len() < whole {
                return;
            } else {
                let frame = self.come.split_to(whole);
                ready.extend_from_slice(&mended_frame(&frame).unwrap_or(frame));
            }
        }
    }
}

/// A frame of headers whose authority had to be replaced. `None` where there is nothing to replace, or nothing that can
/// be read: hyper says what is wrong with it.
fn mended_frame(frame: &[u8]) -> Option<BytesMut> {
    let (head, payload) = frame.split_at_checked(FRAME_HEAD)?;
    let flags = head[4];
    if flags & END_HEADERS == 0 {
        return None;
    }
    let padding = if flags & PADDED == 0 { 0 } else { usize::from(*payload.first()?) };
    let start = usize::from(flags & PADDED != 0) + if flags & PRIORITY == 0 { 0 } else { 5 };
    let end = payload.len().checked_sub(padding)?;
    let block = mended_block(payload.get(start..end)?)?;
    let length = start + block.len() + padding;
    let mut mended = BytesMut::with_capacity(FRAME_HEAD + length);
    mended.put_uint(u64::try_from(length).ok().filter(|_| length <= MAX_FRAME)?, 3);
    mended.extend_from_slice(&head[3..]);
    mended.extend_from_slice(&payload[..start]);
    mended.extend_from_slice(&block);
    mended.extend_from_slice(&payload[end..]);
    Some(mended)
}

/// A block of compressed headers (RFC 7541, 6) whose authority had to be replaced.
fn mended_block(block: &[u8]) -> Option<Vec<u8>> {
    let mut mended = Vec::with_capacity(block.len());
    let mut is_mended = false;
    let mut rest = block;
    while let Some(first) = rest.first() {
        let all = rest;
        let (bits, is_literal) = match first {
            0x80.. => (7, false),
            0x40.. => (6, true),
            0x20.. => (5, false),
            _ => (4, true),
        };
        let index = integer(&mut rest, bits)?;
        if !is_literal {
            // an authority that is empty says as much as none
            if *first >= 0x80 && index == AUTHORITY {
                is_mended = true;
            } else {
                mended.extend_from_slice(&all[..all.len() - rest.len()]);
            }
            continue;
        }
        if index == 0 {
            string(&mut rest)?;
        }
        let before = all.len() - rest.len();
        let value = string(&mut rest)?;
        let replaced = if index == AUTHORITY { replacement(value) } else { None };
        match replaced {
            Some(letters) => {
                mended.extend_from_slice(&all[..before]);
                put_string(&mut mended, &letters);
                is_mended = true;
            }
            None => mended.extend_from_slice(&all[..all.len() - rest.len()]),
        }
    }
    is_mended.then_some(mended)
}

/// Letters for an authority that is none.
fn replacement((value, is_compressed): (&[u8], bool)) -> Option<Vec<u8>> {
    let decoded = if is_compressed { decoded(value)? } else { value.to_vec() };
    if decoded.is_empty() || Authority::try_from(decoded.as_slice()).is_ok() {
        return None;
    }
    Some(vec![b'x'; decoded.len()])
}

/// An integer in the last bits of a byte and, if it is larger, in more bytes.
fn integer(rest: &mut &[u8], bits: u32) -> Option<usize> {
    let most = (1 << bits) - 1;
    let (first, after) = rest.split_first()?;
    *rest = after;
    let mut value = usize::from(*first) & most;
    if value < most {
        return Some(value);
    }
    for shift in [0, 7, 14] {
        let (byte, after) = rest.split_first()?;
        *rest = after;
        value += usize::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

/// A string, and whether it is compressed.
fn string<'a>(rest: &mut &'a [u8]) -> Option<(&'a [u8], bool)> {
    let is_compressed = rest.first()? & 0x80 != 0;
    let length = integer(rest, 7)?;
    let (value, after) = rest.split_at_checked(length)?;
    *rest = after;
    Some((value, is_compressed))
}

fn put_string(to: &mut Vec<u8>, value: &[u8]) {
    let mut left = value.len();
    if left < 0x7f {
        to.push(left as u8);
    } else {
        to.push(0x7f);
        left -= 0x7f;
        while left >= 0x80 {
            to.push((left & 0x7f) as u8 | 0x80);
            left >>= 7;
        }
        to.push(left as u8);
    }
    to.extend_from_slice(value);
}

/// The lengths of the Huffman codes of all bytes and of the end (RFC 7541, appendix B). The codes follow from them: the
/// shorter come first, and among those of one length the smaller bytes.
#[rustfmt::skip]
const CODE_LENGTHS: [u8; 257] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28,
    28, 28, 28, 28, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 28,
    6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6,
    5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10,
    13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7,
    7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6,
    15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5,
    6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28,
    20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23,
    24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24,
    22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23,
    21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23,
    26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25,
    19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27,
    20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23,
    26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26,
    30,
];
const LONGEST: usize = 30;
const END: usize = 256;

/// The codes in order, and for each length the first code and where its symbols begin.
struct Codes {
    symbols: Vec<usize>,
    firsts: [(u32, usize); LONGEST + 2],
}

static CODES: LazyLock<Codes> = LazyLock::new(|| {
    let mut symbols: Vec<usize> = (0..CODE_LENGTHS.len()).collect();
    symbols.sort_by_key(|symbol| (CODE_LENGTHS[*symbol], *symbol));
    let mut firsts = [(0, 0); LONGEST + 2];
    let (mut code, mut begin) = (0u32, 0);
    for (length, first) in firsts.iter_mut().enumerate() {
        *first = (code, begin);
        let count = CODE_LENGTHS.iter().filter(|each| usize::from(**each) == length).count();
        begin += count;
        code = (code + count as u32) << 1;
    }
    Codes { symbols, firsts }
});

fn decoded(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut text = Vec::new();
    let (mut code, mut length) = (0u32, 0);
    for bit in bytes.iter().flat_map(|byte| (0..8).rev().map(move |at| u32::from(byte >> at & 1))) {
        code = code << 1 | bit;
        length += 1;
        let (first, begin) = CODES.firsts[length];
        let count = CODES.firsts[length + 1].1 - begin;
        let at = code.checked_sub(first).map(|at| at as usize).filter(|at| *at < count);
        if let Some(at) = at {
            let symbol = CODES.symbols[begin + at];
            if symbol == END {
                return None;
            }
            text.push(symbol as u8);
            (code, length) = (0, 0);
        } else if length == LONGEST {
            return None;
        }
    }
    // the rest fills the last byte
    (length < 8).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(hex: &str) -> Vec<u8> {
        let digit = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).expect("hexadecimal");
        (0..hex.len()).step_by(2).map(digit).collect()
    }

    /// What Go's encoder made of a request's headers, one after the other on a connection.
    const FIRST: &str = "8386459563b8632a4615f6966321360d263d4c6d2cc6424b6741a754587b8ec545868346a8b0f5b632d054aa2c3217b98855aba2d98d5215161eb6c65a0a95d072755f8b1d75d0620d263d4c4d65647a8a9acac8b4c7602bbc15c140027465864d833505b11f40899acac8b24d494f6a7f847df7dfa7";

    #[test]
    fn an_escaped_path_becomes_as_many_letters() {
        let block = bytes(FIRST);
        let mended = mended_block(&block).expect("a path is no authority");
        let letters = "%2Fvar%2Flib%2Fkubelet%2Fdevice-plugins%2Fkubelet.sock".len();
        let mut expected = vec![0x41, letters as u8];
        expected.resize(letters + 2, b'x');
        assert!(mended.windows(expected.len()).any(|window| window == expected), "{mended:x?}");
        assert_eq!(mended_block(&mended), None, "it is one now");
    }

    #[test]
    fn valid_authority_headers_are_unchanged() {
        for block in ["8386c3c2c1c0bfbe", "8386c44186a0e41d139d09c3c2c1c0"] {
            assert_eq!(mended_block(&bytes(block)), None, "{block}");
        }
        // "/k.sock", compressed; nothing; three bytes that are no text
        let check = |block: &str, expected: &str| {
            assert_eq!(mended_block(&bytes(block)), Some(bytes(expected)), "{block}");
        };
        check("8386c3418663aae8393affc2c1c0bf", "8386c3410778787878787878c2c1c0bf");
        check("8386c481c2c1c0bf", "8386c4c2c1c0bf");
        check("8386c5410300ff2fc4c3c2c1", "8386c54103787878c4c3c2c1");
        for block in ["41", "417f", "4105aa", "ffffffffff", "41ff80808080"] {
            assert_eq!(mended_block(&bytes(block)), None, "{block}");
        }
    }

    #[test]
    fn huffman_codes_are_the_standards() {
        // RFC 7541, appendix C.4
        assert_eq!(decoded(&bytes("f1e3c2e5f23a6ba0ab90f4ff")).as_deref(), Some(&b"www.example.com"[..]));
        assert_eq!(decoded(&bytes("25a849e95bb8e8b4bf")).as_deref(), Some(&b"custom-value"[..]));
        assert_eq!(decoded(&bytes("ffffffff")), None);
    }

    #[test]
    fn frames_are_found_however_they_come() {
        let block = bytes(FIRST);
        let mut come = vec![b'p'; PREFACE];
        let frame = |kind: u8, flags: u8, payload: &[u8]| {
            let mut frame = (payload.len() as u32).to_be_bytes()[1..].to_vec();
            frame.extend([kind, flags, 0, 0, 0, 1]);
            frame.extend(payload);
            frame
        };
        let mut padded = vec![2, 0, 0, 0, 0, 7];
        padded.extend(&block);
        padded.extend([0, 0]);
        come.extend(frame(4, 0, &[]));
        come.extend(frame(HEADERS, END_HEADERS | PADDED | PRIORITY, &padded));
        come.extend(frame(0, 1, b"data"));
        come.extend(frame(HEADERS, 0, &block));

        let mended = mended_block(&block).expect("a path is no authority");
        let mut padded = vec![2, 0, 0, 0, 0, 7];
        padded.extend(&mended);
        padded.extend([0, 0]);
        let mut expected = vec![b'p'; PREFACE];
        expected.extend(frame(4, 0, &[]));
        expected.extend(frame(HEADERS, END_HEADERS | PADDED | PRIORITY, &padded));
        expected.extend(frame(0, 1, b"data"));
        // headers that go on in the next frame are left alone
        expected.extend(frame(HEADERS, 0, &block));
        for step in [1, 7, 1000] {
            let mut frames = Frames { come: BytesMut::new(), pass: PREFACE };
            let mut ready = BytesMut::new();
            for piece in come.chunks(step) {
                frames.come.extend_from_slice(piece);
                frames.pass_on(&mut ready);
            }
            assert_eq!(ready, expected, "{step}");
        }
    }
}
