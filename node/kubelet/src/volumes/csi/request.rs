//! What a driver is asked for a volume: pure.

use std::collections::{BTreeMap, HashMap};

use ferry_api::csi_volume::{attachment_name, ephemeral_handle};
use ferry_plugins_api::csi::VolumeCapability;
use ferry_plugins_api::csi::volume_capability::access_mode::Mode;
use ferry_plugins_api::csi::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};
use k8s_openapi::api::core::v1::{
    CSIPersistentVolumeSource, CSIVolumeSource, PersistentVolume, PersistentVolumeSpec, Pod, SecretReference,
};
use k8s_openapi::api::storage::v1::CSIDriver;

use super::record::{EPHEMERAL, PERSISTENT, Record};
use crate::pod;

const POD_NAME: &str = "csi.storage.k8s.io/pod.name";
const POD_NAMESPACE: &str = "csi.storage.k8s.io/pod.namespace";
const POD_UID: &str = "csi.storage.k8s.io/pod.uid";
const SERVICE_ACCOUNT: &str = "csi.storage.k8s.io/serviceAccount.name";
const IS_EPHEMERAL: &str = "csi.storage.k8s.io/ephemeral";
pub const TOKENS: &str = "csi.storage.k8s.io/serviceAccount.tokens";
pub const ONE_POD: &str = "ReadWriteOncePod";

/// A volume as a pod asks for it: of a PersistentVolume, or inline.
#[derive(Clone, Debug, PartialEq)]
pub struct Wanted {
    pub record: Record,
    pub is_block: bool,
    pub read_only: bool,
    pub fs_type: String,
    pub access_modes: Vec<String>,
    pub mount_options: Vec<String>,
    pub attributes: BTreeMap<String, String>,
    pub stage_secret: Option<SecretReference>,
    pub publish_secret: Option<SecretReference>,
    pub expand_secret: Option<SecretReference>,
}

impl Wanted {
    /// `read_only` is what the pod says.
    pub fn persistent(
        volume: &PersistentVolume,
        spec: &PersistentVolumeSpec,
        source: &CSIPersistentVolumeSource,
        node: &str,
        read_only: bool,
    ) -> Self {
        let record = Record {
            name: volume.metadata.name.clone().unwrap_or_default(),
            volume_handle: source.volume_handle.clone(),
            driver_name: source.driver.clone(),
            node_name: node.into(),
            attachment_id: attachment_name(&source.volume_handle, &source.driver, node),
            volume_lifecycle_mode: PERSISTENT.into(),
        };
        Self {
            record,
            is_block: spec.volume_mode.as_deref() == Some("Block"),
            read_only,
            fs_type: source.fs_type.clone().unwrap_or_default(),
            access_modes: spec.access_modes.clone().unwrap_or_default(),
            mount_options: spec.mount_options.clone().unwrap_or_default(),
            attributes: source.volume_attributes.clone().unwrap_or_default(),
            stage_secret: source.node_stage_secret_ref.clone(),
            publish_secret: source.node_publish_secret_ref.clone(),
            expand_secret: source.node_expand_secret_ref.clone(),
        }
    }

    pub fn inline(pod: &Pod, name: &str, source: &CSIVolumeSource, node: &str) -> Self {
        let handle = ephemeral_handle(pod::uid(pod), name);
        let secret = source.node_publish_secret_ref.as_ref().map(|reference| SecretReference {
            name: Some(reference.name.clone()),
            namespace: Some(pod::namespace(pod).into()),
        });
        let record = Record {
            name: name.into(),
            attachment_id: attachment_name(&handle, &source.driver, node),
            volume_handle: handle,
            driver_name: source.driver.clone(),
            node_name: node.into(),
            volume_lifecycle_mode: EPHEMERAL.into(),
        };
        Self {
            record,
            is_block: false,
            read_only: source.read_only == Some(true),
            fs_type: source.fs_type.clone().unwrap_or_default(),
            access_modes: vec![],
            mount_options: vec![],
            attributes: source.volume_attributes.clone().unwrap_or_default(),
            stage_secret: None,
            publish_secret: secret,
            expand_secret: None,
        }
    }

    pub fn is_for_one_pod(&self) -> bool {
        self.access_modes.iter().any(|mode| mode == ONE_POD)
    }

