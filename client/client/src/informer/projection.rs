//! What is kept of each object, and how the rest is left out: it is cut from the text before the text is
//! decoded. Half of an object may be managed fields, which no loop reads, and most loops read little of the
//! other half. To pass over text costs less than half of reading it, and nothing is built only to be dropped.

use std::ops::Range;

/// What is kept of a JSON value; of a list, what is kept of each of its elements.
#[derive(Debug)]
pub enum Projection {
    All,
    None,
    /// Every field, but of these less.
    Except(&'static [(&'static str, Projection)]),
    /// No field but these.
    Only(&'static [(&'static str, Projection)]),
}

impl Projection {
    /// All but the managed fields. A write without them leaves the server's own in place.
    pub const OBJECT: Projection = Projection::Except(&[("metadata", Projection::METADATA)]);

    pub const METADATA: Projection = Projection::Except(&[("managedFields", Projection::None)]);

    /// Who it is and whom it belongs to: metadata without labels and annotations.
    pub const IDENTITY: Projection = Projection::Only(&[
        ("apiVersion", Projection::All),
        ("kind", Projection::All),
        (
            "metadata",
            Projection::Except(&[
                ("managedFields", Projection::None),
                ("labels", Projection::None),
                ("annotations", Projection::None),
            ]),
        ),
    ]);
}

impl Projection {
    /// Cuts an object's text. Text that is no JSON stays as it is: whoever decodes it will say so.
    pub fn cut(&self, object: &mut Vec<u8>) {
        cut(object, |cuts| cuts.walk(0, self, true));
    }
}

/// Cuts the object of a watch event. Of a bookmark and of an error nothing is left out.
pub fn cut_event(line: &mut Vec<u8>, projection: &Projection) {
    cut(line, |cuts| {
        let text = Text(cuts.text.0);
        let (first, at) = text.name(text.expect(0, b'{')?)?;
        let kind = text.space(at)..text.value(at)?;
        let (second, at) = text.name(text.expect(kind.end, b',')?)?;
        let changed = matches!(&text.0[kind], br#""ADDED""# | br#""MODIFIED""# | br#""DELETED""#);
        let object = changed && first == b"type" && second == b"object";
        if object { cuts.walk(at, projection, true) } else { None }
    });
}

/// Cuts each item of a list.
pub fn cut_list(list: &mut Vec<u8>, projection: &Projection) {
    cut(list, |cuts| {
        let mut at = cuts.text.expect(0, b'{')?;
        loop {
            let (name, value) = cuts.text.name(at)?;
            let end = if name == b"items" {
                cuts.walk(value, projection, false)?
            } else {
                cuts.text.value(value)?
            };
            match cuts.text.behind(end)? {
                (b',', next) => at = next,
                (_, end) => return Some(end),
            }
        }
    });
}

fn cut(text: &mut Vec<u8>, find: impl FnOnce(&mut Cuts) -> Option<usize>) {
    let mut cuts = Cuts { text: Text(text), ranges: Vec::new() };
    let found = find(&mut cuts).map(|_| cuts.ranges);
    remove(text, &found.unwrap_or_default());
}

/// Takes ordered ranges out of a text.
fn remove(text: &mut Vec<u8>, ranges: &[Range<usize>]) {
    let Some(first) = ranges.first() else { return };
    let mut end = first.start;
    for (at, range) in ranges.iter().enumerate() {
        let next = ranges.get(at + 1).map_or(text.len(), |next| next.start);
        text.copy_within(range.end..next, end);
        end += next - range.end;
    }
    text.truncate(end);
}

/// Finds what to cut. Its functions take where a value begins and return where it ends, or None where the text is
/// not JSON.
struct Cuts<'t> {
    text: Text<'t>,
    ranges: Vec<Range<usize>>,
}

