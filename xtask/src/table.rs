//! `cargo xtask table --from DIR`: makes the field table (`base/api/table/types.txt`) from what upstream publishes with a
//! version: OpenAPI documents and protocol files, found anywhere below DIR (a checkout of Kubernetes has both).
//!
//! The published files say which types and fields there are, their shapes and tags, how lists and patches merge, what is
//! required, allowed and defaulted. Facts that stand in Go's types alone are kept from the table as it is: whether a
//! field is a pointer or written when empty (`ptr`, `keep`), defaults that are set but not published (`assume`), and
//! `milli`, `unpublished` and `either`. For a new field they are guessed and printed, to be read beside upstream's types.

mod messages;
mod rows;
mod schemas;

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result, bail};

use messages::{Messages, ProtoField};
use rows::{Row, Table, Type};
use schemas::{Property, Schema, Schemas};

const TABLE: &str = "base/api/table/types.txt";

pub fn run(words: &[&str]) -> Result<()> {
    let ["--from", directory] = words else {
        bail!("usage: cargo xtask table --from DIR");
    };
    let directory = Path::new(directory);
    let schemas = schemas::read(directory)?;
    let messages = messages::read(directory)?;
    if schemas.is_empty() || messages.is_empty() {
        bail!("{} has no OpenAPI documents or no protocol files", directory.display());
    }
    let text = std::fs::read_to_string(TABLE).with_context(|| format!("read {TABLE}"))?;
    let (table, review) = generate(&rows::parse(&text)?, &schemas, &messages);
    std::fs::write(TABLE, rows::print(&table)).with_context(|| format!("write {TABLE}"))?;
    for line in &review {
        println!("{line}");
    }
    println!("{TABLE} is written; {} lines above to review", review.len());
    Ok(())
}

/// The table that the published files make, and what somebody has to look at.
fn generate(old: &Table, schemas: &Schemas, messages: &Messages) -> (Table, Vec<String>) {
    let mut table = Table { header: old.header.clone(), ..Table::default() };
    let mut review = Vec::new();
    let mut wanted: BTreeSet<String> = old.types.keys().cloned().collect();
    wanted.extend(schemas.keys().filter(|name| messages::scalar(name).is_none()).cloned());
    while let Some(name) = wanted.pop_first() {
        if table.types.contains_key(&name) {
            continue;
        }
        let before = old.types.get(&name);
        let known = Known { name: &name, before, schema: schemas.get(&name) };
        let new = match (messages.get(&name), before) {
            // Upstream's wire has none of these: initializers, printed tables, the server's version.
            (None, Some(before)) if known.schema.is_some() || !before.is_published() => before.clone(),
            (None, Some(_)) => {
                review.push(format!("{name} is gone"));
                continue;
            }
            (None, None) => {
                review.push(format!("{name} has no protocol message: write its rows by hand"));
                continue;
            }
            (Some(_), Some(before)) if before.is_either() => before.clone(),
            (Some(fields), _) => {
                wanted.extend(fields.iter().filter_map(|field| field.message.clone()));
                known.rows(fields, &mut review)
            }
        };
        table.types.insert(name, new);
    }
    (table, review)
}

/// What is known of a type besides its protocol message.
struct Known<'a> {
    name: &'a str,
    before: Option<&'a Type>,
    schema: Option<&'a Schema>,
}

