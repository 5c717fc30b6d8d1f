//! Reading `table/types.txt`. Its own header says what its lines mean.

use std::collections::HashMap;
use std::fmt::{self, Display};

use super::{Either, Field, ListType, SchemaOr, Shape, Type, TypeId, Types, Union, Wire};
use crate::kinds::GroupVersionKind;

/// A line of the table that cannot be read.
#[derive(Debug)]
pub struct BadRow {
    pub line: usize,
    pub why: String,
}

impl Display for BadRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.why)
    }
}

impl std::error::Error for BadRow {}

struct Draft<'a> {
    ty: Type,
    own: Vec<(Field, Option<u32>)>,
    inlines: Vec<(Box<str>, &'a str, Option<u32>)>,
    package: &'a str,
}

/// Reads the whole table.
pub fn parse(text: &str) -> Result<Types, BadRow> {
    let names = Names::of(text);
    let mut drafts: Vec<Draft> = Vec::with_capacity(names.ids.len());
    let mut package = "";
    for (number, line) in text.lines().enumerate() {
        let bad = |why: &str| BadRow { line: number + 1, why: format!("{why}: {line}") };
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        match (line.starts_with(' '), words.as_slice()) {
            (_, []) => {}
            (false, ["package", _, full]) => package = full,
            (false, ["type", name, flags @ ..]) => {
                drafts.push(parse_type(name, flags, package, &names).map_err(bad)?);
            }
            (false, [first, ..]) if first.starts_with('#') => {}
            (true, row) => {
                let draft = drafts.last_mut().ok_or_else(|| bad("field before a type"))?;
                parse_row(row, draft, &names).map_err(bad)?;
            }
            _ => return Err(bad("unknown line")),
        }
    }
    assemble(drafts, &names)
}

/// The names of all types, which are read first, so that a row may refer to a type further down.
struct Names<'a> {
    ids: HashMap<String, TypeId>,
    /// The packages by their aliases.
    packages: HashMap<&'a str, &'a str>,
}

impl<'a> Names<'a> {
    fn of(text: &'a str) -> Names<'a> {
        let mut names = Names { ids: HashMap::new(), packages: HashMap::new() };
        let mut package = "";
        for line in text.lines() {
            let mut words = line.split_ascii_whitespace();
            match (line.starts_with(' '), words.next()) {
                (false, Some("package")) => {
                    let alias = words.next().unwrap_or("");
                    package = words.next().unwrap_or("");
                    names.packages.insert(alias, package);
                }
                (false, Some("type")) => {
                    let name = format!("{package}.{}", words.next().unwrap_or(""));
                    let id = TypeId(names.ids.len() as u32);
                    names.ids.insert(name, id);
                }
                _ => {}
            }
        }
        names
    }

    /// The type that a word means inside of a package.
    fn resolve(&self, word: &str, package: &str) -> Option<TypeId> {
        match word.rsplit_once('.') {
            Some((alias, name)) => self.ids.get(&format!("{}.{name}", self.packages.get(alias)?)).copied(),
            None => self.ids.get(&format!("{package}.{word}")).copied(),
        }
    }
}

/// The line that begins a type.
fn parse_type<'a>(
    name: &str,
    flags: &[&str],
    package: &'a str,
    names: &Names,
) -> Result<Draft<'a>, &'static str> {
    let either = match flags.iter().find_map(|flag| flag.strip_prefix("either=")) {
        None => None,
        Some(word) => Some(Either {
            schema: names.resolve("JSONSchemaProps", package).ok_or("no schema in this package")?,
            other: parse_either(word).ok_or("unknown either")?,
        }),
    };
    let ty = Type {
        name: format!("{package}.{name}").into(),
        atomic: flags.contains(&"map=atomic"),
        published: flags.contains(&"published"),
        either,
        ..Type::default()
    };
    Ok(Draft { ty, own: Vec::new(), inlines: Vec::new(), package })
}

/// A line below a type: one of its fields, or a fact about it.
fn parse_row<'a>(row: &[&'a str], draft: &mut Draft<'a>, names: &Names) -> Result<(), &'static str> {
    match row {
        ["typemeta"] => draft.ty.has_type_meta = true,
        ["gvk", group_version, kind] => {
            draft.ty.kinds.push(GroupVersionKind::from_api_version(group_version, kind))
        }
        ["union", discriminator, fields] => {
            let fields = fields
                .split(',')
                .map(|pair| pair.split_once(':').map(|(field, name)| (field.into(), name.into())));
            draft.ty.union = Some(Union {
                discriminator: (*discriminator != "-").then(|| (*discriminator).into()),
                fields: fields.collect::<Option<_>>().ok_or("unknown union")?,
            });
        }
        ["assume", path, value] => {
            let path = path.split('.').map(Box::from).collect();
            let value = serde_json::from_str(value).map_err(|_| "no JSON")?;
            draft.ty.assumptions.push((path, value));
        }
        ["inline", name, ty, tag] => draft.inlines.push(((*name).into(), ty, tag.parse().ok())),
        [name, shape, tag, flags @ ..] => {
            let shape =
                parse_shape(shape, &|word| names.resolve(word, draft.package)).ok_or("unknown shape")?;
            let mut field = Field::new(name, shape);
            for flag in flags {
                set_flag(&mut field, flag).ok_or("unknown flag")?;
            }
            draft.own.push((field, tag.parse().ok()));
        }
        _ => return Err("unknown row"),
    }
    Ok(())
}