impl Cuts<'_> {
    /// `last` says that nothing behind this value is cut: once all in it is, its end need not be found.
    fn walk(&mut self, at: usize, projection: &Projection, last: bool) -> Option<usize> {
        let at = self.text.space(at);
        match (projection, self.text.byte(at)?) {
            (Projection::Except(_) | Projection::Only(_), b'[') => self.elements(at, projection),
            (Projection::Only(names), b'{') => self.fields(at, names, &Projection::None, false),
            (Projection::Except(names), b'{') => self.fields(at, names, &Projection::All, last),
            _ => self.text.value(at),
        }
    }

    fn fields(
        &mut self,
        at: usize,
        names: &[(&str, Projection)],
        others: &Projection,
        last: bool,
    ) -> Option<usize> {
        let first = self.text.space(self.text.expect(at, b'{')?);
        if self.text.byte(first)? == b'}' {
            return Some(first + 1);
        }
        let mut missing = names.len();
        // a field goes with the comma before it, but with the one behind it while none is kept
        let (mut at, mut from, mut kept) = (first, first, false);
        loop {
            let (name, value) = self.text.name(at)?;
            let named = names.iter().find(|(own, _)| own.as_bytes() == name);
            missing = missing.saturating_sub(usize::from(named.is_some()));
            let projection = named.map_or(others, |(_, projection)| projection);
            let last = last && missing == 0;
            let end = self.walk(value, projection, last)?;
            if last && !matches!(projection, Projection::None) {
                return Some(end);
            }
            let (comma, next) = (self.text.space(end), self.text.behind(end)?);
            match (projection, next) {
                (Projection::None, (b',', next)) if !kept => self.ranges.push(from..self.text.space(next)),
                (Projection::None, _) => self.ranges.push(from..end),
                _ => kept = true,
            }
            match next {
                (b',', next) if !last => {
                    at = next;
                    from = if kept { comma } else { self.text.space(next) };
                }
                (_, end) => return Some(end),
            }
        }
    }

    fn elements(&mut self, at: usize, projection: &Projection) -> Option<usize> {
        let first = self.text.space(self.text.expect(at, b'[')?);
        if self.text.byte(first)? == b']' {
            return Some(first + 1);
        }
        let mut at = first;
        loop {
            let end = self.walk(at, projection, false)?;
            match self.text.behind(end)? {
                (b',', next) => at = next,
                (_, end) => return Some(end),
            }
        }
    }
}

/// JSON that is passed over.
struct Text<'t>(&'t [u8]);

impl<'t> Text<'t> {
    fn byte(&self, at: usize) -> Option<u8> {
        self.0.get(at).copied()
    }

    fn space(&self, mut at: usize) -> usize {
        while matches!(self.byte(at), Some(b' ' | b'\n' | b'\r' | b'\t')) {
            at += 1;
        }
        at
    }

    fn expect(&self, at: usize, byte: u8) -> Option<usize> {
        let at = self.space(at);
        (self.byte(at)? == byte).then_some(at + 1)
    }

    /// What follows a value, a comma or the end of what it is in, and where that ends.
    fn behind(&self, at: usize) -> Option<(u8, usize)> {
        let at = self.space(at);
        let byte = self.byte(at).filter(|byte| matches!(byte, b',' | b'}' | b']'))?;
        Some((byte, at + 1))
    }

    /// A field's name as it is written, and where its value begins.
    fn name(&self, at: usize) -> Option<(&'t [u8], usize)> {
        let at = self.expect(at, b'"')?;
        let end = self.string(at)?;
        Some((&self.0[at..end - 1], self.expect(end, b':')?))
    }

    fn value(&self, at: usize) -> Option<usize> {
        let mut at = self.space(at);
        let mut depth = 0_usize;
        loop {
            match self.byte(at)? {
                b'"' => at = self.string(at + 1)?,
                b'{' | b'[' => {
                    depth += 1;
                    at += 1;
                    continue;
                }
                b'}' | b']' => {
                    depth = depth.checked_sub(1)?;
                    at += 1;
                }
                b',' | b':' | b' ' | b'\n' | b'\r' | b'\t' if depth > 0 => {
                    at += 1;
                    continue;
                }
                _ => at = self.word(at)?,
            }
            if depth == 0 {
                return Some(at);
            }
        }
    }

    /// A number, `true`, `false` or `null`.
    fn word(&self, at: usize) -> Option<usize> {
        let is_part = |byte: &&u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.');
        let length = self.0.get(at..)?.iter().take_while(is_part).count();
        (length > 0).then_some(at + length)
    }

