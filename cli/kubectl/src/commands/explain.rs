//! `kubectl explain`: a kind's fields, out of the server's OpenAPI v3 document.

use serde_json::Value;

use super::INTERMEDIATE;
use crate::cli::Cli;
use crate::command::Command;
use crate::discovery::Resource;
use crate::error::{Error, Result};
use crate::fields::Fields;
use crate::flags::Flag;

pub const COMMAND: Command = Command {
    name: "explain",
    group: INTERMEDIATE,
    short: "Describe the fields of a kind",
    usage: "TYPE [--recursive=FALSE|TRUE] [--api-version=api-version-group] [-o|--output=plaintext|plaintext-openapiv2]",
    flags: &[&[
        Flag::text("api-version", "Of this group and version"),
        Flag::bool("recursive", "Show fields of fields, names only").short('R'),
        Flag::text("output", "plaintext").short('o').default("plaintext"),
    ]],
    run: Some(|cli| Box::pin(run(cli))),
    ..Command::NONE
};

async fn run(cli: &Cli) -> Result<()> {
    let args = &cli.args;
    let word = match args.positional.as_slice() {
        [] => {
            return Err(Error::message(
                "You must specify the type of resource to explain. Use \"kubectl api-resources\" for a complete list of supported resources.",
            ));
        }
        [word] => word,
        many => {
            return Err(Error::message(format!(
                "We accept only this format: explain RESOURCE\nSee 'kubectl explain -h' for help and examples, not {} arguments",
                many.len()
            )));
        }
    };
    if !matches!(args.text("output"), "plaintext" | "plaintext-openapiv2") {
        return Err(Error::message(format!("unrecognized format: {}", args.text("output"))));
    }
    let (resource, path) = find(cli, word).await?;
    let root = if resource.group.is_empty() {
        format!("api/{}", resource.version)
    } else {
        format!("apis/{}/{}", resource.group, resource.version)
    };
    let document = cli.client()?.get_json(&format!("/openapi/v3/{root}")).await?;
    let schema = kind_schema(&document, &resource).ok_or_else(|| {
        Error::message(format!(
            "GVR ({}/{}, Resource={}) not found in OpenAPI schema",
            resource.group, resource.version, resource.name
        ))
    })?;
    if !resource.group.is_empty() {
        cli.line(format!("GROUP:      {}", resource.group))?;
    }
    cli.print(&format!("KIND:       {}\nVERSION:    {}\n\n", resource.kind, resource.version))?;
    cli.flush()?;
    let explain = Explain { document: &document, recursive: args.bool("recursive") };
    match explain.output(schema, &path, &mut Vec::new()) {
        Some(text) => cli.line(text),
        None => Err(Error::message(format!(
            "field {:?} does not exist",
            path.last().map(String::as_str).unwrap_or_default()
        ))),
    }
}

/// `deployments.apps.spec.replicas`: the longest front part that names a resource, and the rest.
async fn find(cli: &Cli, word: &str) -> Result<(Resource, Vec<String>)> {
    let parts: Vec<&str> = word.split('.').collect();
    let discovery = cli.discovery().await?;
    let (name, fields) = parts.split_first().map(|(name, fields)| (*name, fields)).unwrap_or((word, &[]));
    let owned = |fields: &[&str]| fields.iter().map(|field| (*field).to_owned()).collect();
    let wanted = cli.args.text("api-version");
    if !wanted.is_empty() {
        let found = cli.resource(name).await.map_err(|error| Error::plain(error.to_string()))?;
        let versioned = discovery
            .resources
            .iter()
            .find(|resource| resource.name == found.name && resource.group_version() == wanted);
        let versioned = versioned.ok_or_else(|| {
            Error::message(format!("couldn't find resource for \"{wanted}, Resource={}\"", found.name))
        })?;
        return Ok((versioned.clone(), owned(fields)));
    }
    // a group may follow the resource, but fields do too: the plain name decides unless only the group fits
    for end in (1..=parts.len()).rev() {
        let candidate = parts[..end].join(".");
        let fits = discovery.resources.iter().any(|resource| {
            end > 1
                && (resource.qualified() == candidate
                    || candidate.strip_prefix(&format!("{}.", resource.name))
                        == Some(resource.group.as_str()))
        });
        if fits {
            let found = cli.resource(&candidate).await?;
            return Ok(((*found).clone(), owned(&parts[end..])));
        }
    }
    let found = cli.resource(name).await.map_err(|error| match error {
        Error::NoMatch { .. } => Error::plain(error.to_string()),
        other => other,
    })?;
    Ok(((*found).clone(), owned(fields)))
}

