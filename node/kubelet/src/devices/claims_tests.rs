use super::*;
use serde_json::{Value, json};

fn pod(uid: &str, claims: Value, statuses: Value) -> Pod {
    serde_json::from_value(json!({
        "metadata": {"name": "p", "namespace": "default", "uid": uid},
        "spec": {"resourceClaims": claims, "containers": []},
        "status": {"resourceClaimStatuses": statuses},
    }))
    .expect("the pod is well formed")
}

fn claim(name: &str, uid: &str, drivers: &[&str], users: &[&str]) -> ResourceClaim {
    let result = |driver: &&str| json!({"driver": driver, "pool": "n", "device": "d", "request": "r"});
    let user = |uid: &&str| json!({"resource": "pods", "name": "p", "uid": uid});
    serde_json::from_value(json!({
        "metadata": {"name": name, "namespace": "default", "uid": uid},
        "spec": {},
        "status": {
            "allocation": {"devices": {"results": drivers.iter().map(result).collect::<Vec<_>>()}},
            "reservedFor": users.iter().map(user).collect::<Vec<_>>(),
        },
    }))
    .expect("the claim is well formed")
}

fn names(batch: &[dra::Claim]) -> Vec<&str> {
    batch.iter().map(|claim| claim.name.as_str()).collect()
}

fn key(name: &str) -> NamespacedName {
    NamespacedName::new("default", name)
}

fn device(request: &str, id: &str) -> Device {
    Device { request_names: vec![request.into()], cdi_device_ids: vec![id.into()], ..Device::default() }
}

#[test]
fn a_pods_claims_are_found_by_name_and_by_what_was_made_of_templates() {
    let check = |claims: Value, statuses: Value, expected: Result<&[(&str, bool)], &str>| {
        let found = references(&pod("u", claims.clone(), statuses));
        match (&found, expected) {
            (Ok(found), Ok(expected)) => {
                let found: Vec<_> =
                    found.iter().map(|each| (each.claim.as_str(), each.must_be_owned)).collect();
                assert_eq!(found, expected, "{claims}");
            }
            (Err(error), Err(words)) => assert!(error.to_string().contains(words), "{claims}: {error}"),
            _ => panic!("{claims}: {found:?}"),
        }
    };
    check(json!([{"name": "a", "resourceClaimName": "gpu"}]), json!([]), Ok(&[("gpu", false)]));
    let template = json!([{"name": "a", "resourceClaimTemplateName": "t"}]);
    check(template.clone(), json!([{"name": "a", "resourceClaimName": "p-a-x"}]), Ok(&[("p-a-x", true)]));
    check(template.clone(), json!([{"name": "a"}]), Ok(&[]));
    check(template, json!([]), Err("pod \"default/p\": ResourceClaim not created yet"));
    check(json!([{"name": "a"}]), json!([]), Err("none of the supported fields are set"));
}

