//! `fieldPath` of a rule, and `jsonPath` of a selectable field: `.spec.labels['a.b']`, as far as the schema
//! goes.

use crate::path::Path;
use crate::structural::{Additional, Ref};

/// The path as errors tell it, and the schema there; or what is wrong with it. `arrays`: `['name']` is allowed.
pub(crate) fn resolve(text: &str, node: &Ref, arrays: bool) -> Result<(String, Ref), String> {
    let mut path = Path::root();
    let mut node = node.clone();
    let mut tokens = Tokens(text);
    while let Some(token) = tokens.next() {
        let name = match token {
            "[" if !arrays => return Err("array notation is not allowed".to_string()),
            "[" => {
                let quoted = tokens.next().ok_or("unexpected end of JSON path")?;
                let inside = quoted.strip_prefix('\'').and_then(|rest| rest.strip_suffix('\''));
                let inside = inside.filter(|_| quoted.len() > 1);
                let inside =
                    inside.ok_or_else(|| format!("expected single quoted string but got {quoted}"))?;
                let name = unescape(inside)?;
                match tokens.next().ok_or("unexpected end of JSON path")? {
                    "]" => name,
                    other => return Err(format!("expected ] but got {other}")),
                }
            }
            "." => tokens.next().ok_or("unexpected end of JSON path")?.to_string(),
            other => return Err(format!("expected [ or . but got: {other}")),
        };
        let nowhere = || "does not refer to a valid field".to_string();
        let next = if !node.properties.is_empty() {
            path.child(&name);
            node.property(&name).cloned()
        } else if node.additional != Additional::Unset {
            path.key(&name);
            node.values().cloned()
        } else {
            None
        };
        node = next.ok_or_else(nowhere)?;
    }
    Ok((path.as_str().to_string(), node))
}

struct Tokens<'t>(&'t str);

impl<'t> Iterator for Tokens<'t> {
    type Item = &'t str;

    fn next(&mut self) -> Option<&'t str> {
        if self.0.is_empty() {
            return None;
        }
        let end = if self.0.starts_with('\'') {
            let bytes = self.0.as_bytes();
            let closing = (1..bytes.len()).find(|at| bytes[*at] == b'\'' && bytes[*at - 1] != b'\\');
            closing.map_or(self.0.len(), |at| at + 1)
        } else {
            self.0.find(['.', '[', ']']).map_or(self.0.len(), |at| at.max(1))
        };
        let (token, rest) = self.0.split_at(end);
        self.0 = rest;
        Some(token)
    }
}

fn unescape(text: &str) -> Result<String, String> {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(char) = chars.next() {
        if char != '\\' {
            out.push(char);
            continue;
        }
        out.push(match chars.next() {
            Some('a') => '\x07',
            Some('b') => '\x08',
            Some('f') => '\x0c',
            Some('n') => '\n',
            Some('r') => '\r',
            Some('t') => '\t',
            Some('v') => '\x0b',
            Some(char @ ('\'' | '\\')) => char,
            other => {
                let char = other.map(String::from).unwrap_or_default();
                return Err(format!("invalid string literal: invalid escape char \\{char}"));
            }
        });
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::Structural;

    #[test]
    fn paths_follow_the_schema() {
        let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
            "a.b": {"type": "string"},
            "map": {"type": "object", "additionalProperties": {"type": "integer"}}}}}});
        let schema = Structural::parse(&schema).expect("a schema");
        let resolve = |text: &str| resolve(text, &schema.root, true).map(|(path, _)| path);
        assert_eq!(resolve(".spec"), Ok("spec".to_string()));
        assert_eq!(resolve(".spec['a.b']"), Ok("spec.a.b".to_string()));
        assert_eq!(resolve(".spec.map['x\\'y']"), Ok("spec.map[x'y]".to_string()));
        assert_eq!(resolve(".spec.x"), Err("does not refer to a valid field".to_string()));
        assert_eq!(resolve("spec"), Err("expected [ or . but got: spec".to_string()));
        assert_eq!(resolve(".spec["), Err("unexpected end of JSON path".to_string()));
        assert_eq!(resolve(".spec[a]"), Err("expected single quoted string but got a".to_string()));
        assert_eq!(schema.field_at(".spec.map"), Ok(("spec.map".to_string(), "object")));
        assert_eq!(schema.field_at(".spec['a.b']"), Err("array notation is not allowed".to_string()));
        for odd in ["", ".", "..", "'", "['", "[']", ".é", "['é']", "[''']"] {
            let _ = resolve(odd);
        }
    }
}