fn kind_schema<'a>(document: &'a Value, resource: &Resource) -> Option<&'a Value> {
    document.map("components.schemas")?.values().find(|schema| {
        schema.list("x-kubernetes-group-version-kind").iter().any(|kind| {
            kind.text("group") == resource.group
                && kind.text("version") == resource.version
                && kind.text("kind") == resource.kind
        })
    })
}

struct Explain<'a> {
    document: &'a Value,
    recursive: bool,
}

impl<'a> Explain<'a> {
    fn resolve(&self, schema: &'a Value) -> &'a Value {
        match schema.text("$ref").rsplit('/').next() {
            Some(name) if !name.is_empty() => self
                .document
                .map("components.schemas")
                .and_then(|schemas| schemas.get(name))
                .unwrap_or(schema),
            _ => schema,
        }
    }

    /// Follows the path; `None` when it leads nowhere.
    fn output(&self, schema: &'a Value, path: &[String], seen: &mut Vec<&'a str>) -> Option<String> {
        let resolved = self.resolve(schema);
        let Some((field, rest)) = path.split_first() else { return Some(self.page(resolved)) };
        let reference = schema.text("$ref");
        if !reference.is_empty() {
            if seen.contains(&reference) {
                return None;
            }
            seen.push(reference);
        }
        if let Some(property) = resolved.map("properties").and_then(|properties| properties.get(field)) {
            let inner = self.output(property, rest, &mut Vec::new())?;
            if !rest.is_empty() {
                return Some(inner);
            }
            let choices = self.choices(property);
            return Some(format!("FIELD: {field} <{}>\n{choices}\n\n{inner}", self.type_of(property)));
        }
        if resolved.has("items") {
            return self.output(resolved.at("items"), path, seen);
        }
        if resolved.at("additionalProperties").is_object() {
            return self.output(resolved.at("additionalProperties"), path, seen);
        }
        resolved.list("allOf").iter().find_map(|alternative| self.output(alternative, path, seen))
    }

    fn page(&self, schema: &'a Value) -> String {
        let description = match self.description(schema) {
            text if text.is_empty() => "<empty>".to_owned(),
            text => text,
        };
        let mut text = format!("DESCRIPTION:\n{}\n", indent(4, &wrap(76, &description)));
        let fields = self.fields(schema, 1, &mut Vec::new());
        if !fields.is_empty() {
            text.push_str(&format!("FIELDS:\n{fields}"));
        }
        text
    }

    /// The schema's own words, then those of what it is made of.
    fn description(&self, schema: &'a Value) -> String {
        let schema = self.resolve(schema);
        let mut text = match schema.text("description") {
            "" => String::new(),
            words => format!("{words}\n"),
        };
        for part in schema.list("allOf") {
            text.push_str(&self.description(part));
        }
        for inner in ["items", "additionalProperties"] {
            if schema.at(inner).is_object() {
                text.push_str(&self.description(schema.at(inner)));
            }
        }
        text
    }

    fn fields(&self, schema: &'a Value, level: usize, seen: &mut Vec<&'a str>) -> String {
        let reference = schema.text("$ref");
        if !reference.is_empty() && seen.contains(&reference) {
            return String::new();
        }
        let depth = seen.len();
        seen.push(reference);
        let resolved = self.resolve(schema);
        let mut text = String::new();
        for (name, property) in resolved.entries("properties") {
            text.push_str(&self.field(resolved, name, property, level));
            if self.recursive {
                text.push_str(&self.fields(property, level + 1, seen));
            }
        }
        for part in resolved.list("allOf") {
            text.push_str(&self.fields(part, level, seen));
        }
        for inner in ["items", "additionalProperties"] {
            if resolved.at(inner).is_object() {
                text.push_str(&self.fields(resolved.at(inner), level, seen));
            }
        }
        seen.truncate(depth);
        text
    }

    fn field(&self, schema: &Value, name: &str, property: &'a Value, level: usize) -> String {
        let margin = level * 2;
        let required =
            if schema.list("required").iter().any(|known| known == name) { " -required-" } else { "" };
        let mut text = format!("{:margin$}{name}\t<{}>{required}", "", self.type_of(property));
        let choices = property.list("enum");
        if !choices.is_empty() {
            let shown: Vec<String> = choices.iter().take(4).map(choice).collect();
            let more = if choices.len() > 4 { ", ...." } else { "" };
            text.push_str(&format!("\n{:margin$}enum: {}{more}", "", shown.join(", ")));
        }
        text.push('\n');
        if !self.recursive {
            let description = match property.text("description") {
                "" => "<no description>",
                words => words,
            };
            text.push_str(&format!("{}\n\n", indent(margin + 2, &wrap(78 - margin, description))));
        }
        text
    }

    fn choices(&self, property: &Value) -> String {
        let choices = property.list("enum");
        if choices.is_empty() {
            return String::new();
        }
        format!("ENUM:{}", choices.iter().map(|value| format!("\n    {}", choice(value))).collect::<String>())
    }

    fn type_of(&self, schema: &'a Value) -> String {
        if schema.has("items") {
            return format!("[]{}", self.type_of(schema.at("items")));
        }
        if schema.at("additionalProperties").is_object() {
            return format!("map[string]{}", self.type_of(schema.at("additionalProperties")));
        }
        if !schema.has("properties")
            && let [only] = schema.list("allOf")
        {
            return self.type_of(only);
        }
        let reference = schema.text("$ref");
        if !reference.is_empty() {
            let kind = self.resolve(schema).text("type");
            if kind.is_empty() || kind == "object" {
                return reference.rsplit(['/', '.']).next().unwrap_or("Object").to_owned();
            }
            return kind.to_owned();
        }
        match schema.text("type") {
            "" | "object" => "Object".to_owned(),
            kind => kind.to_owned(),
        }
    }
}

fn choice(value: &Value) -> String {
    match value {
        Value::String(text) if text.is_empty() => "\"\"".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

fn indent(margin: usize, text: &str) -> String {
    let pad = " ".repeat(margin);
    format!("{pad}{}", text.replace('\n', &format!("\n{pad}")))
}

/// Breaks between words. Words longer than a line stay whole.
fn wrap(width: usize, text: &str) -> String {
    let mut lines = Vec::new();
    for paragraph in text.split('\n') {
        // a list's entries keep the space they start with
        let mut line = paragraph[..paragraph.len() - paragraph.trim_start_matches(' ').len()].to_owned();
        let mut has_word = false;
        for word in paragraph.split_whitespace() {
            if has_word && line.chars().count() + 1 + word.chars().count() > width {
                lines.push(std::mem::take(&mut line));
                has_word = false;
            }
            if has_word {
                line.push(' ');
            }
            line.push_str(word);
            has_word = true;
        }
        lines.push(line);
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn types_are_guessed_from_the_schema() {
        let check = |schema: Value, expected: &str| {
            let document = json!({"components": {"schemas": {"io.k8s.Pod": {"type": "object"}, "io.k8s.Quantity": {"type": "string"}}}});
            let explain = Explain { document: &document, recursive: false };
            assert_eq!(explain.type_of(&schema), expected);
        };
        check(json!({"type": "string"}), "string");
        check(
            json!({"type": "array", "items": {"allOf": [{"$ref": "#/components/schemas/io.k8s.Pod"}]}}),
            "[]Pod",
        );
        check(
            json!({"additionalProperties": {"$ref": "#/components/schemas/io.k8s.Quantity"}}),
            "map[string]string",
        );
        check(json!({"type": "object"}), "Object");
    }

    #[test]
    fn words_wrap_between_words() {
        assert_eq!(wrap(10, "one two three\nfour"), "one two\nthree\nfour");
    }
}