#[test]
fn a_pod_uses_what_is_allocated_and_reserved_for_it() {
    let pod = pod("u", json!([]), json!([]));
    let good = claim("gpu", "c", &["d"], &["other", "u"]);
    assert_eq!(check(&pod, &good, false), Ok(()));
    let said = check(&pod, &claim("gpu", "c", &["d"], &["other"]), false).expect_err("reserved for another");
    assert_eq!(said.to_string(), "pod p (u) is not allowed to use ResourceClaim gpu (c)");
    let said = check(&pod, &good, true).expect_err("made for nobody");
    assert_eq!(
        said.to_string(),
        "ResourceClaim default/gpu was not created for Pod default/p (Pod is not owner)"
    );
    let mut owned = good.clone();
    owned.metadata.owner_references = serde_json::from_value(
        json!([{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u", "controller": true}]),
    )
    .expect("an owner");
    assert_eq!(check(&pod, &owned, true), Ok(()));
    let mut free = good;
    free.status.as_mut().expect("a status").allocation = None;
    assert_eq!(check(&pod, &free, false).expect_err("free").to_string(), "ResourceClaim gpu: not allocated");
}

#[test]
fn each_driver_is_asked_once_for_all_claims_and_the_last_user_gives_them_back() {
    let mut claims = Claims::default();
    let both = [claim("one", "c1", &["a", "b"], &[]), claim("two", "c2", &["b"], &[])];
    let batches = claims.use_by("p1", &both).expect("they are new");
    assert_eq!(names(&batches["a"]), ["one"]);
    assert_eq!(names(&batches["b"]), ["one", "two"]);

    // a driver that failed is asked again for all; one that has answered for all is not
    assert_eq!(claims.use_by("p1", &both).expect("known").len(), 2);
    claims.take_in("b", vec![(key("two"), vec![device("r", "v/c=1")])]);
    claims.take_in("b", vec![(key("two"), vec![device("r", "v/c=1")])]);
    claims.set_prepared(&[key("one"), key("two")]);
    assert!(claims.use_by("p2", &both[1..]).expect("shared").is_empty());
    assert_eq!(claims.states()[1].driver_state["b"].devices.len(), 1, "said twice is there once");

    let release = claims.release("p1");
    assert_eq!((names(&release.batches["a"]), names(&release.batches["b"])), (vec!["one"], vec!["one"]));
    assert_eq!(release.shared, [key("two")]);
    assert!(claims.is_used_by("p1"), "nothing changes before drivers have done it");
    claims.let_go("p1", &release);
    assert!(!claims.is_used_by("p1") && claims.is_used_by("p2"));
    let release = claims.release("p2");
    assert_eq!(names(&release.batches["b"]), ["two"]);
    claims.let_go("p2", &release);
    assert!(claims.states().is_empty());
    assert_eq!(claims.release("p2"), Release::default());
}

#[test]
fn a_claim_that_took_the_name_of_another_waits_until_that_is_given_back() {
    let mut claims = Claims::default();
    claims.use_by("p1", &[claim("gpu", "old", &["a"], &[])]).expect("new");
    let both = [claim("fresh", "f", &["a"], &[]), claim("gpu", "new", &["a"], &[])];
    let said = claims.use_by("p2", &both).expect_err("the old one is still prepared").to_string();
    assert!(
        said.starts_with("old ResourceClaim with same name gpu and different UID old still exists"),
        "{said}"
    );
    assert!(!claims.is_used_by("p2"), "nothing is noted of a pod that cannot start");
}

#[test]
fn after_a_restart_drivers_are_asked_again_and_devices_are_known_all_the_same() {
    let mut before = Claims::default();
    let gpu = claim("gpu", "c", &["a"], &[]);
    before.use_by("p1", std::slice::from_ref(&gpu)).expect("new");
    before.take_in("a", vec![(key("gpu"), vec![device("r", "v/c=1")])]);
    before.set_prepared(&[key("gpu")]);
    let mut after = Claims::new(before.states().into_iter().cloned().collect());
    assert_eq!(after.pods(), BTreeSet::from(["p1".into()]));
    assert_eq!(
        after.pods_with("a", |device| device.cdi_device_ids == ["v/c=1"]),
        BTreeSet::from(["p1".into()])
    );
    assert_eq!(names(&after.release("p1").batches["a"]), ["gpu"]);
    assert_eq!(names(&after.use_by("p1", &[gpu]).expect("the same")["a"]), ["gpu"]);
}

#[test]
fn a_container_gets_the_devices_of_the_requests_it_names() {
    let mut claims = Claims::default();
    claims.use_by("u", &[claim("gpu", "c", &["a", "b"], &[])]).expect("new");
    let (first, second) = (device("one", "v/c=1"), device("two", "v/c=2"));
    claims.take_in("a", vec![(key("gpu"), vec![first, second])]);
    claims.take_in("b", vec![(key("gpu"), vec![device("one", "w/c=1"), device("one", "w/c=1")])]);
    let pod = pod("u", json!([{"name": "mine", "resourceClaimName": "gpu"}]), json!([]));
    let check = |wanted: Value, expected: &[&str]| {
        let container: Container =
            serde_json::from_value(json!({"name": "c", "resources": {"claims": wanted}}))
                .expect("a container");
        assert_eq!(claims.cdi_devices(&pod, &container).expect("known"), expected, "{wanted}");
    };
    check(json!([]), &[]);
    check(json!([{"name": "mine"}]), &["v/c=1", "v/c=2", "w/c=1"]);
    check(json!([{"name": "mine", "request": "two"}]), &["v/c=2"]);
    check(json!([{"name": "mine", "request": "one"}, {"name": "mine"}]), &["v/c=1", "w/c=1", "v/c=2"]);
    check(json!([{"name": "mine", "request": "three"}]), &[]);
    let container: Container =
        serde_json::from_value(json!({"name": "c", "resources": {"claims": [{"name": "mine"}]}}))
            .expect("one");
    let said = Claims::default().cdi_devices(&pod, &container).expect_err("nothing is known");
    assert_eq!(said.to_string(), "unable to get information for ResourceClaim gpu");
}

#[test]
fn a_pods_extended_resources_are_in_a_claim_of_their_own() {
    let mut pod = pod("u", Value::Null, Value::Null);
    pod.status.as_mut().expect("a status").extended_resource_claim_status = serde_json::from_value(json!({
        "resourceClaimName": "p-extended",
        "requestMappings": [
            {"containerName": "c", "resourceName": "example.com/gpu", "requestName": "container-0-request-0"},
            {"containerName": "other", "resourceName": "example.com/gpu", "requestName": "container-1-request-0"},
        ],
    }))
    .expect("a status");
    assert_eq!(
        references(&pod).expect("one"),
        [Reference { claim: "p-extended".into(), must_be_owned: false }]
    );
    let container: Container = serde_json::from_value(json!({"name": "c"})).expect("a container");
    let expected = [("p-extended".to_owned(), "container-0-request-0".to_owned())];
    assert_eq!(requests(&pod, &container).expect("mapped"), expected);
}

#[test]
fn a_driver_answers_for_every_claim_and_no_other() {
    let asked = |uids: &[&str]| -> Vec<dra::Claim> {
        let claim = |uid: &&str| dra::Claim {
            namespace: "n".into(),
            uid: uid.to_string(),
            name: format!("name-{uid}"),
        };
        uids.iter().map(claim).collect()
    };
    let check = |answer: &[(&str, &str)], expected: Result<usize, &str>| {
        let answered = answer.iter().map(|(uid, problem)| (uid.to_string(), problem.to_string()));
        let found =
            answers("NodePrepareResources", &asked(&["1", "2"]), answered, |problem: &String| problem);
        let found = found.map(|found| found.len()).map_err(|error| error.to_string());
        assert_eq!(found, expected.map_err(String::from), "{answer:?}");
    };
    check(&[("1", ""), ("2", "")], Ok(2));
    check(&[("1", "")], Err("NodePrepareResources skipped 1 ResourceClaims"));
    check(&[("3", "")], Err("NodePrepareResources returned result for unknown claim UID 3"));
    check(&[("2", "broken")], Err("NodePrepareResources failed for ResourceClaim name-2: broken"));
}
