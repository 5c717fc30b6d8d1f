use ferry_api::kinds::{GroupVersionKind, builtin_row};
use serde_json::{Value, json};

use super::*;

fn said(old: Option<Value>, new: Value, scope: UpdateScope<'_>) -> Vec<String> {
    let object = |value: Value| Object::from_value(value).expect("an object");
    let new = object(new);
    let kind =
        builtin_row(&GroupVersionKind::from_api_version(new.api_version(), new.kind())).expect("a kind");
    of(kind, &new, old.map(object).as_ref(), scope)
}

#[track_caller]
fn check(new: Value, expected: &[&str]) {
    assert_eq!(said(None, new, UpdateScope::Main), expected);
}

fn pod(spec: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec})
}

#[test]
fn old_labels_and_missing_selectors_of_pods_are_told() {
    check(
        pod(json!({
            "nodeSelector": {"beta.kubernetes.io/os": "linux", "kubernetes.io/os": "linux"},
            "affinity": {
                "nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
                        {"matchExpressions": [{"key": "beta.kubernetes.io/arch", "operator": "In", "values": ["-a"]}]},
                    ]},
                    "preferredDuringSchedulingIgnoredDuringExecution": [
                        {"preference": {"matchExpressions": [{"key": "a", "operator": "In", "values": ["a", "-"]}]}},
                    ],
                },
                "podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "a"}]},
                "podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"podAffinityTerm": {}}]},
            },
            "topologySpreadConstraints": [{"topologyKey": "failure-domain.beta.kubernetes.io/zone"}],
        })),
        &[
            r#"spec.nodeSelector[beta.kubernetes.io/os]: deprecated since v1.14; use "kubernetes.io/os" instead"#,
            r#"spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0].matchExpressions[0].key: beta.kubernetes.io/arch is deprecated since v1.14; use "kubernetes.io/arch" instead"#,
            "spec.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].preference.matchExpressions[0].values[1]: - is invalid, a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')",
            r#"spec.topologySpreadConstraints[0].topologyKey: failure-domain.beta.kubernetes.io/zone is deprecated since v1.17; use "topology.kubernetes.io/zone" instead"#,
            "spec.topologySpreadConstraints[0].labelSelector: a null labelSelector results in matching no pod",
            "spec.affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].labelSelector: a null labelSelector results in matching no pod",
            "spec.affinity.podAntiAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].podAffinityTerm.labelSelector: a null labelSelector results in matching no pod",
        ],
    );
}

#[test]
fn what_a_pod_repeats_is_told() {
    check(
        pod(json!({
            "hostAliases": [{"ip": "1.2.3.4"}, {"ip": "1.2.3.4"}, {"ip": "01.2.3.4"}],
            "imagePullSecrets": [{"name": "a"}, {"name": "a"}, {}],
            "terminationGracePeriodSeconds": -1,
            "dnsConfig": {"nameservers": ["::ffff:1.2.3.4", "1::0"]},
            "overhead": {"memory": "1m"},
            "containers": [{
                "name": "c",
                "env": [
                    {"name": "A", "value": "1"}, {"name": "A", "value": "$(A)2"}, {"name": "A", "value": "$(A)"},
                    {"name": "B", "value": "1"}, {"name": "B", "value": "2"},
                ],
                "resources": {"limits": {"memory": "1500m"}},
                "ports": [
                    {"containerPort": 80, "protocol": "TCP", "name": "web"},
                    {"containerPort": 80, "protocol": "TCP", "name": "web"},
                    {"containerPort": 80, "protocol": "TCP", "hostPort": 8080},
                    {"containerPort": 80, "protocol": "TCP", "hostPort": 8080, "hostIP": "1.1.1.1"},
                    {"containerPort": 81, "protocol": "UDP", "hostIP": "1.1.1.1"},
                ],
            }],
        })),
        &[
            "spec.hostAliases[1].ip: duplicate ip \"1.2.3.4\"",
            "spec.imagePullSecrets[1].name: duplicate name \"a\"",
            "spec.imagePullSecrets[2].name: invalid empty name \"\"",
            "spec.overhead[memory]: fractional byte value \"1m\" is invalid, must be an integer",
            "spec.containers[0].resources.limits[memory]: fractional byte value \"1500m\" is invalid, must be an integer",
            "spec.containers[0].env[2]: hides previous definition of \"A\", which may be dropped when using apply",
            "spec.containers[0].env[4]: hides previous definition of \"B\", which may be dropped when using apply",
            "spec.containers[0].ports[1]: duplicate port definition with spec.containers[0].ports[0]",
            "spec.containers[0].ports[2]: overlapping port definition with spec.containers[0].ports[0]",
            "spec.containers[0].ports[2]: overlapping port definition with spec.containers[0].ports[1]",
            "spec.containers[0].ports[3]: overlapping port definition with spec.containers[0].ports[0]",
            "spec.containers[0].ports[3]: overlapping port definition with spec.containers[0].ports[1]",
            "spec.containers[0].ports[3]: dangerously ambiguous port definition with spec.containers[0].ports[2]",
            "spec.containers[0].ports[4]: hostIP set without hostPort: {Name: HostPort:0 ContainerPort:81 Protocol:UDP HostIP:1.1.1.1}",
            "spec.containers[0].ports[1]: duplicate port name \"web\" with spec.containers[0].ports[0], services and probes that select ports by name will use spec.containers[0].ports[0]",
            "spec.terminationGracePeriodSeconds: must be >= 0; negative values are invalid and will be treated as 1",
            "spec.dnsConfig.nameservers[0]: non-standard IP address \"::ffff:1.2.3.4\" is invalid: use \"1.2.3.4\"",
            "spec.dnsConfig.nameservers[1]: IPv6 address \"1::0\" should be in RFC 5952 canonical format (\"1::\")",
            "spec.hostAliases[2].ip: non-standard IP address \"01.2.3.4\" is invalid: use \"1.2.3.4\"",
        ],
    );
}

