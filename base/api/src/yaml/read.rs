//! From the parser's events to values: anchors, merge keys, duplicates.

use std::borrow::Cow;
use std::collections::HashMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use granit_parser::{Event, Parser, ScalarStyle, Span, Tag};
use serde_json::{Map, Value};

use super::{BadYaml, scalar};

/// Aliases may repeat this many nodes in all; more is an attack, not a document.
const MAX_REPEATED: usize = 100_000;
/// As deep as the JSON reader goes.
const MAX_DEPTH: usize = 128;

pub struct Read {
    pub documents: Vec<Value>,
    /// Keys that stand twice in a mapping, with the line of the second.
    pub duplicates: Vec<(usize, String)>,
}

/// Reads the first documents of a stream.
pub fn documents(text: &str, limit: usize) -> Result<Read, BadYaml> {
    let mut options = granit_parser::Options::default();
    options.emit_comments = false;
    let parser = Parser::new_from_str_with_options(text, options);
    let mut builder =
        Builder { events: parser, anchors: HashMap::new(), repeated: 0, duplicates: Vec::new() };
    let mut documents = Vec::new();
    while documents.len() < limit {
        let (event, span) = builder.next()?;
        match event {
            Event::StreamEnd => break,
            Event::StreamStart | Event::DocumentStart(..) | Event::DocumentEnd => {}
            event => {
                builder.anchors.clear();
                documents.push(builder.node(event, span, 0)?.0);
            }
        }
    }
    Ok(Read { documents, duplicates: builder.duplicates })
}

struct Builder<I> {
    events: I,
    /// Each anchored value with the number of nodes it has.
    anchors: HashMap<usize, (Value, usize)>,
    repeated: usize,
    duplicates: Vec<(usize, String)>,
}

impl<'t, I: Iterator<Item = Result<(Event<'t>, Span), granit_parser::ScanError>>> Builder<I> {
    fn next(&mut self) -> Result<(Event<'t>, Span), BadYaml> {
        match self.events.next() {
            Some(Ok(next)) => Ok(next),
            Some(Err(error)) => {
                Err(BadYaml { line: error.marker().line(), why: wording(&error.info().to_string()) })
            }
            None => Ok((Event::StreamEnd, Span::default())),
        }
    }

    /// The value of a node and how many nodes it has.
    fn node(&mut self, event: Event<'t>, span: Span, depth: usize) -> Result<(Value, usize), BadYaml> {
        let bad = |why: &str| BadYaml { line: span.start.line(), why: why.to_string() };
        if depth > MAX_DEPTH {
            return Err(bad("exceeded max depth"));
        }
        let (anchor, value, size) = match event {
            Event::Scalar(text, style, anchor, tag) => {
                (anchor, scalar_value(text, style, tag.as_deref()).map_err(bad)?, 1)
            }
            Event::Alias(id) => {
                let (value, size) = self.anchors.get(&id).ok_or_else(|| bad("anchor contains itself"))?;
                self.repeated += size;
                if self.repeated > MAX_REPEATED {
                    return Err(bad("document contains excessive aliasing"));
                }
                return Ok((value.clone(), *size));
            }
            Event::SequenceStart(_, anchor, _) => {
                let mut items = Vec::new();
                let mut size = 1;
                loop {
                    let (event, span) = self.next()?;
                    if event == Event::SequenceEnd {
                        break;
                    }
                    let (item, nodes) = self.node(event, span, depth + 1)?;
                    size += nodes;
                    items.push(item);
                }
                (anchor, Value::Array(items), size)
            }
            Event::MappingStart(_, anchor, _) => {
                let (map, size) = self.mapping(depth)?;
                (anchor, Value::Object(map), size)
            }
            _ => return Err(bad("did not find expected node content")),
        };
        if anchor != 0 {
            self.anchors.insert(anchor, (value.clone(), size));
        }
        Ok((value, size))
    }

    fn mapping(&mut self, depth: usize) -> Result<(Map<String, Value>, usize), BadYaml> {
        let mut map = Map::new();
        let mut merged: Vec<Value> = Vec::new();
        let mut size = 1;
        loop {
            let (event, span) = self.next()?;
            let bad = |why: &str| BadYaml { line: span.start.line(), why: why.to_string() };
            if event == Event::MappingEnd {
                break;
            }
            let is_merge = matches!(&event, Event::Scalar(text, ScalarStyle::Plain, _, None) if text == "<<");
            let (key, _) = self.node(event, span, depth + 1)?;
            let (event, value_span) = self.next()?;
            let (value, nodes) = self.node(event, value_span, depth + 1)?;
            size += nodes + 1;
            if is_merge {
                merged.push(value);
                continue;
            }
            let key = match key {
                Value::String(key) => key,
                Value::Number(number) => number.to_string(),
                Value::Bool(given) => given.to_string(),
                _ => return Err(bad("invalid map key")),
            };
            if map.insert(key.clone(), value).is_some() {
                self.duplicates.push((span.start.line(), key));
            }
        }
        for source in merged {
            merge(&mut map, source).map_err(|why| BadYaml { line: 0, why })?;
        }
        Ok((map, size))
    }
}

/// The parser says what it was at; clients know only the words for what it missed.
fn wording(info: &str) -> String {
    match info.split_once(", ") {
        Some((context, missed)) if context.starts_with("while ") => missed.to_string(),
        _ if info.starts_with("unclosed bracket") => "did not find expected node content".to_string(),
        _ => info.to_string(),
    }
}

/// What is merged in gives way to what the mapping says itself.
fn merge(map: &mut Map<String, Value>, source: Value) -> Result<(), String> {
    match source {
        Value::Object(entries) => {
            for (key, value) in entries {
                map.entry(key).or_insert(value);
            }
            Ok(())
        }
        Value::Array(sources) => sources.into_iter().try_for_each(|source| merge(map, source)),
        _ => Err("map merge requires map or sequence of maps as the value".to_string()),
    }
}

fn scalar_value(text: Cow<'_, str>, style: ScalarStyle, tag: Option<&Tag>) -> Result<Value, &'static str> {
    let Some(tag) = tag else {
        return Ok(match style {
            ScalarStyle::Plain => scalar::resolve(&text),
            _ => Value::String(text.into_owned()),
        });
    };
    let core = tag.to_string();
    let resolved = scalar::resolve(&text);
    match core.rsplit([':', '!']).next().unwrap_or("") {
        "int" if resolved.is_number() => Ok(resolved),
        "float" if resolved.is_number() => Ok(resolved),
        "bool" if resolved.is_boolean() => Ok(resolved),
        "null" if resolved.is_null() => Ok(resolved),
        "int" | "float" | "bool" | "null" => Err("cannot decode the value as its tag says"),
        "binary" => {
            let bytes = STANDARD
                .decode(text.replace(['\n', ' '], ""))
                .map_err(|_| "!!binary value contains invalid base64 data")?;
            String::from_utf8(bytes).map(Value::String).map_err(|_| "!!binary value is no text")
        }
        _ => Ok(Value::String(text.into_owned())),
    }
}
