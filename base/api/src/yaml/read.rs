//! From the parser's events to values: anchors, merge keys, duplicates.

use std::borrow::Cow;
use std::collections::HashMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use granit_parser::{Event, Parser, ScalarStyle, Span, Tag};
use serde_json::{Map, Value};

use super::{BadYaml, Scalars, scalar};
use crate::depth::{self, MAX_DEPTH};
use crate::excerpt;

/// Anchors and aliases may copy this many bytes in all; more is an attack, not a document. Upstream bounds the share of a
/// document that comes from aliases, counted in nodes, because there a copy shares its text; here it does not.
const MAX_COPIED: usize = 8 << 20;
/// What a node takes in memory besides its text, about.
const NODE_SIZE: usize = 64;
const LONGEST_DIRECTIVE: usize = 128;
/// Duplicate keys beyond this number are not told.
const MAX_DUPLICATES: usize = 100;

pub struct Read {
    pub documents: Vec<Value>,
    /// Keys that stand twice in a mapping, with the line of the second.
    pub duplicates: Vec<(usize, String)>,
}

/// Reads the first documents of a stream.
pub fn documents(text: &str, limit: usize, scalars: Scalars) -> Result<Read, BadYaml> {
    // The parser writes a directive's text out at every node that has its tag.
    let is_long = |line: &str| line.starts_with('%') && line.len() > LONGEST_DIRECTIVE;
    if let Some(line) = text.lines().position(is_long) {
        return Err(BadYaml { line: line + 1, why: "directive is too long".to_string() });
    }
    let mut options = granit_parser::Options::default();
    options.emit_comments = false;
    let parser = Parser::new_from_str_with_options(text, options);
    let mut builder =
        Builder { events: parser, scalars, anchors: HashMap::new(), copied: 0, duplicates: Vec::new() };
    let mut documents = Vec::new();
    while documents.len() < limit {
        let (event, span) = builder.next()?;
        match event {
            Event::StreamEnd => break,
            Event::StreamStart | Event::DocumentStart(..) | Event::DocumentEnd => {}
            event => {
                builder.anchors.clear();
                documents.push(builder.node(event, span, MAX_DEPTH)?.value);
            }
        }
    }
    Ok(Read { documents, duplicates: builder.duplicates })
}

struct Builder<I> {
    events: I,
    scalars: Scalars,
    anchors: HashMap<usize, Node>,
    copied: usize,
    duplicates: Vec<(usize, String)>,
}

#[derive(Clone)]
struct Node {
    value: Value,
    /// In bytes.
    size: usize,
    /// How many levels it nests.
    depth: usize,
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

    /// The node that begins with `event` and nests at most `levels` deep.
    fn node(&mut self, event: Event<'t>, span: Span, levels: usize) -> Result<Node, BadYaml> {
        let bad = |why: &str| BadYaml { line: span.start.line(), why: why.to_string() };
        let inside = || levels.checked_sub(1).ok_or_else(|| bad(depth::TOO_DEEP));
        let (anchor, node) = match event {
            Event::Scalar(text, style, anchor, tag) => {
                let size = NODE_SIZE + text.len();
                let value = scalar_value(text, style, tag.as_deref(), self.scalars).map_err(bad)?;
                (anchor, Node { value, size, depth: 0 })
            }
            Event::Alias(id) => {
                let node = self.anchors.get(&id).ok_or_else(|| bad("anchor contains itself"))?;
                if node.depth > levels {
                    return Err(bad(depth::TOO_DEEP));
                }
                self.copied = copied(self.copied, node).map_err(bad)?;
                return Ok(node.clone());
            }
            Event::SequenceStart(_, anchor, _) => {
                let inside = inside()?;
                let mut items = Vec::new();
                let (mut size, mut depth) = (NODE_SIZE, 0);
                loop {
                    let (event, span) = self.next()?;
                    if event == Event::SequenceEnd {
                        break;
                    }
                    let item = self.node(event, span, inside)?;
                    size += item.size;
                    depth = depth.max(item.depth);
                    items.push(item.value);
                }
                (anchor, Node { value: Value::Array(items), size, depth: depth + 1 })
            }
            Event::MappingStart(_, anchor, _) => (anchor, self.mapping(inside()?)?),
            _ => return Err(bad("did not find expected node content")),
        };
        if anchor != 0 {
            self.copied = copied(self.copied, &node).map_err(bad)?;
            self.anchors.insert(anchor, node.clone());
        }
        Ok(node)
    }

