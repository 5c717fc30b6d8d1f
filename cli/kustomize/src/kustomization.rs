//! The kustomization file.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::configuration::without_nulls;
use crate::error::{Error, Result};
use crate::field_spec::FieldSpec;
use crate::id::{Gvk, Id};

/// The names a kustomization file may have.
pub const FILE_NAMES: [&str; 3] = ["kustomization.yaml", "kustomization.yml", "Kustomization"];

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub struct Kustomization {
    pub api_version: String,
    pub kind: String,
    pub metadata: Value,
    pub openapi: BTreeMap<String, String>,
    pub name_prefix: String,
    pub name_suffix: String,
    pub namespace: String,
    pub common_labels: Option<BTreeMap<String, String>>,
    pub labels: Vec<Label>,
    pub common_annotations: BTreeMap<String, String>,
    pub patches_strategic_merge: Option<Vec<String>>,
    #[serde(rename = "patchesJson6902")]
    pub patches_json6902: Option<Vec<Patch>>,
    pub patches: Vec<Patch>,
    pub images: Vec<Image>,
    pub image_tags: Option<Vec<Image>>,
    pub replacements: Vec<ReplacementField>,
    pub replicas: Vec<Replica>,
    pub vars: Option<Vec<Variable>>,
    pub sort_options: Option<SortOptions>,
    pub resources: Vec<String>,
    pub components: Vec<String>,
    pub crds: Vec<String>,
    pub bases: Option<Vec<String>>,
    pub config_map_generator: Vec<GeneratorArgs>,
    pub secret_generator: Vec<GeneratorArgs>,
    pub helm_globals: Value,
    pub helm_charts: Vec<Value>,
    pub helm_chart_inflation_generator: Vec<Value>,
    pub generator_options: Option<GeneratorOptions>,
    pub configurations: Vec<String>,
    pub generators: Vec<String>,
    pub transformers: Vec<String>,
    pub validators: Vec<String>,
    pub build_metadata: Vec<String>,
}

