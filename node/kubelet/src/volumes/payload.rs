//! The files of volumes that are made from API objects.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{ConfigMap, DownwardAPIVolumeFile, KeyToPath, Pod, Secret};

use super::atomic::{File, Payload};
use crate::downward;

const DEFAULT_MODE: i32 = 0o644;

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("references non-existent {kind} key: {key}")]
    MissingKey { kind: &'static str, key: String },
    #[error("conflicting paths in volume: {0}")]
    Duplicate(String),
    #[error(transparent)]
    Downward(#[from] downward::Error),
}

pub fn mode(of_item: Option<i32>, of_volume: Option<i32>) -> u32 {
    (of_item.or(of_volume).unwrap_or(DEFAULT_MODE) & 0o7777) as u32
}

/// A ConfigMap's keys: all of them, or those asked for under other names.
pub fn config_map(
    source: Option<&ConfigMap>,
    items: Option<&Vec<KeyToPath>>,
    default_mode: Option<i32>,
    optional: bool,
) -> Result<Payload, Error> {
    let mut data: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    if let Some(source) = source {
        data.extend(
            source.data.iter().flatten().map(|(key, value)| (key.clone(), value.clone().into_bytes())),
        );
        data.extend(source.binary_data.iter().flatten().map(|(key, value)| (key.clone(), value.0.clone())));
    }
    select("config", data, items, default_mode, optional)
}

pub fn secret(
    source: Option<&Secret>,
    items: Option<&Vec<KeyToPath>>,
    default_mode: Option<i32>,
    optional: bool,
) -> Result<Payload, Error> {
    let data = source.and_then(|source| source.data.as_ref());
    let data = data.into_iter().flatten().map(|(key, value)| (key.clone(), value.0.clone())).collect();
    select("secret", data, items, default_mode, optional)
}

/// Fields of the pod itself.
pub fn downward_api(
    pod: &Pod,
    items: Option<&Vec<DownwardAPIVolumeFile>>,
    default_mode: Option<i32>,
    node: &downward::Node,
) -> Result<Payload, Error> {
    let mut payload = Payload::new();
    for item in items.into_iter().flatten() {
        let text = match (&item.field_ref, &item.resource_field_ref) {
            (Some(field), _) => downward::field(pod, &field.field_path)?,
            (None, Some(resource)) => downward::resource(pod, None, resource, node)?,
            (None, None) => String::new(),
        };
        let file = File { data: text.into_bytes(), mode: mode(item.mode, default_mode), user: None };
        payload.insert(item.path.clone(), file);
    }
    Ok(payload)
}

fn select(
    kind: &'static str,
    data: BTreeMap<String, Vec<u8>>,
    items: Option<&Vec<KeyToPath>>,
    default_mode: Option<i32>,
    optional: bool,
) -> Result<Payload, Error> {
    let Some(items) = items.filter(|items| !items.is_empty()) else {
        let file = |data| File { data, mode: mode(None, default_mode), user: None };
        return Ok(data.into_iter().map(|(key, data)| (key, file(data))).collect());
    };
    let mut payload = Payload::new();
    for item in items {
        match data.get(&item.key) {
            Some(data) => {
                let file = File { data: data.clone(), mode: mode(item.mode, default_mode), user: None };
                payload.insert(item.path.clone(), file);
            }
            None if optional => {}
            None => return Err(Error::MissingKey { kind, key: item.key.clone() }),
        }
    }
    Ok(payload)
}

/// Puts the files of several sources into one volume.
pub fn merge(into: &mut Payload, from: Payload) -> Result<(), Error> {
    for (path, file) in from {
        if into.insert(path.clone(), file).is_some() {
            return Err(Error::Duplicate(path));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn map() -> ConfigMap {
        serde_json::from_value(json!({"data": {"a": "1", "b": "2"}, "binaryData": {"c": "AAE="}}))
            .expect("the object is well formed")
    }

    fn shown(payload: Result<Payload, Error>) -> String {
        let shown = |(path, file): (&String, &File)| {
            format!("{path}:{:o}:{:?}", file.mode, String::from_utf8_lossy(&file.data))
        };
        match payload {
            Ok(payload) => payload.iter().map(shown).collect::<Vec<_>>().join(" "),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn keys_become_files() {
        let items = |value| serde_json::from_value::<Vec<KeyToPath>>(value).expect("well formed");
        let some = items(json!([{"key": "a", "path": "dir/x", "mode": 0o400}, {"key": "b", "path": "y"}]));
        let missing = items(json!([{"key": "z", "path": "z"}]));
        let map = map();
        let map = Some(&map);
        assert_eq!(shown(config_map(map, None, None, false)), "a:644:\"1\" b:644:\"2\" c:644:\"\\0\\u{1}\"");
        assert_eq!(shown(config_map(map, Some(&some), Some(0o600), false)), "dir/x:400:\"1\" y:600:\"2\"");
        assert_eq!(
            shown(config_map(map, Some(&missing), None, false)),
            "references non-existent config key: z"
        );
        assert_eq!(shown(config_map(map, Some(&missing), None, true)), "");
        assert_eq!(shown(config_map(None, None, None, true)), "");
    }

    #[test]
    fn sources_may_not_collide() {
        let mut first = config_map(Some(&map()), None, None, false).expect("all keys");
        let second = first.clone();
        assert_eq!(merge(&mut first, second), Err(Error::Duplicate("a".into())));
    }
}
