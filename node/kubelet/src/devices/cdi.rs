//! The container device interface for runtimes that do not know it: the kubelet reads the specifications that drivers
//! leave and puts what they ask for into the container's configuration, as far as that can carry it.
//!
//! Which runtime knows it is learnt from the runtime, see [`runtime_injects`]. Debian 12's containerd 1.6 does not.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::cri;

/// Where drivers leave specifications; what stands in the later counts.
pub const SPEC_DIRS: [&str; 2] = ["/etc/cdi", "/var/run/cdi"];
/// A specification is read up to here: one of a machine with many devices has some hundred kilobytes.
const MAX_SPEC_BYTES: u64 = 16 << 20;

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("unresolvable CDI devices {}", .0.join(", "))]
    Unresolvable(Vec<String>),
}

/// Whether the runtime makes CDI devices of their names. containerd does from 2.0 on and in 1.7 if it is told to, which
/// its settings show (`enableCDI`); to others names are handed in, as upstream's kubelet does.
pub fn runtime_injects(version: &cri::VersionResponse, settings: Option<&serde_json::Value>) -> bool {
    if version.runtime_name != "containerd" {
        return true;
    }
    let enabled = settings.and_then(|settings| settings["enableCDI"].as_bool());
    let mut numbers = version.runtime_version.trim_start_matches('v').split(|c: char| !c.is_ascii_digit());
    let mut number = || numbers.next().and_then(|digits| digits.parse::<u32>().ok()).unwrap_or(0);
    match (number(), number()) {
        (0..=1, 0..=6) => false,
        (0..=1, _) => enabled.unwrap_or(false),
        _ => enabled.unwrap_or(true),
    }
}

