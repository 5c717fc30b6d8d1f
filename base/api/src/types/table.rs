//! Reading `table/types.txt`. Its own header says what its lines mean.

use std::collections::HashMap;
use std::fmt::{self, Display};

use super::{Either, EitherOther, Field, ListType, Shape, Type, TypeId, Types, Union, Wire};
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
    // Names first, so that a row may refer to a type further down.
    let mut ids: HashMap<String, TypeId> = HashMap::new();
    let mut packages: HashMap<&str, &str> = HashMap::new();
    let mut package = "";
    for line in text.lines() {
        let mut words = line.split_ascii_whitespace();
        match (line.starts_with(' '), words.next()) {
            (false, Some("package")) => {
                let alias = words.next().unwrap_or("");
                package = words.next().unwrap_or("");
                packages.insert(alias, package);
            }
            (false, Some("type")) => {
                let name = format!("{package}.{}", words.next().unwrap_or(""));
                let id = TypeId(ids.len() as u32);
                ids.insert(name, id);
            }
            _ => {}
        }
    }
    let resolve = |word: &str, package: &str| -> Option<TypeId> {
        match word.rsplit_once('.') {
            Some((alias, name)) => ids.get(&format!("{}.{name}", packages.get(alias)?)).copied(),
            None => ids.get(&format!("{package}.{word}")).copied(),
        }
    };

    let mut drafts: Vec<Draft> = Vec::with_capacity(ids.len());
    let mut package = "";
    for (number, line) in text.lines().enumerate() {
        let bad = |why: &str| BadRow { line: number + 1, why: format!("{why}: {line}") };
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        match (line.starts_with(' '), words.as_slice()) {
            (_, []) => {}
            (false, ["package", _, full]) => package = full,
            (false, ["type", name, flags @ ..]) => {
                let either = match flags.iter().find_map(|flag| flag.strip_prefix("either=")) {
                    None => None,
                    Some(word) => Some(Either {
                        schema: resolve("JSONSchemaProps", package)
                            .ok_or_else(|| bad("no schema in this package"))?,
                        other: parse_either(word).ok_or_else(|| bad("unknown either"))?,
                    }),
                };
                drafts.push(Draft {
                    ty: Type {
                        name: format!("{package}.{name}").into(),
                        atomic: flags.contains(&"map=atomic"),
                        published: flags.contains(&"published"),
                        either,
                        ..Type::default()
                    },
                    own: Vec::new(),
                    inlines: Vec::new(),
                    package,
                })
            }
            (false, [first, ..]) if first.starts_with('#') => {}
            (true, row) => {
                let draft = drafts.last_mut().ok_or_else(|| bad("field before a type"))?;
                match row {
                    ["typemeta"] => draft.ty.has_type_meta = true,
                    ["gvk", group_version, kind] => {
                        draft.ty.kinds.push(GroupVersionKind::from_api_version(group_version, kind))
                    }
                    ["union", discriminator, fields] => {
                        let fields = fields.split(',').map(|pair| {
                            pair.split_once(':').map(|(field, name)| (field.into(), name.into()))
                        });
                        draft.ty.union = Some(Union {
                            discriminator: (*discriminator != "-").then(|| (*discriminator).into()),
                            fields: fields.collect::<Option<_>>().ok_or_else(|| bad("unknown union"))?,
                        });
                    }
                    ["assume", path, value] => {
                        let path = path.split('.').map(Box::from).collect();
                        let value = serde_json::from_str(value).map_err(|_| bad("no JSON"))?;
                        draft.ty.assumptions.push((path, value));
                    }
                    ["inline", name, ty, tag] => {
                        draft.inlines.push(((*name).into(), ty, tag.parse().ok()));
                    }
                    [name, shape, tag, flags @ ..] => {
                        let shape = parse_shape(shape, &|word| resolve(word, draft.package))
                            .ok_or_else(|| bad("unknown shape"))?;
                        let mut field = Field::new(name, shape);
                        for flag in flags {
                            set_flag(&mut field, flag).ok_or_else(|| bad("unknown flag"))?;
                        }
                        draft.own.push((field, tag.parse().ok()));
                    }
                    _ => return Err(bad("unknown row")),
                }
            }
            _ => return Err(bad("unknown line")),
        }
    }
    assemble(drafts, &resolve)
}

/// Flattens inlined types into the JSON view and orders the wire view by tag.
fn assemble<'a>(
    drafts: Vec<Draft<'a>>,
    resolve: &dyn Fn(&str, &str) -> Option<TypeId>,
) -> Result<Types, BadRow> {
    let inlined = |draft: &Draft<'a>| -> Result<Vec<(TypeId, usize)>, BadRow> {
        draft
            .inlines
            .iter()
            .map(|(_, ty, _)| {
                let id = resolve(ty, draft.package).ok_or_else(|| BadRow {
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

fn parse_either(word: &str) -> Option<EitherOther> {
    Some(match word {
        "bool" => EitherOther::Bool,
        "list" => EitherOther::List,
        "strings" => EitherOther::Strings,
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