    fn mapping(&mut self, inside: usize) -> Result<Node, BadYaml> {
        let mut map = Map::new();
        let mut merged: Vec<Value> = Vec::new();
        let (mut size, mut depth) = (NODE_SIZE, 0);
        loop {
            let (event, span) = self.next()?;
            let bad = |why: &str| BadYaml { line: span.start.line(), why: why.to_string() };
            if event == Event::MappingEnd {
                break;
            }
            let is_merge = matches!(&event, Event::Scalar(text, ScalarStyle::Plain, _, None) if text == "<<");
            let key = self.node(event, span, inside)?;
            let (event, value_span) = self.next()?;
            let value = self.node(event, value_span, inside)?;
            size += key.size + value.size;
            depth = depth.max(value.depth);
            if is_merge {
                merged.push(value.value);
                continue;
            }
            let key = match key.value {
                Value::String(key) => key,
                Value::Number(number) => number.to_string(),
                Value::Bool(given) => given.to_string(),
                _ => return Err(bad("invalid map key")),
            };
            if self.duplicates.len() < MAX_DUPLICATES && map.contains_key(&key) {
                let key = excerpt::of(&key, excerpt::LONGEST_PATH);
                self.duplicates.push((span.start.line(), key.into_owned()));
            }
            map.insert(key, value.value);
        }
        for source in merged {
            merge(&mut map, source).map_err(|why| BadYaml { line: 0, why })?;
        }
        Ok(Node { value: Value::Object(map), size, depth: depth + 1 })
    }
}

/// What was copied so far, with this node.
fn copied(before: usize, node: &Node) -> Result<usize, &'static str> {
    let copied = before + node.size;
    if copied > MAX_COPIED { Err("document contains excessive aliasing") } else { Ok(copied) }
}

/// The parser says what it was at; clients know only the words for what it missed.
fn wording(info: &str) -> String {
    match info.split_once(", ") {
        Some((context, missed)) if context.starts_with("while ") => missed.to_string(),
        _ if info.starts_with("unclosed bracket") => "did not find expected node content".to_string(),
        _ => info.to_string(),
    }
}

const WRONG_MERGE: &str = "map merge requires map or sequence of maps as the value";

/// What is merged in gives way to what the mapping says itself.
fn merge(map: &mut Map<String, Value>, source: Value) -> Result<(), String> {
    match source {
        Value::Object(entries) => {
            for (key, value) in entries {
                map.entry(key).or_insert(value);
            }
            Ok(())
        }
        Value::Array(sources) => sources.into_iter().try_for_each(|source| match source {
            Value::Object(_) => merge(map, source),
            _ => Err(WRONG_MERGE.to_string()),
        }),
        _ => Err(WRONG_MERGE.to_string()),
    }
}

fn scalar_value(
    text: Cow<'_, str>,
    style: ScalarStyle,
    tag: Option<&Tag>,
    scalars: Scalars,
) -> Result<Value, &'static str> {
    let resolve = |text: &str| match scalars {
        Scalars::Kubernetes => scalar::resolve(text),
        Scalars::Core => scalar::resolve_core(text),
        Scalars::Text => Value::String(text.to_string()),
    };
    let Some(tag) = tag else {
        return Ok(match style {
            ScalarStyle::Plain => resolve(&text),
            _ => Value::String(text.into_owned()),
        });
    };
    if scalars == Scalars::Text {
        return Ok(Value::String(text.into_owned()));
    }
    let core = tag.to_string();
    let resolved = resolve(&text);
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
