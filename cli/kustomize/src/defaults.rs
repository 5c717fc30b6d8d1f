//! The fields that transformers change when a kustomization says nothing else: facts of kustomize, kept
//! as products of kinds and paths.

use crate::configuration::{Configuration, NameReference};
use crate::field_spec::FieldSpec;

/// Where a pod's spec is: version, kind, path.
const POD_SPECS: [(&str, &str, &str); 9] = [
    ("v1", "Pod", "spec"),
    ("", "PodTemplate", "template/spec"),
    ("", "Deployment", "spec/template/spec"),
    ("", "ReplicaSet", "spec/template/spec"),
    ("", "DaemonSet", "spec/template/spec"),
    ("", "StatefulSet", "spec/template/spec"),
    ("", "Job", "spec/template/spec"),
    ("", "CronJob", "spec/jobTemplate/spec/template/spec"),
    ("", "ReplicationController", "spec/template/spec"),
];

/// The same for the references that few kinds of pods have.
const SIMPLE_POD_SPECS: [(&str, &str); 7] = [
    ("Pod", "spec"),
    ("StatefulSet", "spec/template/spec"),
    ("Deployment", "spec/template/spec"),
    ("ReplicationController", "spec/template/spec"),
    ("CronJob", "spec/jobTemplate/spec/template/spec"),
    ("Job", "spec/template/spec"),
    ("DaemonSet", "spec/template/spec"),
];

const CONFIG_MAP_REFERENCES: [&str; 6] = [
    "volumes/configMap/name",
    "containers/env/valueFrom/configMapKeyRef/name",
    "initContainers/env/valueFrom/configMapKeyRef/name",
    "containers/envFrom/configMapRef/name",
    "initContainers/envFrom/configMapRef/name",
    "volumes/projected/sources/configMap/name",
];

const SECRET_REFERENCES: [&str; 7] = [
    "volumes/secret/secretName",
    "containers/env/valueFrom/secretKeyRef/name",
    "initContainers/env/valueFrom/secretKeyRef/name",
    "containers/envFrom/secretRef/name",
    "initContainers/envFrom/secretRef/name",
    "imagePullSecrets/name",
    "volumes/projected/sources/secret/name",
];

const ANNOTATED_BY_INGRESS: [&str; 3] = [
    "metadata/annotations/ingress.kubernetes.io\\/auth-secret",
    "metadata/annotations/nginx.ingress.kubernetes.io\\/auth-secret",
    "metadata/annotations/nginx.ingress.kubernetes.io\\/auth-tls-secret",
];

const AFFINITY_SELECTORS: [&str; 5] = [
    "affinity/podAffinity/preferredDuringSchedulingIgnoredDuringExecution/podAffinityTerm/labelSelector/matchLabels",
    "affinity/podAffinity/requiredDuringSchedulingIgnoredDuringExecution/labelSelector/matchLabels",
    "affinity/podAntiAffinity/preferredDuringSchedulingIgnoredDuringExecution/podAffinityTerm/labelSelector/matchLabels",
    "affinity/podAntiAffinity/requiredDuringSchedulingIgnoredDuringExecution/labelSelector/matchLabels",
    "topologySpreadConstraints/labelSelector/matchLabels",
];

const VARIABLES_OF_CONTAINERS: [&str; 8] = [
    "containers/args",
    "containers/command",
    "containers/env/value",
    "containers/volumeMounts/mountPath",
    "initContainers/args",
    "initContainers/command",
    "initContainers/env/value",
    "initContainers/volumeMounts/mountPath",
];

fn spec(group: &str, version: &str, kind: &str, path: &str, create: bool) -> FieldSpec {
    FieldSpec { group: group.into(), version: version.into(), kind: kind.into(), path: path.into(), create }
}

fn of_kind(kind: &str, path: &str) -> FieldSpec {
    spec("", "", kind, path, false)
}

pub fn configuration() -> Configuration {
    let mut configuration = Configuration {
        name_prefix: vec![FieldSpec::new("metadata/name", false)],
        name_suffix: vec![FieldSpec::new("metadata/name", false)],
        namespace: vec![
            spec("", "", "Namespace", "metadata/name", true),
            spec("apiregistration.k8s.io", "", "APIService", "spec/service/namespace", true),
            spec(
                "apiextensions.k8s.io",
                "",
                "CustomResourceDefinition",
                "spec/conversion/webhook/clientConfig/service/namespace",
                false,
            ),
        ],
        common_labels: common_labels(),
        labels: Vec::new(),
        template_labels: metadata_of_templates("labels", true),
        common_annotations: metadata_of_templates("annotations", false),
        name_reference: name_references(),
        var_reference: variable_references(),
        images: [
            "spec/containers[]/image",
            "spec/initContainers[]/image",
            "spec/volumes[]/image/reference",
            "spec/template/spec/containers[]/image",
            "spec/template/spec/initContainers[]/image",
            "spec/template/spec/volumes[]/image/reference",
        ]
        .iter()
        .map(|path| FieldSpec::new(path, true))
        .collect(),
        replicas: ["Deployment", "ReplicationController", "ReplicaSet", "StatefulSet"]
            .iter()
            .map(|kind| spec("", "", kind, "spec/replicas", true))
            .collect(),
    };
    configuration.sort();
    configuration
}

