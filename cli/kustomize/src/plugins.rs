//! Generators and transformers that stand in files of their own, as resources of apiVersion `builtin`.
//! Programs of others are never run.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use crate::error::{Error, Result, Within};
use crate::field_spec::FieldSpec;
use crate::files::{FileTree, Root};
use crate::generate;
use crate::id::Gvk;
use crate::kustomization::{
    GeneratorArgs, GeneratorOptions, Image, Patch, PatchOptions, ReplacementField, Replica, Selector, decode,
};
use crate::resource::{self, Resource};
use crate::schema::Schemas;
use crate::transform::{
    JsonPatch, PatchSet, Replacement, SubjectMode, Transformer, ValueAdd, read_strategic,
};

/// The fields of all of them.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Plugin {
    metadata: Metadata,
    field_specs: Option<Vec<FieldSpec>>,
    unset_only: bool,
    set_role_binding_subjects: String,
    prefix: String,
    suffix: String,
    labels: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
    image_tag: Image,
    replica: Replica,
    paths: Vec<String>,
    patches: String,
    path: String,
    patch: String,
    target: Option<Selector>,
    options: Option<PatchOptions>,
    json_op: String,
    replacements: Vec<ReplacementField>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Metadata {
    name: String,
    namespace: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Generator {
    metadata: Metadata,
    name: String,
    namespace: String,
    behavior: String,
    literals: Vec<String>,
    files: Vec<String>,
    envs: Vec<String>,
    options: Option<GeneratorOptions>,
    #[serde(rename = "type")]
    secret_type: String,
}

fn check_builtin(resource: &Resource) -> Result<()> {
    if resource.api_version() == "builtin" {
        return Ok(());
    }
    Err(Error::new(format!(
        "external plugins disabled; unable to load external plugin '{}'",
        resource.kind()
    )))
}

fn unknown(resource: &Resource) -> Error {
    Error::new(format!("unable to load builtin {}", Gvk::new(resource.api_version(), resource.kind())))
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct IamPolicy {
    cloud: String,
    kubernetes_service: Metadata,
    service_account: CloudAccount,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct CloudAccount {
    name: String,
    project_id: String,
}

/// A service account that acts as one of the cloud's.
fn iam_policy(config: &Resource) -> Result<Resource> {
    let read: IamPolicy = decode(config.value.clone())?;
    if read.cloud != "gke" {
        return Err(Error::new(format!("cloud provider {} not supported yet", read.cloud)));
    }
    let (account, service) = (&read.service_account, &read.kubernetes_service);
    let address = format!("{}@{}.iam.gserviceaccount.com", account.name, account.project_id);
    let mut resource = Resource::new(serde_json::json!({
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {"annotations": {"iam.gke.io/gcp-service-account": address}, "name": service.name},
    }));
    resource.set_namespace(&service.namespace);
    Ok(resource)
}

pub fn generate(files: &dyn FileTree, root: &Root, config: &Resource) -> Result<Resource> {
    check_builtin(config).within("failed to load generator")?;
    if config.kind() == "IAMPolicyGenerator" {
        return iam_policy(config);
    }
    let read: Generator = decode(config.value.clone())?;
    let or = |own: String, other: String| if own.is_empty() { other } else { own };
    let args = GeneratorArgs {
        name: or(read.name, read.metadata.name),
        namespace: or(read.namespace, read.metadata.namespace),
        behavior: read.behavior,
        literals: read.literals,
        files: read.files,
        envs: read.envs,
        options: read.options,
        secret_type: read.secret_type,
        env: String::new(),
    };
    match config.kind() {
        "ConfigMapGenerator" => generate::config_map(files, root, &args),
        "SecretGenerator" => generate::secret(files, root, &args),
        "HelmChartInflationGenerator" => Err(crate::target::no_charts()),
        _ => Err(unknown(config).within("failed to load generator")),
    }
}

/// What a configuration asks for: one transformer, or the two that were one once.
pub fn transformers(
    files: &dyn FileTree,
    root: &Root,
    config: &Resource,
    schemas: &Schemas,
) -> Result<Vec<Transformer>> {
    check_builtin(config)?;
    let kinds: &[&str] = match config.kind() {
        "PrefixSuffixTransformer" => &["PrefixTransformer", "SuffixTransformer"],
        kind if KINDS.contains(&kind) => &[kind],
        _ => return Err(unknown(config)),
    };
    kinds
        .iter()
        .map(|kind| {
            read(files, root, config, kind)
                .within(format!("plugin {} fails configuration", config.original_id(schemas)))
        })
        .collect()
}

const KINDS: [&str; 13] = [
    "NamespaceTransformer",
    "PrefixTransformer",
    "SuffixTransformer",
    "LabelTransformer",
    "AnnotationsTransformer",
    "ImageTagTransformer",
    "ReplicaCountTransformer",
    "PatchStrategicMergeTransformer",
    "PatchTransformer",
    "PatchJson6902Transformer",
    "ReplacementTransformer",
    "ValueAddTransformer",
    "HashTransformer",
];

fn read(files: &dyn FileTree, root: &Root, config: &Resource, kind: &str) -> Result<Transformer> {
    if kind == "ValueAddTransformer" {
        return ValueAdd::read(files, root, without_metadata(&config.value)).map(Transformer::ValueAdd);
    }
    let mut value = config.value.clone();
    // a plugin's field specs may hold anything besides
    for spec in value.get_mut("fieldSpecs").and_then(Value::as_array_mut).into_iter().flatten() {
        if let Value::Object(map) = spec {
            map.retain(|field, _| ["group", "version", "kind", "path", "create"].contains(&field.as_str()));
        }
    }
    let read: Plugin = decode(value)?;
    let required = read.field_specs.is_some();
    let specs = read.field_specs.unwrap_or_default();
    let needs_specs = |transformer: Transformer| {
        if required { Ok(transformer) } else { Err(Error::new("fieldSpecs is not expected to be nil")) }
    };
    Ok(match kind {
        "NamespaceTransformer" => Transformer::Namespace {
            namespace: read.metadata.namespace,
            specs,
            unset_only: read.unset_only,
            subjects: SubjectMode::of(&read.set_role_binding_subjects)?,
        },
        "PrefixTransformer" => return needs_specs(Transformer::Prefix { prefix: read.prefix, specs }),
        "SuffixTransformer" => return needs_specs(Transformer::Suffix { suffix: read.suffix, specs }),
        "LabelTransformer" => Transformer::Labels { labels: read.labels, specs },
        "AnnotationsTransformer" => Transformer::Annotations { annotations: read.annotations, specs },
        "ImageTagTransformer" => Transformer::Image { image: read.image_tag, specs },
        "ReplicaCountTransformer" => Transformer::Replicas { replica: read.replica, specs },
        "PatchStrategicMergeTransformer" => {
            let mut patches =
                if read.paths.is_empty() { Vec::new() } else { read_strategic(files, root, &read.paths)? };
            patches.extend(resource::read(&read.patches)?);
            if patches.is_empty() {
                return Err(Error::new("empty file path and empty patch content"));
            }
            Transformer::StrategicMerge(patches)
        }
        "PatchTransformer" => {
            let patch =
                Patch { path: read.path, patch: read.patch, target: read.target, options: read.options };
            Transformer::Patch(PatchSet::read(files, root, &patch)?)
        }
        "PatchJson6902Transformer" => Transformer::Json6902(JsonPatch::read(
            files,
            root,
            read.target.as_ref(),
            &read.path,
            &read.json_op,
        )?),
        "ReplacementTransformer" => {
            Transformer::Replacements(Replacement::read(files, root, &read.replacements)?)
        }
        "HashTransformer" => Transformer::Hash,
        _ => return Err(unknown(config)),
    })
}

fn without_metadata(value: &Value) -> Value {
    let mut value = value.clone();
    if let Value::Object(map) = &mut value {
        map.remove("metadata");
    }
    value
}
