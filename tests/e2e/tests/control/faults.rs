//! Leaders that are killed, servers that restart, templates that are refused, parents that compete.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Event, Node, Pod, ResourceQuota};
use k8s_openapi::api::scheduling::v1::PriorityClass;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};

use super::processes::Cluster;
use super::{hollow, until};

fn deployments(client: &Client) -> Api<Deployment> {
    Api::namespaced(client.clone(), "default")
}

fn pods(client: &Client) -> Api<Pod> {
    Api::namespaced(client.clone(), "default")
}

async fn create(client: &Client, name: &str, app: &str, replicas: u32, spec: Value) {
    let mut template = json!({"containers": [{"name": "c", "image": "one",
        "resources": {"requests": {"cpu": "100m"}}}]});
    if let (Some(into), Value::Object(more)) = (template.as_object_mut(), spec) {
        into.extend(more);
    }
    let labels = json!({"app": app});
    let deployment = json!({"metadata": {"name": name}, "spec": {"replicas": replicas,
        "selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": template}}});
    let deployment = serde_json::from_value(deployment).expect("is a deployment");
    deployments(client).create(&PostParams::default(), &deployment).await.expect("the deployment is made");
}

async fn ready(client: &Client, name: &str, replicas: i32) {
    until(&format!("{name} has {replicas} ready"), || async {
        let found = deployments(client).get(name).await.ok()?;
        let (status, generation) = (found.status?, found.metadata.generation);
        let done = status.observed_generation == generation
            && status.ready_replicas == Some(replicas)
            && status.updated_replicas == Some(replicas)
            && status.replicas == Some(replicas);
        done.then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_one_leads_and_killing_it_hands_over() {
    let Some(cluster) = Cluster::start().await else { return };
    let client = cluster.client.clone();
    let kubelets = hollow::kubelets(client.clone());
    hollow::node(&client, "n", 100).await;
    let mut processes = vec![
        cluster.controller_manager(),
        cluster.controller_manager(),
        cluster.scheduler(),
        cluster.scheduler(),
    ];
    for lease in ["kube-controller-manager", "kube-scheduler"] {
        until(&format!("someone leads {lease}"), || cluster.leader(lease)).await;
    }
    create(&client, "before", "before", 3, json!({})).await;
    ready(&client, "before", 3).await;
    for lease in ["kube-controller-manager", "kube-scheduler"] {
        let first = cluster.leader(lease).await.expect("someone leads");
        let at = processes.iter().position(|own| own.id() == first).expect("one of ours leads");
        drop(processes.remove(at));
        until(&format!("another leads {lease}"), || async {
            cluster.leader(lease).await.filter(|now| *now != first)
        })
        .await;
    }
    create(&client, "after", "after", 3, json!({})).await;
    ready(&client, "after", 3).await;
    kubelets.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_in_the_middle_of_a_rollout_and_of_binding_all_converges_without_duplicates() {
    const REPLICAS: i32 = 40;
    let Some(mut cluster) = Cluster::start().await else { return };
    let client = cluster.client.clone();
    let kubelets = hollow::kubelets(client.clone());
    // just enough room for the pods and the surge, so that a pod booked twice would not fit
    for number in 0..5 {
        hollow::node(&client, &format!("n{number}"), 10).await;
    }
    let mut manager = cluster.controller_manager();
    let mut scheduler = cluster.scheduler();
    create(&client, "web", "web", REPLICAS as u32, json!({})).await;
    for (round, image) in ["two", "three", "four"].into_iter().enumerate() {
        let bound = |wanted: usize| {
            let client = client.clone();
            async move {
                let list = pods(&client).list(&ListParams::default().fields("spec.nodeName!=")).await.ok()?;
                (list.items.len() >= wanted).then_some(())
            }
        };
        until("some pods are bound", || bound(1 + 12 * round)).await;
        drop(manager);
        drop(scheduler);
        cluster.restart_server().await;
        manager = cluster.controller_manager();
        scheduler = cluster.scheduler();
        let containers = json!([{"name": "c", "image": image}]);
        let patch = json!({"spec": {"template": {"spec": {"containers": containers}}}});
        let patch = Patch::Strategic(patch);
        deployments(&client).patch("web", &PatchParams::default(), &patch).await.expect("a new template");
    }
    ready(&client, "web", REPLICAS).await;
    let list = pods(&client).list(&ListParams::default()).await.expect("pods");
    let live: Vec<&Pod> = list.items.iter().filter(|pod| pod.metadata.deletion_timestamp.is_none()).collect();
    assert_eq!(live.len(), REPLICAS as usize);
    let mut on: BTreeMap<&str, usize> = BTreeMap::new();
    let mut owners: BTreeSet<&str> = BTreeSet::new();
    for pod in live {
        let spec = pod.spec.as_ref().expect("a spec");
        assert_eq!(spec.containers[0].image.as_deref(), Some("four"), "{}", pod.name_any());
        *on.entry(spec.node_name.as_deref().expect("is bound")).or_default() += 1;
        owners.extend(pod.owner_references().iter().map(|owner| owner.uid.as_str()));
    }
    assert!(on.values().all(|count| *count <= 10), "a node is booked twice: {on:?}");
    assert_eq!(owners.len(), 1, "one ReplicaSet has all of them");
    drop((manager, scheduler));
    kubelets.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_template_that_is_refused_backs_off_says_so_and_recovers() {
    let Some(cluster) = Cluster::start().await else { return };
    let client = cluster.client.clone();
    let kubelets = hollow::kubelets(client.clone());
    hollow::node(&client, "n", 100).await;
    let (_manager, _scheduler) = (cluster.controller_manager(), cluster.scheduler());
    create(&client, "web", "web", 3, json!({"priorityClassName": "unheard-of"})).await;
    until("the deployment says that pods fail", || async {
        let conditions = deployments(&client).get("web").await.ok()?.status?.conditions?;
        let failure = conditions.into_iter().find(|own| own.type_ == "ReplicaFailure")?;
        let told = failure.message.is_some_and(|message| message.contains("unheard-of"));
        (told && failure.reason.as_deref() == Some("FailedCreate")).then_some(())
    })
    .await;
    // It goes on trying, but ever more rarely: in these seconds a loop would try thousands of times.
    tokio::time::sleep(Duration::from_secs(5)).await;
    let tries = failed_creations(&client).await;
    assert!((1..=20).contains(&tries), "{tries} tries");
    let class: PriorityClass =
        serde_json::from_value(json!({"metadata": {"name": "unheard-of"}, "value": 10})).expect("a class");
    Api::all(client.clone()).create(&PostParams::default(), &class).await.expect("the class is made");
    ready(&client, "web", 3).await;
    kubelets.abort();
}

/// How often pods could not be made, as events tell it.
async fn failed_creations(client: &Client) -> i32 {
    let events: Api<Event> = Api::namespaced(client.clone(), "default");
    let events = events.list(&ListParams::default().fields("reason=FailedCreate")).await.expect("events");
    let count =
        |event: &Event| event.series.as_ref().and_then(|series| series.count).or(event.count).unwrap_or(1);
    events.items.iter().map(count).sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_refused_by_a_quota_back_off_and_are_created_when_it_is_raised() {
    let Some(cluster) = Cluster::start().await else { return };
    let client = cluster.client.clone();
    let kubelets = hollow::kubelets(client.clone());
    hollow::node(&client, "n", 100).await;
    let (_manager, _scheduler) = (cluster.controller_manager(), cluster.scheduler());
    let quotas: Api<ResourceQuota> = Api::namespaced(client.clone(), "default");
    let quota = json!({"metadata": {"name": "two"}, "spec": {"hard": {"pods": "2"}}});
    let quota = serde_json::from_value(quota).expect("is a quota");
    quotas.create(&PostParams::default(), &quota).await.expect("the quota is made");
    until("the quota is counted", || async { quotas.get("two").await.ok()?.status?.used.map(|_| ()) }).await;

    create(&client, "web", "web", 5, json!({})).await;
    until("the deployment says what is wrong", || async {
        let status = deployments(&client).get("web").await.ok()?.status?;
        let failure = status.conditions?.into_iter().find(|own| own.type_ == "ReplicaFailure")?;
        let told = failure.message.is_some_and(|message| message.contains("exceeded quota: two"));
        (told && failure.status == "True" && status.ready_replicas == Some(2)).then_some(())
    })
    .await;
    // It goes on trying, but ever more rarely: in these seconds a loop would try thousands of times.
    tokio::time::sleep(Duration::from_secs(5)).await;
    let tries = failed_creations(&client).await;
    assert!((1..=20).contains(&tries), "{tries} tries");
    let list = pods(&client).list(&ListParams::default()).await.expect("pods");
    assert_eq!(list.items.len(), 2, "never more than the quota allows");

    let more = json!({"spec": {"hard": {"pods": "5"}}});
    quotas.patch("two", &PatchParams::default(), &Patch::Merge(more)).await.expect("a larger quota");
    ready(&client, "web", 5).await;
    let status = deployments(&client).get("web").await.expect("is there").status.expect("a status");
    let mut conditions = status.conditions.into_iter().flatten();
    assert!(!conditions.any(|own| own.type_ == "ReplicaFailure"), "nothing fails any more");
    kubelets.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_whose_clock_is_wrong_is_judged_by_whether_it_is_heard_of() {
    let Some(cluster) = Cluster::start().await else { return };
    let client = cluster.client.clone();
    hollow::node(&client, "n", 100).await;
    let _manager = cluster.controller_manager_with_grace("2s");
    let leases: Api<Lease> = Api::namespaced(client.clone(), "kube-node-lease");
    let lease = |renewed: &str| json!({"metadata": {"name": "n"}, "spec": {"renewTime": renewed}});
    until("there is a place for leases", || async {
        let first = serde_json::from_value(lease("1999-01-01T00:00:00.000000Z")).expect("is a lease");
        leases.create(&PostParams::default(), &first).await.ok()
    })
    .await;
    let nodes: Api<Node> = Api::all(client.clone());
    let is_ready = || async {
        let conditions = nodes.get("n").await.expect("the node is there").status?.conditions?;
        conditions.into_iter().find(|own| own.type_ == "Ready").map(|own| own.status)
    };
    // Renewals years ago, or years ahead, are renewals: longer than the node is allowed to be silent.
    for round in 0..12 {
        let year = if round % 2 == 0 { 1999 } else { 2099 };
        let renewed = lease(&format!("{year}-01-01T00:00:{round:02}.000000Z"));
        leases.patch("n", &PatchParams::default(), &Patch::Merge(renewed)).await.expect("a heartbeat");
        tokio::time::sleep(Duration::from_millis(400)).await;
        assert_eq!(is_ready().await.as_deref(), Some("True"), "round {round}");
    }
    until("a silent node is given up", || async { is_ready().await.filter(|status| status == "Unknown") })
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_deployments_with_one_selector_do_not_fight() {
    let Some(cluster) = Cluster::start().await else { return };
    let client = cluster.client.clone();
    let kubelets = hollow::kubelets(client.clone());
    hollow::node(&client, "n", 100).await;
    let (_manager, _scheduler) = (cluster.controller_manager(), cluster.scheduler());
    create(&client, "one", "shared", 2, json!({})).await;
    create(&client, "two", "shared", 3, json!({})).await;
    ready(&client, "one", 2).await;
    ready(&client, "two", 3).await;
    let names = |list: Vec<Pod>| -> BTreeSet<String> { list.iter().map(ResourceExt::name_any).collect() };
    let before = names(pods(&client).list(&ListParams::default()).await.expect("pods").items);
    let sets: Api<ReplicaSet> = Api::namespaced(client.clone(), "default");
    for seconds in [1, 0, 1, 0] {
        // Both controllers look at both again, and see what the other has done.
        let patch = Patch::Merge(json!({"spec": {"minReadySeconds": seconds}}));
        for name in ["one", "two"] {
            deployments(&client).patch(name, &PatchParams::default(), &patch).await.expect("a change");
        }
        until("both ReplicaSets are reconciled", || async {
            let sets = sets.list(&ListParams::default()).await.ok()?.items;
            let is_current = |set: &ReplicaSet| {
                let wanted = set.spec.as_ref().and_then(|spec| spec.min_ready_seconds).unwrap_or(0);
                let observed = set.status.as_ref().and_then(|status| status.observed_generation);
                wanted == seconds && observed == set.metadata.generation
            };
            sets.iter().all(is_current).then_some(())
        })
        .await;
    }
    let after = names(pods(&client).list(&ListParams::default()).await.expect("pods").items);
    assert_eq!((before.len(), &before), (5, &after), "no pod came or went");
    let sets = sets.list(&ListParams::default()).await.expect("replica sets");
    let owned: Vec<(String, Option<i32>)> = sets
        .items
        .iter()
        .map(|set| (set.owner_references()[0].name.clone(), set.spec.as_ref().and_then(|spec| spec.replicas)))
        .collect();
    assert_eq!(owned.len(), 2, "{owned:?}");
    assert!(
        owned.contains(&("one".into(), Some(2))) && owned.contains(&("two".into(), Some(3))),
        "{owned:?}"
    );
    kubelets.abort();
}
