//! What claims get of a small cluster's devices.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::NodeSelector;
use k8s_openapi::api::resource::v1::{DeviceClass, ResourceClaim, ResourceSlice};
use serde_json::{Value, json};

use super::demand::Demand;
use super::pools::SlicesByNode;
use super::search::search;
use super::slice::SliceInfo;
use super::taken::Taken;
use super::{Node, result};

const DRIVER: &str = "gpu.example.com";

/// Slices, allocated claims and classes; the class `gpu` is there always.
#[derive(Default)]
struct World {
    slices: Vec<Value>,
    allocated: Vec<Value>,
    classes: Vec<Value>,
}

impl World {
    /// A pool of one slice on one node.
    fn on(mut self, node: &str, devices: Value) -> World {
        self.slices.push(slice(node, json!({"nodeName": node, "devices": devices})));
        self
    }

    fn with(mut self, name: &str, spec: Value) -> World {
        self.slices.push(slice(name, spec));
        self
    }

    fn class(mut self, name: &str, spec: Value) -> World {
        self.classes.push(json!({"metadata": {"name": name}, "spec": spec}));
        self
    }

    fn taken(mut self, results: Value) -> World {
        let claim = json!({"metadata": {"name": "other", "namespace": "n"}, "spec": {},
            "status": {"allocation": {"devices": {"results": results}}}});
        self.allocated.push(claim);
        self
    }

    fn allocate(&self, claims: &[Value], node: &str) -> Result<Option<Vec<Value>>, String> {
        let classes: BTreeMap<String, Arc<DeviceClass>> = self
            .classes
            .iter()
            .cloned()
            .chain([json!({"metadata": {"name": "gpu"}, "spec": {}})])
            .map(|class| {
                let class: DeviceClass = read(class);
                (class.metadata.name.clone().unwrap(), Arc::new(class))
            })
            .collect();
        let offer =
            self.slices.iter().cloned().map(|slice| Arc::new(SliceInfo::new(read::<ResourceSlice>(slice))));
        let offer = SlicesByNode::new(offer.collect());
        let allocated: Vec<ResourceClaim> = self.allocated.iter().cloned().map(read).collect();
        let taken = Taken::of(allocated.iter());
        // nodes are labelled with their own names
        let matches = |selector: &NodeSelector| {
            let terms = selector.node_selector_terms.iter();
            let requirements = terms.flat_map(|term| term.match_expressions.iter().flatten());
            requirements
                .flat_map(|requirement| requirement.values.iter().flatten())
                .any(|value| value == node)
        };
        let here = Node { name: node, matches: &matches };
        let demands: Result<Vec<Demand>, String> = claims
            .iter()
            .map(|claim| {
                Demand::new(&Arc::new(read(claim.clone())), &|name: &str| classes.get(name).cloned())
            })
            .collect();
        let demands = demands?;
        let asked: Vec<&Demand> = demands.iter().collect();
        let found = search(&asked, &offer, &taken, &here).map_err(|failure| failure.to_string())?;
        let mut shares = 0;
        Ok(found.map(|choices| {
            let results = demands.iter().zip(&choices).map(|(demand, choices)| {
                result::result(demand, choices, &here, || {
                    shares += 1;
                    format!("share-{shares}")
                })
            });
            results.map(|result| serde_json::to_value(result).unwrap()).collect()
        }))
    }

    /// The devices of all claims, `request=device`, with a space between them; `-` for none, else the error.
    #[track_caller]
    fn check(&self, claims: &[Value], node: &str, expected: &str) {
        let found = match self.allocate(claims, node) {
            Ok(None) => "-".to_owned(),
            Err(why) => why,
            Ok(Some(results)) => {
                let of_claim = |result: &Value| {
                    let devices = result["devices"]["results"].as_array().cloned().unwrap_or_default();
                    let names = devices.iter().map(|device| {
                        format!(
                            "{}={}",
                            device["request"].as_str().unwrap(),
                            device["device"].as_str().unwrap()
                        )
                    });
                    names.collect::<Vec<_>>().join(" ")
                };
                results.iter().map(of_claim).collect::<Vec<_>>().join(" | ")
            }
        };
        assert_eq!(found, expected);
    }
}

fn read<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

fn slice(name: &str, mut spec: Value) -> Value {
    spec["driver"] = json!(DRIVER);
    if spec["pool"].is_null() {
        spec["pool"] = json!({"name": name, "generation": 1, "resourceSliceCount": 1});
    }
    json!({"metadata": {"name": name}, "spec": spec})
}