#[test]
fn volumes_that_nobody_mounts_and_files_that_collide_are_told() {
    let items =
        |paths: &[&str]| -> Value { paths.iter().map(|path| json!({"key": "k", "path": path})).collect() };
    check(
        pod(json!({"volumes": [
            {"name": "a", "gitRepo": {}}, {"name": "b", "storageos": {}}, {"name": "c", "rbd": {}},
            {"name": "d", "ephemeral": {"volumeClaimTemplate": {"spec": {"resources": {"requests": {"storage": "1m"}}}}}},
            {"name": "e", "configMap": {"name": "m", "items": items(&["a", "a/b/", "c", "ab"])}},
            {"name": "f", "projected": {"sources": [
                {"configMap": {"name": "m", "items": items(&["token"])}},
                {"serviceAccountToken": {"path": "token"}},
                {"clusterTrustBundle": {"signerName": "s", "path": "token/x"}},
                {},
            ]}},
        ]})),
        &[
            "spec.volumes[0].gitRepo: deprecated in v1.11, and disabled by default in v1.33+",
            "spec.volumes[1].storageOS: deprecated in v1.22, non-functional in v1.25+",
            "spec.volumes[2].rbd: deprecated in v1.28, non-functional in v1.31+",
            "spec.volumes[3].ephemeral.volumeClaimTemplate.spec.resources.requests[storage]: fractional byte value \"1m\" is invalid, must be an integer",
            r#"volume "e" (ConfigMap "m"): overlapping paths: "a/b" with "a""#,
            r#"volume "f" (Projected): overlapping paths: "token" (ServiceAccountToken) with "token" (ConfigMap "m")"#,
            r#"volume "f" (Projected): overlapping paths: "token/x" (ClusterTrustBundle "s") with "token" (ConfigMap "m")"#,
            r#"volume "f" (Projected): overlapping paths: "token/x" (ClusterTrustBundle "s") with "token" (ServiceAccountToken)"#,
            r#"volume "f" (Projected) has no sources provided"#,
        ],
    );
}

#[test]
fn annotations_that_became_fields_are_told() {
    let seccomp = json!({"seccomp.security.alpha.kubernetes.io/pod": "unconfined", "container.seccomp.security.alpha.kubernetes.io/c": "unconfined", "scheduler.alpha.kubernetes.io/critical-pod": ""});
    let mut object = pod(json!({"containers": [{"name": "c"}]}));
    object["metadata"]["annotations"] = seccomp;
    check(
        object.clone(),
        &[
            r#"metadata.annotations[scheduler.alpha.kubernetes.io/critical-pod]: non-functional in v1.16+; use the "priorityClassName" field instead"#,
            r#"metadata.annotations[seccomp.security.alpha.kubernetes.io/pod]: non-functional in v1.27+; use the "seccompProfile" field instead"#,
            r#"metadata.annotations[container.seccomp.security.alpha.kubernetes.io/c]: non-functional in v1.27+; use the "seccompProfile" field instead"#,
        ],
    );
    // nobody changes pods by hand
    assert!(said(Some(object.clone()), object, UpdateScope::Main).is_empty());
}