/// A specification, as far as the kubelet acts on it.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Spec {
    kind: String,
    #[serde(default)]
    devices: Vec<SpecDevice>,
    #[serde(default)]
    container_edits: Edits,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct SpecDevice {
    name: String,
    #[serde(default)]
    container_edits: Edits,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Edits {
    env: Vec<String>,
    device_nodes: Vec<DeviceNode>,
    mounts: Vec<Mount>,
    hooks: Vec<serde_json::Value>,
    #[serde(rename = "additionalGids")]
    additional_gids: Vec<i64>,
    net_devices: Vec<serde_json::Value>,
    intel_rdt: Option<serde_json::Value>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct DeviceNode {
    path: String,
    host_path: String,
    permissions: String,
    file_mode: Option<u32>,
    uid: Option<u32>,
    gid: Option<u32>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Mount {
    host_path: String,
    container_path: String,
    options: Vec<String>,
    #[serde(rename = "type")]
    kind: String,
}

/// All devices that specifications tell of.
#[derive(Debug, Default)]
pub struct Devices {
    specs: Vec<Spec>,
    /// By whole name: the specification, and the device within it. `None` where two of one directory have the name.
    by_name: BTreeMap<String, Option<(usize, usize)>>,
}

impl Devices {
    /// A directory that is not there has no devices. A specification that cannot be read is told of in the log: its
    /// devices are then missed by name.
    pub fn read(directories: &[PathBuf]) -> Self {
        let mut devices = Self::default();
        for directory in directories {
            let mut files: Vec<PathBuf> = match std::fs::read_dir(directory) {
                Ok(entries) => entries.flatten().map(|entry| entry.path()).collect(),
                Err(error) => {
                    if error.kind() != std::io::ErrorKind::NotFound {
                        tracing::warn!(directory = %directory.display(), %error, "CDI specifications not read");
                    }
                    continue;
                }
            };
            files.retain(|file| file.extension().is_some_and(|is| is == "json" || is == "yaml"));
            files.sort();
            let mut here = BTreeMap::new();
            for file in files {
                match read_spec(&file) {
                    Ok(spec) => devices.add(spec, &mut here),
                    Err(problem) => {
                        tracing::warn!(file = %file.display(), problem, "not a CDI specification");
                    }
                }
            }
            devices.by_name.extend(here);
        }
        devices
    }

    fn add(&mut self, spec: Spec, here: &mut BTreeMap<String, Option<(usize, usize)>>) {
        let index = self.specs.len();
        for (device, each) in spec.devices.iter().enumerate() {
            let name = format!("{}={}", spec.kind, each.name);
            here.entry(name).and_modify(|taken| *taken = None).or_insert(Some((index, device)));
        }
        self.specs.push(spec);
    }

    /// What devices ask for: what their specifications ask for of all their devices, once, and each device's own.
    pub fn edits(&self, names: &[String]) -> Result<Vec<&Edits>, Error> {
        let found = |name: &String| self.by_name.get(name).copied().flatten();
        let missing: Vec<String> = names.iter().filter(|name| found(name).is_none()).cloned().collect();
        if !missing.is_empty() {
            return Err(Error::Unresolvable(missing));
        }
        let mut edits = Vec::new();
        let mut common = Vec::new();
        for (spec, device) in names.iter().filter_map(found) {
            if !common.contains(&spec) {
                common.push(spec);
                edits.push(&self.specs[spec].container_edits);
            }
            edits.push(&self.specs[spec].devices[device].container_edits);
        }
        Ok(edits)
    }
}

fn read_spec(file: &Path) -> Result<Spec, String> {
    let metadata = std::fs::metadata(file).map_err(|error| error.to_string())?;
    // a pipe would be waited for, a device read for ever
    if !metadata.is_file() {
        return Err("it is no file".into());
    }
    let size = metadata.len();
    if size > MAX_SPEC_BYTES {
        return Err(format!("it has {size} bytes, more than {MAX_SPEC_BYTES}"));
    }
    let text = std::fs::read_to_string(file).map_err(|error| error.to_string())?;
    // JSON is YAML too
    let value: serde_json::Value = ferry_api::yaml::one(&text).map_err(|error| error.to_string())?;
    let spec: Spec = serde_json::from_value(value).map_err(|error| error.to_string())?;
    match spec.kind.split_once('/') {
        Some((vendor, class)) if !vendor.is_empty() && !class.is_empty() => Ok(spec),
        _ => Err(format!("kind {:?} is not VENDOR/CLASS", spec.kind)),
    }
}

/// Options of a mount that every container's mounts have anyway, or that their devices' group makes harmless.
const IMPLIED: [&str; 9] =
    ["bind", "rbind", "private", "rprivate", "rw", "nosuid", "nodev", "relatime", "noatime"];

/// Puts edits into a container's configuration. Says what that cannot carry.
pub fn apply(edits: &[&Edits], config: &mut cri::ContainerConfig) -> Vec<String> {
    let mut undone = Vec::new();
    for edits in edits {
        for (key, value) in edits.env.iter().filter_map(|each| each.split_once('=')) {
            config.envs.retain(|each| each.key != key);
            config.envs.push(cri::KeyValue { key: key.into(), value: value.into() });
        }
        for node in &edits.device_nodes {
            if node.file_mode.is_some() || node.uid.is_some() || node.gid.is_some() {
                undone.push(format!("mode and owner of device {}", node.path));
            }
            let host_path = if node.host_path.is_empty() { &node.path } else { &node.host_path };
            let permissions = if node.permissions.is_empty() { "rwm" } else { &node.permissions };
            config.devices.retain(|device| device.container_path != node.path);
            config.devices.push(cri::Device {
                container_path: node.path.clone(),
                host_path: host_path.clone(),
                permissions: permissions.into(),
            });
        }
        for mount in &edits.mounts {
            apply_mount(mount, config, &mut undone);
        }
        if let Some(security) = config.linux.as_mut().and_then(|linux| linux.security_context.as_mut()) {
            security.supplemental_groups.extend(edits.additional_gids.iter().filter(|gid| **gid > 0));
        }
        let left = [
            ("hooks", edits.hooks.len()),
            ("network devices", edits.net_devices.len()),
            ("Intel RDT settings", usize::from(edits.intel_rdt.is_some())),
        ];
        undone.extend(
            left.iter().filter(|(_, count)| *count > 0).map(|(what, count)| format!("{count} {what}")),
        );
    }
    undone
}

fn apply_mount(mount: &Mount, config: &mut cri::ContainerConfig, undone: &mut Vec<String>) {
    if !matches!(mount.kind.as_str(), "" | "bind" | "none") {
        undone.push(format!("mount of type {} at {}", mount.kind, mount.container_path));
        return;
    }
    let has = |name: &str| mount.options.iter().any(|option| option == name);
    let propagation = if has("rshared") || has("shared") {
        cri::MountPropagation::PropagationBidirectional
    } else if has("rslave") || has("slave") {
        cri::MountPropagation::PropagationHostToContainer
    } else {
        cri::MountPropagation::PropagationPrivate
    };
    let carried = ["ro", "rshared", "shared", "rslave", "slave"];
    for option in mount.options.iter().map(String::as_str) {
        if !carried.contains(&option) && !IMPLIED.contains(&option) {
            undone.push(format!("option {option} of the mount at {}", mount.container_path));
        }
    }
    config.mounts.retain(|each| each.container_path != mount.container_path);
    config.mounts.push(cri::Mount {
        container_path: mount.container_path.clone(),
        host_path: mount.host_path.clone(),
        readonly: has("ro"),
        propagation: propagation.into(),
        ..Default::default()
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_runtime_says_whether_it_knows_devices_by_name() {
        let check = |name: &str, version: &str, settings: Option<serde_json::Value>, expected: bool| {
            let (runtime_name, runtime_version) = (name.into(), version.into());
            let answer = cri::VersionResponse { runtime_name, runtime_version, ..Default::default() };
            assert_eq!(
                runtime_injects(&answer, settings.as_ref()),
                expected,
                "{name} {version} {settings:?}"
            );
        };
        check("containerd", "1.6.20~ds1", Some(json!({"sandboxImage": "p"})), false);
        check("containerd", "1.6.20~ds1", None, false);
        check("containerd", "v1.7.24", Some(json!({"enableCDI": false})), false);
        check("containerd", "v1.7.24", Some(json!({"enableCDI": true})), true);
        check("containerd", "v2.0.1", Some(json!({"enableCDI": true})), true);
        check("containerd", "v2.0.1", Some(json!({"enableCDI": false})), false);
        check("containerd", "2.2.0", Some(json!({})), true);
        check("cri-o", "1.30.0", None, true);
    }

    #[test]
    fn cdi_specifications_must_be_regular_files() {
        let directory = tempfile::tempdir().expect("a directory can be made");
        let endless = directory.path().join("a.json");
        std::os::unix::fs::symlink("/dev/zero", &endless).expect("a link can be made");
        assert_eq!(read_spec(&endless).map(|spec| spec.kind), Err("it is no file".into()));
    }

    fn devices(files: &[(&str, &str)]) -> Devices {
        let directory = tempfile::tempdir().expect("a directory can be made");
        let directories = ["first", "second"].map(|name| directory.path().join(name));
        for (name, text) in files {
            let file = directory.path().join(name);
            std::fs::create_dir_all(file.parent().expect("in a directory")).expect("made");
            std::fs::write(file, text).expect("written");
        }
        Devices::read(&directories)
    }

    const WHOLE: &str = r#"
cdiVersion: "0.6.0"
kind: example.com/gpu
containerEdits:
  env: [COMMON=1]
  hooks: [{hookName: createContainer, path: /bin/hook}]
devices:
- name: "0"
  containerEdits:
    env: [GPU=0, PATH=/gpu]
    deviceNodes: [{path: /dev/gpu0, hostPath: /dev/null}, {path: /dev/zero, permissions: r, fileMode: 438}]
    mounts:
    - {hostPath: /lib/gpu, containerPath: /gpu, options: [ro, nosuid, rbind, noexec]}
    - {containerPath: /scratch, type: tmpfs}
    additionalGids: [44, 0]
- name: "1"
  containerEdits: {env: [GPU=1]}
"#;

    #[test]
    fn cdi_edits_are_in_the_container_configuration() {
        let devices = devices(&[("first/gpu.yaml", WHOLE)]);
        let names = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
        let edits =
            devices.edits(&names(&["example.com/gpu=0", "example.com/gpu=1"])).expect("both are there");
        let mut config = cri::ContainerConfig {
            envs: vec![cri::KeyValue { key: "PATH".into(), value: "/bin".into() }],
            linux: Some(cri::LinuxContainerConfig {
                security_context: Some(Default::default()),
                ..Default::default()
            }),
            ..Default::default()
        };
        let undone = apply(&edits, &mut config);
        let envs: Vec<_> = config
            .envs
            .iter()
            .map(|each| format!("{}={}", each.key, String::from_utf8_lossy(&each.value)))
            .collect();
        assert_eq!(envs, ["COMMON=1", "PATH=/gpu", "GPU=1"], "the last word counts");
        let shown: Vec<_> = config
            .devices
            .iter()
            .map(|each| (each.container_path.as_str(), each.host_path.as_str(), each.permissions.as_str()))
            .collect();
        assert_eq!(shown, [("/dev/gpu0", "/dev/null", "rwm"), ("/dev/zero", "/dev/zero", "r")]);
        assert_eq!((config.mounts.len(), config.mounts[0].readonly), (1, true));
        let security = config.linux.and_then(|linux| linux.security_context).expect("as given");
        assert_eq!(security.supplemental_groups, [44]);
        let expected = [
            "1 hooks",
            "mode and owner of device /dev/zero",
            "option noexec of the mount at /gpu",
            "mount of type tmpfs at /scratch",
        ];
        assert_eq!(undone, expected);
    }

    #[test]
    fn a_device_is_found_by_its_whole_name_in_the_last_directory_that_has_it() {
        let spec = |env: &str| {
            let edits = json!({"env": [env]});
            json!({"cdiVersion": "0.6.0", "kind": "v.com/c", "devices": [{"name": "d", "containerEdits": edits}]})
                .to_string()
        };
        let check = |files: &[(&str, &str)], expected: Result<&str, Error>| {
            let devices = devices(files);
            let found = devices.edits(&["v.com/c=d".into()]).map(|edits| edits[1].env[0].clone());
            assert_eq!(found, expected.map(String::from), "{files:?}");
        };
        let missing = || Err(Error::Unresolvable(vec!["v.com/c=d".into()]));
        let (a, b) = (spec("A=1"), spec("A=2"));
        check(&[], missing());
        check(&[("first/a.json", &a)], Ok("A=1"));
        check(&[("first/a.json", &a), ("second/b.json", &b)], Ok("A=2"));
        check(&[("first/a.json", &a), ("first/b.json", &b)], missing());
        check(&[("first/a.json", &a), ("first/b.json", &b), ("second/a.json", &b)], Ok("A=2"));
        check(&[("first/a.txt", &a)], missing());
        for garbage in ["", "{", "[]", r#"{"kind": "none"}"#, r#"{"kind": "v.com/c", "devices": {}}"#] {
            check(&[("first/a.json", garbage)], missing());
        }
        assert_eq!(
            missing().map(|_: &str| ()).unwrap_err().to_string(),
            "unresolvable CDI devices v.com/c=d"
        );
    }
}