fn claim(devices: Value) -> Value {
    json!({"metadata": {"name": "claim", "namespace": "n", "uid": "u"}, "spec": {"devices": devices}})
}

/// A claim of one request.
fn wants(request: Value) -> Value {
    claim(json!({"requests": [{"name": "r", "exactly": exactly(request)}]}))
}

fn exactly(mut request: Value) -> Value {
    if request["deviceClassName"].is_null() {
        request["deviceClassName"] = json!("gpu");
    }
    request
}

fn cel(expression: &str) -> Value {
    json!([{"cel": {"expression": expression}}])
}

fn named(names: &[&str]) -> Value {
    names.iter().map(|name| json!({"name": name})).collect()
}

#[test]
fn a_request_gets_as_many_devices_as_it_asks_for() {
    let world = World::default().on("a", named(&["g0", "g1", "g2"])).on("b", named(&["g0"]));
    world.check(&[wants(json!({}))], "a", "r=g0");
    world.check(&[wants(json!({"count": 2}))], "a", "r=g0 r=g1");
    world.check(&[wants(json!({"count": 2}))], "b", "-");
    world.check(&[wants(json!({}))], "c", "-");
    world.check(&[wants(json!({"count": 2})), wants(json!({}))], "a", "r=g0 r=g1 | r=g2");
    world.check(&[wants(json!({"count": 2})), wants(json!({"count": 2}))], "a", "-");
    let other = json!([{"request": "r", "driver": DRIVER, "pool": "a", "device": "g0"}]);
    world.taken(other).check(&[wants(json!({"count": 2}))], "a", "r=g1 r=g2");
}

#[test]
fn classes_and_requests_select_devices() {
    let devices = json!([
        {"name": "small", "attributes": {"model": {"string": "t4"}}, "capacity": {"memory": {"value": "16Gi"}}},
        {"name": "large", "attributes": {"model": {"string": "a100"}}, "capacity": {"memory": {"value": "40Gi"}}},
        {"name": "huge", "attributes": {"model": {"string": "a100"}}, "capacity": {"memory": {"value": "80Gi"}}},
    ]);
    let a100 = "device.attributes['gpu.example.com'].model == 'a100'";
    let world = World::default().on("a", devices).class("a100", json!({"selectors": cel(a100)}));
    let of_class = |selectors: Value| wants(json!({"deviceClassName": "a100", "selectors": selectors}));
    let huge = "device.capacity['gpu.example.com'].memory.compareTo(quantity('64Gi')) >= 0";
    world.check(&[of_class(json!([]))], "a", "r=large");
    world.check(&[of_class(cel(huge))], "a", "r=huge");
    world.check(&[of_class(cel("false"))], "a", "-");
    world.check(
        &[wants(json!({"deviceClassName": "none"}))],
        "a",
        "request r: device class none does not exist",
    );
    world.check(
        &[of_class(cel("device.attributes['gpu.example.com'].nothing == 1"))],
        "a",
        "claim n/claim: selector #0: CEL runtime error: no such key: nothing",
    );
}

