//! Kubernetes' JSONPath templates: text with `{…}` holes, `range`/`end`, filters, slices, unions
//! and recursive descent.

use std::borrow::Cow;
use std::cell::Cell;

use serde_json::{Map, Value};

use crate::go_json;

#[derive(Debug, Clone, PartialEq)]
pub struct Template {
    pub source: String,
    segments: Vec<Segment>,
}

#[derive(Debug, Clone, PartialEq)]
enum Segment {
    Text(String),
    Expression(Vec<Step>),
    Range(Vec<Step>, Vec<Segment>),
}

#[derive(Debug, Clone, PartialEq)]
enum Step {
    Field(String),
    Wildcard,
    Recursive,
    Slice { start: Option<i64>, end: Option<i64>, step: Option<i64>, single: bool },
    Filter(Filter),
    Union(Vec<Vec<Step>>),
    Literal(Value),
}

#[derive(Debug, Clone, PartialEq)]
struct Filter {
    left: Vec<Step>,
    /// Without an operator the left side only has to exist.
    compare: Option<(String, Vec<Step>)>,
}

/// Filters in filters and ranges in ranges, at most: a template may come from whoever defines a resource.
const MAX_NESTING: usize = 32;
/// Values that an evaluation may look at: each `..` multiplies them.
const MAX_VALUES: usize = 1 << 20;

/// What a template found: one group of values per hole.
#[derive(Debug, Default)]
pub struct Found {
    groups: Vec<Vec<Value>>,
}

impl Found {
    pub fn text(&self) -> String {
        self.groups.iter().map(|group| group.iter().map(to_text).collect::<Vec<_>>().join(" ")).collect()
    }
    pub fn as_json(&self) -> String {
        self.groups.iter().map(|group| go_json::pretty(&Value::Array(group.clone()))).collect()
    }
    pub fn values(self) -> Vec<Value> {
        self.groups.into_iter().flatten().collect()
    }
}

/// A scalar as it is, anything else as JSON.
pub fn to_text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Number(number) => go_json::number_text(number),
        Value::Null => String::new(),
        Value::Bool(flag) => flag.to_string(),
        other => go_json::compact(other),
    }
}

impl Template {
    pub fn parse(source: &str) -> Result<Self, String> {
        let mut parser = Parser { rest: source };
        let segments = parser.segments(0)?;
        Ok(Template { source: source.to_owned(), segments })
    }

    /// A bare path (`.metadata.name`, `metadata.name`, `{.metadata.name}`), as custom columns,
    /// `--sort-by` and `wait --for=jsonpath` take it.
    pub fn parse_relaxed(path: &str) -> Result<Self, String> {
        let inner = match path.strip_prefix('{').and_then(|rest| rest.strip_suffix('}')) {
            Some(inner) => inner,
            None if path.starts_with('{') || path.ends_with('}') => {
                return Err("unexpected path string, expected a 'name1.name2' or '.name1.name2' or '{name1.name2}' or '{.name1.name2}'".to_owned());
            }
            None => path,
        };
        let inner = inner.strip_prefix('.').unwrap_or(inner);
        Template::parse(&format!("{{.{inner}}}"))
    }

    /// The first value that the template's first path leads to in an object; `None` where it leads nowhere.
    pub fn first<'a>(&'a self, object: &'a Map<String, Value>) -> Option<Cow<'a, Value>> {
        let Some(Segment::Expression(steps)) = self.segments.first() else { return None };
        match steps.as_slice() {
            // As good as always: no copy of the object is made.
            [Step::Field(name), rest @ ..] if name != "$" => {
                let value = object.get(name)?;
                let found = Evaluation::new(value, true).steps(rest, value).ok()?;
                found.first().copied().map(Cow::Borrowed)
            }
            steps => {
                let root = Value::Object(object.clone());
                let found = Evaluation::new(&root, true).steps(steps, &root).ok()?;
                found.first().copied().cloned().map(Cow::Owned)
            }
        }
    }

    pub fn evaluate(&self, root: &Value, allow_missing: bool) -> Result<Found, String> {
        let mut found = Found::default();
        let evaluation = Evaluation::new(root, allow_missing);
        evaluation.segments(&self.segments, root, &mut found)?;
        Ok(found)
    }
}

struct Evaluation<'a> {
    root: &'a Value,
    allow_missing: bool,
    /// How many values may still be looked at.
    left: Cell<usize>,
}

