//! Patches: strategic merges and JSON patches, at a target or at what they name themselves.

use serde_json::Value;

use crate::error::{Error, Result, Within};
use crate::files::{FileTree, Root};
use crate::kustomization::{Patch, Selector};
use crate::merge::merge;
use crate::resource::{self, Resource, map_at};
use crate::resources::Resources;
use crate::schema::Schemas;

/// An entry of `patches`.
pub struct PatchSet {
    source: String,
    target: Option<Selector>,
    patches: Patches,
}

enum Patches {
    Strategic(Vec<Resource>),
    Json(Vec<u8>),
}

impl PatchSet {
    pub fn read(files: &dyn FileTree, root: &Root, patch: &Patch) -> Result<PatchSet> {
        let inline = patch.patch.trim();
        let (text, source) = match (inline, patch.path.as_str()) {
            ("", "") => return Err(Error::new("must specify one of patch and path in\n")),
            (text, "") => (text.to_owned(), format!("[patch: {text:?}]")),
            ("", path) => {
                let text = root
                    .read_text(files, path)
                    .within(format!("failed to get the patch file from path({path})"))?;
                (text, format!("[path: {path:?}]"))
            }
            _ => return Err(Error::new("patch and path can't be set at the same time\n")),
        };
        let patches = match (resource::read(&text), json_operations(&text)) {
            (Ok(strategic), Ok((_, count))) if !strategic.is_empty() && count > 0 => {
                return Err(Error::new(format!(
                    "illegally qualifies as both an SM and JSON patch: {source}"
                )));
            }
            (Ok(mut strategic), _) => {
                let options = patch.options.clone().unwrap_or_default();
                for patch in &mut strategic {
                    patch.allows_name_change = options.allow_name_change;
                    patch.allows_kind_change = options.allow_kind_change;
                }
                Patches::Strategic(strategic)
            }
            (Err(_), Ok((operations, _))) => Patches::Json(operations),
            (Err(_), Err(_)) => {
                return Err(Error::new(format!("unable to parse SM or JSON patch from {source}")));
            }
        };
        Ok(PatchSet { source, target: patch.target.clone(), patches })
    }

    pub fn apply(&self, resources: &mut Resources, schemas: &Schemas) -> Result<()> {
        match (&self.patches, &self.target) {
            (Patches::Strategic(patches), Some(target)) => {
                let patch = match patches.as_slice() {
                    [] => return Ok(()),
                    [patch] => patch,
                    _ => {
                        return Err(Error::new(format!(
                            "Multiple Strategic-Merge Patches in one `patches` entry is not allowed to set `patches.target` field: {}",
                            self.source
                        )));
                    }
                };
                let selected = resources.select(target, schemas)?;
                apply_to(resources, &selected, patch, schemas)
            }
            (Patches::Strategic(patches), None) => {
                for patch in patches {
                    let id = patch.original_id(schemas);
                    let at = resources
                        .by_id(&id, schemas)
                        .within(format!("no resource matches strategic merge patch {:?}", id.to_string()))?;
                    apply_strategic(&mut resources.0[at], patch, schemas)?;
                }
                Ok(())
            }
            (Patches::Json(_), None) => {
                Err(Error::new(format!("must specify a target for JSON patch {}", self.source)))
            }
            (Patches::Json(operations), Some(target)) => {
                for at in resources.select(target, schemas)? {
                    resources.0[at].store_id(schemas);
                    apply_json(&mut resources.0[at], operations)?;
                }
                Ok(())
            }
        }
    }
}

/// An entry of `patchesJson6902`.
pub struct JsonPatch {
    target: Selector,
    operations: Vec<u8>,
}

impl JsonPatch {
    pub fn read(
        files: &dyn FileTree,
        root: &Root,
        target: Option<&Selector>,
        path: &str,
        inline: &str,
    ) -> Result<JsonPatch> {
        let target = target.filter(|target| !target.name.is_empty());
        let target = target.ok_or_else(|| Error::new("must specify the target name"))?;
        let text = match (path, inline) {
            ("", "") => return Err(Error::new("empty file path and empty jsonOp")),
            ("", inline) => inline.to_owned(),
            (path, "") => root.read_text(files, path)?,
            _ => return Err(Error::new("must specify a file path or jsonOp, not both")),
        };
        if text.is_empty() {
            return Err(Error::new(format!("patch file '{path}' empty seems to be empty")));
        }
        let (operations, count) = json_operations(&text)?;
        if count == 0 {
            return Err(Error::new(format!("patch appears to be empty; file={path}, JsonOp={text}")));
        }
        Ok(JsonPatch { target: target.clone(), operations })
    }

