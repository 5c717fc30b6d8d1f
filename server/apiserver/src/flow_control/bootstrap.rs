//! The FlowSchemas and PriorityLevelConfigurations that the server keeps, with upstream's names and values, and how: it
//! creates what is missing, restores the spec of mandatory objects, and that of suggested ones unless their annotation or an
//! edit says otherwise. It deletes objects of former versions that bear the annotation. Pure.

use std::sync::LazyLock;

use k8s_openapi::api::flowcontrol::v1::{FlowSchema, PriorityLevelConfiguration};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::{Value, json};

use super::classify::{CATCH_ALL, EXEMPT};

pub const AUTO_UPDATE: &str = "apf.kubernetes.io/autoupdate-spec";

/// An object that the server keeps.
#[derive(Debug, Clone, PartialEq)]
pub struct Boot<K> {
    pub object: K,
    /// Its spec is restored whatever its annotation says.
    pub mandatory: bool,
}

/// Those that are kept; each change of a configuration object is compared with all of them.
pub static LEVELS: LazyLock<Vec<Boot<PriorityLevelConfiguration>>> = LazyLock::new(priority_levels);
pub static SCHEMAS: LazyLock<Vec<Boot<FlowSchema>>> = LazyLock::new(flow_schemas);

/// What the two kinds have in common here.
pub trait Configuration: Clone + PartialEq {
    fn metadata(&self) -> &ObjectMeta;
    fn metadata_mut(&mut self) -> &mut ObjectMeta;
    /// Whether the spec is the wanted one, but for what users may change.
    fn has_spec_of(&self, wanted: &Self) -> bool;
    fn set_spec_of(&mut self, wanted: &Self);
}

#[derive(Debug, PartialEq)]
pub enum Write<K> {
    Create(K),
    Update(K),
    Delete(String),
}

/// What has to be written so that the kept objects are as they should be.
pub fn plan<K: Configuration>(wanted: &[Boot<K>], existing: &[K]) -> Vec<Write<K>> {
    let name = |object: &K| object.metadata().name.clone().unwrap_or_default();
    let mut writes = Vec::new();
    for boot in wanted {
        let wanted_name = name(&boot.object);
        match existing.iter().find(|object| name(object) == wanted_name) {
            None => writes.push(Write::Create(boot.object.clone())),
            Some(current) => writes.extend(revised(current, boot).map(Write::Update)),
        }
    }
    let is_kept = |object: &K| wanted.iter().any(|boot| name(&boot.object) == name(object));
    let surplus = existing.iter().filter(|object| auto_update(*object) == Some(true) && !is_kept(object));
    writes.extend(surplus.map(|object| Write::Delete(name(object))));
    writes
}

fn revised<K: Configuration>(current: &K, boot: &Boot<K>) -> Option<K> {
    // Without a readable annotation the generation tells whether somebody edited the spec.
    let keeps_spec =
        boot.mandatory || auto_update(current).unwrap_or(current.metadata().generation == Some(1));
    let mut revised = current.clone();
    if keeps_spec && !current.has_spec_of(&boot.object) {
        revised.set_spec_of(&boot.object);
    }
    if auto_update(current) != Some(keeps_spec) {
        let annotations = revised.metadata_mut().annotations.get_or_insert_default();
        annotations.insert(AUTO_UPDATE.into(), keeps_spec.to_string());
    }
    (revised != *current).then_some(revised)
}

/// Go's ParseBool.
fn auto_update<K: Configuration>(object: &K) -> Option<bool> {
    match object.metadata().annotations.as_ref()?.get(AUTO_UPDATE)?.as_str() {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

impl Configuration for FlowSchema {
    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }

    fn has_spec_of(&self, wanted: &Self) -> bool {
        self.spec == wanted.spec
    }

    fn set_spec_of(&mut self, wanted: &Self) {
        self.spec = wanted.spec.clone();
    }
}

impl Configuration for PriorityLevelConfiguration {
    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }

    /// The shares of the exempt level are the users'.
    fn has_spec_of(&self, wanted: &Self) -> bool {
        let exempt =
            |level: &PriorityLevelConfiguration| level.spec.as_ref().and_then(|spec| spec.exempt.clone());
        if wanted.metadata.name.as_deref() != Some(EXEMPT) || exempt(self).is_none() {
            return self.spec == wanted.spec;
        }
        let mut wanted = wanted.spec.clone();
        if let Some(spec) = &mut wanted {
            spec.exempt = exempt(self);
        }
        self.spec == wanted
    }

    fn set_spec_of(&mut self, wanted: &Self) {
        self.spec = wanted.spec.clone();
    }
}

