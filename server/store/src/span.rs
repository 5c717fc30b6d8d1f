//! A contiguous set of keys, in the order of their bytes, as etcd's requests name it.

/// Keys from `start` on that are less than `end`. The bounds are bytes and need not be text, as keys are: the end of a
/// prefix may fall between two characters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Span {
    start: Box<[u8]>,
    /// `None`: there is no end.
    end: Option<Box<[u8]>>,
}

impl Span {
    pub fn all() -> Self {
        Span { start: Box::default(), end: None }
    }

    pub fn key(key: &[u8]) -> Self {
        Span { start: key.into(), end: Some([key, &[0]].concat().into()) }
    }

    pub fn prefix(prefix: &str) -> Self {
        // UTF-8 has no byte of 255, so the last byte of a prefix can always be counted up.
        let mut end = prefix.as_bytes().to_vec();
        let end = end.last_mut().map(|last| *last += 1).map(|()| end.into());
        Span { start: prefix.as_bytes().into(), end }
    }

    /// As etcd writes it: no end for the key alone, one zero byte for all keys from `start` on.
    pub fn between(start: &[u8], end: &[u8]) -> Self {
        match end {
            [] => Span::key(start),
            [0] => Span { start: start.into(), end: None },
            end => Span { start: start.into(), end: Some(end.into()) },
        }
    }

    /// Where it starts, and the key before which it ends.
    pub fn into_bounds(self) -> (Box<[u8]>, Option<Box<[u8]>>) {
        (self.start, self.end)
    }

    pub fn contains(&self, key: &str) -> bool {
        key.as_bytes() >= &*self.start && !self.ends_before(key)
    }

    /// Whether this key and all after it are past the end.
    pub fn ends_before(&self, key: &str) -> bool {
        self.end.as_ref().is_some_and(|end| key.as_bytes() >= &**end)
    }

    /// Where to begin looking: the greatest text that is not past the start.
    pub(crate) fn first(&self) -> &str {
        match std::str::from_utf8(&self.start) {
            Ok(first) => first,
            Err(error) => std::str::from_utf8(&self.start[..error.valid_up_to()])
                .expect("bytes are valid up to where they are not"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_holds_what_etcd_says_it_does() {
        let check = |span: &Span, inside: &[&str], outside: &[&str]| {
            assert!(inside.iter().all(|key| span.contains(key)), "{span:?} lacks one of {inside:?}");
            assert!(!outside.iter().any(|key| span.contains(key)), "{span:?} holds one of {outside:?}");
        };
        check(&Span::all(), &["", "a", "ÿ"], &[]);
        check(&Span::key(b"a"), &["a"], &["", "a\0", "b"]);
        check(&Span::between(b"a", b""), &["a"], &["", "a\0", "b"]);
        check(&Span::between(b"a", b"\0"), &["a", "z", "ÿ"], &["", "A"]);
        check(&Span::between(b"a", b"c"), &["a", "b", "bz"], &["c", "A"]);
        check(&Span::between(b"c", b"a"), &[], &["a", "b", "c"]);
        check(&Span::prefix("/a/"), &["/a/", "/a/x", "/a/ÿ"], &["/a", "/a0", "/b"]);
        check(&Span::prefix(""), &["", "a"], &[]);
        // é is C3 A9; a bound within it is no text.
        check(&Span::between(b"\xc3", b"\xc3\xaa"), &["é"], &["a", "ê"]);
        assert_eq!(Span::between(b"a\xc3", b"\0").first(), "a");
    }
}
