//! Which fields hold names, labels, images and so on: the defaults and what kustomizations add.

use serde::Deserialize;
use serde_json::Value;

use crate::error::{Error, Result, Within};
use crate::field_spec::{self, FieldSpec};
use crate::id::Gvk;

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub struct Configuration {
    pub name_prefix: Vec<FieldSpec>,
    pub name_suffix: Vec<FieldSpec>,
    pub namespace: Vec<FieldSpec>,
    pub common_labels: Vec<FieldSpec>,
    pub labels: Vec<FieldSpec>,
    pub template_labels: Vec<FieldSpec>,
    pub common_annotations: Vec<FieldSpec>,
    pub name_reference: Vec<NameReference>,
    pub var_reference: Vec<FieldSpec>,
    pub images: Vec<FieldSpec>,
    pub replicas: Vec<FieldSpec>,
}

/// The fields that hold the name of a resource of this kind.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub struct NameReference {
    pub group: String,
    pub version: String,
    pub kind: String,
    pub field_specs: Vec<FieldSpec>,
}

impl NameReference {
    pub fn gvk(&self) -> Gvk {
        Gvk { group: self.group.clone(), version: self.version.clone(), kind: self.kind.clone() }
    }
}

impl Configuration {
    pub fn read(text: &str) -> Result<Configuration> {
        let documents = ferry_api::yaml::documents(text).map_err(|error| Error::new(error.to_string()))?;
        let value = documents.into_iter().next().unwrap_or_else(|| Value::Object(Default::default()));
        let mut configuration: Configuration = serde_json::from_value(without_nulls(value))
            .map_err(|error| Error::new(format!("error unmarshaling JSON: {error}")))?;
        configuration.sort();
        Ok(configuration)
    }

    pub fn merge(&mut self, other: &Configuration) -> Result<()> {
        let pairs: [(&str, &mut Vec<FieldSpec>, &Vec<FieldSpec>); 10] = [
            ("NamePrefix", &mut self.name_prefix, &other.name_prefix),
            ("NameSuffix", &mut self.name_suffix, &other.name_suffix),
            ("NameSpace", &mut self.namespace, &other.namespace),
            ("CommonAnnotations", &mut self.common_annotations, &other.common_annotations),
            ("CommonLabels", &mut self.common_labels, &other.common_labels),
            ("Labels", &mut self.labels, &other.labels),
            ("TemplateLabels", &mut self.template_labels, &other.template_labels),
            ("VarReference", &mut self.var_reference, &other.var_reference),
            ("Images", &mut self.images, &other.images),
            ("Replicas", &mut self.replicas, &other.replicas),
        ];
        for (name, own, more) in pairs {
            field_spec::merge(own, more).within(format!("failed to merge {name} fieldSpec"))?;
        }
        for reference in &other.name_reference {
            match self.name_reference.iter_mut().find(|known| known.gvk() == reference.gvk()) {
                Some(known) => field_spec::merge(&mut known.field_specs, &reference.field_specs)
                    .within("failed to merge NameReference fieldSpec")?,
                None => self.name_reference.push(reference.clone()),
            }
        }
        self.sort();
        Ok(())
    }

    pub fn sort(&mut self) {
        for specs in [
            &mut self.name_prefix,
            &mut self.name_suffix,
            &mut self.namespace,
            &mut self.common_labels,
            &mut self.labels,
            &mut self.template_labels,
            &mut self.common_annotations,
            &mut self.var_reference,
            &mut self.images,
            &mut self.replicas,
        ] {
            field_spec::sort(specs);
        }
        self.name_reference.sort_by(|a, b| a.gvk().order(&b.gvk()));
    }
}

/// What the `crds` field brings: OpenAPI definitions whose extensions say what the fields hold.
pub fn of_definitions(text: &str) -> Result<Configuration> {
    let definitions: Value = if text.starts_with('{') {
        serde_json::from_str(text).map_err(|error| Error::new(error.to_string()))?
    } else {
        let documents = ferry_api::yaml::documents(text).map_err(|error| Error::new(error.to_string()))?;
        documents.into_iter().next().unwrap_or_default()
    };
    let mut configuration = Configuration::default();
    for (name, _) in definitions.as_object().into_iter().flatten() {
        let fields = properties(&definitions, name);
        if !["kind", "apiVersion", "metadata"]
            .iter()
            .all(|field| fields.is_some_and(|map| map.contains_key(*field)))
        {
            continue;
        }
        let kind = name.rsplit('.').next().unwrap_or(name);
        add_definition(&mut configuration, kind, &definitions, name, &mut Vec::new())?;
    }
    configuration.sort();
    Ok(configuration)
}

fn properties<'d>(definitions: &'d Value, name: &str) -> Option<&'d serde_json::Map<String, Value>> {
    let definition = definitions.get(name)?;
    let schema = definition.get("Schema").or_else(|| definition.get("schema"))?;
    schema.get("properties")?.as_object()
}

fn add_definition(
    configuration: &mut Configuration,
    kind: &str,
    definitions: &Value,
    name: &str,
    path: &mut Vec<String>,
) -> Result<()> {
    if path.len() > ferry_api::MAX_DEPTH {
        return Err(Error::new(format!("the definition of {kind} refers to itself")));
    }
    for (field, property) in properties(definitions, name).into_iter().flatten() {
        let extension = |name: &str| property.get(name).and_then(Value::as_str);
        let spec = |path: &[String], more: &[&str]| {
            let parts: Vec<&str> = path.iter().map(String::as_str).chain(more.iter().copied()).collect();
            FieldSpec { kind: kind.into(), path: parts.join("/"), ..FieldSpec::default() }
        };
        let own = spec(path, &[field]);
        if extension("x-kubernetes-annotation").is_some() {
            field_spec::merge(&mut configuration.common_annotations, std::slice::from_ref(&own))?;
        }
        if extension("x-kubernetes-label-selector").is_some() {
            field_spec::merge(&mut configuration.common_labels, std::slice::from_ref(&own))?;
        }
        if extension("x-kubernetes-identity").is_some() {
            field_spec::merge(&mut configuration.name_prefix, std::slice::from_ref(&own))?;
        }
        if let (Some(version), Some(target)) =
            (extension("x-kubernetes-object-ref-api-version"), extension("x-kubernetes-object-ref-kind"))
        {
            let key = extension("x-kubernetes-object-ref-name-key").unwrap_or("name");
            configuration.merge(&Configuration {
                name_reference: vec![NameReference {
                    version: version.into(),
                    kind: target.into(),
                    field_specs: vec![spec(path, &[field, key])],
                    ..NameReference::default()
                }],
                ..Configuration::default()
            })?;
        }
        if let Some(reference) = property.get("$ref").and_then(Value::as_str) {
            path.push(field.clone());
            add_definition(configuration, kind, definitions, reference, path)?;
            path.pop();
        }
    }
    Ok(())
}

/// Fields that are null are fields that are not there.
pub fn without_nulls(value: Value) -> Value {
    match value {
        Value::Object(map) => Value::Object(
            map.into_iter()
                .filter(|(_, value)| !value.is_null())
                .map(|(key, value)| (key, without_nulls(value)))
                .collect(),
        ),
        Value::Array(items) => Value::Array(items.into_iter().map(without_nulls).collect()),
        other => other,
    }
}
