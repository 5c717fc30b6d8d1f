//! Fields whose feature is off by default: a write leaves them out, as upstream's does.

use std::collections::{HashMap, HashSet};
use std::sync::LazyLock;

use ferry_api::{Object, Shape, TypeId, Types};
use serde_json::{Map, Value};

use super::table::type_named;

/// Type and field.
const GATED: &[(&str, &[&str])] = &[
    ("coordination.v1.LeaseSpec", &["strategy", "preferredHolder"]),
    ("core.v1.Lifecycle", &["stopSignal"]),
    ("core.v1.NodeSpec", &["configSource"]),
    ("core.v1.PodSpec", &["schedulingGroup"]),
    ("apps.v1.RollingUpdateStatefulSetStrategy", &["maxUnavailable"]),
    ("discovery.v1.Endpoint", &["deprecatedTopology"]),
    ("resource.v1.DeviceAttribute", &["bools", "ints", "strings", "versions"]),
    ("resource.v1.Device", &["nodeAllocatableResourceMappings"]),
    // The disruption mode of a group has a default, and stays at that.
    (
        "scheduling.v1alpha2.PodGroupSpec",
        &["schedulingConstraints", "resourceClaims", "priorityClassName", "priority"],
    ),
    ("scheduling.v1alpha2.PodGroupStatus", &["resourceClaimStatuses"]),
    (
        "scheduling.v1alpha2.PodGroupTemplate",
        &["schedulingConstraints", "resourceClaims", "disruptionMode", "priorityClassName", "priority"],
    ),
    ("storage.v1.CSIDriverSpec", &["preventPodSchedulingIfMissing"]),
];

type ByType<T> = HashMap<TypeId, T, foldhash::fast::RandomState>;

struct Gates {
    own: ByType<&'static [&'static str]>,
    /// Types in which there are such fields, or below which.
    leads: HashSet<TypeId, foldhash::fast::RandomState>,
}

static GATES: LazyLock<Gates> = LazyLock::new(|| {
    let types = Types::builtin();
    let own: ByType<&[&str]> =
        GATED.iter().filter_map(|(name, fields)| Some((type_named(name, types)?, *fields))).collect();
    // Each type, and those that have a field of it.
    let mut above: ByType<Vec<TypeId>> = HashMap::default();
    for ty in types.iter() {
        let Some(id) = types.by_name(&ty.name) else { continue };
        for below in ty.fields.iter().filter_map(|field| field.shape.element_struct()) {
            above.entry(below).or_default().push(id);
        }
    }
    let mut leads = HashSet::default();
    let mut next: Vec<TypeId> = own.keys().copied().collect();
    while let Some(id) = next.pop() {
        if leads.insert(id) {
            next.extend(above.get(&id).into_iter().flatten());
        }
    }
    Gates { own, leads }
});

/// Takes them out.
pub fn close(object: &mut Object) {
    let types = Types::builtin();
    let kind = ferry_api::GroupVersionKind::from_api_version(object.api_version(), object.kind());
    if let Some(id) = types.by_kind(&kind).filter(|id| GATES.leads.contains(id)) {
        structure(&mut object.0, id, types);
    }
}

fn structure(map: &mut Map<String, Value>, id: TypeId, types: &Types) {
    for field in GATES.own.get(&id).copied().unwrap_or(&[]) {
        map.remove(*field);
    }
    for field in &types.get(id).fields {
        if let Some(below) = field.shape.element_struct().filter(|id| GATES.leads.contains(id))
            && let Some(value) = map.get_mut(&*field.name)
        {
            nested(value, &field.shape, below, types);
        }
    }
}

fn nested(value: &mut Value, shape: &Shape, id: TypeId, types: &Types) {
    match (shape, value) {
        (Shape::Struct(_), Value::Object(map)) => structure(map, id, types),
        (Shape::List(element), Value::Array(items)) => {
            items.iter_mut().for_each(|item| nested(item, element, id, types));
        }
        (Shape::Map(element), Value::Object(entries)) => {
            entries.values_mut().for_each(|item| nested(item, element, id, types));
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_field_whose_feature_is_off_is_left_out_wherever_it_stands() {
        let container = json!({"name": "a", "lifecycle": {"stopSignal": "SIGTERM", "preStop": {}}});
        let deployment = json!({"apiVersion": "apps/v1", "kind": "Deployment",
            "spec": {"template": {"spec": {"containers": [container]}}}});
        let mut object = Object::from_value(deployment).expect("an object");
        close(&mut object);
        let spec = object.get(&["spec", "template", "spec"]).expect("a spec");
        assert_eq!(spec["containers"][0]["lifecycle"], json!({"preStop": {}}));
        for (name, fields) in GATED {
            let id = type_named(name, Types::builtin()).expect("a type of the table");
            assert!(fields.iter().all(|field| Types::builtin().get(id).field(field).is_some()), "{name}");
        }
    }
}
