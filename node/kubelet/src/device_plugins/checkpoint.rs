//! Which devices containers were given, kept over restarts in upstream's file and form (`kubelet_internal_checkpoint`): a
//! node can go from one kubelet to the other.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::io;
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ferry_plugins_api::deviceplugin::ContainerAllocateResponse;
use prost::Message;
use serde::{Deserialize, Serialize};

use super::allocations::{Allocation, Allocations};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{} cannot be used, drain the node and remove it: {problem}", file.display())]
    Read { file: PathBuf, problem: String },
    #[error("failed to write checkpoint file \"kubelet_internal_checkpoint\": {0}")]
    Write(#[source] io::Error),
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct File {
    data: Data,
    checksum: u64,
}

/// Lists and maps that Go never made are `null`, which its checksum tells from empty ones.
#[derive(Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Data {
    pod_device_entries: Option<Vec<Entry>>,
    registered_devices: Option<BTreeMap<String, Option<Vec<String>>>>,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Entry {
    #[serde(rename = "PodUID")]
    pod_uid: String,
    container_name: String,
    resource_name: String,
    #[serde(rename = "DeviceIDs")]
    device_ids: Option<BTreeMap<i64, Option<Vec<String>>>>,
    /// A ContainerAllocateResponse in protobuf and base64.
    alloc_resp: Option<String>,
}

/// What a former kubelet left.
#[derive(Debug, Default, PartialEq)]
pub struct Saved {
    pub resources: Vec<String>,
    pub allocations: Allocations,
}

/// Nothing where there is no file. A file that cannot be read is an error: taking it for empty would give devices that
/// running containers have to others.
pub fn load(file: &Path) -> Result<Saved, Error> {
    let text = match std::fs::read(file) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Saved::default()),
        Err(error) => return Err(Error::Read { file: file.into(), problem: error.to_string() }),
    };
    read(&text).map_err(|problem| Error::Read { file: file.into(), problem })
}

fn read(text: &[u8]) -> Result<Saved, String> {
    let File { data, checksum } = serde_json::from_slice(text).map_err(|error| error.to_string())?;
    if checksum_of(&data)? != checksum {
        return Err("checkpoint is corrupted".into());
    }
    let mut allocations = Allocations::default();
    for entry in data.pod_device_entries.iter().flatten() {
        let answer = ContainerAllocateResponse::decode(bytes(entry)?.unwrap_or_default().as_slice());
        let answer = answer.map_err(|error| error.to_string())?;
        let devices = entry.device_ids.iter().flatten();
        let devices = devices.map(|(node, ids)| (*node, ids.clone().unwrap_or_default())).collect();
        let allocation = Allocation { devices, answer };
        allocations.insert(&entry.pod_uid, &entry.container_name, &entry.resource_name, allocation);
    }
    Ok(Saved {
        resources: data.registered_devices.into_iter().flatten().map(|(name, _)| name).collect(),
        allocations,
    })
}

/// Whole or not at all.
pub fn store(
    file: &Path,
    registered: BTreeMap<String, Vec<String>>,
    allocations: &Allocations,
) -> Result<(), Error> {
    let entry = |(uid, container, resource, allocation): (&str, &str, &str, &Allocation)| Entry {
        pod_uid: uid.into(),
        container_name: container.into(),
        resource_name: resource.into(),
        device_ids: Some(allocation.devices.iter().map(|(node, ids)| (*node, Some(ids.clone()))).collect()),
        alloc_resp: Some(STANDARD.encode(allocation.answer.encode_to_vec())),
    };
    let data = Data {
        pod_device_entries: Some(allocations.iter().map(entry).collect()),
        registered_devices: Some(registered.into_iter().map(|(name, ids)| (name, Some(ids))).collect()),
    };
    let failed = |error: String| Error::Write(io::Error::other(error));
    let checksum = checksum_of(&data).map_err(failed)?;
    let text = serde_json::to_string(&File { data, checksum }).map_err(|error| failed(error.to_string()))?;
    let fresh = file.with_extension("new");
    std::fs::write(&fresh, text).and_then(|()| std::fs::rename(&fresh, file)).map_err(Error::Write)
}

fn bytes(entry: &Entry) -> Result<Option<Vec<u8>>, String> {
    let decoded = entry.alloc_resp.as_ref().map(|text| STANDARD.decode(text));
    decoded.transpose().map_err(|error| error.to_string())
}