impl<'a> Evaluation<'a> {
    fn new(root: &'a Value, allow_missing: bool) -> Evaluation<'a> {
        Evaluation { root, allow_missing, left: Cell::new(MAX_VALUES) }
    }

    fn look_at(&self, values: usize) -> Result<(), String> {
        let left = self.left.get().checked_sub(values);
        self.left.set(left.ok_or_else(|| format!("leads to more than {MAX_VALUES} values"))?);
        Ok(())
    }

    /// A value and all that is below it, where it has anything below.
    fn descend(&self, value: &'a Value, found: &mut Vec<&'a Value>) -> Result<(), String> {
        let below = children(value);
        self.look_at(1 + below.len())?;
        if !below.is_empty() {
            found.push(value);
        }
        below.into_iter().try_for_each(|value| self.descend(value, found))
    }

    fn segments(&self, segments: &'a [Segment], current: &'a Value, found: &mut Found) -> Result<(), String> {
        for segment in segments {
            match segment {
                Segment::Text(text) => found.groups.push(vec![Value::String(text.clone())]),
                Segment::Expression(steps) => {
                    found.groups.push(self.steps(steps, current)?.into_iter().cloned().collect());
                }
                Segment::Range(steps, body) => {
                    for value in self.steps(steps, current)? {
                        self.segments(body, value, found)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn steps(&self, steps: &'a [Step], current: &'a Value) -> Result<Vec<&'a Value>, String> {
        let mut values = vec![current];
        for step in steps {
            values = self.step(step, values)?;
        }
        Ok(values)
    }

    fn step(&self, step: &'a Step, input: Vec<&'a Value>) -> Result<Vec<&'a Value>, String> {
        match step {
            Step::Literal(value) => Ok(vec![value]),
            Step::Field(name) if name == "$" => Ok(vec![self.root]),
            Step::Field(name) => {
                self.look_at(input.len())?;
                let had_input = !input.is_empty();
                let found: Vec<&Value> = input.iter().filter_map(|value| value.get(name)).collect();
                if found.is_empty() && had_input && !self.allow_missing {
                    return Err(format!("{name} is not found"));
                }
                Ok(found)
            }
            Step::Wildcard => {
                let mut result = Vec::new();
                for value in input {
                    let below = children(value);
                    self.look_at(below.len())?;
                    result.extend(below);
                }
                Ok(result)
            }
            Step::Recursive => {
                let mut result = Vec::new();
                input.into_iter().try_for_each(|value| self.descend(value, &mut result))?;
                Ok(result)
            }
            Step::Slice { start, end, step, single } => {
                let mut result = Vec::new();
                for value in input {
                    let items = match value {
                        Value::Array(items) => items,
                        Value::Null => continue,
                        other => return Err(format!("{} is not array or slice", go_type(other))),
                    };
                    let chosen = slice(items, *start, *end, *step, *single)?;
                    self.look_at(chosen.len())?;
                    result.extend(chosen);
                }
                Ok(result)
            }
            Step::Filter(filter) => self.filtered(filter, input),
            Step::Union(branches) => {
                let mut result = Vec::new();
                for branch in branches {
                    self.look_at(input.len())?;
                    let mut values = input.clone();
                    for step in branch {
                        values = self.step(step, values)?;
                    }
                    result.extend(values);
                }
                Ok(result)
            }
        }
    }

    fn filtered(&self, filter: &'a Filter, input: Vec<&'a Value>) -> Result<Vec<&'a Value>, String> {
        let mut result = Vec::new();
        for value in input {
            let Value::Array(items) = value else {
                return Err(format!("{} is not array or slice and cannot be filtered", to_text(value)));
            };
            self.look_at(items.len())?;
            for item in items {
                if self.passes(filter, item)? {
                    result.push(item);
                }
            }
        }
        Ok(result)
    }

    fn passes(&self, filter: &'a Filter, item: &'a Value) -> Result<bool, String> {
        let quiet = Evaluation { root: self.root, allow_missing: true, left: Cell::new(self.left.get()) };
        let left = quiet.steps(&filter.left, item)?;
        let right = filter.compare.as_ref().map(|(_, right)| quiet.steps(right, item)).transpose()?;
        self.left.set(quiet.left.get());
        let (Some((operator, _)), Some(right)) = (&filter.compare, right) else {
            return Ok(!left.is_empty());
        };
        let (left, right) = match (left.as_slice(), right.as_slice()) {
            ([], _) | (_, []) => return Ok(false),
            ([left], [right]) => (left, right),
            _ => return Err("can only compare one element at a time".to_owned()),
        };
        let order = compare(left, right)?;
        Ok(match operator.as_str() {
            "==" => order.is_eq(),
            "!=" => order.is_ne(),
            "<" => order.is_lt(),
            "<=" => order.is_le(),
            ">" => order.is_gt(),
            ">=" => order.is_ge(),
            other => return Err(format!("unrecognized filter operator {other}")),
        })
    }
}

fn compare(left: &Value, right: &Value) -> Result<std::cmp::Ordering, String> {
    match (left, right) {
        (Value::Number(a), Value::Number(b)) => {
            a.as_f64().partial_cmp(&b.as_f64()).ok_or_else(|| "incompatible types for comparison".to_owned())
        }
        (Value::String(a), Value::String(b)) => Ok(a.cmp(b)),
        (Value::Bool(a), Value::Bool(b)) => Ok(a.cmp(b)),
        (Value::Null, Value::Null) => Ok(std::cmp::Ordering::Equal),
        _ => Err("incompatible types for comparison".to_owned()),
    }
}

fn children(value: &Value) -> Vec<&Value> {
    match value {
        Value::Array(items) => items.iter().collect(),
        Value::Object(map) => {
            let mut entries: Vec<(&String, &Value)> = map.iter().collect();
            entries.sort_by_key(|(key, _)| *key);
            entries.into_iter().map(|(_, value)| value).collect()
        }
        _ => Vec::new(),
    }
}

fn slice(
    items: &[Value],
    start: Option<i64>,
    end: Option<i64>,
    step: Option<i64>,
    single: bool,
) -> Result<Vec<&Value>, String> {
    let length = items.len() as i64;
    let from = match start.unwrap_or(0) {
        start if start < 0 => start + length,
        start => start,
    };
    let to = match end {
        _ if single => from + 1,
        None => length,
        Some(end) if end < 0 => end + length,
        Some(end) => end,
    };
    if from == to {
        return Ok(Vec::new());
    }
    if from >= length || from < 0 {
        return Err(format!("array index out of bounds: index {from}, length {length}"));
    }
    if to > length || to < 0 {
        return Err(format!("array index out of bounds: index {}, length {length}", to - 1));
    }
    if from > to {
        return Err(format!("starting index {from} is greater than ending index {to}"));
    }
    let step = match step {
        Some(step) if step <= 0 => return Err("step must be > 0".to_owned()),
        Some(step) => step as usize,
        None => 1,
    };
    Ok(items[from as usize..to as usize].iter().step_by(step).collect())
}

fn go_type(value: &Value) -> &'static str {
    match value {
        Value::Object(_) => "map[string]interface {}",
        Value::String(_) => "string",
        Value::Bool(_) => "bool",
        Value::Number(number) if number.is_f64() => "float64",
        Value::Number(_) => "int64",
        _ => "[]interface {}",
    }
}

struct Parser<'a> {
    rest: &'a str,
}

impl<'a> Parser<'a> {
    /// `nesting` says how many ranges are around.
    fn segments(&mut self, nesting: usize) -> Result<Vec<Segment>, String> {
        check_nesting(nesting)?;
        let mut segments = Vec::new();
        while !self.rest.is_empty() {
            let Some(open) = self.rest.find('{') else {
                segments.push(Segment::Text(std::mem::take(&mut self.rest).to_owned()));
                break;
            };
            if open > 0 {
                segments.push(Segment::Text(self.rest[..open].to_owned()));
            }
            self.rest = &self.rest[open + 1..];
            let inside = self.until_close()?;
            let trimmed = inside.trim();
            if trimmed == "end" {
                if nesting == 0 {
                    return Err("not in range, nothing to end".to_owned());
                }
                return Ok(segments);
            }
            if let Some(path) = trimmed.strip_prefix("range ") {
                let steps = parse_path(path.trim(), 0)?;
                segments.push(Segment::Range(steps, self.segments(nesting + 1)?));
                continue;
            }
            for word in split_words(trimmed) {
                segments.push(match word.strip_prefix(['"', '\'']) {
                    Some(_) => Segment::Text(unquote(word)?),
                    None => Segment::Expression(parse_path(word, 0)?),
                });
            }
        }
        Ok(segments)
    }