#[test]
fn profiles_in_annotations_become_fields() {
    let key = "container.apparmor.security.beta.kubernetes.io/c";
    let told = format!(
        "metadata.annotations[{key}]: deprecated since v1.30; use the \"appArmorProfile\" field instead"
    );
    let check = |annotation: &str, of_pod: Value, of_container: Value, expected: Value, warns: bool| {
        let mut pod = pod(json!({
            "securityContext": {"appArmorProfile": of_pod},
            "containers": [{"name": "c", "securityContext": {"appArmorProfile": of_container}}, {"name": "d"}],
        }));
        pod["metadata"]["annotations"] = json!({key: annotation});
        let mut pod = Object::from_value(pod).expect("an object");
        let said = replaced_profiles(&mut pod);
        assert_eq!(
            pod.0["spec"]["containers"][0]["securityContext"]["appArmorProfile"], expected,
            "{annotation}"
        );
        assert_eq!(said, if warns { vec![told.clone()] } else { vec![] }, "{annotation}");
        assert!(pod.0["spec"]["containers"][1].get("securityContext").is_none());
    };
    let default = json!({"type": "RuntimeDefault"});
    let local = json!({"type": "Localhost", "localhostProfile": "a"});
    check("runtime/default", Value::Null, Value::Null, default.clone(), true);
    check("localhost/a", default.clone(), Value::Null, local.clone(), true);
    check("runtime/default", default.clone(), Value::Null, Value::Null, false);
    check("unconfined", Value::Null, local.clone(), local, false);
    check("localhost/", Value::Null, Value::Null, Value::Null, true);

    let template = |security: Value| {
        json!({"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "d"}, "spec": {"template": {
            "metadata": {"annotations": {key: "runtime/default"}},
            "spec": {"securityContext": security, "containers": [{"name": "c"}]},
        }}})
    };
    let told = format!("spec.template.{told}");
    super::tests::check(template(json!({})), &[told.as_str()]);
    super::tests::check(template(json!({"appArmorProfile": default})), &[]);
}

#[test]
fn templates_are_told_of_when_they_may_have_changed() {
    let deployment = |generation: i64, replicas: i64| {
        json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "a.b", "generation": generation},
            "spec": {"replicas": replicas, "template": {"spec": {"terminationGracePeriodSeconds": -1}}}})
    };
    let negative = "spec.template.spec.terminationGracePeriodSeconds: must be >= 0; negative values are invalid and will be treated as 1";
    check(
        deployment(1, 1),
        &[
            "metadata.name: this is used in Pod names and hostnames, which can result in surprising behavior; a DNS label is recommended: [must not contain dots]",
            negative,
        ],
    );
    assert_eq!(said(Some(deployment(1, 1)), deployment(2, 2), UpdateScope::Main), [negative]);
    assert!(said(Some(deployment(1, 1)), deployment(1, 1), UpdateScope::Main).is_empty());
    let job = json!({"completionMode": "Indexed", "completions": 100_001, "parallelism": 10_001});
    check(
        json!({"apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": "c"}, "spec": {"jobTemplate": {"spec": job}}}),
        &[
            "spec.jobTemplate.spec: In Indexed Jobs with a number of completions higher than 10^5 and a parallelism higher than 10^4, Kubernetes might not be able to track completedIndexes when a big number of indexes fail",
        ],
    );
    let claims = json!({"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "s"}, "spec": {
        "revisionHistoryLimit": -1,
        "volumeClaimTemplates": [{"spec": {"resources": {"limits": {"storage": "1m"}}}}],
    }});
    let history = "spec.revisionHistoryLimit: a negative value retains all historical revisions; a value >= 0 is recommended";
    let fraction = |at: &str| {
        format!(
            "spec.volumeClaimTemplates[0]{at}.resources.limits[storage]: fractional byte value \"1m\" is invalid, must be an integer"
        )
    };
    check(claims.clone(), &[fraction("").as_str(), history]);
    let found = said(Some(claims.clone()), claims, UpdateScope::Main);
    assert_eq!(found, [fraction(".Spec").as_str(), history]);
}

