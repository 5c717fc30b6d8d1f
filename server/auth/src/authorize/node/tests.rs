use serde::de::DeserializeOwned;
use serde_json::json;

use super::*;
use crate::attributes::{SelectorOperator, SelectorRequirement};

fn read<T: DeserializeOwned>(json: serde_json::Value) -> T {
    serde_json::from_value(json).unwrap()
}

fn node(name: &str) -> User {
    User::new(format!("system:node:{name}")).with_groups([NODES])
}

/// A pod that mentions one object in every way it can.
fn pod(name: &str, node: &str) -> Pod {
    let environment = |suffix: &str| {
        json!({
            "name": suffix,
            "env": [
                {"name": "A", "valueFrom": {"secretKeyRef": {"name": format!("env-{suffix}"), "key": "k"}}},
                {"name": "B", "valueFrom": {"configMapKeyRef": {"name": format!("env-{suffix}"), "key": "k"}}},
            ],
            "envFrom": [
                {"secretRef": {"name": format!("from-{suffix}")}},
                {"configMapRef": {"name": format!("from-{suffix}")}},
            ],
        })
    };
    read(json!({
        "metadata": {"namespace": "ns", "name": name},
        "spec": {
            "nodeName": node,
            "serviceAccountName": "robot",
            "imagePullSecrets": [{"name": "pull"}],
            "containers": [environment("main")],
            "initContainers": [environment("init")],
            "ephemeralContainers": [environment("debug")],
            "volumes": [
                {"name": "v1", "secret": {"secretName": "mounted"}},
                {"name": "v2", "configMap": {"name": "mounted"}},
                {"name": "v3", "projected": {"sources": [{"secret": {"name": "projected"}}, {"configMap": {"name": "projected"}}]}},
                {"name": "v4", "persistentVolumeClaim": {"claimName": "data"}},
                {"name": "v5", "ephemeral": {}},
                {"name": "v6", "csi": {"driver": "d", "nodePublishSecretRef": {"name": "csi"}}},
            ],
            "resourceClaims": [{"name": "gpu", "resourceClaimName": "gpu-1"}, {"name": "made", "resourceClaimTemplateName": "t"}],
        },
        "status": {"resourceClaimStatuses": [{"name": "made", "resourceClaimName": "made-7"}]},
    }))
}

fn volume() -> PersistentVolume {
    read(json!({
        "metadata": {"name": "pv1"},
        "spec": {
            "claimRef": {"namespace": "ns", "name": "data"},
            "csi": {
                "driver": "d", "volumeHandle": "h",
                "nodeStageSecretRef": {"name": "stage", "namespace": "vault"},
                "controllerPublishSecretRef": {"name": "controller", "namespace": "vault"},
            },
        },
    }))
}

fn authorizer() -> NodeAuthorizer {
    let authorizer = NodeAuthorizer::new();
    authorizer.set_pod(&pod("web", "n1"));
    authorizer.set_persistent_volume(&volume());
    authorizer
}

/// `verb group/resource[/sub] namespace name`, with `-` for nothing and `core` for the core group.
fn decide(authorizer: &NodeAuthorizer, user: &User, request: &str) -> Decision {
    let words: Vec<&str> = request.split(' ').map(|word| if word == "-" { "" } else { word }).collect();
    let [verb, path, namespace, name] = *words.as_slice() else { panic!("{request}") };
    let mut path = path.splitn(3, '/');
    let group = path.next().filter(|group| *group != "core").unwrap_or("");
    let (resource, subresource) = (path.next().unwrap(), path.next().unwrap_or(""));
    authorizer.decide(&Attributes {
        namespace,
        name,
        subresource,
        ..Attributes::resource(user, verb, group, resource)
    })
}

#[test]
fn a_node_reaches_what_its_pods_mention_and_another_does_not() {
    let authorizer = authorizer();
    let reachable = [
        "get core/secrets ns pull",
        "get core/secrets ns env-main",
        "get core/secrets ns env-init",
        "get core/secrets ns env-debug",
        "watch core/secrets ns from-main",
        "list core/secrets ns mounted",
        "get core/secrets ns projected",
        "get core/secrets ns csi",
        "get core/secrets vault stage",
        "get core/configmaps ns env-main",
        "watch core/configmaps ns from-debug",
        "get core/configmaps ns mounted",
        "get core/configmaps ns projected",
        "get core/persistentvolumeclaims ns data",
        "get core/persistentvolumeclaims ns web-v5",
        "patch core/persistentvolumeclaims/status ns data",
        "get core/persistentvolumes - pv1",
        "get resource.k8s.io/resourceclaims ns gpu-1",
        "get resource.k8s.io/resourceclaims ns made-7",
        "get core/serviceaccounts ns robot",
        "create core/serviceaccounts/token ns robot",
        "get core/pods ns web",
        "watch core/pods ns web",
    ];
    for request in reachable {
        assert!(decide(&authorizer, &node("n1"), request).is_allowed(), "n1: {request}");
        assert_eq!(
            decide(&authorizer, &node("n2"), request).reason(),
            "no relationship found between node 'n2' and this object",
            "{request}"
        );
    }
    authorizer.remove_pod("ns", "web");
    for request in reachable {
        assert!(!decide(&authorizer, &node("n1"), request).is_allowed(), "the pod is gone: {request}");
    }
    authorizer.remove_persistent_volume("pv1");
    assert!(authorizer.graph.read().is_empty());
}

