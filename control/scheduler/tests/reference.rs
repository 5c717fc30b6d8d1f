//! The scheduler against a slow and obviously right reference, over thousands of small random
//! clusters. The reference knows no snapshot, no symbols, no counts kept up to date: it reads
//! the objects and asks each question from scratch. Snapshots are changed step by step, so that
//! deltas are checked as well.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ferry_client::NamespacedName;
use ferry_scheduler::cycle::Search;
use ferry_scheduler::devices::slice::SliceInfo;
use ferry_scheduler::nominated::Nominated;
use ferry_scheduler::plugins::{Cluster, Cycle, State, default_preemption};
use ferry_scheduler::pod_info::{NamespaceLabels, PodInfo};
use ferry_scheduler::profile::Profile;
use ferry_scheduler::snapshot::Snapshot;
use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::resource::v1::{DeviceClass, ResourceClaim};
use k8s_openapi::api::storage::v1::{CSIDriver, CSINode, CSIStorageCapacity, StorageClass};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::core::Selector;
use serde_json::{Value, json};

struct NoVolumes;

impl NamespaceLabels for NoVolumes {
    fn matches(&self, _: &str, _: &Selector) -> bool {
        false
    }
}

impl Cluster for NoVolumes {
    fn claim(&self, _: &str, _: &str) -> Option<Arc<PersistentVolumeClaim>> {
        None
    }
    fn volume(&self, _: &str) -> Option<Arc<PersistentVolume>> {
        None
    }
    fn volumes(&self) -> Vec<Arc<PersistentVolume>> {
        Vec::new()
    }
    fn storage_class(&self, _: &str) -> Option<Arc<StorageClass>> {
        None
    }
    fn csi_node(&self, _: &str) -> Option<Arc<CSINode>> {
        None
    }
    fn csi_driver(&self, _: &str) -> Option<Arc<CSIDriver>> {
        None
    }
    fn storage_capacities(&self) -> Vec<Arc<CSIStorageCapacity>> {
        Vec::new()
    }
    fn budgets(&self, _: &str) -> Vec<Arc<PodDisruptionBudget>> {
        Vec::new()
    }
    fn resource_claim(&self, _: &str, _: &str) -> Option<Arc<ResourceClaim>> {
        None
    }
    fn resource_claims(&self) -> Vec<Arc<ResourceClaim>> {
        Vec::new()
    }
    fn is_being_allocated(&self, _: &str) -> bool {
        false
    }
    fn resource_slices(&self) -> Vec<Arc<SliceInfo>> {
        Vec::new()
    }
    fn device_class(&self, _: &str) -> Option<Arc<DeviceClass>> {
        None
    }
    fn device_class_of(&self, _: &str) -> Option<Arc<DeviceClass>> {
        None
    }
    fn extended_claim(&self, _: &PodInfo) -> Option<Arc<ResourceClaim>> {
        None
    }
    fn workload_selector(&self, _: &PodInfo) -> Option<LabelSelector> {
        None
    }
}

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    fn of<'t>(&mut self, words: &[&'t str]) -> &'t str {
        words[self.below(words.len() as u64) as usize]
    }

    fn node(&mut self, number: u64) -> Value {
        let mut labels = json!({"kubernetes.io/hostname": format!("n{number}")});
        if self.chance(80) {
            labels["zone"] = json!(self.of(&["a", "b", "c"]));
        }
        if self.chance(50) {
            labels["size"] = json!(self.of(&["1", "5", "9", "x"]));
        }
        let mut taints = Vec::new();
        for key in ["k1", "k2"] {
            if self.chance(15) {
                let effect = self.of(&["NoSchedule", "NoExecute", "PreferNoSchedule"]);
                taints.push(json!({"key": key, "value": self.of(&["v", "w"]), "effect": effect}));
            }
        }
        json!({
            "metadata": {"name": format!("n{number}"), "labels": labels},
            "spec": {"unschedulable": self.chance(10), "taints": taints},
            "status": {"allocatable": {
                "cpu": self.of(&["500m", "1", "2"]), "memory": self.of(&["1Gi", "512Mi"]),
                "pods": self.of(&["2", "4", "10"]), "example.com/gpu": self.of(&["0", "1", "2"]),
            }},
        })
    }

    fn pod(&mut self, number: u64) -> Value {
        let mut requests = json!({});
        if self.chance(70) {
            requests["cpu"] = json!(self.of(&["100m", "250m", "500m", "3"]));
        }
        if self.chance(50) {
            requests["memory"] = json!(self.of(&["64Mi", "300Mi", "600Mi"]));
        }
        if self.chance(10) {
            requests["example.com/gpu"] = json!("1");
        }
        let mut container = json!({"name": "c", "resources": {"requests": requests}});
        if self.chance(20) {
            let ip = self.of(&["", "127.0.0.1", "0.0.0.0", "10.0.0.1"]);
            let port = if self.chance(50) { 80 } else { 81 };
            container["ports"] = json!([{"containerPort": 80, "hostPort": port, "hostIP": ip,
                "protocol": self.of(&["TCP", "UDP"])}]);
        }
        let mut spec = json!({"containers": [container], "priority": self.below(3)});
        if self.chance(15) {
            spec["nodeSelector"] = json!({"zone": self.of(&["a", "b", "d"])});
        }
        if self.chance(30) {
            spec["tolerations"] = json!([{"key": self.of(&["k1", "k2", ""]),
                "operator": "Exists", "effect": self.of(&["", "NoSchedule", "NoExecute"])}]);
        }
        let mut affinity = json!({});
        if self.chance(20) {
            let terms: Vec<Value> = (0..1 + self.below(2)).map(|_| self.node_term()).collect();
            affinity["nodeAffinity"] =
                json!({"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}});
        }
        for kind in ["podAffinity", "podAntiAffinity"] {
            if self.chance(12) {
                let terms: Vec<Value> = (0..1 + self.below(2)).map(|_| self.pod_term()).collect();
                affinity[kind] = json!({"requiredDuringSchedulingIgnoredDuringExecution": terms});
            }
        }
        spec["affinity"] = affinity;
        if self.chance(15) {
            spec["topologySpreadConstraints"] = json!([{"maxSkew": 1 + self.below(2),
                "topologyKey": self.of(&["zone", "kubernetes.io/hostname"]),
                "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {"matchLabels": {"app": self.of(&["x", "y"])}}}]);
        }
        let name = format!("p{number}");
        json!({"metadata": {"name": name, "namespace": self.of(&["n", "m"]), "uid": name,
            "labels": {"app": self.of(&["x", "y"])}}, "spec": spec})
    }

    fn node_term(&mut self) -> Value {
        let operator = self.of(&["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]);
        let (key, values) = match operator {
            "In" | "NotIn" => ("zone", json!([self.of(&["a", "b"]), self.of(&["c", "d"])])),
            "Gt" | "Lt" => ("size", json!([self.of(&["1", "4", "9"])])),
            _ => (self.of(&["zone", "size", "unknown"]), Value::Null),
        };
        json!({"matchExpressions": [{"key": key, "operator": operator, "values": values}]})
    }

    fn pod_term(&mut self) -> Value {
        json!({"topologyKey": self.of(&["zone", "kubernetes.io/hostname", "unknown"]),
            "labelSelector": {"matchLabels": {"app": self.of(&["x", "y"])}}})
    }
}

/// Nodes by name and pods with their node, as JSON.
#[derive(Clone, Default)]
struct Reference {
    nodes: BTreeMap<String, Value>,
    pods: BTreeMap<String, (Value, String)>,
}

fn list(value: &Value) -> Vec<Value> {
    value.as_array().cloned().unwrap_or_default()
}

fn amount(value: &Value) -> i64 {
    let text = value.as_str().unwrap_or("0");
    let (number, scale) = match text {
        t if t.ends_with("Gi") => (&t[..t.len() - 2], 1000 << 30),
        t if t.ends_with("Mi") => (&t[..t.len() - 2], 1000 << 20),
        t if t.ends_with('m') => (&t[..t.len() - 1], 1),
        t => (t, 1000),
    };
    number.parse::<i64>().unwrap() * scale
}

fn label<'v>(object: &'v Value, key: &str) -> Option<&'v str> {
    object["metadata"]["labels"][key].as_str()
}

impl Reference {
    fn on<'r>(&'r self, node: &'r str) -> impl Iterator<Item = &'r Value> {
        self.pods.values().filter(move |(_, own)| own == node).map(|(pod, _)| pod)
    }

    fn fits(&self, pod: &Value, name: &str) -> bool {
        let node = &self.nodes[name];
        self.tolerated(pod, node)
            && self.node_matches(pod, node)
            && self.ports_free(pod, name)
            && self.resources_suffice(pod, node, name)
            && self.near_and_apart(pod, node)
            && self.spread(pod, node)
    }

    fn tolerated(&self, pod: &Value, node: &Value) -> bool {
        let tolerations = list(&pod["spec"]["tolerations"]);
        let covers = |key: &str, effect: &str| {
            tolerations.iter().any(|toleration| {
                let (own_key, own_effect) =
                    (toleration["key"].as_str().unwrap_or(""), toleration["effect"].as_str().unwrap_or(""));
                (own_key.is_empty() || own_key == key) && (own_effect.is_empty() || own_effect == effect)
            })
        };
        let cordoned = node["spec"]["unschedulable"] == true;
        (!cordoned || covers("node.kubernetes.io/unschedulable", "NoSchedule"))
            && self.taints_tolerated(node, covers)
    }

    fn taints_tolerated(&self, node: &Value, covers: impl Fn(&str, &str) -> bool) -> bool {
        list(&node["spec"]["taints"]).iter().all(|taint| {
            taint["effect"] == "PreferNoSchedule"
                || covers(taint["key"].as_str().unwrap(), taint["effect"].as_str().unwrap())
        })
    }

    fn node_matches(&self, pod: &Value, node: &Value) -> bool {
        let selector = pod["spec"]["nodeSelector"].as_object();
        let selected =
            selector.is_none_or(|all| all.iter().all(|(key, value)| label(node, key) == value.as_str()));
        let required =
            &pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
        let matches = |requirement: &Value| {
            let value = label(node, requirement["key"].as_str().unwrap());
            let values = list(&requirement["values"]);
            let contained = value.is_some_and(|value| values.iter().any(|own| own == value));
            let number = value.and_then(|value| value.parse::<i64>().ok());
            let bound = || values[0].as_str().unwrap().parse::<i64>().unwrap();
            match requirement["operator"].as_str().unwrap() {
                "In" => contained,
                "NotIn" => !contained,
                "Exists" => value.is_some(),
                "DoesNotExist" => value.is_none(),
                "Gt" => number.is_some_and(|number| number > bound()),
                _ => number.is_some_and(|number| number < bound()),
            }
        };
        let terms = list(&required["nodeSelectorTerms"]);
        selected
            && (required.is_null()
                || terms.iter().any(|term| list(&term["matchExpressions"]).iter().all(matches)))
    }

    fn ports_free(&self, pod: &Value, node: &str) -> bool {
        let ports = |pod: &Value| list(&pod["spec"]["containers"][0]["ports"]);
        let ip = |port: &Value| match port["hostIP"].as_str().unwrap_or("") {
            "" => "0.0.0.0".to_owned(),
            ip => ip.to_owned(),
        };
        ports(pod).iter().all(|wanted| {
            self.on(node).flat_map(&ports).all(|taken| {
                taken["hostPort"] != wanted["hostPort"]
                    || taken["protocol"] != wanted["protocol"]
                    || (ip(&taken) != ip(wanted) && ip(&taken) != "0.0.0.0" && ip(wanted) != "0.0.0.0")
            })
        })
    }

    fn resources_suffice(&self, pod: &Value, node: &Value, name: &str) -> bool {
        let request = |pod: &Value, resource: &str| {
            amount(&pod["spec"]["containers"][0]["resources"]["requests"][resource])
        };
        let allocatable = &node["status"]["allocatable"];
        let room = (self.on(name).count() as i64 + 1) * 1000 <= amount(&allocatable["pods"]);
        room && ["cpu", "memory", "example.com/gpu"].iter().all(|resource| {
            let used: i64 = self.on(name).map(|pod| request(pod, resource)).sum();
            let wanted = request(pod, resource);
            wanted == 0 || used + wanted <= amount(&allocatable[resource])
        })
    }

    /// Whether a term of `owner` speaks of `other`.
    fn speaks_of(owner: &Value, term: &Value, other: &Value) -> bool {
        owner["metadata"]["namespace"] == other["metadata"]["namespace"]
            && label(other, "app") == term["labelSelector"]["matchLabels"]["app"].as_str()
    }

    fn near_and_apart(&self, pod: &Value, node: &Value) -> bool {
        let terms = |pod: &Value, kind: &str| {
            list(&pod["spec"]["affinity"][kind]["requiredDuringSchedulingIgnoredDuringExecution"])
        };
        let key = |term: &Value| term["topologyKey"].as_str().unwrap().to_owned();
        let same = |other: &str, key: &str| {
            label(node, key).is_some() && label(node, key) == label(&self.nodes[other], key)
        };
        let placed = || self.pods.values();
        let affinity = terms(pod, "podAffinity");
        let companions: Vec<&(Value, String)> = placed()
            .filter(|(other, _)| affinity.iter().all(|term| Self::speaks_of(pod, term, other)))
            .collect();
        let known = affinity.iter().all(|term| label(node, &key(term)).is_some());
        let found = affinity.iter().all(|term| companions.iter().any(|(_, on)| same(on, &key(term))));
        // companions count only where the topology of some term is known at all
        let any = companions
            .iter()
            .any(|(_, on)| affinity.iter().any(|term| label(&self.nodes[on], &key(term)).is_some()));
        let first = !any && affinity.iter().all(|term| Self::speaks_of(pod, term, pod));
        let near = affinity.is_empty() || known && (found || first);
        let apart = terms(pod, "podAntiAffinity").iter().all(|term| {
            !placed().any(|(other, on)| Self::speaks_of(pod, term, other) && same(on, &key(term)))
        });
        let unrepelled = placed().all(|(other, on)| {
            terms(other, "podAntiAffinity")
                .iter()
                .all(|term| !Self::speaks_of(other, term, pod) || !same(on, &key(term)))
        });
        near && apart && unrepelled
    }

    fn spread(&self, pod: &Value, node: &Value) -> bool {
        list(&pod["spec"]["topologySpreadConstraints"]).iter().all(|constraint| {
            let key = constraint["topologyKey"].as_str().unwrap();
            let Some(own) = label(node, key) else { return false };
            let counts = |other: &Value| {
                other["metadata"]["namespace"] == pod["metadata"]["namespace"]
                    && label(other, "app") == constraint["labelSelector"]["matchLabels"]["app"].as_str()
            };
            let mut domains: BTreeMap<&str, i64> = BTreeMap::new();
            for (name, node) in &self.nodes {
                if let Some(value) = label(node, key)
                    && self.node_matches(pod, node)
                {
                    let here = self.on(name).filter(|other| counts(other)).count() as i64;
                    *domains.entry(value).or_default() += here;
                }
            }
            let fewest = domains.values().min().copied().unwrap_or(0);
            let here = domains.get(own).copied().unwrap_or(0) + i64::from(counts(pod));
            here - fewest <= constraint["maxSkew"].as_i64().unwrap()
        })
    }
}

fn info(pod: &Value) -> Arc<PodInfo> {
    let mut info: PodInfo = serde_json::from_value(pod.clone()).unwrap();
    info.trim();
    Arc::new(info)
}

fn key(pod: &Value) -> NamespacedName {
    info(pod).key.clone()
}

/// One small cluster: nodes and pods come and go, and every new pod is judged by both.
fn judge(seed: u64) -> (usize, usize) {
    let mut random = Random(seed);
    let (mut reference, mut snapshot) = (Reference::default(), Snapshot::default());
    let profile = Profile { percentage_of_nodes_to_score: Some(100), ..Profile::default() };
    let (mut search, nominated) = (Search::new(seed), Nominated::default());
    let (mut placed, mut preempted) = (0, 0);
    for step in 0..25 {
        if step < 4 || random.chance(15) {
            let number = random.below(6);
            let node = random.node(number);
            let name = node["metadata"]["name"].as_str().unwrap().to_owned();
            snapshot.put_node(&Arc::new(serde_json::from_value::<Node>(node.clone()).unwrap()));
            reference.nodes.insert(name, node);
        }
        if random.chance(5) && reference.nodes.len() > 1 {
            let name = reference.nodes.keys().next().unwrap().clone();
            // its pods end with it
            let gone: Vec<Value> = reference.on(&name).cloned().collect();
            for pod in gone {
                reference.pods.remove(pod["metadata"]["name"].as_str().unwrap());
                snapshot.remove_pod(&key(&pod));
            }
            snapshot.remove_node(&name);
            reference.nodes.remove(&name);
        }
        if random.chance(20)
            && let Some(name) = reference.pods.keys().next().cloned()
        {
            let (pod, _) = reference.pods.remove(&name).unwrap();
            snapshot.remove_pod(&key(&pod));
        }
        let pod = random.pod(step);
        let info = info(&pod);
        let expected: BTreeSet<String> =
            reference.nodes.keys().filter(|name| reference.fits(&pod, name)).cloned().collect();
        let mut cycle = Cycle { pod: &info, profile: &profile, cluster: &NoVolumes, state: State::default() };
        let found = search.feasible(&mut cycle, &mut snapshot, &nominated);
        match found.nodes {
            nodes if !nodes.is_empty() => {
                let found: BTreeSet<String> =
                    nodes.iter().map(|node| snapshot.name(*node).to_string()).collect();
                assert_eq!(found, expected, "seed {seed} step {step}: {pod}");
                let best = search.pick(&cycle, &snapshot, &nodes, None);
                let name = snapshot.name(best).to_string();
                snapshot.place(info.clone(), best);
                reference.pods.insert(info.key.name.clone(), (pod, name));
                placed += 1;
            }
            _ => {
                let (error, filters) = (found.refused, found.filters);
                assert!(expected.is_empty(), "seed {seed} step {step}: {:?} for {pod}", expected);
                assert_eq!(error.refused.len() + error.excluded, reference.nodes.len());
                let found =
                    default_preemption::find(&mut cycle, &mut snapshot, &filters, &nominated, &error, 0);
                if let Some(candidate) = found.ok().and_then(default_preemption::best) {
                    let node = snapshot.name(candidate.node).to_string();
                    check_victims(&reference, &pod, &node, &candidate.victims, seed);
                    preempted += 1;
                }
                // trying out has changed nothing
                for name in reference.nodes.keys() {
                    let index = snapshot.find(name).unwrap();
                    let there: BTreeSet<&str> =
                        snapshot.pods(index).iter().map(|pod| pod.key.name.as_str()).collect();
                    let expected: BTreeSet<&str> =
                        reference.on(name).map(|pod| pod["metadata"]["name"].as_str().unwrap()).collect();
                    assert_eq!(there, expected, "seed {seed}");
                }
            }
        }
    }
    (placed, preempted)
}

/// Without the victims the pod fits; all of them matter less than it; none goes for nothing.
fn check_victims(reference: &Reference, pod: &Value, node: &str, victims: &[Arc<PodInfo>], seed: u64) {
    assert!(!victims.is_empty(), "seed {seed}");
    let mut without = reference.clone();
    for victim in victims {
        assert!(i64::from(victim.priority) < pod["spec"]["priority"].as_i64().unwrap(), "seed {seed}");
        assert_eq!(without.pods.remove(&victim.key.name).unwrap().1, node, "seed {seed}");
    }
    assert!(without.fits(pod, node), "seed {seed}: {pod} on {node} without {victims:?}");
    // more pods can let a pod in where it asks for company or balance; elsewhere they cannot
    let spec = &pod["spec"];
    if !spec["affinity"]["podAffinity"].is_null() || !spec["topologySpreadConstraints"].is_null() {
        return;
    }
    let last = victims.last().unwrap();
    let mut with = without;
    with.pods.insert(last.key.name.clone(), reference.pods[&last.key.name].clone());
    assert!(!with.fits(pod, node), "seed {seed}: {} had to go for nothing", last.key);
}

#[test]
fn thousands_of_small_clusters_are_judged_as_the_reference_judges_them() {
    let (mut placed, mut preempted) = (0, 0);
    for seed in 0..2000 {
        let (one, two) = judge(seed);
        placed += one;
        preempted += two;
    }
    assert!(
        placed > 10_000 && preempted > 200,
        "too little was tried: {placed} placed, {preempted} preempted"
    );
}