/// Flattens inlined types into the JSON view and orders the wire view by tag.
fn assemble<'a>(drafts: Vec<Draft<'a>>, names: &Names) -> Result<Types, BadRow> {
    let inlined = |draft: &Draft<'a>| -> Result<Vec<(TypeId, usize)>, BadRow> {
        draft
            .inlines
            .iter()
            .map(|(_, ty, _)| {
                let id = names.resolve(ty, draft.package).ok_or_else(|| BadRow {
                    line: 0,
                    why: format!("{} inlines the unknown type {ty}", draft.ty.name),
                })?;
                Ok((id, id.0 as usize))
            })
            .collect()
    };
    let mut flat: Vec<Vec<Field>> = Vec::with_capacity(drafts.len());
    for draft in &drafts {
        flat.push(flatten(draft, &drafts, &inlined)?);
    }
    let mut types = Types::default();
    for (draft, mut fields) in drafts.iter().zip(flat) {
        let declared = fields.iter().map(|field| field.name.clone()).collect();
        fields.sort_by(|a, b| a.name.cmp(&b.name));
        let mut wire = Vec::new();
        for (field, tag) in &draft.own {
            if let Some(tag) = *tag {
                let index = fields
                    .iter()
                    .position(|f| f.name == field.name)
                    .expect("a type's own field is among its fields");
                wire.push(Wire::Field { tag, index });
            }
        }
        for ((name, _, tag), (message, _)) in draft.inlines.iter().zip(inlined(draft)?) {
            if let Some(tag) = *tag {
                wire.push(Wire::Inline { tag, name: name.clone(), message });
            }
        }
        wire.sort_by_key(Wire::tag);
        types.add(Type {
            name: draft.ty.name.clone(),
            fields,
            wire,
            declared,
            has_type_meta: draft.ty.has_type_meta,
            atomic: draft.ty.atomic,
            published: draft.ty.published,
            kinds: draft.ty.kinds.clone(),
            either: draft.ty.either,
            assumptions: draft.ty.assumptions.clone(),
            union: draft.ty.union.clone(),
            ..Type::default()
        });
    }
    types.prune_defaulted();
    Ok(types)
}

type Inlined<'f, 'a> = &'f dyn Fn(&Draft<'a>) -> Result<Vec<(TypeId, usize)>, BadRow>;

fn flatten<'a>(
    draft: &Draft<'a>,
    drafts: &[Draft<'a>],
    inlined: Inlined<'_, 'a>,
) -> Result<Vec<Field>, BadRow> {
    let mut fields = Vec::new();
    if draft.ty.has_type_meta {
        fields.push(Field::new("kind", Shape::String));
        fields.push(Field::new("apiVersion", Shape::String));
    }
    fields.extend(draft.own.iter().map(|(field, _)| field.clone()));
    for (_, index) in inlined(draft)? {
        fields.extend(flatten(&drafts[index], drafts, inlined)?);
    }
    Ok(fields)
}

fn parse_shape(word: &str, resolve: &dyn Fn(&str) -> Option<TypeId>) -> Option<Shape> {
    if let Some(element) = word.strip_prefix("[]") {
        return Some(Shape::List(Box::new(parse_shape(element, resolve)?)));
    }
    if let Some(value) = word.strip_prefix("map<").and_then(|rest| rest.strip_suffix('>')) {
        return Some(Shape::Map(Box::new(parse_shape(value, resolve)?)));
    }
    Some(match word {
        "string" => Shape::String,
        "bytes" => Shape::Bytes,
        "bool" => Shape::Bool,
        "int32" => Shape::Int32,
        "int64" => Shape::Int64,
        "double" => Shape::Double,
        "quantity" => Shape::Quantity,
        "intorstring" => Shape::IntOrString,
        "time" => Shape::Time,
        "microtime" => Shape::MicroTime,
        "duration" => Shape::Duration,
        "raw" => Shape::Raw,
        "json" => Shape::Json,
        "fieldsv1" => Shape::FieldsV1,
        "extravalue" => Shape::ExtraValue,
        name => Shape::Struct(resolve(name)?),
    })
}

fn parse_either(word: &str) -> Option<SchemaOr> {
    Some(match word {
        "bool" => SchemaOr::Bool,
        "list" => SchemaOr::List,
        "strings" => SchemaOr::Strings,
        _ => return None,
    })
}

fn set_flag(field: &mut Field, flag: &str) -> Option<()> {
    let (name, value) = flag.split_once('=').unwrap_or((flag, ""));
    let words = |list: &str| list.split(',').map(Box::from).collect::<Vec<Box<str>>>();
    match name {
        "ptr" => field.pointer = true,
        "keep" => field.keep = true,
        "required" => field.required = true,
        "list" => {
            field.list = match value.split_once(':') {
                Some(("map", keys)) => ListType::Map(words(keys)),
                None if value == "set" => ListType::Set,
                None if value == "atomic" => ListType::Atomic,
                _ => return None,
            }
        }
        "map" => {
            field.atomic = value == "atomic";
            field.granular = value == "granular";
        }
        "patch" => {
            field.patch.merge = value.contains("merge");
            field.patch.retain_keys = value.contains("retainKeys");
            field.patch.replace = value.contains("replace");
        }
        "key" => field.patch.merge_key = Some(value.into()),
        "enum" => field.values = words(&value.replace('~', " ")),
        "milli" => field.milli = true,
        "unpublished" => field.unpublished = true,
        "assume" => field.assume = Some(serde_json::from_str(value).ok()?),
        "default" => field.default = Some(serde_json::from_str(value).ok()?),
        _ => return None,
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_that_cannot_be_read_is_named() {
        let bad = parse("package a a\ntype T\n  x nonsense 1\n").expect_err("unknown shape");
        assert_eq!(bad.to_string(), "line 3: unknown shape:   x nonsense 1");
    }
}