#[test]
fn refusals_say_what_a_node_may_do() {
    let authorizer = authorizer();
    for (request, reason) in [
        ("get core/secrets ns other", "no relationship found between node 'n1' and this object"),
        ("get core/secrets other pull", "no relationship found between node 'n1' and this object"),
        ("get core/secrets vault controller", "no relationship found between node 'n1' and this object"),
        ("list core/secrets ns -", "No Object name found"),
        ("list core/secrets - -", "can only read namespaced object of this type"),
        ("update core/secrets ns pull", "can only read resources of this type"),
        ("list core/persistentvolumes - -", "can only get individual resources of this type"),
        ("get core/persistentvolumeclaims/status ns data", "can only get/update/patch this type"),
        ("create core/serviceaccounts ns -", "can only create tokens for individual service accounts"),
        ("delete core/serviceaccounts ns robot", "can only create tokens for individual service accounts"),
        ("create core/serviceaccounts/x ns robot", "can only create token subresource of serviceaccount"),
        (
            "list coordination.k8s.io/leases kube-node-lease -",
            "can only get, create, update, patch, or delete a node lease",
        ),
        (
            "get coordination.k8s.io/leases ns n1",
            r#"can only access leases in the "kube-node-lease" system namespace"#,
        ),
        (
            "get coordination.k8s.io/leases kube-node-lease n2",
            "can only access node lease with the same name as the requesting node",
        ),
        (
            "get storage.k8s.io/csinodes - n2",
            "can only access CSINode with the same name as the requesting node",
        ),
        ("list core/nodes - -", "node 'n1' cannot read all nodes, only its own Node object"),
        ("get core/nodes - n2", "node 'n1' cannot read 'n2', only its own Node object"),
        ("delete core/nodes - n1", ""),
        ("list core/pods - -", "can only list/watch pods with spec.nodeName field selector"),
        ("create core/pods/exec ns web", ""),
        (
            "list resource.k8s.io/resourceslices - -",
            "can only list/watch/deletecollection resourceslices with nodeName field selector",
        ),
        (
            "delete certificates.k8s.io/podcertificaterequests ns x",
            "nodes may not delete podcertificaterequests",
        ),
        ("create rbac.authorization.k8s.io/clusterroles - -", ""),
    ] {
        assert_eq!(decide(&authorizer, &node("n1"), request), no_opinion(reason.to_owned()), "{request}");
    }
}

#[test]
fn a_node_keeps_its_own_objects_and_the_shared_ones() {
    let authorizer = authorizer();
    for request in [
        "get core/nodes - n1",
        "patch core/nodes/status - n1",
        "create core/nodes - -",
        "create core/pods ns -",
        "patch core/pods/status ns web",
        "create core/pods/eviction ns web",
        "update coordination.k8s.io/leases kube-node-lease n1",
        "create coordination.k8s.io/leases kube-node-lease -",
        "patch storage.k8s.io/csinodes - n1",
        "list core/services - -",
        "watch node.k8s.io/runtimeclasses - -",
        "create certificates.k8s.io/certificatesigningrequests - -",
        "create core/events ns -",
    ] {
        assert!(decide(&authorizer, &node("n1"), request).is_allowed(), "{request}");
    }
}

#[test]
fn a_list_is_allowed_when_it_selects_the_node() {
    let authorizer = authorizer();
    let user = node("n1");
    let select = |value: &str, operator| {
        [SelectorRequirement { key: "spec.nodeName".to_owned(), operator, values: vec![value.to_owned()] }]
    };
    for (value, operator, allowed) in [
        ("n1", SelectorOperator::In, true),
        ("n2", SelectorOperator::In, false),
        ("n1", SelectorOperator::NotIn, false),
    ] {
        let field_selector = select(value, operator);
        for (group, resource) in [
            ("", "pods"),
            ("resource.k8s.io", "resourceslices"),
            ("certificates.k8s.io", "podcertificaterequests"),
        ] {
            let list = Attributes {
                field_selector: &field_selector,
                ..Attributes::resource(&user, "list", group, resource)
            };
            assert_eq!(authorizer.decide(&list).is_allowed(), allowed, "{resource} {operator:?} {value}");
        }
    }
}

