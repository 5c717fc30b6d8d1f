//! What the API says of a node's drivers: the CSINode object, an annotation and the labels of the Node.

use std::collections::BTreeMap;

use ferry_plugins_api::csi::NodeGetInfoResponse;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::storage::v1::{CSINode, CSINodeDriver, VolumeNodeResources};
use serde_json::{Value, json};

/// A driver's name for the node, by driver: JSON in text.
pub const NODE_ID: &str = "csi.volume.kubernetes.io/nodeid";

/// What a driver has said of this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Installed {
    pub name: String,
    pub node_id: String,
    /// How many volumes it can attach; `None` for any number.
    pub max_volumes: Option<i32>,
    pub topology: BTreeMap<String, String>,
}

impl Installed {
    pub fn new(name: &str, info: NodeGetInfoResponse) -> Result<Self, String> {
        if info.node_id.is_empty() {
            return Err("error adding CSI driver node info: driverNodeID must not be empty".into());
        }
        let max = info.max_volumes_per_node;
        if max < 0 {
            tracing::warn!(driver = name, max, "ignoring the invalid attach limit of a driver");
        }
        Ok(Self {
            name: name.into(),
            node_id: info.node_id,
            max_volumes: (max > 0).then(|| i32::try_from(max).unwrap_or(i32::MAX)),
            topology: info.accessible_topology.unwrap_or_default().segments.into_iter().collect(),
        })
    }

    /// As the CSINode lists it.
    pub fn driver(&self) -> CSINodeDriver {
        CSINodeDriver {
            name: self.name.clone(),
            node_id: self.node_id.clone(),
            topology_keys: Some(self.topology.keys().cloned().collect())
                .filter(|keys: &Vec<_>| !keys.is_empty()),
            allocatable: self.max_volumes.map(|count| VolumeNodeResources { count: Some(count) }),
        }
    }
}

/// The object with a driver, or without the one of this name.
pub fn with_driver(mut object: CSINode, name: &str, driver: Option<CSINodeDriver>) -> CSINode {
    let drivers = &mut object.spec.drivers;
    match (drivers.iter().position(|each| each.name == name), driver) {
        (Some(at), Some(driver)) => drivers[at] = driver,
        (None, Some(driver)) => drivers.push(driver),
        (Some(at), None) => drop(drivers.remove(at)),
        (None, None) => {}
    }
    object
}

/// What has to change of a Node for a driver, as a merge patch; `None` where nothing has. The labels of a driver that
/// is gone stay, as upstream leaves them: volumes may still be placed by them.
pub fn node_patch(node: &Node, name: &str, driver: Option<&Installed>) -> Result<Option<Value>, String> {
    let annotations = node.metadata.annotations.clone().unwrap_or_default();
    let text = annotations.get(NODE_ID).filter(|text| !text.is_empty());
    let mut ids: BTreeMap<String, String> = match text {
        Some(text) => serde_json::from_str(text).map_err(|error| {
            format!("failed to parse node's {NODE_ID:?} annotation value ({text:?}) err={error}")
        })?,
        None => BTreeMap::new(),
    };
    let before = ids.clone();
    match driver {
        Some(driver) => ids.insert(name.into(), driver.node_id.clone()),
        None => ids.remove(name),
    };
    let labels = node.metadata.labels.clone().unwrap_or_default();
    let mut added = BTreeMap::new();
    for (key, value) in driver.iter().flat_map(|driver| &driver.topology) {
        match labels.get(key) {
            Some(has) if has == value => {}
            Some(has) => {
                return Err(format!(
                    "detected topology value collision: driver reported {key:?}:{value:?} but existing label is \
                     {key:?}:{has:?}"
                ));
            }
            None => drop(added.insert(key.clone(), value.clone())),
        }
    }
    if ids == before && added.is_empty() {
        return Ok(None);
    }
    let ids = if ids.is_empty() { Value::Null } else { json!(json!(ids).to_string()) };
    Ok(Some(json!({"metadata": {
        "resourceVersion": node.metadata.resource_version,
        "annotations": {NODE_ID: ids},
        "labels": added,
    }})))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn installed(topology: &[(&str, &str)], max: i64) -> Installed {
        let segments = topology.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect();
        let info = NodeGetInfoResponse {
            node_id: "id-1".into(),
            max_volumes_per_node: max,
            accessible_topology: Some(ferry_plugins_api::csi::Topology { segments }),
        };
        Installed::new("d", info).expect("it has an id")
    }

    fn node(annotation: Option<&str>, labels: Value) -> Node {
        let annotations = annotation.map(|text| json!({NODE_ID: text}));
        serde_json::from_value(json!({"metadata": {"name": "n", "resourceVersion": "7",
            "annotations": annotations, "labels": labels}}))
        .expect("a node")
    }

    #[test]
    fn a_driver_is_listed_with_its_limit_and_topology() {
        let driver = installed(&[("example.com/zone", "a")], 5).driver();
        assert_eq!(driver.topology_keys, Some(vec!["example.com/zone".into()]));
        assert_eq!(driver.allocatable.and_then(|allocatable| allocatable.count), Some(5));
        assert_eq!(installed(&[], 0).driver().allocatable, None);
        assert_eq!(installed(&[], -3).driver().allocatable, None);
        assert!(Installed::new("d", NodeGetInfoResponse::default()).is_err());

        let mut object = CSINode::default();
        object.spec.drivers.push(CSINodeDriver { name: "other".into(), ..Default::default() });
        let with = with_driver(object.clone(), "d", Some(installed(&[], 5).driver()));
        assert_eq!(with.spec.drivers.len(), 2);
        let with = with_driver(with, "d", Some(installed(&[], 6).driver()));
        assert_eq!(with.spec.drivers[1].allocatable, Some(VolumeNodeResources { count: Some(6) }));
        assert_eq!(with_driver(with, "d", None), object);
        assert_eq!(with_driver(object.clone(), "d", None), object);
    }

    #[test]
    fn the_node_has_the_drivers_id_and_labels() {
        let own = installed(&[("example.com/zone", "a")], 0);
        let patch = node_patch(&node(None, json!({})), "d", Some(&own)).expect("nothing is in the way");
        let patch = patch.expect("much is new");
        assert_eq!(patch["metadata"]["annotations"][NODE_ID], r#"{"d":"id-1"}"#);
        assert_eq!(patch["metadata"]["labels"]["example.com/zone"], "a");

        let done = node(Some(r#"{"d":"id-1"}"#), json!({"example.com/zone": "a"}));
        assert_eq!(node_patch(&done, "d", Some(&own)), Ok(None));
        let collides = node(None, json!({"example.com/zone": "b"}));
        let said = node_patch(&collides, "d", Some(&own)).expect_err("it is elsewhere");
        assert_eq!(
            said,
            r#"detected topology value collision: driver reported "example.com/zone":"a" but existing label is "example.com/zone":"b""#
        );
        let patch = node_patch(&done, "d", None).expect("nothing is in the way").expect("the id goes");
        assert_eq!(patch["metadata"]["annotations"][NODE_ID], Value::Null);
        assert_eq!(patch["metadata"]["labels"], json!({}));
        let both = node(Some(r#"{"d":"id-1","e":"id-2"}"#), json!({}));
        let patch = node_patch(&both, "d", None).expect("nothing is in the way").expect("the id goes");
        assert_eq!(patch["metadata"]["annotations"][NODE_ID], r#"{"e":"id-2"}"#);
        assert!(node_patch(&node(Some("{"), json!({})), "d", Some(&own)).is_err());
    }
}