/// Labels or annotations of the object and of the pods it makes.
fn metadata_of_templates(field: &str, labels: bool) -> Vec<FieldSpec> {
    let template = format!("spec/template/metadata/{field}");
    let stateful = if labels { "apps" } else { "" };
    let mut specs = vec![
        FieldSpec::new(&format!("metadata/{field}"), true),
        spec("", "v1", "ReplicationController", &template, true),
        spec("", "", "Deployment", &template, true),
        spec("", "", "ReplicaSet", &template, true),
        spec("", "", "DaemonSet", &template, true),
        spec(stateful, "", "StatefulSet", &template, true),
        spec("batch", "", "Job", &template, true),
        spec("batch", "", "CronJob", &format!("spec/jobTemplate/metadata/{field}"), true),
        spec("batch", "", "CronJob", &format!("spec/jobTemplate/spec/template/metadata/{field}"), true),
    ];
    if labels {
        specs.push(spec("apps", "", "StatefulSet", "spec/volumeClaimTemplates[]/metadata/labels", true));
    }
    specs
}

fn common_labels() -> Vec<FieldSpec> {
    let mut specs = vec![
        spec("", "v1", "Service", "spec/selector", true),
        spec("", "v1", "ReplicationController", "spec/selector", true),
        spec("", "", "Deployment", "spec/selector/matchLabels", true),
        spec("", "", "ReplicaSet", "spec/selector/matchLabels", true),
        spec("", "", "DaemonSet", "spec/selector/matchLabels", true),
        spec("apps", "", "StatefulSet", "spec/selector/matchLabels", true),
        spec("batch", "", "Job", "spec/selector/matchLabels", false),
        spec("batch", "", "CronJob", "spec/jobTemplate/spec/selector/matchLabels", false),
        spec("policy", "", "PodDisruptionBudget", "spec/selector/matchLabels", false),
        spec("networking.k8s.io", "", "NetworkPolicy", "spec/podSelector/matchLabels", false),
        spec("networking.k8s.io", "", "NetworkPolicy", "spec/ingress/from/podSelector/matchLabels", false),
        spec("networking.k8s.io", "", "NetworkPolicy", "spec/egress/to/podSelector/matchLabels", false),
    ];
    for kind in ["Deployment", "StatefulSet"] {
        let selectors = AFFINITY_SELECTORS.iter();
        specs.extend(
            selectors.map(|path| spec("apps", "", kind, &format!("spec/template/spec/{path}"), false)),
        );
    }
    specs.extend(metadata_of_templates("labels", true));
    specs
}

const RBAC: &str = "rbac.authorization.k8s.io";
const ADMISSION: &str = "admissionregistration.k8s.io";

/// For each kind the fields that hold names of its objects, in kustomize's order.
fn name_references() -> Vec<NameReference> {
    let scaled = ["Deployment", "ReplicationController", "ReplicaSet", "StatefulSet"];
    let mut references: Vec<NameReference> = scaled
        .map(|kind| {
            reference("", "", kind, vec![of_kind("HorizontalPodAutoscaler", "spec/scaleTargetRef/name")])
        })
        .into();
    references.push(reference("", "v1", "ConfigMap", config_map_names()));
    references.push(reference("", "v1", "Secret", secret_names()));
    references.push(reference("", "v1", "Service", service_names()));
    references.extend(rbac_references());
    references.extend(storage_references());
    references.extend([
        reference("scheduling.k8s.io", "v1", "PriorityClass", of_simple_pods("priorityClassName")),
        reference(
            "networking.k8s.io/v1",
            "v1",
            "IngressClass",
            vec![of_kind("Ingress", "spec/ingressClassName")],
        ),
        reference(
            ADMISSION,
            "",
            "ValidatingAdmissionPolicy",
            vec![spec(ADMISSION, "", "ValidatingAdmissionPolicyBinding", "spec/policyName", false)],
        ),
    ]);
    references
}

fn reference(group: &str, version: &str, kind: &str, field_specs: Vec<FieldSpec>) -> NameReference {
    NameReference { group: group.into(), version: version.into(), kind: kind.into(), field_specs }
}

fn of_pods(paths: &[&str]) -> Vec<FieldSpec> {
    let pods = POD_SPECS.iter().filter(|(_, kind, _)| *kind != "ReplicationController");
    pods.flat_map(|(version, kind, pod)| {
        paths.iter().map(move |path| spec("", version, kind, &format!("{pod}/{path}"), false))
    })
    .collect()
}

fn of_simple_pods(path: &str) -> Vec<FieldSpec> {
    SIMPLE_POD_SPECS.iter().map(|(kind, pod)| of_kind(kind, &format!("{pod}/{path}"))).collect()
}

fn named_by_roles() -> [FieldSpec; 2] {
    [of_kind("Role", "rules/resourceNames"), of_kind("ClusterRole", "rules/resourceNames")]
}

