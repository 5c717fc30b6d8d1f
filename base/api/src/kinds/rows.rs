//! The rows themselves. To add a kind, add a row here and a strategy in the registry's `kinds/`.

use super::Scope::{Cluster, Namespaced};
use super::{Kind, kind};

#[rustfmt::skip]
const ENDPOINTS: &str = "v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice";

pub fn rows() -> Vec<Kind> {
    vec![
        kind("", "v1", "ComponentStatus", "componentstatuses", Cluster)
            .verbs(&["get", "list"])
            .short(&["cs"])
            .deprecated("v1 ComponentStatus is deprecated in v1.19+"),
        kind("", "v1", "ConfigMap", "configmaps", Namespaced).short(&["cm"]),
        kind("", "v1", "Endpoints", "endpoints", Namespaced)
            .short(&["ep"])
            .stored_at("services/endpoints")
            .deprecated(ENDPOINTS),
        kind("", "v1", "Event", "events", Namespaced).short(&["ev"]),
        kind("", "v1", "LimitRange", "limitranges", Namespaced).short(&["limits"]),
        kind("", "v1", "Namespace", "namespaces", Cluster)
            .verbs(&["create", "delete", "get", "list", "patch", "update", "watch"])
            .short(&["ns"])
            .sub("finalize", "", "", "Namespace", &["update"])
            .status(),
        kind("", "v1", "Binding", "bindings", Namespaced).verbs(&["create"]),
        kind("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims", Namespaced)
            .short(&["pvc"])
            .status()
            .returns_deleted(),
        kind("", "v1", "Pod", "pods", Namespaced)
            .short(&["po"])
            .categories(&["all"])
            .sub("attach", "", "", "PodAttachOptions", &["create", "get"])
            .sub("binding", "", "", "Binding", &["create"])
            .sub("ephemeralcontainers", "", "", "Pod", &["get", "patch", "update"])
            .sub("eviction", "policy", "v1", "Eviction", &["create"])
            .sub("exec", "", "", "PodExecOptions", &["create", "get"])
            .sub("log", "", "", "Pod", &["get"])
            .sub("portforward", "", "", "PodPortForwardOptions", &["create", "get"])
            .sub("proxy", "", "", "PodProxyOptions", &["create", "delete", "get", "patch", "update"])
            .sub("resize", "", "", "Pod", &["get", "patch", "update"])
            .status()
            .returns_deleted(),
        kind("", "v1", "PodTemplate", "podtemplates", Namespaced).returns_deleted(),
        kind("", "v1", "ReplicationController", "replicationcontrollers", Namespaced)
            .short(&["rc"])
            .categories(&["all"])
            .scale()
            .status()
            .stored_at("controllers"),
        kind("", "v1", "ResourceQuota", "resourcequotas", Namespaced)
            .short(&["quota"])
            .status()
            .returns_deleted(),
        kind("", "v1", "Secret", "secrets", Namespaced),
        kind("", "v1", "ServiceAccount", "serviceaccounts", Namespaced)
            .short(&["sa"])
            .sub("token", "authentication.k8s.io", "v1", "TokenRequest", &["create"])
            .returns_deleted(),
        kind("", "v1", "Service", "services", Namespaced)
            .short(&["svc"])
            .categories(&["all"])
            .sub("proxy", "", "", "ServiceProxyOptions", &["create", "delete", "get", "patch", "update"])
            .status()
            .stored_at("services/specs")
            .returns_deleted(),
        kind("", "v1", "Node", "nodes", Cluster)
            .short(&["no"])
            .sub("proxy", "", "", "NodeProxyOptions", &["create", "delete", "get", "patch", "update"])
            .status()
            .stored_at("minions"),
        kind("", "v1", "PersistentVolume", "persistentvolumes", Cluster)
            .short(&["pv"])
            .status()
            .returns_deleted(),
        kind(
            "admissionregistration.k8s.io",
            "v1",
            "MutatingAdmissionPolicy",
            "mutatingadmissionpolicies",
            Cluster,
        )
        .categories(&["api-extensions"])
        .hashed_as("v1beta1"),
        kind(
            "admissionregistration.k8s.io",
            "v1",
            "MutatingAdmissionPolicyBinding",
            "mutatingadmissionpolicybindings",
            Cluster,
        )
        .categories(&["api-extensions"])
        .hashed_as("v1beta1"),
        kind(
            "admissionregistration.k8s.io",
            "v1",
            "MutatingWebhookConfiguration",
            "mutatingwebhookconfigurations",
            Cluster,
        )
        .categories(&["api-extensions"]),
        kind(
            "admissionregistration.k8s.io",
            "v1",
            "ValidatingAdmissionPolicy",
            "validatingadmissionpolicies",
            Cluster,
        )
        .categories(&["api-extensions"])
        .status(),
        kind(
            "admissionregistration.k8s.io",
            "v1",
            "ValidatingAdmissionPolicyBinding",
            "validatingadmissionpolicybindings",
            Cluster,
        )
        .categories(&["api-extensions"]),
        kind(
            "admissionregistration.k8s.io",
            "v1",
            "ValidatingWebhookConfiguration",
            "validatingwebhookconfigurations",
            Cluster,
        )
        .categories(&["api-extensions"]),
        kind(
            "admissionregistration.k8s.io",
            "v1alpha1",
            "InitializerConfiguration",
            "initializerconfigurations",
            Cluster,
        )
        .on_request(),
        kind(
            "admissionregistration.k8s.io",
            "v1alpha1",
            "MutatingAdmissionPolicy",
            "mutatingadmissionpolicies",
            Cluster,
        )
        .categories(&["api-extensions"])
        .on_request()
        .stored_as("admissionregistration.k8s.io", "v1"),
        kind(
            "admissionregistration.k8s.io",
            "v1alpha1",
            "MutatingAdmissionPolicyBinding",
            "mutatingadmissionpolicybindings",
            Cluster,
        )
        .categories(&["api-extensions"])
        .on_request()
        .stored_as("admissionregistration.k8s.io", "v1"),
        kind(
            "admissionregistration.k8s.io",
            "v1beta1",
            "MutatingAdmissionPolicy",
            "mutatingadmissionpolicies",
            Cluster,
        )
        .categories(&["api-extensions"])
        .on_request()
        .stored_as("admissionregistration.k8s.io", "v1"),
        kind(
            "admissionregistration.k8s.io",
            "v1beta1",
            "MutatingAdmissionPolicyBinding",
            "mutatingadmissionpolicybindings",
            Cluster,
        )
        .categories(&["api-extensions"])
        .on_request()
        .stored_as("admissionregistration.k8s.io", "v1"),
        kind("apiextensions.k8s.io", "v1", "CustomResourceDefinition", "customresourcedefinitions", Cluster)
            .short(&["crd", "crds"])
            .categories(&["api-extensions"])
            .status()
            .stored_at("apiextensions.k8s.io/customresourcedefinitions")
            .hashed_as("v1beta1"),
        kind("apiregistration.k8s.io", "v1", "APIService", "apiservices", Cluster)
            .categories(&["api-extensions"])
            .status()
            .stored_at("apiregistration.k8s.io/apiservices"),
        kind("apps", "v1", "ControllerRevision", "controllerrevisions", Namespaced),
        kind("apps", "v1", "DaemonSet", "daemonsets", Namespaced)
            .short(&["ds"])
            .categories(&["all"])
            .status(),
        kind("apps", "v1", "Deployment", "deployments", Namespaced)
            .short(&["deploy"])
            .categories(&["all"])
            .scale()
            .status(),
        kind("apps", "v1", "ReplicaSet", "replicasets", Namespaced)
            .short(&["rs"])
            .categories(&["all"])
            .scale()
            .status(),
        kind("apps", "v1", "StatefulSet", "statefulsets", Namespaced)
            .short(&["sts"])
            .categories(&["all"])
            .scale()
            .status(),
        kind("authentication.k8s.io", "v1", "SelfSubjectReview", "selfsubjectreviews", Cluster)
            .verbs(&["create"]),
        kind("authentication.k8s.io", "v1", "TokenReview", "tokenreviews", Cluster).verbs(&["create"]),
        kind(
            "authorization.k8s.io",
            "v1",
            "LocalSubjectAccessReview",
            "localsubjectaccessreviews",
            Namespaced,
        )
        .verbs(&["create"]),
        kind("authorization.k8s.io", "v1", "SelfSubjectAccessReview", "selfsubjectaccessreviews", Cluster)
            .verbs(&["create"]),
        kind("authorization.k8s.io", "v1", "SelfSubjectRulesReview", "selfsubjectrulesreviews", Cluster)
            .verbs(&["create"]),
        kind("authorization.k8s.io", "v1", "SubjectAccessReview", "subjectaccessreviews", Cluster)
            .verbs(&["create"]),
        kind("autoscaling", "v1", "HorizontalPodAutoscaler", "horizontalpodautoscalers", Namespaced)
            .short(&["hpa"])
            .categories(&["all"])
            .status()
            .stored_as("autoscaling", "v2"),
        kind("autoscaling", "v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers", Namespaced)
            .short(&["hpa"])
            .categories(&["all"])
            .status(),
        kind("batch", "v1", "CronJob", "cronjobs", Namespaced).short(&["cj"]).categories(&["all"]).status(),
        kind("batch", "v1", "Job", "jobs", Namespaced).categories(&["all"]).status(),
        kind("certificates.k8s.io", "v1", "CertificateSigningRequest", "certificatesigningrequests", Cluster)
            .short(&["csr"])
            .sub("approval", "", "", "CertificateSigningRequest", &["get", "patch", "update"])
            .status(),
        kind("certificates.k8s.io", "v1alpha1", "ClusterTrustBundle", "clustertrustbundles", Cluster)
            .on_request()
            .stored_as("certificates.k8s.io", "v1beta1"),
        kind("certificates.k8s.io", "v1beta1", "ClusterTrustBundle", "clustertrustbundles", Cluster)
            .on_request(),
        kind("certificates.k8s.io", "v1beta1", "PodCertificateRequest", "podcertificaterequests", Namespaced)
            .status()
            .on_request(),
        kind("coordination.k8s.io", "v1", "Lease", "leases", Namespaced),
        kind("coordination.k8s.io", "v1alpha2", "LeaseCandidate", "leasecandidates", Namespaced)
            .on_request()
            .stored_as("coordination.k8s.io", "v1beta1"),
        kind("coordination.k8s.io", "v1beta1", "LeaseCandidate", "leasecandidates", Namespaced).on_request(),
        kind("discovery.k8s.io", "v1", "EndpointSlice", "endpointslices", Namespaced),
        kind("events.k8s.io", "v1", "Event", "events", Namespaced).short(&["ev"]).stored_as("", "v1"),
        kind("flowcontrol.apiserver.k8s.io", "v1", "FlowSchema", "flowschemas", Cluster).status(),
        kind(
            "flowcontrol.apiserver.k8s.io",
            "v1",
            "PriorityLevelConfiguration",
            "prioritylevelconfigurations",
            Cluster,
        )
        .status(),
        kind("internal.apiserver.k8s.io", "v1alpha1", "StorageVersion", "storageversions", Cluster)
            .status()
            .on_request(),
        kind("metrics.k8s.io", "v1beta1", "NodeMetrics", "nodes", Cluster).measured(),
        kind("metrics.k8s.io", "v1beta1", "PodMetrics", "pods", Namespaced).measured(),
        kind("networking.k8s.io", "v1", "IngressClass", "ingressclasses", Cluster),
        kind("networking.k8s.io", "v1", "Ingress", "ingresses", Namespaced)
            .short(&["ing"])
            .status()
            .stored_at("ingress"),
        kind("networking.k8s.io", "v1", "IPAddress", "ipaddresses", Cluster).short(&["ip"]),
        kind("networking.k8s.io", "v1", "NetworkPolicy", "networkpolicies", Namespaced).short(&["netpol"]),
        kind("networking.k8s.io", "v1", "ServiceCIDR", "servicecidrs", Cluster).status(),
        kind("networking.k8s.io", "v1beta1", "IPAddress", "ipaddresses", Cluster)
            .short(&["ip"])
            .on_request()
            .stored_as("networking.k8s.io", "v1"),
        kind("networking.k8s.io", "v1beta1", "ServiceCIDR", "servicecidrs", Cluster)
            .status()
            .on_request()
            .stored_as("networking.k8s.io", "v1"),
        kind("node.k8s.io", "v1", "RuntimeClass", "runtimeclasses", Cluster),
        kind("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets", Namespaced)
            .short(&["pdb"])
            .status(),
        kind("rbac.authorization.k8s.io", "v1", "ClusterRoleBinding", "clusterrolebindings", Cluster),
        kind("rbac.authorization.k8s.io", "v1", "ClusterRole", "clusterroles", Cluster),
        kind("rbac.authorization.k8s.io", "v1", "RoleBinding", "rolebindings", Namespaced),
        kind("rbac.authorization.k8s.io", "v1", "Role", "roles", Namespaced),
        kind("resource.k8s.io", "v1", "DeviceClass", "deviceclasses", Cluster).returns_deleted(),
        kind("resource.k8s.io", "v1", "ResourceClaim", "resourceclaims", Namespaced)
            .status()
            .returns_deleted(),
        kind("resource.k8s.io", "v1", "ResourceClaimTemplate", "resourceclaimtemplates", Namespaced)
            .returns_deleted(),
        kind("resource.k8s.io", "v1", "ResourceSlice", "resourceslices", Cluster).returns_deleted(),
        kind("resource.k8s.io", "v1alpha3", "DeviceTaintRule", "devicetaintrules", Cluster)
            .status()
            .on_request()
            .stored_as("resource.k8s.io", "v1beta2")
            .returns_deleted(),
        kind(
            "resource.k8s.io",
            "v1alpha3",
            "ResourcePoolStatusRequest",
            "resourcepoolstatusrequests",
            Cluster,
        )
        .status()
        .on_request()
        .returns_deleted(),
        kind("resource.k8s.io", "v1beta1", "DeviceClass", "deviceclasses", Cluster)
            .on_request()
            .stored_as("resource.k8s.io", "v1")
            .returns_deleted(),
        kind("resource.k8s.io", "v1beta1", "ResourceClaim", "resourceclaims", Namespaced)
            .status()
            .on_request()
            .stored_as("resource.k8s.io", "v1")
            .returns_deleted(),
        kind("resource.k8s.io", "v1beta1", "ResourceClaimTemplate", "resourceclaimtemplates", Namespaced)
            .on_request()
            .stored_as("resource.k8s.io", "v1")
            .returns_deleted(),
        kind("resource.k8s.io", "v1beta1", "ResourceSlice", "resourceslices", Cluster)
            .on_request()
            .stored_as("resource.k8s.io", "v1")
            .returns_deleted(),
        kind("resource.k8s.io", "v1beta2", "DeviceClass", "deviceclasses", Cluster)
            .on_request()
            .stored_as("resource.k8s.io", "v1")
            .returns_deleted(),
        kind("resource.k8s.io", "v1beta2", "DeviceTaintRule", "devicetaintrules", Cluster)
            .status()
            .on_request()
            .returns_deleted(),
        kind("resource.k8s.io", "v1beta2", "ResourceClaim", "resourceclaims", Namespaced)
            .status()
            .on_request()
            .stored_as("resource.k8s.io", "v1")
            .returns_deleted(),
        kind("resource.k8s.io", "v1beta2", "ResourceClaimTemplate", "resourceclaimtemplates", Namespaced)
            .on_request()
            .stored_as("resource.k8s.io", "v1")
            .returns_deleted(),
        kind("resource.k8s.io", "v1beta2", "ResourceSlice", "resourceslices", Cluster)
            .on_request()
            .stored_as("resource.k8s.io", "v1")
            .returns_deleted(),
        kind("scheduling.k8s.io", "v1", "PriorityClass", "priorityclasses", Cluster).short(&["pc"]),
        kind("scheduling.k8s.io", "v1alpha2", "PodGroup", "podgroups", Namespaced).status().on_request(),
        kind("scheduling.k8s.io", "v1alpha2", "Workload", "workloads", Namespaced).on_request(),
        kind("storage.k8s.io", "v1", "CSIDriver", "csidrivers", Cluster).returns_deleted(),
        kind("storage.k8s.io", "v1", "CSINode", "csinodes", Cluster).returns_deleted(),
        kind("storage.k8s.io", "v1", "CSIStorageCapacity", "csistoragecapacities", Namespaced),
        kind("storage.k8s.io", "v1", "StorageClass", "storageclasses", Cluster)
            .short(&["sc"])
            .returns_deleted(),
        kind("storage.k8s.io", "v1", "VolumeAttachment", "volumeattachments", Cluster)
            .status()
            .returns_deleted(),
        kind("storage.k8s.io", "v1", "VolumeAttributesClass", "volumeattributesclasses", Cluster)
            .short(&["vac"])
            .returns_deleted(),
        kind("storage.k8s.io", "v1beta1", "VolumeAttributesClass", "volumeattributesclasses", Cluster)
            .short(&["vac"])
            .on_request()
            .stored_as("storage.k8s.io", "v1")
            .returns_deleted(),
        kind(
            "storagemigration.k8s.io",
            "v1beta1",
            "StorageVersionMigration",
            "storageversionmigrations",
            Cluster,
        )
        .status()
        .on_request(),
    ]
}