/// Upstream's: of the data as its library shows Go's values, types and all.
fn checksum_of(data: &Data) -> Result<u64, String> {
    let shown = shown(data)?;
    // FNV-1a of 32 bits
    let sum =
        shown.bytes().fold(0x811c_9dc5_u32, |sum, byte| (sum ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    Ok(u64::from(sum))
}

fn shown(data: &Data) -> Result<String, String> {
    let mut text =
        String::from("(checkpoint.checkpointData){PodDeviceEntries:([]checkpoint.PodDevicesEntry)");
    match &data.pod_device_entries {
        None => text.push_str("<nil>"),
        Some(entries) => {
            let entries: Result<Vec<String>, String> = entries.iter().map(shown_entry).collect();
            let _ = write!(text, "[{}]", entries?.join(" "));
        }
    }
    text.push_str(" RegisteredDevices:(map[string][]string)");
    text.push_str(&shown_map(data.registered_devices.as_ref()));
    text.push('}');
    Ok(text)
}

fn shown_entry(entry: &Entry) -> Result<String, String> {
    let answer = match bytes(entry)? {
        None => "<nil>".into(),
        Some(bytes) => format!("[{}]", bytes.iter().map(u8::to_string).collect::<Vec<_>>().join(" ")),
    };
    Ok(format!(
        "{{PodUID:(string){} ContainerName:(string){} ResourceName:(string){} \
         DeviceIDs:(checkpoint.DevicesPerNUMA){} AllocResp:([]uint8){answer}}}",
        entry.pod_uid,
        entry.container_name,
        entry.resource_name,
        shown_map(entry.device_ids.as_ref()),
    ))
}

fn shown_map<K: ToString>(map: Option<&BTreeMap<K, Option<Vec<String>>>>) -> String {
    let list = |list: &Option<Vec<String>>| match list {
        None => "<nil>".to_owned(),
        Some(list) => format!("[{}]", list.join(" ")),
    };
    match map {
        None => "<nil>".into(),
        Some(map) => {
            let pairs = map.iter().map(|(key, value)| format!("{}:{}", key.to_string(), list(value)));
            format!("map[{}]", pairs.collect::<Vec<_>>().join(" "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Go's own JSON and checksums of upstream's types, with what was never made (`null`) and what is empty.
    const UPSTREAM: [&str; 3] = [
        r#"{"Data":{"PodDeviceEntries":[{"PodUID":"p-1","ContainerName":"c","ResourceName":"example.com/gpu","DeviceIDs":{"-1":["a","b"],"0":[],"1":["c"]},"AllocResp":"CgcKAUESAkJD"},{"PodUID":"p","ContainerName":"d","ResourceName":"r","DeviceIDs":null,"AllocResp":null},{"PodUID":"p","ContainerName":"e","ResourceName":"r","DeviceIDs":{},"AllocResp":""}],"RegisteredDevices":{"example.com/gpu":["a","b"],"x/\"q\"":[],"y":null}},"Checksum":1048168691}"#,
        r#"{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{}},"Checksum":3467439661}"#,
        r#"{"Data":{"PodDeviceEntries":[],"RegisteredDevices":null},"Checksum":3252601439}"#,
    ];

    #[test]
    fn upstreams_files_are_read_and_their_like_written() {
        for text in UPSTREAM {
            read(text.as_bytes()).unwrap_or_else(|problem| panic!("{problem}: {text}"));
        }
        let saved = read(UPSTREAM[0].as_bytes()).expect("upstream's form");
        assert_eq!(saved.resources, ["example.com/gpu", "x/\"q\"", "y"]);
        let allocation = saved.allocations.get("p-1", "c", "example.com/gpu").expect("it has devices");
        assert_eq!(allocation.ids().into_iter().collect::<Vec<_>>(), ["a", "b", "c"]);
        assert_eq!(allocation.answer.envs.get("A").map(String::as_str), Some("BC"));

        let directory = tempfile::tempdir().expect("a directory can be made");
        let file = directory.path().join("kubelet_internal_checkpoint");
        let registered = BTreeMap::from([("example.com/gpu".into(), vec!["a".into()]), ("y".into(), vec![])]);
        store(&file, registered, &saved.allocations).expect("written");
        let again = load(&file).expect("its own form");
        assert_eq!(again.allocations, saved.allocations);
        assert_eq!(again.resources, ["example.com/gpu", "y"]);
    }

    #[test]
    fn an_unreadable_checkpoint_is_an_error() {
        let directory = tempfile::tempdir().expect("a directory can be made");
        let file = directory.path().join("kubelet_internal_checkpoint");
        assert_eq!(load(&file).expect("none yet"), Saved::default());
        for text in ["", "{}", &UPSTREAM[1].replace("3467439661", "1")] {
            std::fs::write(&file, text).expect("written");
            assert!(load(&file).is_err(), "{text}");
        }
    }
}
