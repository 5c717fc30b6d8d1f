//! `-o custom-columns=NAME:.metadata.name,…`: a table of the user's own making.

use serde_json::Value;

use super::columns::{TABLE, align};
use crate::error::{Error, Result};
use crate::fields::Fields;
use ferry_api::json_path::{Template, to_text};

#[derive(Debug, Clone, PartialEq)]
pub struct Columns {
    columns: Vec<(String, Template)>,
    headers: bool,
}

impl Columns {
    pub fn parse(spec: &str) -> Result<Self> {
        let mut columns = Vec::new();
        for part in spec.split(',') {
            let Some((header, path)) =
                part.split_once(':').filter(|(header, path)| !header.is_empty() && !path.is_empty())
            else {
                return Err(Error::message(format!(
                    "unexpected custom-columns spec: {part}, expected <header>:<json-path-expr>"
                )));
            };
            columns.push((header.to_owned(), relaxed(path)?));
        }
        Ok(Columns { columns, headers: true })
    }

    /// Two lines: headers, then paths, each separated by white space.
    pub fn parse_file(text: &str) -> Result<Self> {
        let mut lines = text.lines();
        let headers: Vec<&str> = lines.next().unwrap_or_default().split_whitespace().collect();
        let paths: Vec<&str> = lines.next().unwrap_or_default().split_whitespace().collect();
        if headers.len() != paths.len() || headers.is_empty() {
            return Err(Error::message(format!(
                "number of headers ({}) and field specifications ({}) don't match",
                headers.len(),
                paths.len()
            )));
        }
        let columns: Result<Vec<_>> = headers
            .into_iter()
            .zip(paths)
            .map(|(header, path)| Ok((header.to_owned(), relaxed(path)?)))
            .collect();
        Ok(Columns { columns: columns?, headers: true })
    }

    pub fn no_headers(mut self, without: bool) -> Self {
        self.headers = !without;
        self
    }

    pub fn print(&self, object: &Value) -> Result<String> {
        let mut text = String::new();
        if self.headers {
            let headers: Vec<&str> = self.columns.iter().map(|(header, _)| header.as_str()).collect();
            text = format!("{}\n", headers.join("\t"));
        }
        let rows: Vec<&Value> =
            if object.is_list() { object.list("items").iter().collect() } else { vec![object] };
        for row in rows {
            let cells: Result<Vec<String>> = self.columns.iter().map(|(_, path)| cell(path, row)).collect();
            text.push_str(&format!("{}\n", cells?.join("\t")));
        }
        Ok(align(&text, TABLE))
    }
}

fn relaxed(path: &str) -> Result<Template> {
    Template::parse_relaxed(path).map_err(Error::message)
}

fn cell(path: &Template, row: &Value) -> Result<String> {
    let values = path.evaluate(row, true).map_err(Error::message)?.values();
    if values.is_empty() {
        return Ok("<none>".to_owned());
    }
    let texts: Vec<String> = values
        .iter()
        .map(|value| if value.is_null() { "<nil>".to_owned() } else { go_text(value) })
        .collect();
    Ok(texts.join(","))
}

/// Go's `%v`: maps and lists in brackets.
fn go_text(value: &Value) -> String {
    match value {
        Value::Array(items) => format!("[{}]", items.iter().map(go_text).collect::<Vec<_>>().join(" ")),
        Value::Object(map) => {
            let mut keys: Vec<&String> = map.keys().collect();
            keys.sort();
            let entries: Vec<String> =
                keys.into_iter().map(|key| format!("{key}:{}", go_text(&map[key]))).collect();
            format!("map[{}]", entries.join(" "))
        }
        Value::Null => "<nil>".to_owned(),
        other => to_text(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn columns_come_from_paths() {
        let list = json!({"kind": "List", "items": [{"a": "x", "b": [1, 2]}, {"a": "longer"}]});
        let columns = Columns::parse("A:.a,B:.b[*],C:{.b}").unwrap();
        assert_eq!(
            columns.print(&list).unwrap(),
            "A        B        C\nx        1,2      [1 2]\nlonger   <none>   <none>\n"
        );
        assert!(Columns::parse("A").is_err());
    }
}