    /// The end of a string, from behind its first quote. Eight bytes at a time: most of the text is strings.
    #[inline]
    fn string(&self, mut at: usize) -> Option<usize> {
        const ONES: u64 = u64::MAX / 255;
        loop {
            let rest = self.0.get(at..)?;
            let Some(word) = rest.first_chunk::<8>() else {
                let special = rest.iter().position(|byte| matches!(byte, b'"' | b'\\'))?;
                if rest[special] == b'"' {
                    return Some(at + special + 1);
                }
                at += special + 2;
                continue;
            };
            let word = u64::from_le_bytes(*word);
            // the lowest bit that is set belongs to the first such byte
            let with = |byte: u8| {
                let differs = word ^ (ONES * u64::from(byte));
                differs.wrapping_sub(ONES) & !differs & (ONES << 7)
            };
            let special = with(b'"') | with(b'\\');
            if special == 0 {
                at += 8;
                continue;
            }
            at += special.trailing_zeros() as usize / 8;
            if self.byte(at)? == b'"' {
                return Some(at + 1);
            }
            at += 2;
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const POD: Projection = Projection::Except(&[
        (
            "metadata",
            Projection::Except(&[("managedFields", Projection::None), ("annotations", Projection::None)]),
        ),
        (
            "spec",
            Projection::Except(&[(
                "containers",
                Projection::Only(&[("name", Projection::All), ("image", Projection::All)]),
            )]),
        ),
        ("status", Projection::Only(&[("phase", Projection::All)])),
    ]);

    /// What serde reads is what is left, wherever the text has spaces.
    fn check(projection: &Projection, object: &str, expected: &Value) {
        let spaced = object.replace(',', " , ").replace(':', " : ").replace('{', "{ ").replace('}', " }\n");
        for object in [object, &spaced] {
            let read = |text: Vec<u8>| -> Value { serde_json::from_slice(&text).expect("JSON") };
            let mut line = format!(r#"{{"type":"MODIFIED","object":{object}}}"#).into_bytes();
            cut_event(&mut line, projection);
            assert_eq!(read(line), json!({"type": "MODIFIED", "object": expected}), "{object}");
            let mut list =
                format!(r#"{{"kind":"List","items":[{object},{object}],"metadata":{{}}}}"#).into_bytes();
            cut_list(&mut list, projection);
            let items = [expected, expected];
            assert_eq!(read(list), json!({"kind": "List", "items": items, "metadata": {}}), "{object}");
        }
    }

    #[test]
    fn projected_fields_are_removed_with_their_comma() {
        check(
            &Projection::OBJECT,
            r#"{"metadata":{"managedFields":[{"a":{}}]},"x":1}"#,
            &json!({"metadata": {}, "x": 1}),
        );
        check(
            &Projection::OBJECT,
            r#"{"metadata":{"managedFields":1,"name":"n"}}"#,
            &json!({"metadata": {"name": "n"}}),
        );
        check(
            &Projection::OBJECT,
            r#"{"metadata":{"name":"n","managedFields":1}}"#,
            &json!({"metadata": {"name": "n"}}),
        );
        check(&Projection::OBJECT, r#"{"spec":{"managedFields":1}}"#, &json!({"spec": {"managedFields": 1}}));
        check(&Projection::OBJECT, "{}", &json!({}));
        check(
            &POD,
            r#"{"metadata":{"annotations":{"a":"}\"]"},"managedFields":[],"uid":"u"},"spec":{"nodeName":"n","containers":
               [{"env":[{"name":"A"}],"name":"c","args":[],"image":"i"},{"tty":true},[],null]},"status":{"a":-1.5e+3,"phase":"p","b":null}}"#,
            &json!({"metadata": {"uid": "u"},
                "spec": {"nodeName": "n", "containers": [{"name": "c", "image": "i"}, {}, [], null]},
                "status": {"phase": "p"}}),
        );
        check(&POD, r#"{"status":{"a":[1,2],"b":2},"spec":null}"#, &json!({"status": {}, "spec": null}));
        check(
            &Projection::IDENTITY,
            r#"{"kind":"Pod","spec":{},"metadata":{"labels":{},"name":"n","annotations":{}},"status":{}}"#,
            &json!({"kind": "Pod", "metadata": {"name": "n"}}),
        );
    }

    #[test]
    fn strings_end_where_they_end() {
        for length in 0..20 {
            for inner in ["", "\\\"", "\\\\", "ä", "\\u0022\\\\\\\""] {
                let text = format!("{}{inner}{}", "x".repeat(length), "y".repeat(length % 3));
                let object = format!(r#"{{"metadata":{{"managedFields":"{text}","name":"{text}"}}}}"#);
                let name: Value = serde_json::from_str(&format!("\"{text}\"")).expect("JSON");
                check(&Projection::OBJECT, &object, &json!({"metadata": {"name": name}}));
            }
        }
    }

    #[test]
    fn projection_leaves_other_lines_and_broken_json_unchanged() {
        let whole = r#"{"type":"ADDED","object":{"metadata":{"managedFields":[{"a":"b"}],"name":"n"},"spec":{"x":[1,{}]}}}"#;
        let mut broken: Vec<String> = (0..whole.len() - 1).map(|length| whole[..length].to_owned()).collect();
        broken.extend(
            ["{\u{1}}", "[}", "{\"type\":\"ADDED\",\"object\":{\"metadata\":{\"managedFields\":[\u{1}]}}}"]
                .map(String::from),
        );
        broken.push(
            r#"{"type":"ERROR","object":{"kind":"Status","metadata":{"managedFields":1},"code":410}}"#.into(),
        );
        broken.push(r#"{"object":{"metadata":{"managedFields":1}},"type":"ADDED"}"#.into());
        for text in broken {
            let mut line = text.clone().into_bytes();
            cut_event(&mut line, &POD);
            assert_eq!(line, text.as_bytes());
            cut_list(&mut line, &POD);
            assert_eq!(line, text.as_bytes());
        }
    }
}
