//! Tables as the server makes them, printed with the columns the user asked for.

use serde_json::{Value, json};

use super::columns::{TABLE, align_remembering};
use crate::fields::Fields;
use ferry_api::json_path::to_text;

#[derive(Debug, Clone, Default)]
pub struct Options {
    pub wide: bool,
    pub no_headers: bool,
    pub with_namespace: bool,
    /// Prefix names with `deployment.apps/`, when several kinds are shown.
    pub kind_prefix: Option<String>,
    pub label_columns: Vec<String>,
    pub show_labels: bool,
}

/// Prints tables one after the other; headers come again only when the columns change.
pub struct Printer {
    options: Options,
    columns: Vec<Value>,
    printed_headers: bool,
    widths: Vec<usize>,
}

impl Printer {
    pub fn new(options: Options) -> Self {
        Printer { options, columns: Vec::new(), printed_headers: false, widths: Vec::new() }
    }

    /// The table's text, aligned with everything this printer printed before.
    pub fn print(&mut self, table: &Value, event: Option<&str>) -> String {
        let text = self.rows(table, event);
        if text.is_empty() {
            return text;
        }
        align_remembering(&text, TABLE, &mut self.widths)
    }

    /// The table's cells, not yet aligned.
    pub fn rows(&mut self, table: &Value, event: Option<&str>) -> String {
        let columns = table.list("columnDefinitions");
        let mut headers = !self.options.no_headers;
        if self.printed_headers && (columns.is_empty() || columns == self.columns.as_slice()) {
            headers = false;
        }
        if !columns.is_empty() && columns != self.columns.as_slice() {
            self.columns = columns.to_vec();
        }
        let rows = table.list("rows");
        if rows.is_empty() {
            return String::new();
        }
        self.printed_headers = true;
        let shown: Vec<usize> = (0..self.columns.len())
            .filter(|position| self.options.wide || self.columns[*position].int("priority").unwrap_or(0) == 0)
            .collect();
        let mut text = String::new();
        if headers {
            text.push_str(&self.header_cells(&shown, event).join("\t"));
            text.push('\n');
        }
        for row in rows {
            text.push_str(&self.row_cells(row, &shown, event).join("\t"));
            text.push('\n');
        }
        text
    }

    fn header_cells(&self, shown: &[usize], event: Option<&str>) -> Vec<String> {
        let mut cells = Vec::new();
        if event.is_some() {
            cells.push("EVENT".to_owned());
        }
        if self.options.with_namespace {
            cells.push("NAMESPACE".to_owned());
        }
        cells.extend(shown.iter().map(|position| self.columns[*position].text("name").to_uppercase()));
        for label in &self.options.label_columns {
            cells.push(label.rsplit('/').next().unwrap_or(label).to_uppercase());
        }
        if self.options.show_labels {
            cells.push("LABELS".to_owned());
        }
        cells
    }

    fn row_cells(&self, row: &Value, shown: &[usize], event: Option<&str>) -> Vec<String> {
        let object = row.at("object");
        let mut cells = Vec::new();
        if let Some(event) = event {
            cells.push(format!("{event:<8}"));
        }
        if self.options.with_namespace {
            cells.push(object.namespace().to_owned());
        }
        let row_cells = row.list("cells");
        for position in shown {
            let column = &self.columns[*position];
            let text = row_cells.get(*position).map(cell_text).unwrap_or_default();
            match &self.options.kind_prefix {
                Some(prefix) if column.text("format") == "name" && column.text("type") == "string" => {
                    cells.push(format!("{prefix}/{text}"));
                }
                _ => cells.push(text),
            }
        }
        for label in &self.options.label_columns {
            cells.push(object.keyed("metadata.labels", label).to_owned());
        }
        if self.options.show_labels {
            cells.push(labels_text(object));
        }
        cells
    }
}

pub fn labels_text(object: &Value) -> String {
    let labels = object.entries("metadata.labels");
    if labels.is_empty() {
        return "<none>".to_owned();
    }
    labels.into_iter().map(|(key, value)| format!("{key}={}", to_text(value))).collect::<Vec<_>>().join(",")
}

/// Cells are cut at a line break, and cannot move the cursor.
fn cell_text(cell: &Value) -> String {
    let text = match cell {
        Value::String(text) => text.clone(),
        Value::Null => return String::new(),
        other => to_text(other),
    };
    let (text, cut) = match text.find(['\n', '\r', '\u{c}']) {
        Some(position) => (&text[..position], "..."),
        None => (text.as_str(), ""),
    };
    format!("{}{cut}", super::inert(text))
}

/// A table for objects whose server gave none: name and age.
pub fn from_objects(objects: &[Value], now: jiff::Timestamp) -> Value {
    let rows: Vec<Value> = objects
        .iter()
        .map(|object| {
            let age = super::duration::age(object.text("metadata.creationTimestamp"), now);
            json!({"cells": [object.name(), age], "object": object})
        })
        .collect();
    json!({"kind": "Table", "columnDefinitions": [
        {"name": "Name", "type": "string", "format": "name"}, {"name": "Age", "type": "string"}], "rows": rows})
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Value {
        json!({"columnDefinitions": [
            {"name": "Name", "type": "string", "format": "name", "priority": 0},
            {"name": "Ready", "type": "string", "priority": 0},
            {"name": "IP", "type": "string", "priority": 1}],
          "rows": [{"cells": ["web", "1/1", "10.0.0.1"], "object": {"metadata": {"namespace": "default", "labels": {"app": "web", "x/tier": "front"}}}},
                   {"cells": ["db\nsecond line", 2, null], "object": {"metadata": {"namespace": "kube-system"}}}]})
    }

    #[test]
    fn wide_columns_show_on_request() {
        let print = |options: Options| Printer::new(options).print(&table(), None);
        assert_eq!(print(Options::default()), "NAME    READY\nweb     1/1\ndb...   2\n");
        assert_eq!(
            print(Options { wide: true, with_namespace: true, ..Options::default() }),
            "NAMESPACE     NAME    READY   IP\ndefault       web     1/1     10.0.0.1\nkube-system   db...   2       \n"
        );
    }

    #[test]
    fn labels_become_columns() {
        let options = Options {
            label_columns: vec!["x/tier".to_owned()],
            show_labels: true,
            no_headers: true,
            kind_prefix: Some("pod".to_owned()),
            ..Options::default()
        };
        assert_eq!(
            Printer::new(options).print(&table(), None),
            "pod/web     1/1   front   app=web,x/tier=front\npod/db...   2             <none>\n"
        );
    }

    #[test]
    fn headers_come_once() {
        let mut printer = Printer::new(Options::default());
        printer.print(&table(), None);
        let more = json!({"columnDefinitions": [], "rows": [{"cells": ["api", "0/1", ""]}]});
        assert_eq!(printer.print(&more, None), "api     0/1\n");
    }
}
