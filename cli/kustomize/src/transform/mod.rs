//! What a kustomization does to resources, one file for each thing. A transformer is read from a field of
//! the kustomization or from a resource that `transformers` lists.

mod images;
mod namespace;
mod patches;
mod replacements;
mod value_add;

use std::collections::BTreeMap;

use serde_json::Value;

pub use images::set_image;
pub use namespace::{SubjectMode, set_namespace};
pub use patches::{JsonPatch, PatchSet, read_strategic};
pub use replacements::Replacement;
pub use value_add::ValueAdd;

use crate::error::{Error, Result};
use crate::field_spec::{Create, FieldSpec, set_entry, set_text};
use crate::generate;
use crate::kustomization::{Image, Replica};
use crate::resource::{Resource, scalar_text};
use crate::resources::Resources;
use crate::schema::Schemas;

pub enum Transformer {
    StrategicMerge(Vec<Resource>),
    Patch(PatchSet),
    Namespace { namespace: String, specs: Vec<FieldSpec>, unset_only: bool, subjects: SubjectMode },
    Prefix { prefix: String, specs: Vec<FieldSpec> },
    Suffix { suffix: String, specs: Vec<FieldSpec> },
    Labels { labels: BTreeMap<String, String>, specs: Vec<FieldSpec> },
    Annotations { annotations: BTreeMap<String, String>, specs: Vec<FieldSpec> },
    Json6902(JsonPatch),
    Replicas { replica: Replica, specs: Vec<FieldSpec> },
    Image { image: Image, specs: Vec<FieldSpec> },
    Replacements(Vec<Replacement>),
    ValueAdd(ValueAdd),
    Hash,
}

impl Transformer {
    /// As `buildMetadata` names it.
    pub fn kind(&self) -> &'static str {
        match self {
            Transformer::StrategicMerge(_) => "PatchStrategicMergeTransformer",
            Transformer::Patch(_) => "PatchTransformer",
            Transformer::Namespace { .. } => "NamespaceTransformer",
            Transformer::Prefix { .. } => "PrefixTransformer",
            Transformer::Suffix { .. } => "SuffixTransformer",
            Transformer::Labels { .. } => "LabelTransformer",
            Transformer::Annotations { .. } => "AnnotationsTransformer",
            Transformer::Json6902(_) => "PatchJson6902Transformer",
            Transformer::Replicas { .. } => "ReplicaCountTransformer",
            Transformer::Image { .. } => "ImageTagTransformer",
            Transformer::Replacements(_) => "ReplacementTransformer",
            Transformer::ValueAdd(_) => "ValueAddTransformer",
            Transformer::Hash => "HashTransformer",
        }
    }

    pub fn apply(&self, resources: &mut Resources, schemas: &Schemas) -> Result<()> {
        match self {
            Transformer::StrategicMerge(patches) => patches::strategic_merge(resources, patches, schemas),
            Transformer::Patch(set) => set.apply(resources, schemas),
            Transformer::Namespace { namespace, specs, unset_only, subjects } => {
                set_namespace(resources, namespace, specs, *unset_only, *subjects, schemas)
            }
            Transformer::Prefix { prefix, specs } => rename(
                resources,
                specs,
                schemas,
                &|name| format!("{prefix}{name}"),
                &|resource| resource.prefixes.push(prefix.clone()),
                prefix.is_empty(),
            ),
            Transformer::Suffix { suffix, specs } => rename(
                resources,
                specs,
                schemas,
                &|name| format!("{name}{suffix}"),
                &|resource| resource.suffixes.push(suffix.clone()),
                suffix.is_empty(),
            ),
            Transformer::Labels { labels: entries, specs }
            | Transformer::Annotations { annotations: entries, specs } => {
                set_entries(resources, entries, specs)
            }
            Transformer::Json6902(patch) => patch.apply(resources, schemas),
            Transformer::Replicas { replica, specs } => set_replicas(resources, replica, specs, schemas),
            Transformer::Image { image, specs } => set_image(resources, image, specs),
            Transformer::Replacements(replacements) => {
                replacements.iter().try_for_each(|replacement| replacement.apply(resources, schemas))
            }
            Transformer::ValueAdd(add) => add.apply(resources, schemas),
            Transformer::Hash => add_hashes(resources, schemas),
        }
    }
}

/// Kinds whose names mean something to others than their referrers.
const NEVER_RENAMED: [(&str, &str); 3] =
    [("", "CustomResourceDefinition"), ("apiregistration.k8s.io", "APIService"), ("", "Namespace")];

fn rename(
    resources: &mut Resources,
    specs: &[FieldSpec],
    schemas: &Schemas,
    renamed: &dyn Fn(&str) -> String,
    remember: &dyn Fn(&mut Resource),
    is_noop: bool,
) -> Result<()> {
    for resource in &mut resources.0 {
        let id = resource.original_id(schemas);
        let is_fixed = NEVER_RENAMED
            .iter()
            .any(|(group, kind)| (group.is_empty() || id.gvk.group == *group) && id.gvk.kind == *kind);
        if is_fixed {
            continue;
        }
        for spec in specs.iter().filter(|spec| id.gvk.is_selected_by(&spec.gvk())) {
            if spec.path == "metadata/name" && !is_noop {
                remember(resource);
                resource.store_id(schemas);
            }
            spec.visit(resource, Create::Scalar, &mut |value| {
                let text = renamed(&scalar_text(value));
                set_text(value, text)
            })?;
        }
    }
    Ok(())
}

fn set_entries(
    resources: &mut Resources,
    entries: &BTreeMap<String, String>,
    specs: &[FieldSpec],
) -> Result<()> {
    for resource in &mut resources.0 {
        for (key, text) in entries {
            for spec in specs {
                spec.visit(resource, Create::Map, &mut |value| set_entry(value, key, text))?;
            }
        }
    }
    Ok(())
}

fn set_replicas(
    resources: &mut Resources,
    replica: &Replica,
    specs: &[FieldSpec],
    schemas: &Schemas,
) -> Result<()> {
    let mut found = false;
    for spec in specs {
        let gvk = spec.gvk();
        let named =
            resources.with_any_id(schemas, |id| id.name == replica.name && id.gvk.is_selected_by(&gvk));
        for at in named {
            found = true;
            spec.visit(&mut resources.0[at], Create::Scalar, &mut |value| {
                set_text(value, "")?;
                *value = Value::from(replica.count);
                Ok(())
            })?;
        }
    }
    if found {
        return Ok(());
    }
    let kinds: Vec<String> = specs.iter().map(|spec| spec.gvk().to_string()).collect();
    Err(Error::new(format!(
        "resource with name {} does not match a config with the following GVK [{}]",
        replica.name,
        kinds.join(" ")
    )))
}

fn add_hashes(resources: &mut Resources, schemas: &Schemas) -> Result<()> {
    for resource in resources.0.iter_mut().filter(|resource| resource.needs_hash) {
        let hash = generate::hash(&resource.value)?;
        resource.store_id(schemas);
        resource.set_name(&format!("{}-{hash}", resource.name()));
    }
    Ok(())
}
