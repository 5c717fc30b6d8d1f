//! What is wrong with a document that is no JSON, in the words that Kubernetes' clients know. It runs
//! only when a document was refused, so it is written to be clear, not to be fast.

/// Nothing deeper is read, so that no document can exhaust the stack.
const MAX_DEPTH: usize = 10_000;

const CUT_OFF: &str = "unexpected end of JSON input";

/// `None`: the syntax is not at fault.
pub fn fault(document: &[u8]) -> Option<String> {
    Scanner { rest: document, open: Vec::new() }.document().err()
}

struct Scanner<'a> {
    rest: &'a [u8],
    /// The arrays and objects that are not closed yet, the innermost last.
    open: Vec<Open>,
}

#[derive(Clone, Copy, PartialEq)]
enum Open {
    Array,
    Object,
}

/// What may come next.
enum Expected {
    Value,
    /// A value, or the end of an array that has none.
    ValueOrEnd,
    Key,
    /// A key, or the end of an object that has none.
    KeyOrEnd,
    /// A comma, or the end of what is open.
    After,
}

impl Scanner<'_> {
    fn document(&mut self) -> Result<(), String> {
        let mut expected = Expected::Value;
        loop {
            self.skip_space();
            expected = match (expected, self.rest.first()) {
                (Expected::After, None) if self.open.is_empty() => return Ok(()),
                (_, None) => return Err(CUT_OFF.into()),
                (Expected::ValueOrEnd, Some(b']')) | (Expected::KeyOrEnd, Some(b'}')) => self.close(),
                (Expected::Value | Expected::ValueOrEnd, Some(_)) => self.value()?,
                (Expected::Key | Expected::KeyOrEnd, Some(_)) => self.key()?,
                (Expected::After, Some(&byte)) => self.after_value(byte)?,
            };
        }
    }

    fn value(&mut self) -> Result<Expected, String> {
        match self.rest.first() {
            Some(b'{') => return self.enter(Open::Object, Expected::KeyOrEnd),
            Some(b'[') => return self.enter(Open::Array, Expected::ValueOrEnd),
            Some(b'"') => self.string()?,
            Some(b'-' | b'0'..=b'9') => self.number()?,
            Some(b't') => self.literal("true")?,
            Some(b'f') => self.literal("false")?,
            Some(b'n') => self.literal("null")?,
            _ => return self.refuse("looking for beginning of value"),
        }
        Ok(Expected::After)
    }

    fn enter(&mut self, open: Open, next: Expected) -> Result<Expected, String> {
        self.rest = &self.rest[1..];
        self.open.push(open);
        if self.open.len() > MAX_DEPTH { Err("exceeded max depth".into()) } else { Ok(next) }
    }

    fn close(&mut self) -> Expected {
        self.rest = &self.rest[1..];
        self.open.pop();
        Expected::After
    }

    fn key(&mut self) -> Result<Expected, String> {
        if self.rest.first() != Some(&b'"') {
            return self.refuse("looking for beginning of object key string");
        }
        self.string()?;
        self.skip_space();
        self.one_of(b":", "after object key")?;
        Ok(Expected::Value)
    }

    fn after_value(&mut self, byte: u8) -> Result<Expected, String> {
        match (self.open.last(), byte) {
            (Some(Open::Array), b']') | (Some(Open::Object), b'}') => Ok(self.close()),
            (Some(open), b',') => {
                self.rest = &self.rest[1..];
                Ok(if *open == Open::Array { Expected::Value } else { Expected::Key })
            }
            (Some(Open::Array), _) => self.refuse("after array element"),
            (Some(Open::Object), _) => self.refuse("after object key:value pair"),
            (None, _) => self.refuse("after top-level value"),
        }
    }

    fn string(&mut self) -> Result<(), String> {
        self.rest = &self.rest[1..];
        loop {
            match self.rest.first() {
                None => return Err(CUT_OFF.into()),
                Some(b'"') => {
                    self.rest = &self.rest[1..];
                    return Ok(());
                }
                Some(b'\\') => {
                    self.rest = &self.rest[1..];
                    if self.one_of(b"bfnrt\\/\"u", "in string escape code")? == b'u' {
                        for _ in 0..4 {
                            self.one_of(b"0123456789abcdefABCDEF", "in \\u hexadecimal character escape")?;
                        }
                    }
                }
                Some(0..0x20) => return self.refuse("in string literal"),
                Some(_) => self.rest = &self.rest[1..],
            }
        }
    }

    fn number(&mut self) -> Result<(), String> {
        const DIGITS: &[u8] = b"0123456789";
        if self.rest.first() == Some(&b'-') {
            self.rest = &self.rest[1..];
        }
        // A zero stands alone; whatever follows it is judged as what comes after the number.
        if self.one_of(DIGITS, "in numeric literal")? != b'0' {
            self.skip_digits();
        }
        if self.rest.first() == Some(&b'.') {
            self.rest = &self.rest[1..];
            self.one_of(DIGITS, "after decimal point in numeric literal")?;
            self.skip_digits();
        }
        if let Some(b'e' | b'E') = self.rest.first() {
            self.rest = &self.rest[1..];
            if let Some(b'+' | b'-') = self.rest.first() {
                self.rest = &self.rest[1..];
            }
            self.one_of(DIGITS, "in exponent of numeric literal")?;
            self.skip_digits();
        }
        Ok(())
    }

    fn literal(&mut self, word: &str) -> Result<(), String> {
        for letter in word.chars() {
            self.one_of(&[letter as u8], &format!("in literal {word} (expecting '{letter}')"))?;
        }
        Ok(())
    }

    /// Takes the next byte, which must be one of these.
    fn one_of(&mut self, allowed: &[u8], context: &str) -> Result<u8, String> {
        match self.rest.first() {
            None => Err(CUT_OFF.into()),
            Some(byte) if allowed.contains(byte) => {
                let byte = *byte;
                self.rest = &self.rest[1..];
                Ok(byte)
            }
            Some(_) => self.refuse(context),
        }
    }

    fn refuse<T>(&self, context: &str) -> Result<T, String> {
        let shown = match self.rest.first() {
            None => return Err(CUT_OFF.into()),
            Some(b'\'') => "\\'".to_string(),
            Some(b'"') => "\"".to_string(),
            Some(b'\\') => "\\\\".to_string(),
            Some(b'\n') => "\\n".to_string(),
            Some(b'\r') => "\\r".to_string(),
            Some(b'\t') => "\\t".to_string(),
            Some(&byte) if byte < 0x20 || (0x7f..0xa1).contains(&byte) || byte == 0xad => {
                format!("\\x{byte:02x}")
            }
            Some(&byte) => char::from(byte).to_string(),
        };
        Err(format!("invalid character '{shown}' {context}"))
    }

    fn skip_space(&mut self) {
        self.skip(|byte| b" \t\r\n".contains(&byte));
    }

    fn skip_digits(&mut self) {
        self.skip(|byte| byte.is_ascii_digit());
    }

    fn skip(&mut self, skipped: impl Fn(u8) -> bool) {
        let kept = self.rest.iter().position(|byte| !skipped(*byte)).unwrap_or(self.rest.len());
        self.rest = &self.rest[kept..];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_named_in_known_words() {
        let check = |text: &str, expected: &str| {
            assert_eq!(fault(text.as_bytes()).as_deref(), Some(expected), "{text}");
            assert!(serde_json::from_str::<serde::de::IgnoredAny>(text).is_err(), "{text}");
        };
        for text in ["", " ", "{", "[1", "{\"a\"", "{\"a\":", "\"a", "tr", "-", "1.", "1e", "\"\\u12"] {
            check(text, CUT_OFF);
        }
        check("x", "invalid character 'x' looking for beginning of value");
        check("]", "invalid character ']' looking for beginning of value");
        check("[,", "invalid character ',' looking for beginning of value");
        check("{x", "invalid character 'x' looking for beginning of object key string");
        check("{\"a\":1,}", "invalid character '}' looking for beginning of object key string");
        check("{\"a\" 1}", "invalid character '1' after object key");
        check("{\"a\":1 \"", "invalid character '\"' after object key:value pair");
        check("[1 2]", "invalid character '2' after array element");
        check("[01]", "invalid character '1' after array element");
        check("{} {}", "invalid character '{' after top-level value");
        check("\"a\nb\"", "invalid character '\\n' in string literal");
        check("\"\\x\"", "invalid character 'x' in string escape code");
        check("\"\\u12g4\"", "invalid character 'g' in \\u hexadecimal character escape");
        check("-x", "invalid character 'x' in numeric literal");
        check("1.x", "invalid character 'x' after decimal point in numeric literal");
        check("1e+'", "invalid character '\\'' in exponent of numeric literal");
        check("trve", "invalid character 'v' in literal true (expecting 'u')");
        check("nil", "invalid character 'i' in literal null (expecting 'u')");
        check("\u{1}", "invalid character '\\x01' looking for beginning of value");
        check(&"[".repeat(20_000), "exceeded max depth");
    }

    #[test]
    fn valid_json_passes_the_syntax_check() {
        for text in [
            "null",
            " [1, -0.5e-3, \"\\u00e9\\n\", true, false, {}, [], {\"a\": {\"b\": null}}] ",
            "\"é\u{7f}\"",
        ] {
            assert_eq!(fault(text.as_bytes()), None, "{text}");
        }
    }
}