pub fn priority_levels() -> Vec<Boot<PriorityLevelConfiguration>> {
    // Shares, percent of them that others may borrow, queues and how many of them a flow uses.
    let limited = |name: &str, shares: i32, lendable: i32, queues: i32, hand: i32| {
        let response = json!({
            "type": "Queue", "queuing": {"queues": queues, "handSize": hand, "queueLengthLimit": 50},
        });
        level(name, false, shares, lendable, response)
    };
    vec![
        level(CATCH_ALL, true, 5, 0, json!({"type": "Reject"})),
        boot(
            EXEMPT,
            true,
            json!({"type": "Exempt", "exempt": {"nominalConcurrencyShares": 0, "lendablePercent": 0}}),
        ),
        limited("system", 30, 33, 64, 6),
        limited("node-high", 40, 25, 64, 6),
        limited("leader-election", 10, 0, 16, 4),
        limited("workload-high", 40, 50, 128, 6),
        limited("workload-low", 100, 90, 128, 6),
        limited("global-default", 20, 50, 128, 6),
    ]
}

fn level(
    name: &str,
    mandatory: bool,
    shares: i32,
    lendable: i32,
    response: Value,
) -> Boot<PriorityLevelConfiguration> {
    let limited =
        json!({"nominalConcurrencyShares": shares, "lendablePercent": lendable, "limitResponse": response});
    boot(name, mandatory, json!({"type": "Limited", "limited": limited}))
}

pub fn flow_schemas() -> Vec<Boot<FlowSchema>> {
    let everybody = || groups(&["system:unauthenticated", "system:authenticated"]);
    let manager = || user("system:kube-controller-manager");
    let scheduler = || user("system:kube-scheduler");
    let masters = everything(groups(&["system:masters"]));
    let nodes = everything(groups(&["system:nodes"]));
    let accounts = everything(groups(&["system:serviceaccounts"]));
    let system_accounts = everything(vec![kube_system_accounts()]);
    let leaders = leases_of(vec![manager(), scheduler(), kube_system_accounts()]);
    let (by_user, by_namespace) = (Some("ByUser"), Some("ByNamespace"));
    let (manager, scheduler) = (everything(vec![manager()]), everything(vec![scheduler()]));
    vec![
        mandatory(EXEMPT, EXEMPT, 1, None, masters),
        mandatory(CATCH_ALL, CATCH_ALL, 10_000, by_user, everything(everybody())),
        suggested("system-nodes", "system", 500, by_user, nodes),
        suggested("system-node-high", "node-high", 400, by_user, node_heartbeats()),
        suggested("probes", EXEMPT, 2, None, probes(everybody())),
        suggested("system-leader-election", "leader-election", 100, by_user, leaders),
        suggested("kube-controller-manager", "workload-high", 800, by_namespace, manager),
        suggested("kube-scheduler", "workload-high", 800, by_namespace, scheduler),
        suggested("kube-system-service-accounts", "workload-high", 900, by_namespace, system_accounts),
        suggested("service-accounts", "workload-low", 9000, by_user, accounts),
        suggested("global-default", "global-default", 9900, by_user, everything(everybody())),
    ]
}

fn mandatory(
    name: &str,
    level: &str,
    precedence: i32,
    distinguisher: Option<&str>,
    rule: Value,
) -> Boot<FlowSchema> {
    schema(name, true, level, precedence, distinguisher, rule)
}

fn suggested(
    name: &str,
    level: &str,
    precedence: i32,
    distinguisher: Option<&str>,
    rule: Value,
) -> Boot<FlowSchema> {
    schema(name, false, level, precedence, distinguisher, rule)
}

fn everything(subjects: Vec<Value>) -> Value {
    json!({
        "subjects": subjects,
        "resourceRules": [resources(&["*"], "*", &["*"], true)],
        "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}],
    })
}

fn probes(subjects: Vec<Value>) -> Value {
    json!({
        "subjects": subjects,
        "nonResourceRules": [{"verbs": ["get"], "nonResourceURLs": ["/healthz", "/readyz", "/livez"]}],
    })
}

fn leases_of(leaders: Vec<Value>) -> Value {
    let leases = resources(&["get", "create", "update"], "coordination.k8s.io", &["leases"], false);
    json!({"subjects": leaders, "resourceRules": [leases]})
}

fn node_heartbeats() -> Value {
    let nodes = resources(&["*"], "", &["nodes", "nodes/status"], true);
    let leases = resources(&["*"], "coordination.k8s.io", &["leases"], false);
    json!({"subjects": groups(&["system:nodes"]), "resourceRules": [nodes, leases]})
}

fn schema(
    name: &str,
    mandatory: bool,
    level: &str,
    precedence: i32,
    distinguisher: Option<&str>,
    rule: Value,
) -> Boot<FlowSchema> {
    let mut spec = json!({
        "priorityLevelConfiguration": {"name": level},
        "matchingPrecedence": precedence,
        "rules": [rule],
    });
    if let Some(distinguisher) = distinguisher {
        spec["distinguisherMethod"] = json!({"type": distinguisher});
    }
    boot(name, mandatory, spec)
}

fn groups(names: &[&str]) -> Vec<Value> {
    names.iter().map(|name| json!({"kind": "Group", "group": {"name": name}})).collect()
}

