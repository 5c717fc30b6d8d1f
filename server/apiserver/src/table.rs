//! `kubectl get`'s tables: columns and cells of objects, made by the kind's strategy.

use std::sync::Arc;

use ferry_api::{Kind, Object, Status};
use ferry_registry::Resource;
use ferry_registry::columns::{Column, NAME};
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::request::Request;
use crate::respond::partial;
use crate::verbs::Target;

/// What a row carries besides its cells.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Include {
    None,
    Metadata,
    Object,
}

/// How the objects of a list become rows.
pub struct Rows {
    resource: Arc<Resource>,
    kind: Arc<Kind>,
    include: Include,
    now: Timestamp,
}

impl Rows {
    pub fn new(target: Target<'_>) -> Result<Rows, Status> {
        Ok(Rows {
            resource: target.resource.clone(),
            kind: target.kind.clone(),
            include: Include::parse(target.request.query.text("includeObject"))?,
            now: Timestamp::now(),
        })
    }

    fn columns(&self) -> &[Column] {
        self.resource.strategy.columns(&self.kind.version)
    }

    pub fn definitions(&self) -> Vec<Value> {
        definitions(self.columns())
    }

    pub fn row(&self, object: &Object) -> Value {
        row(object, self.columns(), self.include, self.now)
    }
}

pub fn of_objects(
    request: &Request,
    columns: &[Column],
    objects: &[Object],
    meta: Value,
) -> Result<Value, Status> {
    let include = Include::parse(request.query.text("includeObject"))?;
    let now = Timestamp::now();
    let rows: Vec<Value> = objects.iter().map(|object| row(object, columns, include, now)).collect();
    Ok(json!({
        "kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": meta,
        "columnDefinitions": definitions(columns), "rows": rows,
    }))
}

/// A watch event as a table of one row; only the first brings the columns.
pub fn of_event(
    columns: &[Column],
    object: &Object,
    include: &str,
    with_columns: bool,
) -> Result<Value, Status> {
    let include = Include::parse(include)?;
    Ok(json!({
        "kind": "Table", "apiVersion": "meta.k8s.io/v1",
        "metadata": {"resourceVersion": object.resource_version()},
        "columnDefinitions": if with_columns { Value::from(definitions(columns)) } else { Value::Null },
        "rows": [row(object, columns, include, Timestamp::now())],
    }))
}

impl Include {
    fn parse(text: &str) -> Result<Include, Status> {
        match text {
            "None" => Ok(Include::None),
            "" | "Metadata" => Ok(Include::Metadata),
            "Object" => Ok(Include::Object),
            other => Err(Status::bad_request(format!("unrecognized includeObject value: {other:?}"))),
        }
    }
}

fn definitions(columns: &[Column]) -> Vec<Value> {
    let name = (!has_own_name(columns)).then(|| {
        json!({
            "name": "Name", "type": "string", "format": "name", "priority": 0,
            "description": "The name of the object, unique among those of its kind and namespace.",
        })
    });
    let others = columns.iter().map(|column| {
        json!({
            "name": column.name, "type": column.kind, "format": column.format, "priority": column.priority,
            "description": column.description,
        })
    });
    name.into_iter().chain(others).collect()
}

/// Some kinds say more in the name's cell, or show it elsewhere.
fn has_own_name(columns: &[Column]) -> bool {
    columns.iter().any(|column| column.name == NAME)
}

fn row(object: &Object, columns: &[Column], include: Include, now: Timestamp) -> Value {
    let name = (!has_own_name(columns)).then(|| Value::from(object.name()));
    let cells: Vec<Value> =
        name.into_iter().chain(columns.iter().map(|column| column.cell(object, now))).collect();
    match include {
        Include::None => json!({"cells": cells, "object": null}),
        Include::Metadata => json!({"cells": cells, "object": partial(object).into_value()}),
        Include::Object => json!({"cells": cells, "object": object.clone().into_value()}),
    }
}
