//! One value for several fields, alone or as a part of a file's path.

use serde::Deserialize;
use serde_json::Value;

use super::namespace::{SubjectMode, set_in_resource};
use crate::error::{Error, Result};
use crate::field_spec::{set_text, split_path};
use crate::files::{FileTree, Root};
use crate::kustomization::{Selector, decode};
use crate::resource::scalar_text;
use crate::resources::Resources;
use crate::schema::Schemas;

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ValueAdd {
    value: String,
    targets: Vec<AddTarget>,
    target_file_path: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct AddTarget {
    selector: Option<Selector>,
    field_path: String,
    file_path_position: i64,
}

impl ValueAdd {
    pub fn read(files: &dyn FileTree, root: &Root, config: Value) -> Result<ValueAdd> {
        let mut add: ValueAdd = decode(config)?;
        add.value = add.value.trim().to_owned();
        if add.value.is_empty() {
            let name = root.path.file_name();
            add.value = name.map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        }
        if !add.target_file_path.is_empty() {
            let text = root.read_text(files, &add.target_file_path)?;
            let documents =
                ferry_api::yaml::documents(&text).map_err(|error| Error::new(error.to_string()))?;
            let more: ValueAdd = decode(documents.into_iter().next().unwrap_or_default())?;
            add.targets.extend(more.targets);
        }
        if add.targets.is_empty() {
            return Err(Error::new("must specify at least one target"));
        }
        for target in &add.targets {
            if target.field_path.is_empty() {
                return Err(Error::new("fieldPath cannot be empty"));
            }
            if target.file_path_position < 0 {
                return Err(Error::new(format!(
                    "value of FilePathPosition ({}) cannot be negative",
                    target.file_path_position
                )));
            }
        }
        Ok(add)
    }

    pub fn apply(&self, resources: &mut Resources, schemas: &Schemas) -> Result<()> {
        for target in &self.targets {
            let selected = match &target.selector {
                Some(selector) => resources.select(selector, schemas)?,
                None => (0..resources.0.len()).collect(),
            };
            for at in selected {
                let resource = &mut resources.0[at];
                if target.field_path == "metadata/namespace" {
                    set_in_resource(resource, &self.value, &[], false, SubjectMode::DefaultOnly, schemas)?;
                    continue;
                }
                let mut value = &mut resource.value;
                for part in split_path(&target.field_path, '/') {
                    if value.is_null() {
                        *value = Value::Object(Default::default());
                    }
                    value = match value {
                        Value::Object(map) => map.entry(part).or_insert(Value::Null),
                        Value::Array(items) => {
                            let at = part.parse::<usize>().ok().filter(|at| *at < items.len());
                            let at = at.ok_or_else(|| Error::new(format!("no element {part}")))?;
                            &mut items[at]
                        }
                        _ => return Err(Error::new(format!("'{part}' lies below a scalar"))),
                    };
                }
                let text = match usize::try_from(target.file_path_position) {
                    Ok(position) if position > 0 => inserted(&scalar_text(value), position - 1, &self.value),
                    _ => self.value.clone(),
                };
                set_text(value, text)?;
            }
        }
        Ok(())
    }
}

/// The path with another part at this position, or at the end.
fn inserted(path: &str, position: usize, part: &str) -> String {
    let lead = if path.starts_with('/') { "/" } else { "" };
    let mut parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
    parts.insert(position.min(parts.len()), part);
    format!("{lead}{}", parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_inserted_into_paths() {
        let check = |path: &str, position: usize, expected: &str| {
            assert_eq!(inserted(path, position, "PEACH"), expected, "{path} {position}");
        };
        check("", 0, "PEACH");
        check("/", 5, "/PEACH");
        check("pie", 0, "PEACH/pie");
        check("/raw", 1, "/raw/PEACH");
        check("a/nice/warm/pie", 3, "a/nice/warm/PEACH/pie");
    }
}
