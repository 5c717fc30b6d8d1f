//! How deep what comes in may nest. Every reader of requests (JSON, YAML, protobuf, patches, CEL) hands one budget down,
//! so no document, and none nested in another one, is deeper than this, and every walk over it may recurse.

/// `serde_json` reads 127 levels, in Ferry and in its clients. An object of this depth stays readable inside whatever it is
/// put into: lists (2 levels more), reviews (3), and the field sets of its managers (5).
pub const MAX_DEPTH: usize = 112;

pub const TOO_DEEP: &str = "exceeded max depth";

/// Whether JSON text nests at most `levels` deep. It does not recurse and checks nothing else.
pub fn is_within(json: &[u8], levels: usize) -> bool {
    let mut depth = 0usize;
    let mut bytes = json.iter();
    while let Some(byte) = bytes.next() {
        match byte {
            b'"' => {
                while let Some(byte) = bytes.next() {
                    match byte {
                        b'\\' => drop(bytes.next()),
                        b'"' => break,
                        _ => {}
                    }
                }
            }
            b'{' | b'[' => {
                depth += 1;
                if depth > levels {
                    return false;
                }
            }
            b'}' | b']' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_counted_outside_of_strings() {
        for (json, levels) in
            [("1", 0), ("{}", 1), (r#"{"a":[{}],"b":[]}"#, 3), (r#"["\"[[","]","\\",[]]"#, 2)]
        {
            assert!(is_within(json.as_bytes(), levels), "{json}");
            assert!(levels == 0 || !is_within(json.as_bytes(), levels - 1), "{json}");
        }
        assert!(!is_within("[".repeat(1 << 20).as_bytes(), MAX_DEPTH));
    }
}