    pub fn capability(&self, single_node_multi_writer: bool, group: Option<u32>) -> VolumeCapability {
        let mode = self.access_modes.first().map_or("ReadWriteOnce", String::as_str);
        let access_type = if self.is_block {
            AccessType::Block(BlockVolume {})
        } else {
            AccessType::Mount(MountVolume {
                fs_type: self.fs_type.clone(),
                mount_flags: self.mount_options.clone(),
                volume_mount_group: group.map(|group| group.to_string()).unwrap_or_default(),
            })
        };
        VolumeCapability {
            access_mode: Some(AccessMode { mode: access_mode(mode, single_node_multi_writer) as i32 }),
            access_type: Some(access_type),
        }
    }

    /// What the driver is told of the volume, and of its pod where it wants that.
    pub fn context(&self, pod: &Pod, driver: Option<&CSIDriver>) -> HashMap<String, String> {
        let mut context: HashMap<String, String> = self.attributes.clone().into_iter().collect();
        if driver.is_some_and(|driver| driver.spec.pod_info_on_mount == Some(true)) {
            let account = pod::spec(pod).service_account_name.clone().unwrap_or_default();
            context.extend([
                (POD_NAME.into(), pod::name(pod).into()),
                (POD_NAMESPACE.into(), pod::namespace(pod).into()),
                (POD_UID.into(), pod::uid(pod).into()),
                (SERVICE_ACCOUNT.into(), account),
                (IS_EPHEMERAL.into(), self.record.is_ephemeral().to_string()),
            ]);
        }
        context
    }

    /// Whether the kubelet gives the files of the volume to the pod's group.
    pub fn is_given_to_group(&self, driver: Option<&CSIDriver>) -> bool {
        let policy = driver.and_then(|driver| driver.spec.fs_group_policy.as_deref());
        if self.is_block || self.read_only {
            return false;
        }
        match policy.unwrap_or("ReadWriteOnceWithFSType") {
            "None" => false,
            "File" => true,
            _ if self.fs_type.is_empty() => false,
            _ => {
                let once = |mode: &String| mode == "ReadWriteOnce" || mode == ONE_POD;
                self.record.is_ephemeral() || self.access_modes.iter().any(once)
            }
        }
    }

    /// Whether the driver takes volumes that live as this one does. In upstream's words.
    pub fn check_lifecycle(&self, driver: Option<&CSIDriver>) -> Result<(), String> {
        let (mode, name) = (&self.record.volume_lifecycle_mode, &self.record.driver_name);
        let Some(driver) = driver else {
            if mode == PERSISTENT {
                return Ok(());
            }
            return Err(format!("volume mode {mode:?} not supported by driver {name} (no CSIDriver object)"));
        };
        let modes = driver.spec.volume_lifecycle_modes.clone().filter(|modes| !modes.is_empty());
        let modes = modes.unwrap_or_else(|| vec![PERSISTENT.into()]);
        if modes.contains(mode) {
            return Ok(());
        }
        let modes: Vec<String> = modes.iter().map(|mode| format!("{mode:?}")).collect();
        let modes = modes.join(" ");
        Err(format!("volume mode {mode:?} not supported by driver {name} (only supports [{modes}])"))
    }

    /// Whether the volume has to be attached to the node first.
    pub fn is_attached(&self, driver: Option<&CSIDriver>) -> bool {
        let skips = driver.is_some_and(|driver| driver.spec.attach_required == Some(false));
        !self.record.is_ephemeral() && !skips
    }
}