    /// The text up to the brace that closes this hole, quotes and nested brackets respected.
    fn until_close(&mut self) -> Result<&'a str, String> {
        let mut quote = None;
        let mut escaped = false;
        for (position, character) in self.rest.char_indices() {
            match (quote, character) {
                _ if escaped => escaped = false,
                (Some(_), '\\') => escaped = true,
                (Some(open), close) if open == close => quote = None,
                (Some(_), _) => {}
                (None, '"' | '\'') => quote = Some(character),
                (None, '}') => {
                    let inside = &self.rest[..position];
                    self.rest = &self.rest[position + 1..];
                    return Ok(inside);
                }
                (None, _) => {}
            }
        }
        Err("unclosed action".to_owned())
    }
}

/// Splits at spaces outside quotes and brackets.
fn split_words(text: &str) -> Vec<&str> {
    let mut words = Vec::new();
    let (mut start, mut depth, mut quote, mut escaped) = (0, 0i32, None, false);
    for (position, character) in text.char_indices() {
        match (quote, character) {
            _ if escaped => escaped = false,
            (Some(_), '\\') => escaped = true,
            (Some(open), close) if open == close => quote = None,
            (Some(_), _) => {}
            (None, '"' | '\'') => quote = Some(character),
            (None, '[' | '(') => depth += 1,
            (None, ']' | ')') => depth -= 1,
            (None, ' ') if depth == 0 => {
                words.push(&text[start..position]);
                start = position + 1;
            }
            (None, _) => {}
        }
    }
    words.push(&text[start..]);
    words.retain(|word| !word.is_empty());
    words
}