#[test]
fn services_are_told_what_is_ignored() {
    let service =
        |spec: Value| json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}, "spec": spec});
    check(
        service(
            json!({"type": "ClusterIP", "clusterIP": "None", "sessionAffinity": "ClientIP", "externalIPs": ["1.1.1.1"], "loadBalancerIP": "2.2.2.2"}),
        ),
        &[
            "spec.loadBalancerIP is ignored for headless services",
            "spec.externalIPs is ignored for headless services",
            "spec.SessionAffinity is ignored for headless services",
        ],
    );
    check(
        service(json!({
            "type": "ClusterIP", "clusterIP": "1::1", "clusterIPs": ["1::1", "010.0.0.1"], "externalIPs": ["1.1.1.01"],
            "externalName": "e", "trafficDistribution": "PreferClose",
            "loadBalancerSourceRanges": ["10.0.0.1/8", "010.0.0.0/8", "1::0/64", "::ffff:1.2.0.0/112"],
        })),
        &[
            "spec.clusterIPs[1]: non-standard IP address \"010.0.0.1\" is invalid: use \"10.0.0.1\"",
            "spec.externalIPs[0]: non-standard IP address \"1.1.1.01\" is invalid: use \"1.1.1.1\"",
            "spec.externalIPs is deprecated and may no longer be implemented in some clusters",
            "spec.loadBalancerSourceRanges[0]: CIDR value \"10.0.0.1/8\" is ambiguous in this context (should be \"10.0.0.0/8\" or \"10.0.0.1/32\"?)",
            "spec.loadBalancerSourceRanges[1]: non-standard CIDR value \"010.0.0.0/8\" is invalid: use \"10.0.0.0/8\"",
            "spec.loadBalancerSourceRanges[2]: IPv6 CIDR value \"1::0/64\" should be in RFC 5952 canonical format (\"1::/64\")",
            "spec.loadBalancerSourceRanges[3]: non-standard CIDR value \"::ffff:1.2.0.0/112\" is invalid: use \"1.2.0.0/16\"",
            "spec.externalName is ignored when spec.type is not \"ExternalName\"",
            "spec.trafficDistribution: \"PreferClose\" is deprecated; use \"PreferSameZone\"",
        ],
    );
    check(
        service(json!({"type": "ExternalName", "externalName": "e", "externalIPs": ["1.1.1.1"]})),
        &["spec.externalIPs is ignored when spec.type is \"ExternalName\""],
    );
    let status = json!({"apiVersion": "v1", "kind": "Service", "status": {"loadBalancer": {"ingress": [{"ip": "01.1.1.1"}, {"hostname": "h"}]}}});
    assert_eq!(
        said(Some(service(json!({}))), status, UpdateScope::Status),
        ["status.loadBalancer.ingress[0]: non-standard IP address \"01.1.1.1\" is invalid: use \"1.1.1.1\""]
    );
}