#[test]
fn all_devices_are_all_or_none() {
    let all = || wants(json!({"allocationMode": "All"}));
    let world = World::default().on("a", named(&["g0", "g1"]));
    world.check(&[all()], "a", "r=g0 r=g1");
    world.check(&[all()], "b", "-");
    let other = json!([{"request": "r", "driver": DRIVER, "pool": "a", "device": "g1"}]);
    world.taken(other).check(&[all()], "a", "-");
    let pool = json!({"name": "p", "generation": 1, "resourceSliceCount": 2});
    let half = World::default().with("s", json!({"nodeName": "a", "pool": pool, "devices": named(&["g0"])}));
    half.check(
        &[all()],
        "a",
        "claim n/claim, request r: asks for all devices, but resource pool gpu.example.com/p is currently being updated",
    );
    half.check(&[wants(json!({}))], "a", "-");
    let many: Vec<String> = (0..33).map(|number| format!("g{number}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    World::default().on("a", named(&many)).check(
        &[all()],
        "a",
        "claim n/claim: number of requested devices 33 exceeds the claim limit of 32",
    );
}

#[test]
fn the_first_alternative_that_is_there_is_taken() {
    let model = |name: &str| format!("device.attributes['gpu.example.com'].model == '{name}'");
    let device = |name: &str, model: &str| json!({"name": name, "attributes": {"model": {"string": model}}});
    let alternative = |name: &str, model_name: &str, count: i64| json!({"name": name, "deviceClassName": "gpu", "count": count, "selectors": cel(&model(model_name))});
    let world = World::default()
        .on("a", json!([device("g0", "t4"), device("g1", "t4"), device("g2", "a100")]))
        .on("b", json!([device("g0", "t4"), device("g1", "t4")]));
    let either = |count: i64| json!({"name": "r", "firstAvailable": [alternative("best", "a100", count), alternative("good", "t4", 2)]});
    world.check(&[claim(json!({"requests": [either(1)]}))], "a", "r/best=g2");
    world.check(&[claim(json!({"requests": [either(2)]}))], "a", "r/good=g0 r/good=g1");
    world.check(&[claim(json!({"requests": [either(1)]}))], "b", "r/good=g0 r/good=g1");
    // the second request is left what the first does not need
    let both =
        json!([either(1), {"name": "s", "exactly": exactly(json!({"selectors": cel(&model("a100"))}))}]);
    world.check(&[claim(json!({"requests": both}))], "a", "r/good=g0 r/good=g1 s=g2");
}

#[test]
fn constraints_hold_for_all_devices_they_name() {
    let device = |name: &str, numa: i64| json!({"name": name, "attributes": {"numa": {"int": numa}}});
    let devices = json!([device("g0", 0), device("g1", 1), device("g2", 1), {"name": "g3"}]);
    let world = World::default().on("a", devices);
    let two = |constraint: Value| {
        claim(json!({
            "requests": [{"name": "r", "exactly": exactly(json!({}))}, {"name": "s", "exactly": exactly(json!({}))}],
            "constraints": [constraint],
        }))
    };
    let numa = "gpu.example.com/numa";
    world.check(&[two(json!({"matchAttribute": numa}))], "a", "r=g1 s=g2");
    world.check(&[two(json!({"distinctAttribute": numa}))], "a", "r=g0 s=g1");
    world.check(&[two(json!({"matchAttribute": numa, "requests": ["s"]}))], "a", "r=g0 s=g1");
    world.check(&[two(json!({"matchAttribute": "gpu.example.com/other"}))], "a", "-");
    world.check(&[two(json!({"matchAttribute": "other.example.com/numa"}))], "a", "-");
    let three = claim(json!({"requests": [{"name": "r", "exactly": exactly(json!({"count": 3}))}],
        "constraints": [{"distinctAttribute": numa}]}));
    world.check(&[three], "a", "-");
}

#[test]
fn with_administrative_access_devices_in_use_are_looked_at() {
    let other = json!([{"request": "r", "driver": DRIVER, "pool": "a", "device": "g0"}]);
    let world = World::default().on("a", named(&["g0"])).taken(other);
    world.check(&[wants(json!({}))], "a", "-");
    world.check(&[wants(json!({"adminAccess": true}))], "a", "r=g0");
    let found = world.allocate(&[wants(json!({"adminAccess": true}))], "a").unwrap().unwrap();
    assert_eq!(found[0]["devices"]["results"][0]["adminAccess"], true);
    // and take nothing from anybody
    let looked =
        json!([{"request": "r", "driver": DRIVER, "pool": "a", "device": "g0", "adminAccess": true}]);
    World::default().on("a", named(&["g0"])).taken(looked).check(&[wants(json!({}))], "a", "r=g0");
}

#[test]
fn tainted_devices_are_for_those_who_tolerate_it() {
    let taint = |effect: &str| json!([{"key": "example.com/broken", "value": "yes", "effect": effect}]);
    let world = World::default().on("a", json!([{"name": "g0", "taints": taint("NoSchedule")}]));
    world.check(&[wants(json!({}))], "a", "-");
    let tolerates = json!([{"key": "example.com/broken", "operator": "Exists"}]);
    world.check(&[wants(json!({"tolerations": tolerates}))], "a", "r=g0");
    let noted = World::default().on("a", json!([{"name": "g0", "taints": taint("None")}]));
    noted.check(&[wants(json!({}))], "a", "r=g0");
}

#[test]
fn parts_of_a_device_are_counted() {
    let counters = |memory: &str| json!({"memory": {"value": memory}});
    let part = |name: &str, memory: &str| json!({"name": name, "consumesCounters": [{"counterSet": "gpu0", "counters": counters(memory)}]});
    let pool = || json!({"name": "p", "generation": 1, "resourceSliceCount": 2});
    let sets = json!([{"name": "gpu0", "counters": counters("40Gi")}]);
    let parts = json!([part("whole", "40Gi"), part("half-0", "20Gi"), part("half-1", "20Gi")]);
    let world = || {
        World::default()
            .with("counters", json!({"nodeName": "a", "pool": pool(), "sharedCounters": sets.clone()}))
            .with("parts", json!({"nodeName": "a", "pool": pool(), "devices": parts.clone()}))
    };
    world().check(&[wants(json!({}))], "a", "r=whole");
    world().check(&[wants(json!({"count": 2}))], "a", "r=half-0 r=half-1");
    world().check(&[wants(json!({"count": 3}))], "a", "-");
    let other = json!([{"request": "r", "driver": DRIVER, "pool": "p", "device": "half-1"}]);
    world().taken(other).check(&[wants(json!({}))], "a", "r=half-0");
    let wrong =
        json!([{"name": "g", "consumesCounters": [{"counterSet": "none", "counters": counters("1")}]}]);
    let spec = json!({"nodeName": "a", "pool": {"name": "p", "generation": 1, "resourceSliceCount": 1}, "devices": wrong});
    World::default().with("s", spec).check(
        &[wants(json!({}))],
        "a",
        "invalid resource pools were encountered",
    );
}

#[test]
fn a_device_that_may_be_shared_is_divided() {
    let shared =
        json!([{"name": "g0", "allowMultipleAllocations": true, "capacity": {"memory": {"value": "10Gi"}}}]);
    let part = |memory: &str| wants(json!({"capacity": {"requests": {"memory": memory}}}));
    let world = || World::default().on("a", shared.clone());
    world().check(&[part("4Gi"), part("6Gi")], "a", "r=g0 | r=g0");
    world().check(&[part("4Gi"), part("7Gi")], "a", "-");
    let share = json!([{"request": "r", "driver": DRIVER, "pool": "a", "device": "g0", "shareID": "s",
        "consumedCapacity": {"memory": "5Gi"}}]);
    world().taken(share.clone()).check(&[part("5Gi")], "a", "r=g0");
    world().taken(share).check(&[part("6Gi")], "a", "-");
    let found = world().allocate(&[part("4Gi")], "a").unwrap().unwrap();
    let result = &found[0]["devices"]["results"][0];
    assert_eq!(result["shareID"], "share-1");
    assert_eq!(result["consumedCapacity"], json!({"memory": "4Gi"}));
}

#[test]
fn only_the_newest_generation_of_a_pool_counts() {
    let pool = |generation: i64| json!({"name": "p", "generation": generation, "resourceSliceCount": 1});
    let world = World::default()
        .with("old", json!({"nodeName": "a", "pool": pool(1), "devices": named(&["old"])}))
        .with("new", json!({"nodeName": "a", "pool": pool(2), "devices": named(&["new"])}));
    world.check(&[wants(json!({}))], "a", "r=new");
    // the driver is moving the pool to another node
    let world = World::default()
        .with("old", json!({"nodeName": "a", "pool": pool(1), "devices": named(&["old"])}))
        .with("new", json!({"nodeName": "b", "pool": pool(2), "devices": named(&["new"])}));
    world.check(&[wants(json!({}))], "a", "-");
}

#[test]
fn devices_are_where_their_slice_says() {
    let at = |node: &str| {
        let here = json!({"key": "zone", "operator": "In", "values": [node]});
        json!({"nodeSelectorTerms": [{"matchExpressions": [here]}]})
    };
    let everywhere = World::default().with("s", json!({"allNodes": true, "devices": named(&["g0"])}));
    everywhere.check(&[wants(json!({}))], "any", "r=g0");
    assert_eq!(
        everywhere.allocate(&[wants(json!({}))], "any").unwrap().unwrap()[0]["nodeSelector"],
        Value::Null
    );

    let zone = World::default().with("s", json!({"nodeSelector": at("x"), "devices": named(&["g0"])}));
    zone.check(&[wants(json!({}))], "x", "r=g0");
    zone.check(&[wants(json!({}))], "y", "-");
    assert_eq!(zone.allocate(&[wants(json!({}))], "x").unwrap().unwrap()[0]["nodeSelector"], at("x"));

    let each = json!([{"name": "g0", "nodeName": "x"}, {"name": "g1", "nodeName": "y"}]);
    let each = World::default().with("s", json!({"perDeviceNodeSelection": true, "devices": each}));
    each.check(&[wants(json!({}))], "y", "r=g1");
    each.check(&[wants(json!({}))], "z", "-");
    let selector = each.allocate(&[wants(json!({}))], "y").unwrap().unwrap()[0]["nodeSelector"].clone();
    let here = json!({"key": "metadata.name", "operator": "In", "values": ["y"]});
    assert_eq!(selector, json!({"nodeSelectorTerms": [{"matchFields": [here]}]}));
}

#[test]
fn configuration_of_class_and_claim_goes_with_the_devices() {
    let opaque = |word: &str| json!({"driver": DRIVER, "parameters": {"word": word}});
    let world = World::default()
        .on("a", named(&["g0", "g1"]))
        .class("configured", json!({"config": [{"opaque": opaque("class")}]}));
    let request = |name: &str| json!({"name": name, "exactly": {"deviceClassName": "configured"}});
    let claim = claim(json!({
        "requests": [request("r"), request("s")],
        "config": [{"opaque": opaque("all")}, {"requests": ["s"], "opaque": opaque("one")}],
    }));
    let found = world.allocate(&[claim], "a").unwrap().unwrap();
    assert_eq!(
        found[0]["devices"]["config"],
        json!([
            {"source": "FromClass", "requests": ["r", "s"], "opaque": opaque("class")},
            {"source": "FromClaim", "opaque": opaque("all")},
            {"source": "FromClaim", "requests": ["s"], "opaque": opaque("one")},
        ])
    );
}

#[test]
fn a_search_that_leads_nowhere_ends() {
    // 28 devices of which none matches another: no 14 of them are alike
    let devices: Value = (0..28)
        .map(|number| json!({"name": format!("g{number}"), "attributes": {"half": {"int": number % 2}, "own": {"int": number}}}))
        .collect();
    let claim = claim(json!({
        "requests": (0..16).map(|number| json!({"name": format!("r{number}"), "exactly": {"deviceClassName": "gpu"}})).collect::<Value>(),
        "constraints": [{"matchAttribute": "gpu.example.com/half"}],
    }));
    World::default().on("a", devices).check(&[claim], "a", "timed out trying to allocate devices");
}

/// No stack is as deep as there are claims.
#[test]
fn claims_beyond_the_search_depth_are_refused() {
    let world = World::default().on("a", json!([{"name": "gpu-0"}]));
    let empty =
        |number: usize| json!({"metadata": {"name": format!("c{number}"), "namespace": "n"}, "spec": {}});
    let claims: Vec<Value> = (0..100_000).map(empty).collect();
    world.check(&claims, "a", "timed out trying to allocate devices");
    assert!(world.allocate(&claims[..500], "a").is_ok_and(|found| found.is_some()));
}

/// What selectors cost is counted over all devices, not for each alone.
#[test]
fn selectors_pay_for_every_device() {
    let world = World::default().on("a", json!([{"name": "gpu-0"}]));
    let expression = "[1, 2, 3, 4, 5].all(a, [1, 2, 3, 4, 5].all(b, a + b > 1))";
    let claim: ResourceClaim =
        read(json!({"metadata": {"name": "claim", "namespace": "n"}, "spec": {"devices": {
        "requests": [{"name": "r", "exactly": {"deviceClassName": "gpu", "selectors": [
            {"cel": {"expression": expression}}]}}]}}}));
    let gpu: Arc<DeviceClass> = Arc::new(read(json!({"metadata": {"name": "gpu"}, "spec": {}})));
    let demand = Demand::new(&Arc::new(claim), &|_: &str| Some(gpu.clone())).expect("a demand");
    let slice = SliceInfo::new(read::<ResourceSlice>(world.slices[0].clone()));
    let request = &demand.requests[0].alternatives[0];
    let mut left = 1_000_000;
    assert_eq!(request.selects(&slice, &slice.devices[0], &mut left), Ok(true));
    let cost = 1_000_000 - left;
    assert!(cost >= 25, "{cost}");
    assert_eq!(request.selects(&slice, &slice.devices[0], &mut left), Ok(true));
    assert_eq!(1_000_000 - left, 2 * cost);
}