fn unquote(text: &str) -> Result<String, String> {
    let quote = text.chars().next().unwrap_or('"');
    let inner = text
        .strip_prefix(quote)
        .and_then(|rest| rest.strip_suffix(quote))
        .ok_or_else(|| format!("unterminated quoted string {text}"))?;
    let mut result = String::new();
    let mut characters = inner.chars();
    while let Some(character) = characters.next() {
        if character != '\\' {
            result.push(character);
            continue;
        }
        match characters.next() {
            Some('n') => result.push('\n'),
            Some('t') => result.push('\t'),
            Some('r') => result.push('\r'),
            Some(other) => result.push(other),
            None => return Err(format!("unterminated quoted string {text}")),
        }
    }
    Ok(result)
}

fn check_nesting(nesting: usize) -> Result<(), String> {
    match nesting > MAX_NESTING {
        true => Err(format!("nested more than {MAX_NESTING} levels deep")),
        false => Ok(()),
    }
}

/// `nesting` says how many filters are around.
fn parse_path(path: &str, nesting: usize) -> Result<Vec<Step>, String> {
    check_nesting(nesting)?;
    if let Some(literal) = parse_literal(path)? {
        return Ok(vec![Step::Literal(literal)]);
    }
    let mut steps = Vec::new();
    let mut rest = path;
    while let Some(first) = rest.chars().next() {
        match first {
            '@' => rest = &rest[1..],
            '$' => {
                steps.push(Step::Field("$".to_owned()));
                rest = &rest[1..];
            }
            '.' if rest.starts_with("..") => {
                steps.push(Step::Recursive);
                rest = &rest[2..];
                if rest.is_empty() {
                    return Ok(steps);
                }
                if !rest.starts_with(['[', '*', '.']) {
                    let (name, tail) = take_field(rest);
                    steps.push(Step::Field(name));
                    rest = tail;
                }
            }
            '.' => {
                rest = &rest[1..];
                if rest.starts_with('[') || rest.is_empty() {
                    continue;
                }
                let (name, tail) = take_field(rest);
                steps.push(if name == "*" { Step::Wildcard } else { Step::Field(name) });
                rest = tail;
            }
            '*' => {
                steps.push(Step::Wildcard);
                rest = &rest[1..];
            }
            '[' => {
                let close = closing_bracket(rest)?;
                steps.push(parse_bracket(&rest[1..close], nesting)?);
                rest = &rest[close + 1..];
            }
            other => {
                let (name, _) = take_field(rest);
                return Err(match steps.is_empty() && !name.is_empty() {
                    true => format!("unrecognized identifier {name}"),
                    false => {
                        format!("unrecognized character in action: U+{:04X} '{other}'", u32::from(other))
                    }
                });
            }
        }
    }
    Ok(steps)
}