/// A driver that tells one pod from several on a node is told which is meant.
fn access_mode(mode: &str, single_node_multi_writer: bool) -> Mode {
    match (mode, single_node_multi_writer) {
        ("ReadWriteOnce", true) => Mode::SingleNodeMultiWriter,
        (ONE_POD, true) => Mode::SingleNodeSingleWriter,
        ("ReadWriteOnce" | ONE_POD, false) => Mode::SingleNodeWriter,
        ("ReadOnlyMany", _) => Mode::MultiNodeReaderOnly,
        ("ReadWriteMany", _) => Mode::MultiNodeMultiWriter,
        _ => Mode::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn wanted(spec: Value, read_only: bool) -> Wanted {
        let volume: PersistentVolume =
            serde_json::from_value(json!({"metadata": {"name": "pv"}, "spec": spec})).expect("a volume");
        let spec = volume.spec.clone().expect("it has one");
        let source = spec.csi.clone().expect("it has one");
        Wanted::persistent(&volume, &spec, &source, "n", read_only)
    }

    fn driver(spec: Value) -> CSIDriver {
        serde_json::from_value(json!({"metadata": {"name": "d"}, "spec": spec})).expect("a driver")
    }

    fn pod() -> Pod {
        serde_json::from_value(json!({"metadata": {"name": "p", "namespace": "ns", "uid": "u"},
            "spec": {"containers": [], "serviceAccountName": "sa"}}))
        .expect("a pod")
    }

    fn inline() -> Wanted {
        let source = json!({"driver": "d", "nodePublishSecretRef": {"name": "s"}, "readOnly": true});
        Wanted::inline(&pod(), "v", &serde_json::from_value(source).expect("a source"), "n")
    }

    #[test]
    fn access_modes_are_those_of_the_protocol() {
        let check = |mode: &str, knows, expected| assert_eq!(access_mode(mode, knows), expected, "{mode}");
        check("ReadWriteOnce", false, Mode::SingleNodeWriter);
        check("ReadWriteOnce", true, Mode::SingleNodeMultiWriter);
        check("ReadWriteOncePod", false, Mode::SingleNodeWriter);
        check("ReadWriteOncePod", true, Mode::SingleNodeSingleWriter);
        check("ReadWriteMany", true, Mode::MultiNodeMultiWriter);
        check("ReadOnlyMany", false, Mode::MultiNodeReaderOnly);
        check("Odd", false, Mode::Unknown);
    }

    #[test]
    fn the_group_gets_what_the_driver_leaves_to_the_kubelet() {
        let check = |policy: Value, fs_type: &str, modes: &[&str], read_only, expected| {
            let volume = json!({"accessModes": modes,
                "csi": {"driver": "d", "volumeHandle": "h", "fsType": fs_type}});
            let driver = driver(json!({"fsGroupPolicy": policy}));
            let given = wanted(volume, read_only).is_given_to_group(Some(&driver));
            assert_eq!(given, expected, "{policy} {fs_type} {modes:?} {read_only}");
        };
        check(Value::Null, "ext4", &["ReadWriteOnce"], false, true);
        check(Value::Null, "", &["ReadWriteOnce"], false, false);
        check(json!("ReadWriteOnceWithFSType"), "ext4", &["ReadWriteMany"], false, false);
        check(json!("ReadWriteOnceWithFSType"), "ext4", &["ReadWriteOncePod"], false, true);
        check(json!("File"), "", &["ReadWriteMany"], false, true);
        check(json!("File"), "", &["ReadWriteMany"], true, false);
        check(json!("None"), "ext4", &["ReadWriteOnce"], false, false);
    }

    #[test]
    fn a_driver_hears_of_the_pod_when_it_wants_to() {
        let volume = json!({"csi": {"driver": "d", "volumeHandle": "h", "volumeAttributes": {"a": "b"}}});
        let told = wanted(volume.clone(), false).context(&pod(), Some(&driver(json!({}))));
        assert_eq!(told, HashMap::from([("a".into(), "b".into())]));
        let told = wanted(volume, false).context(&pod(), Some(&driver(json!({"podInfoOnMount": true}))));
        assert_eq!(told.len(), 6);
        let told = |key: &str| told.get(key).map(String::as_str);
        assert_eq!(told("csi.storage.k8s.io/pod.namespace"), Some("ns"));
        assert_eq!(told("csi.storage.k8s.io/serviceAccount.name"), Some("sa"));
        assert_eq!(told("csi.storage.k8s.io/ephemeral"), Some("false"));
    }

    #[test]
    fn a_volume_lives_as_its_driver_allows() {
        let both = driver(json!({"volumeLifecycleModes": ["Persistent", "Ephemeral"]}));
        assert!(inline().check_lifecycle(Some(&both)).is_ok());
        let said = inline().check_lifecycle(Some(&driver(json!({})))).expect_err("it takes no others");
        assert_eq!(
            said,
            r#"volume mode "Ephemeral" not supported by driver d (only supports ["Persistent"])"#
        );
        let said = inline().check_lifecycle(None).expect_err("nothing says so");
        assert_eq!(said, r#"volume mode "Ephemeral" not supported by driver d (no CSIDriver object)"#);
        let volume = wanted(json!({"csi": {"driver": "d", "volumeHandle": "h"}}), false);
        assert!(volume.check_lifecycle(None).is_ok());
        assert!(volume.is_attached(None) && volume.is_attached(Some(&driver(json!({})))));
        assert!(!volume.is_attached(Some(&driver(json!({"attachRequired": false})))));
        assert!(!inline().is_attached(None));
    }

    #[test]
    fn an_inline_volume_is_its_pods_own() {
        let inline = inline();
        assert!(inline.read_only && inline.record.volume_handle.starts_with("csi-"));
        let secret = inline.publish_secret.expect("it has one");
        assert_eq!((secret.namespace.as_deref(), secret.name.as_deref()), (Some("ns"), Some("s")));
    }
}
