//! What the parts of a node may do beyond the API server's bootstrap policy: see the services and nodes of the
//! cluster, which upstream gives to kube-proxy, see the pods that network policies speak of, have the images that were
//! loaded on a server, and join it with a token.

use ferry_client::{Api, Client};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use super::facts;

/// The group of tokens that `ferry token create` makes.
pub const BOOTSTRAPPERS: &str = "system:bootstrappers:ferry:default-node-token";

/// The identity of a server's own DNS.
pub const DNS_USER: &str = "system:ferry-dns";

pub async fn grant(client: &Client) -> kube::Result<()> {
    let span = ferry_trace::span("cluster.rights");
    let parameters = PatchParams::apply("ferry").force();
    let apply = async {
        let roles: Api<ClusterRole> = Api::all(client.clone());
        for (name, rules) in roles_of_ferry() {
            let role = json!({
                "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
                "metadata": { "name": name }, "rules": rules,
            });
            roles.patch(name, &parameters, &Patch::Apply(role)).await?;
        }
        let bindings: Api<ClusterRoleBinding> = Api::all(client.clone());
        for (name, role, subject) in bindings_of_ferry() {
            let binding = json!({
                "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
                "metadata": { "name": name },
                "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role },
                "subjects": [subject],
            });
            bindings.patch(name, &parameters, &Patch::Apply(binding)).await?;
        }
        Ok(())
    };
    span.in_scope(apply).await
}

fn roles_of_ferry() -> [(&'static str, Value); 5] {
    let publish = json!([
        { "apiGroups": [""], "resources": ["services"], "verbs": ["get", "create", "patch"] },
        { "apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["get", "create", "patch"] },
    ]);
    let facts = json!([
        { "apiGroups": [""], "resources": ["configmaps"], "resourceNames": [facts::NAME], "verbs": ["get"] },
    ]);
    let approve = json!([{
        "apiGroups": ["certificates.k8s.io"], "resources": ["signers"],
        "resourceNames": ["kubernetes.io/kubelet-serving"], "verbs": ["approve"],
    }]);
    let images = json!([{ "nonResourceURLs": ["/ferry/v1/images/*"], "verbs": ["get", "head"] }]);
    // A policy is about pods by their labels, wherever they run: a node must see them to know their addresses.
    let policies = json!([
        { "apiGroups": [""], "resources": ["pods", "namespaces"], "verbs": ["list", "watch"] },
        { "apiGroups": ["networking.k8s.io"], "resources": ["networkpolicies"], "verbs": ["list", "watch"] },
    ]);
    [
        ("system:ferry:network-policies", policies),
        ("system:ferry:dns", publish),
        ("system:ferry:node", facts),
        ("system:ferry:image-reader", images),
        ("system:ferry:approve-serving-nodes", approve),
    ]
}

fn bindings_of_ferry() -> [(&'static str, &'static str, Value); 10] {
    let group =
        |name: &str| json!({ "apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": name });
    let user = |name: &str| json!({ "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": name });
    let account =
        json!({ "kind": "ServiceAccount", "namespace": "kube-system", "name": "certificate-controller" });
    [
        ("system:ferry:approve-serving-nodes", "system:ferry:approve-serving-nodes", account),
        ("system:ferry:dns", "system:ferry:dns", user(DNS_USER)),
        ("system:ferry:server-network-policies", "system:ferry:network-policies", user("system:kube-proxy")),
        ("system:ferry:node-network-policies", "system:ferry:network-policies", group("system:nodes")),
        // A node's proxy, network and DNS work with the node's own certificate.
        ("system:ferry:node-network", "system:node-proxier", group("system:nodes")),
        ("system:ferry:node", "system:ferry:node", group("system:nodes")),
        ("system:ferry:image-reader", "system:ferry:image-reader", group("system:nodes")),
        ("system:ferry:node-bootstrapper", "system:node-bootstrapper", group(BOOTSTRAPPERS)),
        (
            "system:ferry:approve-new-nodes",
            "system:certificates.k8s.io:certificatesigningrequests:nodeclient",
            group(BOOTSTRAPPERS),
        ),
        (
            "system:ferry:approve-known-nodes",
            "system:certificates.k8s.io:certificatesigningrequests:selfnodeclient",
            group("system:nodes"),
        ),
    ]
}