impl Known<'_> {
    fn rows(&self, fields: &[ProtoField], review: &mut Vec<String>) -> Type {
        if self.before.is_none() {
            review.push(format!("{} is new", self.name));
        }
        let mut made = Type::default();
        match self.schema {
            Some(schema) => {
                made.flags = schema.flags();
                let assumed = self.before.into_iter().flat_map(|before| &before.statements);
                let assumed = assumed.filter(|statement| statement.starts_with("assume ")).cloned();
                made.statements = [schema.kinds(), assumed.collect(), schema.unions()].concat();
                let is_field = |name: &str| fields.iter().any(|field| field.name == name);
                if schema.has_type_meta() && !is_field("kind") {
                    let kinds = made.statements.iter().filter(|line| line.starts_with("gvk ")).count();
                    made.statements.insert(kinds, "typemeta".into());
                }
            }
            None => {
                made.flags = self.before.map(|before| before.flags.clone()).unwrap_or_default();
                made.statements = self.before.map(|before| before.statements.clone()).unwrap_or_default();
            }
        }
        made.rows = fields.iter().map(|field| self.row(field, review)).collect();
        for row in self.before.into_iter().flat_map(|before| &before.rows) {
            if made.rows.iter().any(|new| new.tag == row.tag) {
                continue;
            }
            match row.flags.iter().any(|flag| flag == "unpublished") {
                true => insert_where_it_was(&mut made.rows, row, self.before),
                false => review.push(format!("{}.{} is gone", self.name, row.name)),
            }
        }
        made
    }

    fn row(&self, field: &ProtoField, review: &mut Vec<String>) -> Row {
        let package = self.name.rsplit_once('.').map_or("", |(package, _)| package);
        let (shape, tag) = (field.shape(package), field.tag.clone());
        let before = self
            .before
            .and_then(|before| before.rows.iter().find(|row| row.tag == tag && row.is_named(&field.name)));
        let property = self.schema.and_then(|schema| schema.property(&field.name));
        let name = match (before, &property) {
            (Some(before), _) => before.name.clone(),
            (None, Some((name, _))) => (*name).to_owned(),
            (None, None) => field.name.clone(),
        };
        // A message whose fields stand in the object itself has no property of its own.
        let is_inline = match (self.schema, before) {
            (Some(_), _) => property.is_none() && field.message.is_some(),
            (None, before) => before.is_some_and(|before| before.is_inline),
        };
        if is_inline {
            return Row { is_inline, name, shape, tag, flags: Vec::new() };
        }
        let mut flags = match (before, &property) {
            (Some(before), _) => before.flags.iter().filter(|flag| rows::is_of_go(flag)).cloned().collect(),
            (None, property) => {
                let guessed = guess(field, property.as_ref().map(|(_, property)| *property));
                review.push(format!("{}.{name} is new, taken for {guessed:?}", self.name));
                guessed
            }
        };
        match (&property, self.schema) {
            (Some((_, property)), Some(schema)) => {
                let has = |name: &str| flags.iter().any(|flag: &String| flag == name);
                let is_value = has("keep") && !has("ptr");
                flags.extend(schema.published_flags(property, is_value));
                // Allowed values are in what a server answers alone, and version 2 has no defaults.
                let says_values = flags.iter().any(|flag| flag.starts_with("enum="));
                let unsaid = before.into_iter().flat_map(|before| &before.flags).filter(|flag| {
                    (flag.starts_with("enum=") && !says_values)
                        || (flag.starts_with("default=") && schema.is_v2)
                });
                flags.extend(unsaid.cloned());
            }
            _ => {
                let published = before.into_iter().flat_map(|before| &before.flags);
                flags.extend(published.filter(|flag| !rows::is_of_go(flag)).cloned());
            }
        }
        flags.sort_by_key(|flag| rows::order(flag));
        Row { is_inline, name, shape, tag, flags }
    }
}

/// What a new field most likely is in Go: what is required is written even when empty, and an optional message is a pointer.
fn guess(field: &ProtoField, property: Option<&Property>) -> Vec<String> {
    let is_kept = property.is_some_and(|property| property.is_required || property.has_default());
    match (is_kept, field.message.is_some() && !field.is_repeated) {
        (true, _) => vec!["keep".into()],
        (false, true) => vec!["ptr".into()],
        (false, false) => Vec::new(),
    }
}

fn insert_where_it_was(rows: &mut Vec<Row>, row: &Row, before: Option<&Type>) {
    let earlier = before.into_iter().flat_map(|before| &before.rows).take_while(|other| other.tag != row.tag);
    let tags: BTreeSet<&str> = earlier.map(|other| &*other.tag).collect();
    let at = rows.iter().rposition(|other| tags.contains(&*other.tag)).map_or(0, |at| at + 1);
    rows.insert(at, row.clone());
}

#[cfg(test)]
mod tests;
