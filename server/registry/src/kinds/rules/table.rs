//! Reading `rules.txt`. Its own header says what its lines mean.

use std::collections::HashMap;
use std::fmt::{self, Display};

use ferry_api::{Shape, Type, TypeId, Types};

use super::code::{self, Code};
use super::format::{self, Format};

#[derive(Debug, Default)]
pub struct Table {
    pub types: HashMap<TypeId, TypeRules>,
}

#[derive(Debug, Default)]
pub struct TypeRules {
    /// An update is judged by what may not change, and by nothing else.
    pub fixed_on_update: bool,
    pub rows: Vec<Row>,
}

#[derive(Debug)]
pub struct Row {
    /// It is about the status and judged with the rest too: the kind has no status of its own writing.
    pub always: bool,
    pub steps: Vec<Step>,
    pub checks: Vec<Check>,
}

/// How to come from a struct to the value that a row is about.
#[derive(Debug)]
pub enum Step {
    Field {
        /// Into the fields of the struct's type.
        index: usize,
        /// What it is called in errors, where that is something else.
        shown: Option<&'static str>,
    },
    /// To each element of a list.
    Elements,
    /// To each value of a map.
    Entries,
}

#[derive(Debug)]
pub enum Check {
    /// The rest of the row is for values that are given.
    Optional,
    /// The rest of the row is for new objects.
    New,
    /// The rest of the row is left out where it is missing.
    Required(&'static str),
    /// As before, but the rest of the row is looked at in any case.
    Missing,
    /// A pointer to nothing but an empty text.
    NotEmpty,
    /// A number other than zero; the rest of the row is left out else.
    NotZero,
    Format(Format),
    /// The key of an entry.
    Key(Format),
    Least(i64, Option<&'static str>),
    Most(i64, Option<&'static str>),
    Range(i64, i64),
    OneOf(Vec<&'static str>),
    MaxItems(usize),
    MaxBytes(usize),
    /// Elements differ, in this field if one is named.
    Unique(Option<&'static str>),
    /// Elements differ in this field; the whole element is told.
    Distinct(&'static str),
    /// Exactly one of these fields of the struct is given.
    OneOfFields(Vec<&'static str>),
    Labels,
    Fixed(Option<&'static str>),
    /// As `Fixed`, told without the value, as upstream's generated rules do.
    Same,
    Forbidden(&'static str),
    Invalid(&'static str),
    /// The rest of the row is for structs in which this field has one of these values, or none of them.
    When {
        field: &'static str,
        values: Vec<&'static str>,
        holds: bool,
    },
    /// The rows of the value's own type, or of each of its elements'.
    In,
    Code(Code),
}

/// A line that cannot be read.
#[derive(Debug)]
pub struct BadRow {
    line: usize,
    why: String,
}

impl Display for BadRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.why)
    }
}

impl std::error::Error for BadRow {}

pub fn parse(text: &'static str, types: &Types) -> Result<Table, BadRow> {
    let mut table = Table::default();
    let mut current: Option<TypeId> = None;
    for (number, line) in text.lines().enumerate() {
        let bad = |why: &str| BadRow { line: number + 1, why: format!("{why}: {line}") };
        if line.trim().is_empty() || line.starts_with('#') {
            continue;
        }
        if !line.starts_with(' ') {
            let mut words = line.split_ascii_whitespace();
            let name = words.next().unwrap_or("");
            let id = type_named(name, types).ok_or_else(|| bad("unknown type"))?;
            let fixed_on_update = match words.next() {
                None => false,
                Some("fixed-on-update") => true,
                Some(_) => return Err(bad("unknown flag")),
            };
            current = Some(id);
            table.types.entry(id).or_default().fixed_on_update = fixed_on_update;
            continue;
        }
        let id = current.ok_or_else(|| bad("row before a type"))?;
        let row = row(line.trim(), types.get(id), types).map_err(|why| bad(&why))?;
        table.types.entry(id).or_default().rows.push(row);
    }
    Ok(table)
}

/// `storage.v1.CSIDriver` as types.txt names it.
pub fn type_named(name: &str, types: &Types) -> Option<TypeId> {
    match name.strip_prefix("meta.v1.") {
        Some(rest) => types.by_name(&format!("io.k8s.apimachinery.pkg.apis.meta.v1.{rest}")),
        None => types.by_name(&format!("io.k8s.api.{name}")),
    }
}

fn row(line: &'static str, ty: &Type, types: &Types) -> Result<Row, String> {
    let (path, rest) = line.split_once(' ').ok_or("no check")?;
    let (path, always) = path.strip_prefix('!').map_or((path, false), |path| (path, true));
    let (steps, end) = steps(path, ty, types)?;
    let mut checks = Vec::new();
    for part in split_outside_quotes(rest, ';') {
        let words: Vec<&'static str> = split_outside_quotes(part.trim(), ' ')
            .into_iter()
            .filter(|word| !word.is_empty())
            .map(|word| word.trim_matches('"'))
            .collect();
        let (name, arguments) = words.split_first().ok_or("no check")?;
        checks.push(check(name, arguments).ok_or_else(|| format!("unknown check {part:?}"))?);
    }
    let leads_in = end.as_ref().is_none_or(|end| end.element_struct().is_some());
    if checks.iter().any(|check| matches!(check, Check::In)) && !leads_in {
        return Err("`in` leads into a struct, or into those of a list".into());
    }
    Ok(Row { always, steps, checks })
}

/// The steps and the shape they end at; none for the struct itself.
fn steps(path: &'static str, ty: &Type, types: &Types) -> Result<(Vec<Step>, Option<Shape>), String> {
    let (mut steps, mut shape): (Vec<Step>, Option<Shape>) = (Vec::new(), None);
    if path == "." {
        return Ok((steps, None));
    }
    for part in path.split('.') {
        let (part, shown) = match part.split_once(':') {
            Some((field, shown)) => (field, Some(shown)),
            None => (part, None),
        };
        let name = part.trim_end_matches(['[', ']', '{', '}']);
        let holder = match &shape {
            None => ty,
            Some(Shape::Struct(id)) => types.get(*id),
            Some(_) => return Err(format!("{name} stands in no struct")),
        };
        let index = holder.field_index(name).ok_or_else(|| format!("no field {name}"))?;
        steps.push(Step::Field { index, shown });
        let mut reached = holder.fields[index].shape.clone();
        let mut marks = &part[name.len()..];
        while !marks.is_empty() {
            let (mark, rest) = marks.split_at(2);
            (marks, reached) = match (mark, reached) {
                ("[]", Shape::List(element)) => {
                    steps.push(Step::Elements);
                    (rest, *element)
                }
                ("{}", Shape::Map(element)) => {
                    steps.push(Step::Entries);
                    (rest, *element)
                }
                _ => return Err(format!("{name} is no list or map")),
            };
        }
        shape = Some(reached);
    }
    Ok((steps, shape))
}

fn check(name: &str, arguments: &[&'static str]) -> Option<Check> {
    let words = |text: &&'static str| text.split(',').collect::<Vec<_>>();
    let number = |at: usize| arguments.get(at)?.parse::<i64>().ok();
    let size = |at: usize| arguments.get(at)?.parse::<usize>().ok();
    Some(match (name, arguments) {
        ("opt", []) => Check::Optional,
        ("new", []) => Check::New,
        ("required", []) => Check::Required(""),
        ("required", [why]) => Check::Required(why),
        ("required-and-on", []) => Check::Missing,
        ("required-if-given", []) => Check::NotEmpty,
        ("not-zero", []) => Check::NotZero,
        ("key", [format]) => Check::Key(format::named(format)?),
        ("min", [_]) => Check::Least(number(0)?, None),
        ("min", [_, why]) => Check::Least(number(0)?, Some(why)),
        ("max", [_]) => Check::Most(number(0)?, None),
        ("max", [_, why]) => Check::Most(number(0)?, Some(why)),
        ("range", [_, _]) => Check::Range(number(0)?, number(1)?),
        ("one", [list]) => Check::OneOf(words(list)),
        ("items", [_]) => Check::MaxItems(size(0)?),
        ("bytes", [_]) => Check::MaxBytes(size(0)?),
        ("unique", []) => Check::Unique(None),
        ("unique", [field]) => Check::Unique(Some(field)),
        ("distinct", [field]) => Check::Distinct(field),
        ("union", [list]) => Check::OneOfFields(words(list)),
        ("labels", []) => Check::Labels,
        ("same", []) => Check::Same,
        ("fixed", []) => Check::Fixed(None),
        ("fixed", [why]) => Check::Fixed(Some(why)),
        ("forbidden", [why]) => Check::Forbidden(why),
        ("invalid", [why]) => Check::Invalid(why),
        ("when", [field, list]) => Check::When { field, values: words(list), holds: true },
        ("unless", [field, list]) => Check::When { field, values: words(list), holds: false },
        ("in", []) => Check::In,
        (name, []) => match format::named(name) {
            Some(format) => Check::Format(format),
            None => Check::Code(code::named(name)?),
        },
        _ => return None,
    })
}

fn split_outside_quotes(text: &'static str, separator: char) -> Vec<&'static str> {
    let mut quoted = false;
    let parts = text.split(move |c: char| {
        quoted ^= c == '"';
        c == separator && !quoted
    });
    parts.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rules_of_more_than_fifty_types_can_be_read() {
        let table = parse(include_str!("rules.txt"), Types::builtin()).expect("the table");
        assert!(table.types.len() > 50, "{}", table.types.len());
    }

    #[test]
    fn a_row_that_cannot_be_read_is_named() {
        let bad = parse("core.v1.Pod\n  nonsense required\n", Types::builtin()).expect_err("no such field");
        assert_eq!(bad.to_string(), "line 2: no field nonsense:   nonsense required");
        let bad = parse("core.v1.Pod\n  spec nonsense\n", Types::builtin()).expect_err("no such check");
        assert!(bad.to_string().starts_with("line 2: unknown check"), "{bad}");
    }
}
