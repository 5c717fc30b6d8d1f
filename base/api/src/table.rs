//! `Table`: how the server prints a list for people (`meta.k8s.io/v1`).

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

pub const API_VERSION: &str = "meta.k8s.io/v1";

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Table {
    pub kind: String,
    pub api_version: String,
    #[serde(default)]
    pub metadata: Map<String, Value>,
    #[serde(default)]
    pub column_definitions: Vec<Column>,
    #[serde(default)]
    pub rows: Vec<Row>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Column {
    pub name: String,
    #[serde(rename = "type")]
    pub kind: String,
    pub format: String,
    pub description: String,
    /// Columns above 0 are printed only with `-o wide`.
    pub priority: i32,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Row {
    pub cells: Vec<Value>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// The object of the row, its metadata, or nothing, as `includeObject` asks.
    #[serde(skip_serializing_if = "Value::is_null")]
    pub object: Value,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Condition {
    #[serde(rename = "type")]
    pub kind: String,
    pub status: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// How much of the object stands in each row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum IncludeObject {
    None,
    #[default]
    Metadata,
    Object,
}

impl Table {
    pub fn new(column_definitions: Vec<Column>) -> Table {
        Table {
            kind: "Table".into(),
            api_version: API_VERSION.into(),
            metadata: Map::new(),
            column_definitions,
            rows: Vec::new(),
        }
    }
}

impl Column {
    pub fn new(name: &str, kind: &str) -> Column {
        Column { name: name.into(), kind: kind.into(), ..Column::default() }
    }

    pub fn format(mut self, format: &str) -> Column {
        self.format = format.into();
        self
    }

    /// Only with `-o wide`.
    pub fn wide(mut self) -> Column {
        self.priority = 1;
        self
    }
}

impl IncludeObject {
    /// The `includeObject` parameter; None where it is no policy.
    pub fn parse(text: &str) -> Option<IncludeObject> {
        Some(match text {
            "" | "Metadata" => IncludeObject::Metadata,
            "None" => IncludeObject::None,
            "Object" => IncludeObject::Object,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_table_is_written_as_clients_read_it() {
        let mut table = Table::new(vec![
            Column::new("Name", "string").format("name"),
            Column::new("IP", "string").wide(),
        ]);
        table.rows.push(Row { cells: vec!["a".into(), 1.into()], ..Row::default() });
        assert_eq!(
            serde_json::to_value(&table).expect("JSON"),
            json!({"kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": {},
                "columnDefinitions": [
                    {"name": "Name", "type": "string", "format": "name", "description": "", "priority": 0},
                    {"name": "IP", "type": "string", "format": "", "description": "", "priority": 1}],
                "rows": [{"cells": ["a", 1]}]})
        );
    }
}
