//! The fields of a kind that is not built in, as the server tells them: discovery names the kind of a resource, OpenAPI v3 has
//! its schema. Whoever may read nothing else may read these.

use ferry_api::{GroupVersionKind, Schema};
use ferry_client::{Attempt, Client, Error, error};
use ferry_schema::Structural;
use serde_json::Value;

use super::Resource;

/// `None` where nobody serves the resource, or nobody says what its objects look like.
pub async fn kind_of(
    client: &Client,
    resource: &Resource,
) -> Result<Option<(GroupVersionKind, Schema)>, Error> {
    // All that the core group has is built in.
    if resource.group.is_empty() {
        return Ok(None);
    }
    let api_version = format!("{}/{}", resource.group, resource.version);
    let served = error::ignore_not_found(client.list_api_group_resources(&api_version).await)
        .attempting("read the resources of a group")?;
    let served = served.into_iter().flat_map(|list| list.resources);
    let Some(kind) = served.filter(|known| known.name == resource.plural).map(|known| known.kind).next()
    else {
        return Ok(None);
    };
    let gvk = GroupVersionKind::new(resource.group.clone(), resource.version.clone(), kind);
    let request = http::Request::get(format!("/openapi/v3/apis/{api_version}")).body(Vec::new());
    let request = request.map_err(kube::Error::HttpError).attempting("ask for the schema of a kind")?;
    let document = error::ignore_not_found(client.request::<Value>(request).await)
        .attempting("read the schema of a kind")?;
    Ok(document.and_then(|document| schema_in(&document, &gvk)).map(|schema| (gvk, schema)))
}

/// The schema of the kind in a document of OpenAPI v3.
fn schema_in(document: &Value, gvk: &GroupVersionKind) -> Option<Schema> {
    let is_kind = |name: &Value| {
        let is = |field: &str, wanted: &str| name[field].as_str() == Some(wanted);
        is("group", &gvk.group) && is("version", &gvk.version) && is("kind", &gvk.kind)
    };
    let schemas = document["components"]["schemas"].as_object()?;
    let mut schema = schemas
        .values()
        .find(|schema| {
            schema["x-kubernetes-group-version-kind"]
                .as_array()
                .is_some_and(|names| names.iter().any(is_kind))
        })?
        .clone();
    let schema_fields = schema.as_object_mut()?;
    schema_fields.remove("x-kubernetes-group-version-kind");
    // It refers to the document's own definition of metadata, whose fields are known.
    schema_fields
        .get_mut("properties")
        .and_then(Value::as_object_mut)
        .map(|fields| fields.remove("metadata"));
    match Structural::parse(&schema) {
        Ok(schema) => Some(schema.rows(gvk)),
        Err(why) => {
            tracing::debug!(%gvk, why, "expressions about this kind are not checked");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_kind_is_found_by_its_name_in_the_document() {
        let name = json!([{"group": "example.com", "version": "v1", "kind": "CronTab"}]);
        let metadata = json!({"allOf": [{"$ref": "#/components/schemas/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"}]});
        let spec = json!({"type": "object", "properties": {"replicas": {"type": "integer"}}});
        let schema = json!({"type": "object", "x-kubernetes-group-version-kind": name,
            "properties": {"apiVersion": {"type": "string"}, "kind": {"type": "string"}, "metadata": metadata, "spec": spec}});
        let list = json!({"type": "object", "x-kubernetes-group-version-kind": [{"group": "example.com", "version": "v1", "kind": "CronTabList"}]});
        let document = json!({"components": {"schemas": {"a.List": list, "b.CronTab": schema}}});
        let found =
            |kind: &'static str| schema_in(&document, &GroupVersionKind::new("example.com", "v1", kind));
        let fields = |schema: &Schema| {
            schema.root().fields.iter().map(|field| field.name.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(
            found("CronTab").as_ref().map(fields),
            Some(["apiVersion", "kind", "metadata", "spec"].map(String::from).into())
        );
        assert!(found("Other").is_none());
    }
}