#[test]
fn mirror_pods_and_unbound_pods_reach_nothing() {
    let authorizer = NodeAuthorizer::new();
    let mut mirror = pod("web", "n1");
    mirror.metadata.annotations = Some([(String::from("kubernetes.io/config.mirror"), String::new())].into());
    authorizer.set_pod(&mirror);
    assert!(decide(&authorizer, &node("n1"), "get core/pods ns web").is_allowed());
    assert!(!decide(&authorizer, &node("n1"), "get core/secrets ns pull").is_allowed());
    let mut unbound = pod("web", "n1");
    unbound.spec.as_mut().unwrap().node_name = None;
    authorizer.set_pod(&unbound);
    assert!(authorizer.graph.read().is_empty());
}

#[test]
fn two_pods_share_a_secret_until_the_last_is_gone() {
    let authorizer = NodeAuthorizer::new();
    let may =
        |node_name: &str| decide(&authorizer, &node(node_name), "get core/secrets ns pull").is_allowed();
    authorizer.set_pod(&pod("a", "n1"));
    authorizer.set_pod(&pod("b", "n1"));
    authorizer.set_pod(&pod("b", "n1"));
    authorizer.remove_pod("ns", "a");
    assert!(may("n1"));
    authorizer.set_pod(&pod("b", "n2"));
    assert!(!may("n1") && may("n2"), "a pod of the same name elsewhere");
    authorizer.remove_pod("ns", "b");
    assert!(!may("n2"));
}

#[test]
fn attachments_slices_and_requests_belong_to_their_node() {
    let authorizer = NodeAuthorizer::new();
    authorizer.set_volume_attachment(&read(json!({
        "metadata": {"name": "va"}, "spec": {"attacher": "d", "nodeName": "n1", "source": {}},
    })));
    authorizer.set_resource_slice(&read(json!({
        "metadata": {"name": "slice"},
        "spec": {"driver": "d", "nodeName": "n1", "pool": {"name": "p", "generation": 1, "resourceSliceCount": 1}},
    })));
    for request in
        ["get storage.k8s.io/volumeattachments - va", "update resource.k8s.io/resourceslices - slice"]
    {
        assert!(decide(&authorizer, &node("n1"), request).is_allowed(), "{request}");
        assert!(!decide(&authorizer, &node("n2"), request).is_allowed(), "{request}");
    }
    authorizer.remove_volume_attachment("va");
    authorizer.remove_resource_slice("slice");
    assert!(authorizer.graph.read().is_empty());
}

#[test]
fn a_volume_that_is_a_directory_belongs_to_its_node() {
    let authorizer = NodeAuthorizer::new();
    let volume = |driver: &str| {
        let attributes = json!({"local.ferry.io/node": "n1"});
        read(json!({"metadata": {"name": "v"},
            "spec": {"csi": {"driver": driver, "volumeHandle": "v", "volumeAttributes": attributes}}}))
    };
    authorizer.set_persistent_volume(&volume("local.ferry.io"));
    for request in ["get core/persistentvolumes - v", "patch core/persistentvolumes - v"] {
        assert!(decide(&authorizer, &node("n1"), request).is_allowed(), "{request}");
        assert!(!decide(&authorizer, &node("n2"), request).is_allowed(), "{request}");
    }
    for request in [
        "patch core/persistentvolumes - other",
        "delete core/persistentvolumes - v",
        "list core/persistentvolumes - -",
    ] {
        assert!(!decide(&authorizer, &node("n1"), request).is_allowed(), "{request}");
    }
    let follows = |of: &str| {
        let requirement = SelectorRequirement {
            key: "local.ferry.io/node".into(),
            operator: SelectorOperator::In,
            values: vec![of.into()],
        };
        let user = node("n1");
        let attributes = Attributes {
            label_selector: &[requirement],
            ..Attributes::resource(&user, "watch", "", "persistentvolumes")
        };
        authorizer.decide(&attributes).is_allowed()
    };
    assert!(follows("n1") && !follows("n2"));
    authorizer.set_persistent_volume(&volume("other.example"));
    assert!(!decide(&authorizer, &node("n1"), "patch core/persistentvolumes - v").is_allowed());
    authorizer.remove_persistent_volume("v");
    assert!(authorizer.graph.read().is_empty());
}

#[test]
fn only_members_of_the_nodes_group_are_nodes() {
    let authorizer = authorizer();
    let impostor = User::new("system:node:n1");
    assert_eq!(decide(&authorizer, &impostor, "get core/secrets ns pull"), no_opinion(""));
    assert_eq!(
        decide(&authorizer, &node(""), "get core/secrets ns pull").reason(),
        r#"unknown node for user "system:node:""#
    );
    assert!(authorizer.rules_for(&node("n1"), "ns").incomplete);
    assert!(!authorizer.rules_for(&impostor, "ns").incomplete);
}