fn config_map_names() -> Vec<FieldSpec> {
    let mut specs = of_pods(&CONFIG_MAP_REFERENCES);
    specs.push(of_kind("Node", "spec/configSource/configMap"));
    specs.extend(named_by_roles());
    specs.push(of_kind(
        "Ingress",
        "metadata/annotations/nginx.ingress.kubernetes.io\\/fastcgi-params-configmap",
    ));
    specs
}

fn secret_names() -> Vec<FieldSpec> {
    let mut specs = of_pods(&SECRET_REFERENCES);
    specs.push(of_kind("Ingress", "spec/tls/secretName"));
    specs.extend(ANNOTATED_BY_INGRESS.iter().map(|path| of_kind("Ingress", path)));
    specs.push(of_kind("ServiceAccount", "imagePullSecrets/name"));
    for parameter in ["secretName", "adminSecretName", "userSecretName", "secretRef"] {
        specs.push(of_kind("StorageClass", &format!("parameters/{parameter}")));
    }
    specs.extend(named_by_roles());
    specs.push(spec(
        "serving.knative.dev",
        "v1",
        "Service",
        "spec/template/spec/containers/env/valueFrom/secretKeyRef/name",
        false,
    ));
    specs.push(of_kind("PersistentVolume", "spec/azureFile/secretName"));
    specs
}

fn service_names() -> Vec<FieldSpec> {
    vec![
        spec("apps", "", "StatefulSet", "spec/serviceName", false),
        of_kind("Ingress", "spec/rules/http/paths/backend/serviceName"),
        of_kind("Ingress", "spec/backend/serviceName"),
        of_kind("Ingress", "spec/rules/http/paths/backend/service/name"),
        of_kind("Ingress", "spec/defaultBackend/service/name"),
        spec("apiregistration.k8s.io", "", "APIService", "spec/service/name", false),
        spec(ADMISSION, "", "ValidatingWebhookConfiguration", "webhooks/clientConfig/service", false),
        spec(ADMISSION, "", "MutatingWebhookConfiguration", "webhooks/clientConfig/service", false),
    ]
}

/// Roles and the accounts that are bound to them.
fn rbac_references() -> [NameReference; 3] {
    let bound = |kind: &str, path: &str| spec(RBAC, "", kind, path, false);
    let mut accounts = vec![bound("RoleBinding", "subjects"), bound("ClusterRoleBinding", "subjects")];
    accounts.extend(of_simple_pods("serviceAccountName"));
    let cluster_roles =
        vec![bound("RoleBinding", "roleRef/name"), bound("ClusterRoleBinding", "roleRef/name")];
    [
        reference(RBAC, "", "Role", vec![bound("RoleBinding", "roleRef/name")]),
        reference(RBAC, "", "ClusterRole", cluster_roles),
        reference("", "v1", "ServiceAccount", accounts),
    ]
}

fn storage_references() -> [NameReference; 3] {
    let volumes = vec![
        of_kind("PersistentVolumeClaim", "spec/volumeName"),
        of_kind("ClusterRole", "rules/resourceNames"),
    ];
    let classes = vec![
        of_kind("PersistentVolume", "spec/storageClassName"),
        of_kind("PersistentVolumeClaim", "spec/storageClassName"),
        of_kind("StatefulSet", "spec/volumeClaimTemplates/spec/storageClassName"),
    ];
    let claims = of_simple_pods("volumes/persistentVolumeClaim/claimName");
    [
        reference("", "v1", "PersistentVolumeClaim", claims),
        reference("", "v1", "PersistentVolume", volumes),
        reference("storage.k8s.io", "v1", "StorageClass", classes),
    ]
}

fn variable_references() -> Vec<FieldSpec> {
    let mut specs = Vec::new();
    for (_, kind, pod) in POD_SPECS {
        if matches!(kind, "PodTemplate" | "ReplicationController") {
            continue;
        }
        specs.extend(VARIABLES_OF_CONTAINERS.iter().map(|path| of_kind(kind, &format!("{pod}/{path}"))));
        specs.push(match kind {
            // as kustomize has them, though no such fields exist
            "CronJob" => of_kind(kind, "spec/jobTemplate/spec/template/volumes/nfs/server"),
            "StatefulSet" => of_kind(kind, "spec/volumeClaimTemplates/spec/nfs/server"),
            _ => of_kind(kind, &format!("{pod}/volumes/nfs/server")),
        });
    }
    specs.extend([
        of_kind("Deployment", "spec/template/metadata/annotations"),
        of_kind("Ingress", "spec/rules/host"),
        of_kind("Ingress", "spec/tls/hosts"),
        of_kind("Ingress", "spec/tls/secretName"),
        of_kind("Service", "spec/ports/port"),
        of_kind("Service", "spec/ports/targetPort"),
        of_kind("PersistentVolume", "spec/nfs/server"),
        FieldSpec::new("metadata/labels", false),
        FieldSpec::new("metadata/annotations", false),
    ]);
    specs
}