/// A number, a truth value or a quoted text; `None` for a path.
fn parse_literal(text: &str) -> Result<Option<Value>, String> {
    if let Ok(number) = text.parse::<i64>() {
        return Ok(Some(number.into()));
    }
    if let Ok(number) = text.parse::<f64>()
        && text.starts_with(|c: char| c.is_ascii_digit() || c == '-')
    {
        return Ok(Some(number.into()));
    }
    Ok(match text {
        "true" => Some(true.into()),
        "false" => Some(false.into()),
        _ if text.starts_with(['"', '\'']) => Some(unquote(text)?.into()),
        _ => None,
    })
}

/// A field name up to the next `.` or `[`; a backslash keeps a dot inside the name.
fn take_field(text: &str) -> (String, &str) {
    let mut name = String::new();
    let mut characters = text.char_indices();
    while let Some((position, character)) = characters.next() {
        match character {
            '\\' => {
                if let Some((_, escaped)) = characters.next() {
                    name.push(escaped);
                }
            }
            '.' | '[' | ' ' => return (name, &text[position..]),
            other => name.push(other),
        }
    }
    (name, "")
}

fn closing_bracket(text: &str) -> Result<usize, String> {
    let (mut depth, mut quote, mut escaped) = (0, None, false);
    for (position, character) in text.char_indices() {
        match (quote, character) {
            _ if escaped => escaped = false,
            (Some(_), '\\') => escaped = true,
            (Some(open), close) if open == close => quote = None,
            (Some(_), _) => {}
            (None, '"' | '\'') => quote = Some(character),
            (None, '[') => depth += 1,
            (None, ']') => {
                depth -= 1;
                if depth == 0 {
                    return Ok(position);
                }
            }
            (None, _) => {}
        }
    }
    Err("unterminated array".to_owned())
}

fn parse_bracket(inside: &str, nesting: usize) -> Result<Step, String> {
    let inside = inside.trim();
    if inside == "*" {
        return Ok(Step::Slice { start: None, end: None, step: None, single: false });
    }
    if let Some(condition) = inside.strip_prefix("?(").and_then(|rest| rest.strip_suffix(')')) {
        return parse_filter(condition, nesting + 1);
    }
    if inside.starts_with("?(") {
        return Err("unterminated filter".to_owned());
    }
    let parts = split_commas(inside);
    if parts.len() > 1 {
        let branches: Result<Vec<Vec<Step>>, String> =
            parts.into_iter().map(|part| Ok(vec![parse_bracket(part, nesting)?])).collect();
        return Ok(Step::Union(branches?));
    }
    if inside.starts_with(['"', '\'']) {
        return Ok(Step::Field(unquote(inside)?));
    }
    let invalid = || format!("invalid array index {inside}");
    let bounds: Vec<&str> = inside.split(':').collect();
    if bounds.len() > 3 {
        return Err(invalid());
    }
    let bound = |position: usize| -> Result<Option<i64>, String> {
        match bounds.get(position).map(|text| text.trim()) {
            None | Some("") => Ok(None),
            Some(text) => text.parse().map(Some).map_err(|_| invalid()),
        }
    };
    let single = bounds.len() == 1;
    if single && bound(0)?.is_none() {
        return Err(invalid());
    }
    Ok(Step::Slice { start: bound(0)?, end: bound(1)?, step: bound(2)?, single })
}

fn split_commas(text: &str) -> Vec<&str> {
    let (mut parts, mut start, mut quote) = (Vec::new(), 0, None);
    for (position, character) in text.char_indices() {
        match (quote, character) {
            (Some(open), close) if open == close => quote = None,
            (Some(_), _) => {}
            (None, '"' | '\'') => quote = Some(character),
            (None, ',') => {
                parts.push(text[start..position].trim());
                start = position + 1;
            }
            (None, _) => {}
        }
    }
    parts.push(text[start..].trim());
    parts
}

