//! What was prepared on this node, kept over restarts in upstream's file and form (`dra_manager_state`): a node can go
//! from one kubelet to the other.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

use ferry_plugins_api::dra;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::claims::Batches;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{} cannot be used, drain the node and remove it: {problem}", file.display())]
    Read { file: PathBuf, problem: String },
    #[error("checkpoint ResourceClaim state: {0}")]
    Write(#[source] io::Error),
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct ClaimState {
    #[serde(rename = "ClaimUID")]
    pub claim_uid: String,
    pub claim_name: String,
    pub namespace: String,
    /// A set in Go is an object whose values are empty.
    #[serde(rename = "PodUIDs", serialize_with = "write_set", deserialize_with = "read_set")]
    pub pod_uids: BTreeSet<String>,
    /// Also of drivers that have no devices to hand in.
    #[serde(deserialize_with = "null_is_empty")]
    pub driver_state: BTreeMap<String, DriverState>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct DriverState {
    #[serde(deserialize_with = "null_is_empty")]
    pub devices: Vec<Device>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Device {
    pub pool_name: String,
    pub device_name: String,
    #[serde(rename = "ShareID", default)]
    pub share_id: Option<String>,
    #[serde(deserialize_with = "null_is_empty")]
    pub request_names: Vec<String>,
    #[serde(rename = "CDIDeviceIDs", deserialize_with = "null_is_empty")]
    pub cdi_device_ids: Vec<String>,
}

impl ClaimState {
    pub fn new(claim: &ObjectMeta, drivers: BTreeSet<String>) -> Self {
        Self {
            claim_uid: claim.uid.clone().unwrap_or_default(),
            claim_name: claim.name.clone().unwrap_or_default(),
            namespace: claim.namespace.clone().unwrap_or_default(),
            pod_uids: BTreeSet::new(),
            driver_state: drivers.into_iter().map(|driver| (driver, DriverState::default())).collect(),
        }
    }

    /// Has the claim asked for of each of its drivers.
    pub fn add_to(&self, batches: &mut Batches) {
        for driver in self.driver_state.keys() {
            batches.entry(driver.clone()).or_default().push(dra::Claim {
                namespace: self.namespace.clone(),
                uid: self.claim_uid.clone(),
                name: self.claim_name.clone(),
            });
        }
    }
}

impl Device {
    /// Whether the device was allocated for a request; "" is every request. Either side may name the alternative that
    /// was taken (`request/alternative`) or leave it out.
    pub fn is_for(&self, request: &str) -> bool {
        let is_part =
            |part: &str, whole: &str| part.strip_prefix(whole).is_some_and(|rest| rest.starts_with('/'));
        let is_same = |name: &String| name == request || is_part(name, request) || is_part(request, name);
        request.is_empty() || self.request_names.is_empty() || self.request_names.iter().any(is_same)
    }
}

impl From<dra::Device> for Device {
    fn from(device: dra::Device) -> Self {
        Self {
            pool_name: device.pool_name,
            device_name: device.device_name,
            share_id: device.share_id,
            request_names: device.request_names,
            cdi_device_ids: device.cdi_device_ids,
        }
    }
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct File {
    data: String,
    checksum: u32,
}

#[derive(Serialize)]
struct Written<'a> {
    kind: &'static str,
    #[serde(rename = "apiVersion")]
    api_version: &'static str,
    #[serde(rename = "ClaimInfoStateList")]
    claims: &'a [&'a ClaimState],
}

#[derive(Deserialize)]
struct Saved {
    #[serde(rename = "ClaimInfoStateList", deserialize_with = "null_is_empty")]
    claims: Vec<ClaimState>,
}

/// Nothing where there is no file. A file that cannot be read is an error: taking it for empty would leave devices
/// prepared for ever.
pub fn load(file: &Path) -> Result<Vec<ClaimState>, Error> {
    let problem = |problem: String| Error::Read { file: file.into(), problem };
    let text = match std::fs::read(file) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(vec![]),
        Err(error) => return Err(problem(error.to_string())),
    };
    let saved: File = serde_json::from_slice(&text).map_err(|error| problem(error.to_string()))?;
    if checksum(&saved.data) != saved.checksum {
        return Err(problem("checkpoint is corrupted".into()));
    }
    let saved: Saved = serde_json::from_str(&saved.data).map_err(|error| problem(error.to_string()))?;
    Ok(saved.claims)
}

pub fn store(file: &Path, claims: &[&ClaimState]) -> Result<(), Error> {
    let api_version = "checkpoint.dra.kubelet.k8s.io/v1";
    let written = Written { kind: "DRACheckpoint", api_version, claims };
    let write = || {
        let data = serde_json::to_string(&written)?;
        let checksum = checksum(&data);
        let text = serde_json::to_string(&File { data, checksum })?;
        let fresh = file.with_extension("new");
        std::fs::write(&fresh, text)?;
        std::fs::rename(&fresh, file)
    };
    write().map_err(Error::Write)
}

fn checksum(data: &str) -> u32 {
    let mut sum = flate2::Crc::new();
    sum.update(data.as_bytes());
    sum.sum()
}

fn write_set<S: Serializer>(set: &BTreeSet<String>, serializer: S) -> Result<S::Ok, S::Error> {
    let empty = BTreeMap::<(), ()>::new;
    serializer.collect_map(set.iter().map(|each| (each, empty())))
}

fn read_set<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeSet<String>, D::Error> {
    let map: BTreeMap<String, serde::de::IgnoredAny> = null_is_empty(deserializer)?;
    Ok(map.into_keys().collect())
}

/// Go writes a list or a map that was never made as `null`.
fn null_is_empty<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(
    deserializer: D,
) -> Result<T, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As upstream's kubelet wrote it for one claim.
    const UPSTREAM: &str = r#"{"Data":"{\"kind\":\"DRACheckpoint\",\"apiVersion\":\"checkpoint.dra.kubelet.k8s.io/v1\",\"ClaimInfoStateList\":[{\"ClaimUID\":\"c1\",\"ClaimName\":\"gpu\",\"Namespace\":\"default\",\"PodUIDs\":{\"p1\":{}},\"DriverState\":{\"gpu.example.com\":{\"Devices\":[{\"PoolName\":\"n\",\"DeviceName\":\"d\",\"ShareID\":null,\"RequestNames\":[\"r\"],\"CDIDeviceIDs\":null}]},\"none.example.com\":{\"Devices\":null}}}]}","Checksum":SUM}"#;

    fn directory() -> tempfile::TempDir {
        tempfile::tempdir().expect("a directory can be made")
    }

    fn with_sum(text: &str) -> String {
        let data: serde_json::Value = serde_json::from_str(&text.replace("SUM", "0")).expect("well formed");
        text.replace("SUM", &checksum(data["Data"].as_str().expect("text")).to_string())
    }

    #[test]
    fn upstreams_file_is_read_and_written_again_the_same() {
        let directory = directory();
        let file = directory.path().join("dra_manager_state");
        std::fs::write(&file, with_sum(UPSTREAM)).expect("written");
        let claims = load(&file).expect("upstream's form");
        assert_eq!(claims[0].claim_uid, "c1");
        assert_eq!(claims[0].pod_uids, BTreeSet::from(["p1".into()]));
        assert_eq!(claims[0].driver_state["gpu.example.com"].devices[0].request_names, ["r"]);
        assert!(claims[0].driver_state["none.example.com"].devices.is_empty());
        store(&file, &claims.iter().collect::<Vec<_>>()).expect("written");
        assert_eq!(load(&file).expect("its own form"), claims);
        let text = std::fs::read_to_string(&file).expect("there");
        assert!(text.contains(r#"\"PodUIDs\":{\"p1\":{}}"#), "{text}");
    }

    #[test]
    fn an_unreadable_checkpoint_is_an_error() {
        let directory = directory();
        let file = directory.path().join("dra_manager_state");
        assert_eq!(load(&file).expect("none yet"), vec![]);
        for text in ["", "{}", &UPSTREAM.replace("SUM", "1"), r#"{"Data":"[]","Checksum":223132457}"#] {
            std::fs::write(&file, text).expect("written");
            assert!(load(&file).is_err(), "{text}");
        }
        // checked against another implementation of the checksum (IEEE)
        assert_eq!(checksum("123456789"), 0xCBF4_3926);
    }

    #[test]
    fn a_device_is_for_its_requests() {
        let check = |names: &[&str], request: &str, expected: bool| {
            let request_names = names.iter().map(ToString::to_string).collect();
            let device = Device { request_names, ..Device::default() };
            assert_eq!(device.is_for(request), expected, "{names:?} {request}");
        };
        check(&["a"], "", true);
        check(&[], "a", true);
        check(&["a"], "a", true);
        check(&["a", "b"], "b", true);
        check(&["a"], "b", false);
        check(&["a"], "a/large", true);
        check(&["a/large"], "a", true);
        check(&["a/large"], "a/small", false);
        check(&["ab"], "a", false);
    }
}