fn user(name: &str) -> Value {
    json!({"kind": "User", "user": {"name": name}})
}

fn kube_system_accounts() -> Value {
    json!({"kind": "ServiceAccount", "serviceAccount": {"namespace": "kube-system", "name": "*"}})
}

fn resources(verbs: &[&str], group: &str, resources: &[&str], cluster_scope: bool) -> Value {
    let mut rule = json!({"verbs": verbs, "apiGroups": [group], "resources": resources, "namespaces": ["*"]});
    if cluster_scope {
        rule["clusterScope"] = true.into();
    }
    rule
}

fn boot<K: serde::de::DeserializeOwned>(name: &str, mandatory: bool, spec: Value) -> Boot<K> {
    let metadata = json!({"name": name, "annotations": {AUTO_UPDATE: "true"}});
    let object = ferry_api::view::of_value(&json!({"metadata": metadata, "spec": spec}));
    Boot { object: object.expect("the tests make every one of them"), mandatory }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn as_created(boots: &[Boot<FlowSchema>]) -> Vec<FlowSchema> {
        let created = |boot: &Boot<FlowSchema>| {
            let mut object = boot.object.clone();
            object.metadata.generation = Some(1);
            object
        };
        boots.iter().map(created).collect()
    }

    fn find<'a>(schemas: &'a mut [FlowSchema], name: &str) -> &'a mut FlowSchema {
        schemas.iter_mut().find(|schema| schema.metadata.name.as_deref() == Some(name)).expect("it is there")
    }

    fn written(schemas: &[FlowSchema]) -> Vec<String> {
        let name = |schema: FlowSchema| schema.metadata.name.unwrap_or_default();
        let describe = |write| match write {
            Write::Create(schema) => format!("create {}", name(schema)),
            Write::Update(schema) => format!("update {}", name(schema)),
            Write::Delete(name) => format!("delete {name}"),
        };
        plan(&flow_schemas(), schemas).into_iter().map(describe).collect()
    }

    fn edit(schema: &mut FlowSchema) {
        schema.spec.as_mut().expect("a spec").matching_precedence = Some(77);
        schema.metadata.generation = Some(2);
    }

    #[test]
    fn missing_objects_are_created_and_good_ones_left_alone() {
        let boots = flow_schemas();
        assert_eq!(plan(&boots, &[]).len(), 11);
        let mut existing = as_created(&boots);
        assert_eq!(written(&existing), [] as [&str; 0]);
        existing.retain(|schema| schema.metadata.name.as_deref() != Some("probes"));
        assert_eq!(written(&existing), ["create probes"]);
    }

    #[test]
    fn specs_are_restored_unless_the_annotation_says_otherwise() {
        let mut existing = as_created(&flow_schemas());
        edit(find(&mut existing, "probes"));
        assert_eq!(written(&existing), ["update probes"]);
        let annotations = |text: &str| Some([(AUTO_UPDATE.to_string(), text.to_string())].into());
        find(&mut existing, "probes").metadata.annotations = annotations("false");
        assert_eq!(written(&existing), [] as [&str; 0]);
        // An edit without an annotation is kept, and the annotation says so from then on.
        find(&mut existing, "probes").metadata.annotations = None;
        let Some(Write::Update(kept)) = plan(&flow_schemas(), &existing).pop() else {
            panic!("the annotation")
        };
        assert_eq!(kept.metadata.annotations, annotations("false"));
        assert_eq!(kept.spec.and_then(|spec| spec.matching_precedence), Some(77));
        // A mandatory one is restored all the same.
        edit(find(&mut existing, EXEMPT));
        find(&mut existing, EXEMPT).metadata.annotations = annotations("false");
        let updates = plan(&flow_schemas(), &existing);
        let Some(Write::Update(restored)) = updates.first() else { panic!("it is restored") };
        assert_eq!(restored.metadata.annotations, annotations("true"));
        assert_eq!(restored.spec.as_ref().and_then(|spec| spec.matching_precedence), Some(1));
    }

    #[test]
    fn objects_of_former_versions_are_deleted_and_those_of_users_kept() {
        let mut existing = as_created(&flow_schemas());
        let mut former = existing[0].clone();
        former.metadata.name = Some("former".into());
        let mut users = former.clone();
        users.metadata.name = Some("users".into());
        users.metadata.annotations = None;
        existing.extend([former, users]);
        assert_eq!(written(&existing), ["delete former"]);
    }

    #[test]
    fn the_shares_of_the_exempt_level_may_be_changed() {
        let levels = priority_levels();
        let mut existing: Vec<_> = levels.iter().map(|boot| boot.object.clone()).collect();
        let spec = existing[1].spec.as_mut().expect("a spec");
        spec.exempt.as_mut().expect("exempt").nominal_concurrency_shares = Some(10);
        assert_eq!(plan(&levels, &existing), []);
        existing[1].spec.as_mut().expect("a spec").exempt = None;
        assert_eq!(plan(&levels, &existing).len(), 1);
    }
}