fn parse_filter(condition: &str, nesting: usize) -> Result<Step, String> {
    let mut quote = None;
    for (position, character) in condition.char_indices() {
        match (quote, character) {
            (Some(open), close) if open == close => quote = None,
            (Some(_), _) => {}
            (None, '"' | '\'') => quote = Some(character),
            (None, '=' | '!' | '<' | '>') => {
                let operator: String =
                    condition[position..].chars().take_while(|c| "=!<>".contains(*c)).collect();
                let left = parse_path(condition[..position].trim(), nesting)?;
                let right = parse_path(condition[position + operator.len()..].trim(), nesting)?;
                return Ok(Step::Filter(Filter { left, compare: Some((operator, right)) }));
            }
            (None, _) => {}
        }
    }
    Ok(Step::Filter(Filter { left: parse_path(condition.trim(), nesting)?, compare: None }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn sample() -> Value {
        json!({"kind": "List", "items": [
            {"name": "one", "labels": {"a.b/c": "x"}, "count": 1, "ready": true},
            {"name": "two", "count": 20, "nested": {"name": "deep"}},
            {"name": "three", "count": 3}]})
    }

    fn check(template: &str, expected: &str) {
        let found = Template::parse(template).unwrap().evaluate(&sample(), true).unwrap();
        assert_eq!(found.text(), expected, "{template}");
    }

    #[test]
    fn a_path_finds_values_and_text_around_it_stays() {
        check("{.kind}", "List");
        check("kind={.kind}!", "kind=List!");
        check("{.items[*].name}", "one two three");
        check("{.items[0].name}", "one");
        check("{.items[-1].name}", "three");
        check("{.items[0:2].name}", "one two");
        check("{.items[::2].name}", "one three");
        check("{.items[0].labels.a\\.b/c}", "x");
        check("{.items[0].labels['a\\.b/c']}", "x");
        check("{.items[0]['name','count']}", "one 1");
        check("{.items[0].labels}", r#"{"a.b/c":"x"}"#);
        check("{.missing}", "");
        check("{$.kind}", "List");
        check("{..nested.name}", "deep");
    }

    #[test]
    fn json_paths_beyond_the_limits_are_refused() {
        let thread = std::thread::Builder::new().stack_size(1 << 20).spawn(|| {
            let filters = format!("{{.a{}}}", "[?(@".repeat(200_000));
            assert!(Template::parse(&filters).is_err());
            let closed = format!("{{.a{}{}}}", "[?(@".repeat(40), ")]".repeat(40));
            assert_eq!(Template::parse(&closed), Err("nested more than 32 levels deep".to_owned()));
            let ranges = "{range .a}".repeat(200_000);
            assert_eq!(Template::parse(&ranges), Err("nested more than 32 levels deep".to_owned()));
            assert!(Template::parse_relaxed(&format!(".a}}{ranges}{{.b")).is_err());
        });
        thread.expect("a thread").join().expect("no overflow");
        let object = json!({"a": (0..1000).map(|index| json!({"b": [index]})).collect::<Vec<_>>()});
        let descents = Template::parse(&format!("{{{}}}", "..".repeat(20))).expect("a path");
        let why = descents.evaluate(&object, true).err().unwrap_or_default();
        assert!(why.starts_with("leads to more than"), "{why}");
        assert_eq!(descents.first(object.as_object().expect("an object")), None);
    }

    #[test]
    fn ranges_repeat_their_text_and_filters_choose_items() {
        check("{range .items[*]}{.name}:{.count}{\"\\n\"}{end}done", "one:1\ntwo:20\nthree:3\ndone");
        check("{.items[?(@.name==\"two\")].count}", "20");
        check("{.items[?(@.count>2)].name}", "two three");
        check("{.items[?(@.labels)].name}", "one");
        check("{.items[?(@.ready==true)].name}", "one");
        check("{range .none[*]}x{end}y", "y");
    }

    #[test]
    fn templates_that_are_not_well_formed_are_refused_in_upstreams_words() {
        let parse = |template: &str| Template::parse(template).unwrap_err();
        assert_eq!(parse("{.kind"), "unclosed action");
        assert_eq!(parse("{end}"), "not in range, nothing to end");
        let strict = Template::parse("{.missing}").unwrap().evaluate(&sample(), false).unwrap_err();
        assert_eq!(strict, "missing is not found");
        let bounds = Template::parse("{.items[9]}").unwrap().evaluate(&sample(), true).unwrap_err();
        assert_eq!(bounds, "array index out of bounds: index 9, length 3");
    }

    #[test]
    fn relaxed_paths_may_leave_out_braces() {
        for path in [".items[0].name", "items[0].name", "{.items[0].name}", "{items[0].name}"] {
            let found = Template::parse_relaxed(path).unwrap().evaluate(&sample(), true).unwrap();
            assert_eq!(found.values(), [json!("one")], "{path}");
        }
    }
}
