//! The least that a client must say of each kind.

use ferry_api::Kind;
use serde_json::{Value, json};

use crate::NAMESPACE;

/// An object that the server takes.
pub fn minimal(kind: &Kind) -> Value {
    let labels = json!({"app": "a"});
    let pod = json!({"containers": [{"name": "a", "image": "a"}]});
    let ending = json!({"containers": [{"name": "a", "image": "a"}], "restartPolicy": "Never"});
    let template = json!({"metadata": {"labels": labels}, "spec": pod});
    let workload = json!({"selector": {"matchLabels": labels}, "template": template});
    let job = json!({"template": {"spec": ending}});
    let role = |kind: &str| json!({"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": "r"});
    let claim = json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}});
    let device = json!({"devices": {"requests": [{"name": "d", "exactly": {"deviceClassName": "c"}}]}});
    let (name, body) = match &*kind.kind {
        "APIService" => (
            "v1.aggregated.contract.example",
            json!({"spec": {"group": "aggregated.contract.example", "version": "v1", "groupPriorityMinimum": 100, "versionPriority": 10, "insecureSkipTLSVerify": true, "service": {"namespace": "default", "name": "none"}}}),
        ),
        "CertificateSigningRequest" => (
            "contract",
            json!({"spec": {"request": certificate_request(), "signerName": "contract.example/signer", "usages": ["client auth"]}}),
        ),
        "ControllerRevision" => ("contract", json!({"revision": 1, "data": {}})),
        "CronJob" => ("contract", json!({"spec": {"schedule": "@hourly", "jobTemplate": {"spec": job}}})),
        "CSIDriver" => ("contract.example", json!({"spec": {}})),
        "CSINode" => ("contract", json!({"spec": {"drivers": []}})),
        "CSIStorageCapacity" => ("contract", json!({"storageClassName": "c"})),
        "CustomResourceDefinition" => (
            "things.contract.example",
            json!({"spec": {
                "group": "contract.example", "scope": "Namespaced",
                "names": {"plural": "things", "singular": "thing", "kind": "Thing", "listKind": "ThingList"},
                "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object"}}}],
            }}),
        ),
        "DaemonSet" | "Deployment" | "ReplicaSet" => ("contract", json!({"spec": workload})),
        "EndpointSlice" => ("contract", json!({"addressType": "IPv4", "endpoints": []})),
        "Event" if kind.group.is_empty() => {
            ("contract", json!({"involvedObject": {"namespace": NAMESPACE, "kind": "Pod", "name": "a"}}))
        }
        "Event" => (
            "contract",
            json!({"regarding": {"namespace": NAMESPACE, "kind": "Pod", "name": "a"}, "eventTime": "2026-01-01T00:00:00.000000Z", "type": "Normal", "reason": "R", "action": "A", "reportingController": "contract.example/c", "reportingInstance": "i"}),
        ),
        "FlowSchema" => (
            "contract",
            json!({"spec": {"priorityLevelConfiguration": {"name": "exempt"}, "matchingPrecedence": 1000}}),
        ),
        "HorizontalPodAutoscaler" => (
            "contract",
            json!({"spec": {"maxReplicas": 2, "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "a"}}}),
        ),
        "IPAddress" => (
            "192.0.2.1",
            json!({"spec": {"parentRef": {"resource": "services", "namespace": NAMESPACE, "name": "a"}}}),
        ),
        "Ingress" => (
            "contract",
            json!({"spec": {"defaultBackend": {"service": {"name": "a", "port": {"number": 80}}}}}),
        ),
        "IngressClass" => ("contract", json!({"spec": {"controller": "contract.example/c"}})),
        "Job" => ("contract", json!({"spec": job})),
        "LimitRange" => {
            ("contract", json!({"spec": {"limits": [{"type": "Container", "max": {"cpu": "1"}}]}}))
        }
        "MutatingAdmissionPolicy" | "ValidatingAdmissionPolicy" => (
            "contract",
            json!({"spec": {
                "failurePolicy": "Ignore",
                "matchConstraints": {"resourceRules": [{"apiGroups": ["contract.example"], "apiVersions": ["*"], "operations": ["CREATE"], "resources": ["*"]}]},
                "validations": [{"expression": "true"}],
                "reinvocationPolicy": "Never",
                "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression": "[]"}}],
            }}),
        ),
        "MutatingAdmissionPolicyBinding" => ("contract", json!({"spec": {"policyName": "p"}})),
        "ValidatingAdmissionPolicyBinding" => {
            ("contract", json!({"spec": {"policyName": "p", "validationActions": ["Deny"]}}))
        }
        "Namespace" => ("contract-of-namespaces", json!({})),
        "PersistentVolume" => (
            "contract",
            json!({"spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/none"}}}),
        ),
        "PersistentVolumeClaim" => ("contract", json!({"spec": claim})),
        "Pod" => ("contract", json!({"spec": pod})),
        "PodTemplate" => ("contract", json!({"template": template})),
        "PriorityClass" => ("contract", json!({"value": 1})),
        "PriorityLevelConfiguration" => (
            "contract",
            json!({"spec": {"type": "Limited", "limited": {"limitResponse": {"type": "Reject"}}}}),
        ),
        "ReplicationController" => ("contract", json!({"spec": {"template": template}})),
        "ResourceClaim" => ("contract", json!({"spec": device})),
        "ResourceClaimTemplate" => ("contract", json!({"spec": {"spec": device}})),
        "DeviceClass" => ("contract", json!({"spec": {}})),
        "ResourceSlice" => (
            "contract",
            json!({"spec": {"driver": "contract.example", "nodeName": "n", "pool": {"name": "n", "generation": 1, "resourceSliceCount": 1}, "devices": []}}),
        ),
        "RoleBinding" => ("contract", json!({"roleRef": role("Role")})),
        "ClusterRoleBinding" => ("contract", json!({"roleRef": role("ClusterRole")})),
        "RuntimeClass" => ("contract", json!({"handler": "h"})),
        "Service" => ("contract", json!({"spec": {"ports": [{"port": 80}]}})),
        "ServiceCIDR" => ("contract", json!({"spec": {"cidrs": ["192.0.2.0/24"]}})),
        "StatefulSet" => ("contract", json!({"spec": workload})),
        "StorageClass" => ("contract", json!({"provisioner": "contract.example/p"})),
        "VolumeAttachment" => (
            "contract",
            json!({"spec": {"attacher": "a", "nodeName": "n", "source": {"persistentVolumeName": "v"}}}),
        ),
        "VolumeAttributesClass" => ("contract", json!({"driverName": "d", "parameters": {"a": "b"}})),
        _ => ("contract", json!({})),
    };
    let mut object = body;
    object["apiVersion"] = kind.api_version().into();
    object["kind"] = kind.kind.as_ref().into();
    object["metadata"]["name"] = name.into();
    // Fields that only one of two kinds of a shape knows are left to it.
    match &*kind.kind {
        "MutatingAdmissionPolicy" => remove(&mut object["spec"], &["validations"]),
        "ValidatingAdmissionPolicy" => remove(&mut object["spec"], &["mutations", "reinvocationPolicy"]),
        _ => {}
    }
    object
}

fn certificate_request() -> String {
    let key = rcgen::KeyPair::generate().expect("a key");
    let request =
        rcgen::CertificateParams::default().serialize_request(&key).and_then(|request| request.pem());
    base64::Engine::encode(&base64::prelude::BASE64_STANDARD, request.expect("a request"))
}

fn remove(spec: &mut Value, fields: &[&str]) {
    for field in fields {
        spec.as_object_mut().expect("a spec").remove(*field);
    }
}