    pub fn apply(&self, resources: &mut Resources, schemas: &Schemas) -> Result<()> {
        for at in resources.select(&self.target, schemas)? {
            apply_json(&mut resources.0[at], &self.operations)?;
        }
        Ok(())
    }
}

/// What `patchesStrategicMerge` lists: patches, or files that hold some.
pub fn read_strategic(files: &dyn FileTree, root: &Root, entries: &[String]) -> Result<Vec<Resource>> {
    let mut patches = Vec::new();
    for entry in entries {
        match resource::read(entry) {
            Ok(inline) => patches.extend(inline),
            Err(_) => patches.extend(resource::read(&root.read_text(files, entry)?)?),
        }
    }
    if patches.is_empty() {
        return Err(Error::new(format!("patch appears to be empty; files=[{}], Patch=", entries.join(" "))));
    }
    Ok(patches)
}

pub fn strategic_merge(resources: &mut Resources, patches: &[Resource], schemas: &Schemas) -> Result<()> {
    for patch in patches {
        let at = resources.by_id(&patch.original_id(schemas), schemas)?;
        apply_to(resources, &[at], patch, schemas)?;
    }
    Ok(())
}

/// Applies a patch to the selected resources, whatever their kind. What is empty then is taken out.
fn apply_to(
    resources: &mut Resources,
    selected: &[usize],
    patch: &Resource,
    schemas: &Schemas,
) -> Result<()> {
    for at in selected {
        let resource = &mut resources.0[*at];
        let mut patch = patch.clone();
        let api_version = resource.api_version().to_owned();
        if let Value::Object(map) = &mut patch.value {
            map.insert("apiVersion".into(), api_version.into());
        }
        apply_strategic(resource, &patch, schemas)?;
    }
    let kept = std::mem::take(&mut resources.0).into_iter().filter(|resource| !resource.value.is_null());
    resources.append_all(kept.collect(), schemas)
}

fn apply_strategic(resource: &mut Resource, patch: &Resource, schemas: &Schemas) -> Result<()> {
    let (name, namespace, kind) = (resource.name(), resource.namespace(), resource.kind().to_owned());
    if patch.allows_name_change || patch.allows_kind_change {
        resource.store_id(schemas);
    }
    let Some(merged) = merge(&resource.value, &patch.value, schemas)?.filter(|value| !is_empty(value)) else {
        resource.value = Value::Null;
        return Ok(());
    };
    resource.value = merged;
    if !patch.allows_kind_change
        && let Value::Object(map) = &mut resource.value
    {
        map.insert("kind".into(), kind.into());
    }
    if !patch.allows_name_change {
        resource.set_name(&name);
    }
    resource.set_namespace(&namespace);
    Ok(())
}

fn is_empty(value: &Value) -> bool {
    value.as_object().is_some_and(serde_json::Map::is_empty)
}

fn apply_json(resource: &mut Resource, operations: &[u8]) -> Result<()> {
    // patches may count on annotations being there, since kustomize keeps its own among them
    if resource.has_build_annotations() {
        let annotations = resource.metadata_mut().entry("annotations").or_insert(Value::Null);
        if annotations.is_null() {
            *annotations = Value::Object(Default::default());
        }
    }
    ferry_patch::json_patch::apply(&mut resource.value, operations)
        .map_err(|error| Error::new(error.to_string()))?;
    map_at(&mut resource.value, "metadata");
    Ok(())
}

/// The operations of a JSON patch that is written in JSON or YAML, and how many there are.
fn json_operations(text: &str) -> Result<(Vec<u8>, usize)> {
    let value: Value = if text.starts_with('[') {
        serde_json::from_str(text).map_err(|error| Error::new(error.to_string()))?
    } else {
        let documents = ferry_api::yaml::documents(text).map_err(|error| Error::new(error.to_string()))?;
        documents.into_iter().next().unwrap_or_default()
    };
    match value {
        Value::Array(operations) if operations.iter().all(Value::is_object) => {
            let count = operations.len();
            Ok((Value::Array(operations).to_string().into_bytes(), count))
        }
        Value::Null => Ok((b"[]".to_vec(), 0)),
        _ => Err(Error::new("json: cannot unmarshal object into Go value of type jsonpatch.Patch")),
    }
}