const FIELDS: [&str; 34] = [
    "apiVersion",
    "kind",
    "metadata",
    "openapi",
    "namePrefix",
    "nameSuffix",
    "namespace",
    "commonLabels",
    "labels",
    "commonAnnotations",
    "patchesStrategicMerge",
    "patchesJson6902",
    "patches",
    "images",
    "imageTags",
    "replacements",
    "replicas",
    "vars",
    "sortOptions",
    "resources",
    "components",
    "crds",
    "bases",
    "configMapGenerator",
    "secretGenerator",
    "helmGlobals",
    "helmCharts",
    "helmChartInflationGenerator",
    "generatorOptions",
    "configurations",
    "generators",
    "transformers",
    "validators",
    "buildMetadata",
];

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub struct Label {
    pub pairs: BTreeMap<String, String>,
    pub include_selectors: bool,
    pub include_templates: bool,
    pub fields: Vec<FieldSpec>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub struct Patch {
    pub path: String,
    pub patch: String,
    pub target: Option<Selector>,
    pub options: Option<PatchOptions>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub struct PatchOptions {
    pub allow_name_change: bool,
    pub allow_kind_change: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub struct Selector {
    pub group: String,
    pub version: String,
    pub kind: String,
    pub name: String,
    pub namespace: String,
    pub annotation_selector: String,
    pub label_selector: String,
}

impl Selector {
    pub fn names_nothing(&self) -> bool {
        [&self.group, &self.version, &self.kind, &self.name, &self.namespace]
            .iter()
            .all(|field| field.is_empty())
    }
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub struct Image {
    pub name: String,
    pub new_name: String,
    pub tag_suffix: String,
    pub new_tag: String,
    pub digest: String,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub struct Replica {
    pub name: String,
    pub count: i64,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub struct ReplacementField {
    pub path: String,
    pub source: Option<Source>,
    pub targets: Option<Vec<Target>>,
    pub source_value: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub struct Source {
    pub group: String,
    pub version: String,
    pub kind: String,
    pub name: String,
    pub namespace: String,
    pub field_path: String,
    pub options: Option<FieldOptions>,
}

impl Source {
    pub fn id(&self) -> Id {
        Id {
            gvk: Gvk { group: self.group.clone(), version: self.version.clone(), kind: self.kind.clone() },
            name: self.name.clone(),
            namespace: self.namespace.clone(),
            cluster: false,
        }
    }
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub struct Target {
    pub select: Option<Selector>,
    pub reject: Vec<Selector>,
    pub field_paths: Vec<String>,
    pub options: Option<FieldOptions>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub struct FieldOptions {
    pub delimiter: String,
    pub index: i64,
    pub encoding: String,
    pub create: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub struct Variable {
    pub name: String,
    pub objref: ObjectReference,
    pub fieldref: FieldReference,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub struct ObjectReference {
    pub api_version: String,
    pub group: String,
    pub version: String,
    pub kind: String,
    pub name: String,
    pub namespace: String,
}

impl ObjectReference {
    pub fn gvk(&self) -> Gvk {
        if self.api_version.is_empty() {
            return Gvk { group: self.group.clone(), version: self.version.clone(), kind: self.kind.clone() };
        }
        Gvk::new(&self.api_version, &self.kind)
    }
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub struct FieldReference {
    #[serde(alias = "fieldpath")]
    pub field_path: String,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub struct SortOptions {
    pub order: String,
    pub legacy_sort_options: Option<LegacySortOptions>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub struct LegacySortOptions {
    pub order_first: Vec<String>,
    pub order_last: Vec<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub struct GeneratorArgs {
    pub name: String,
    pub namespace: String,
    pub behavior: String,
    pub literals: Vec<String>,
    pub files: Vec<String>,
    pub envs: Vec<String>,
    pub env: String,
    pub options: Option<GeneratorOptions>,
    /// Of a secret.
    #[serde(rename = "type")]
    pub secret_type: String,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub struct GeneratorOptions {
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
    pub disable_name_suffix_hash: bool,
    pub immutable: bool,
}

impl GeneratorOptions {
    /// The generator's own options, with those of the kustomization where it has none.
    pub fn merged(own: Option<&Self>, global: Option<&Self>) -> Option<Self> {
        let Some(global) = global else { return own.cloned() };
        let mut merged = own.cloned().unwrap_or_default();
        for (key, value) in &global.labels {
            merged.labels.entry(key.clone()).or_insert_with(|| value.clone());
        }
        for (key, value) in &global.annotations {
            merged.annotations.entry(key.clone()).or_insert_with(|| value.clone());
        }
        merged.disable_name_suffix_hash |= global.disable_name_suffix_hash;
        merged.immutable |= global.immutable;
        Some(merged)
    }
}

impl Kustomization {
    /// Reads the file, and says which of its fields have successors.
    pub fn read(text: &str) -> Result<(Kustomization, Vec<String>)> {
        let invalid = |why: String| Error::new(format!("invalid Kustomization: {why}"));
        let documents = ferry_api::yaml::documents(text)
            .map_err(|error| invalid(format!("error converting YAML to JSON: {error}")))?;
        let mut value = documents.into_iter().next().unwrap_or_else(|| Value::Object(Default::default()));
        if let Value::Object(map) = &mut value {
            // names of fields are read as Go reads them, in any case
            for key in map.keys().cloned().collect::<Vec<_>>() {
                let field = FIELDS.iter().find(|field| field.eq_ignore_ascii_case(&key));
                if let Some(field) = field.filter(|field| **field != key)
                    && let Some(entry) = map.remove(&key)
                {
                    map.entry(*field).or_insert(entry);
                }
            }
        }
        let mut read: Kustomization = decode(value).map_err(|error| invalid(format!("json: {error}")))?;
        let warnings = read.deprecations();
        read.fix();
        Ok((read, warnings))
    }

    fn deprecations(&self) -> Vec<String> {
        const EDIT: &str = "Run 'kustomize edit fix' to update your Kustomization automatically.";
        let fields = [
            (self.bases.is_some(), "bases", "resources", ""),
            (self.common_labels.is_some(), "commonLabels", "labels", ""),
            (self.image_tags.is_some(), "imageTags", "images", ""),
            (self.patches_json6902.is_some(), "patchesJson6902", "patches", ""),
            (self.patches_strategic_merge.is_some(), "patchesStrategicMerge", "patches", ""),
            (self.vars.is_some(), "vars", "replacements", "[EXPERIMENTAL] "),
        ];
        let used = fields.iter().filter(|(used, ..)| *used);
        used.map(|(_, old, new, lead)| {
            format!("# Warning: '{old}' is deprecated. Please use '{new}' instead. {lead}{EDIT}")
        })
        .collect()
    }

    /// Fills in what has a default, and moves what old fields hold into new ones.
    fn fix(&mut self) {
        if self.kind.is_empty() {
            self.kind = "Kustomization".into();
        }
        if self.api_version.is_empty() {
            self.api_version = required_version(&self.kind).into();
        }
        self.resources.append(&mut self.bases.take().unwrap_or_default());
        self.images.append(&mut self.image_tags.take().unwrap_or_default());
        for generator in self.config_map_generator.iter_mut().chain(&mut self.secret_generator) {
            if !generator.env.is_empty() {
                generator.envs.push(std::mem::take(&mut generator.env));
            }
        }
        self.helm_charts.append(&mut self.helm_chart_inflation_generator);
    }

    pub fn check(&self, root: &str) -> Result<()> {
        let empty = Kustomization {
            api_version: self.api_version.clone(),
            kind: self.kind.clone(),
            ..Kustomization::default()
        };
        if *self == empty {
            return Err(Error::new("kustomization.yaml is empty"));
        }
        let mut wrong = Vec::new();
        if self.kind != "Kustomization" && self.kind != "Component" {
            wrong.push("kind should be Kustomization or Component".to_owned());
        }
        let required = required_version(&self.kind);
        if self.api_version != required {
            wrong.push(format!("apiVersion for {} should be {required}", self.kind));
        }
        if wrong.is_empty() {
            return Ok(());
        }
        Err(Error::new(format!("Failed to read kustomization file under {root}:\n{}", wrong.join("\n"))))
    }

    pub fn records(&self, what: &str) -> bool {
        self.build_metadata.iter().any(|word| word == what)
    }
}

fn required_version(kind: &str) -> &'static str {
    if kind == "Component" { "kustomize.config.k8s.io/v1alpha1" } else { "kustomize.config.k8s.io/v1beta1" }
}

/// Reads a struct, with Go's words for a field that it does not have.
pub fn decode<T: DeserializeOwned>(value: Value) -> Result<T> {
    serde_json::from_value(without_nulls(value)).map_err(|error| {
        let text = error.to_string();
        let field = text.strip_prefix("unknown field `").and_then(|rest| rest.split_once('`'));
        Error::new(match field {
            Some((field, _)) => format!("unknown field {field:?}"),
            None => text,
        })
    })
}