#[test]
fn other_kinds_have_their_warnings() {
    let quota = json!({"apiVersion": "v1", "kind": "ResourceQuota", "spec": {"hard": {
        "cpu": "2", "limits.cpu": "1", "requests.memory": "1Gi", "limits.memory": "1Gi",
    }}});
    check(quota.clone(), &["ResourceQuota cpu (2) should be less than limits.cpu (1)"]);
    assert!(said(Some(quota.clone()), quota, UpdateScope::Main).is_empty());
    check(
        json!({"apiVersion": "v1", "kind": "Node", "spec": {"externalID": "x", "configSource": {}, "podCIDRs": ["10.0.0.1/24"]}}),
        &[
            "spec.configSource: the feature is removed",
            "spec.externalID: this field is deprecated, and is unused by Kubernetes",
            "spec.podCIDRs[0]: CIDR value \"10.0.0.1/24\" is ambiguous in this context (should be \"10.0.0.0/24\" or \"10.0.0.1/32\"?)",
        ],
    );
    let endpoints = |labels: Value| {
        json!({"apiVersion": "v1", "kind": "Endpoints", "metadata": {"name": "e", "labels": labels},
            "subsets": [{"notReadyAddresses": [{"ip": "01.1.1.1"}]}]})
    };
    check(
        endpoints(json!({})),
        &[
            "subsets[0].notReadyAddresses[0].ip: non-standard IP address \"01.1.1.1\" is invalid: use \"1.1.1.1\"",
        ],
    );
    check(endpoints(json!({"endpoints.kubernetes.io/managed-by": "endpoint-controller"})), &[]);
    check(
        json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "FQDN", "endpoints": [{"addresses": ["a.b"]}]}),
        &["spec.addressType: FQDN endpoints are deprecated"],
    );
    check(
        json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "p", "annotations": {"volume.beta.kubernetes.io/mount-options": "x"}},
            "spec": {"persistentVolumeReclaimPolicy": "Recycle", "cephfs": {}}}),
        &[
            r#"metadata.annotations[volume.beta.kubernetes.io/mount-options]: deprecated since v1.31; use "mountOptions" attribute instead"#,
            "spec.persistentVolumeReclaimPolicy: The Recycle reclaim policy is deprecated. Instead, the recommended approach is to use dynamic provisioning.",
            "spec.cephfs: deprecated in v1.28, non-functional in v1.31+",
        ],
    );
    check(
        json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "allowedTopologies": [{"matchLabelExpressions": [{"key": "beta.kubernetes.io/instance-type"}]}]}),
        &[
            r#"allowedTopologies[0].matchLabelExpressions[0].key: deprecated since v1.17; use "node.kubernetes.io/instance-type" instead"#,
        ],
    );
    let driver = |requests: Value| json!({"apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", "spec": {"tokenRequests": requests}});
    let tokens = "spec.serviceAccountTokenInSecrets is unset; if supported by this CSI driver, set to true to prevent possible logging of tokens in volume attributes";
    check(driver(json!([{"audience": "a"}])), &[tokens]);
    let same = driver(json!([{"audience": "a"}]));
    assert!(said(Some(same.clone()), same, UpdateScope::Main).is_empty());
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "a", "annotations": {"kubernetes.io/enforce-mountable-secrets": "true"}}});
    check(
        account.clone(),
        &[
            "metadata.annotations[kubernetes.io/enforce-mountable-secrets]: deprecated in v1.32+; prefer separate namespaces to isolate access to mounted secrets",
        ],
    );
    assert!(said(Some(account.clone()), account, UpdateScope::Main).is_empty());
    check(
        json!({"apiVersion": "networking.k8s.io/v1", "kind": "Ingress", "metadata": {"name": "i", "annotations": {"kubernetes.io/ingress.class": "c"}}}),
        &[
            "annotation \"kubernetes.io/ingress.class\" is deprecated, please use 'spec.ingressClassName' instead",
        ],
    );
    check(
        json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "spec": {"egress": [{"to": [{"ipBlock": {"cidr": "0.0.0.0/0", "except": ["1::0/64"]}}]}]}}),
        &[
            "spec.egress[0].to[0].ipBlock.except[0]: IPv6 CIDR value \"1::0/64\" should be in RFC 5952 canonical format (\"1::/64\")",
        ],
    );
    check(
        json!({"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "scheduling": {"nodeSelector": {"node-role.kubernetes.io/master": ""}}}),
        &[r#"scheduling.nodeSelector: use "node-role.kubernetes.io/control-plane" instead"#],
    );
    check(
        json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "spec": {"driver": "A.b"}}),
        &["spec.driver: driver names should be lowercase; \"A.b\" contains uppercase characters"],
    );
    check(
        json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration", "metadata": {"name": "a.static.k8s.io"}}),
        &[
            "metadata.name: names ending with \".static.k8s.io\" are reserved for static manifest-based configurations and cannot be managed via the API",
        ],
    );
}

#[test]
fn a_certificate_and_its_key_belong_together() {
    use base64::Engine;
    use base64::prelude::BASE64_STANDARD;
    let check = |certificate: &str, key: &str, expected: &[&str]| {
        let encode = |text: &str| BASE64_STANDARD.encode(text);
        let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "type": "kubernetes.io/tls",
            "data": {"tls.crt": encode(certificate), "tls.key": encode(key)}});
        super::tests::check(secret, expected);
    };
    let (ec, ed, rsa) =
        (include_str!("keys/ec.crt"), include_str!("keys/ed.crt"), include_str!("keys/rsa.crt"));
    check(ec, include_str!("keys/ec.pem"), &[]);
    check(ec, include_str!("keys/ec8.pem"), &[]);
    check(ed, include_str!("keys/ed.pem"), &[]);
    check(rsa, include_str!("keys/rsa.pem"), &[]);
    check(rsa, include_str!("keys/rsa1.pem"), &[]);
    check(ec, include_str!("keys/ec2.pem"), &["tls: private key does not match public key"]);
    check(ec, include_str!("keys/rsa.pem"), &["tls: private key type does not match public key type"]);
    check("", "", &["tls: failed to find any PEM data in certificate input"]);
    check(ec, "", &["tls: failed to find any PEM data in key input"]);
    check(ec, ec, &["tls: found a certificate rather than a key in the PEM for the private key"]);
    check(
        include_str!("keys/ec.pem"),
        ec,
        &[
            "tls: failed to find certificate PEM data in certificate input, but did find a private key; PEM inputs may have been switched",
        ],
    );
    let block = |label: &str| format!("-----BEGIN {label}-----\nAAAA\n-----END {label}-----\n");
    check(&block("CERTIFICATE"), include_str!("keys/ec.pem"), &["x509: malformed certificate"]);
    check(ec, &block("PRIVATE KEY"), &["tls: failed to parse private key"]);
}
