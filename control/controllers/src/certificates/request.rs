//! What a certificate request asks for, and which of Kubernetes' signers it is for.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ferry_api::certificate_request::CertificateRequest;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::core::v1::Node;

use crate::cidr::Cidr;

pub const KUBELET_CLIENT: &str = "kubernetes.io/kube-apiserver-client-kubelet";
pub const KUBELET_SERVING: &str = "kubernetes.io/kubelet-serving";
pub const CLIENT: &str = "kubernetes.io/kube-apiserver-client";
pub const LEGACY: &str = "kubernetes.io/legacy-unknown";

fn is_of_node(request: &CertificateRequest) -> bool {
    request.organizations == ["system:nodes"]
        && !request.unusual_subject
        && node_name(request).is_some_and(|name| !name.is_empty())
}

pub fn node_name(request: &CertificateRequest) -> Option<&str> {
    request.common_name.strip_prefix("system:node:")
}

/// May this signer sign this request with these usages? The error is what the user is told.
pub fn check(signer: &str, request: &CertificateRequest, usages: &[String]) -> Result<(), String> {
    let only = |allowed: &[&str]| usages.iter().all(|usage| allowed.contains(&usage.as_str()));
    let has = |usage: &str| usages.iter().any(|own| own == usage);
    let both_forms = |purpose: &str| {
        has("digital signature") && has(purpose) && only(&["digital signature", "key encipherment", purpose])
    };
    match signer {
        KUBELET_CLIENT => {
            if request.organizations != ["system:nodes"] {
                return Err("subject organization is not system:nodes".into());
            }
            if request.has_alternative_names() {
                return Err("subjectAltNames are not allowed".into());
            }
            if !is_of_node(request) {
                return Err("subject common name does not begin with system:node:".into());
            }
            both_forms("client auth")
                .then_some(())
                .ok_or_else(|| "usages did not match [client auth digital signature key encipherment]".into())
        }
        KUBELET_SERVING => {
            if !is_of_node(request) {
                return Err("subject is not that of a node".into());
            }
            if !request.emails.is_empty() || !request.uris.is_empty() || request.other_names > 0 {
                return Err("email and URI subjectAltNames are not allowed".into());
            }
            if request.dns_names.is_empty() && request.addresses.is_empty() {
                return Err("DNS or IP subjectAltName is required".into());
            }
            both_forms("server auth")
                .then_some(())
                .ok_or_else(|| "usages did not match [digital signature key encipherment server auth]".into())
        }
        CLIENT => {
            let allowed =
                has("client auth") && only(&["digital signature", "key encipherment", "client auth"]);
            allowed
                .then_some(())
                .ok_or_else(|| "usages did not match [client auth digital signature key encipherment]".into())
        }
        _ => Ok(()),
    }
}

/// A kubelet asking for its own client certificate: for itself, or while joining.
pub enum Asker {
    SelfNode,
    Node,
}

/// Which kind of kubelet request this is, if it is one at all.
pub fn recognize(csr: &CertificateSigningRequest, request: &CertificateRequest) -> Option<Asker> {
    let usages = csr.spec.usages.as_deref().unwrap_or_default();
    if csr.spec.signer_name != KUBELET_CLIENT || check(KUBELET_CLIENT, request, usages).is_err() {
        return None;
    }
    let own = csr.spec.username.as_deref() == Some(&request.common_name);
    Some(if own { Asker::SelfNode } else { Asker::Node })
}

/// Names and addresses that no node may serve under, whatever its status says: a certificate for one of them would
/// stand for the API server, a Service, a pod or another machine.
pub struct Reserved<'a> {
    /// What the API servers are reached by, names and addresses.
    pub api_servers: BTreeSet<String>,
    /// Pod and Service ranges.
    pub ranges: &'a [Cidr],
    pub nodes: &'a [std::sync::Arc<Node>],
}

impl Reserved<'_> {
    fn holds_name(&self, name: &str, own: &str) -> bool {
        let name = name.trim_end_matches('.').to_ascii_lowercase();
        // Names of the cluster's DNS, the API server's own among them.
        let of_service = name.ends_with(".svc") || name.contains(".svc.");
        ["localhost", "kubernetes", "kubernetes.default"].contains(&name.as_str())
            || of_service
            || self.api_servers.iter().any(|server| server.eq_ignore_ascii_case(&name))
            || self.is_of_another(own, |address| address.eq_ignore_ascii_case(&name))
    }

    fn holds_address(&self, address: IpAddr, own: &str) -> bool {
        let is_same = |text: &str| text.parse::<IpAddr>().is_ok_and(|known| known.to_canonical() == address);
        let local = match address {
            IpAddr::V4(v4) => v4.is_link_local() || v4.is_broadcast(),
            IpAddr::V6(v6) => v6.is_unicast_link_local(),
        };
        local
            || address.is_loopback()
            || address.is_unspecified()
            || address.is_multicast()
            || self.ranges.iter().any(|range| range.contains(address))
            || self.api_servers.iter().any(|server| is_same(server))
            || self.is_of_another(own, is_same)
    }

    fn is_of_another(&self, own: &str, is_same: impl Fn(&str) -> bool) -> bool {
        let others = self.nodes.iter().filter(|node| node.metadata.name.as_deref() != Some(own));
        others.into_iter().any(|node| addresses(node).any(&is_same))
    }
}

fn addresses(node: &Node) -> impl Iterator<Item = &str> {
    let addresses = node.status.iter().flat_map(|status| status.addresses.iter().flatten());
    addresses.map(|address| address.address.as_str())
}

/// Is this a node's request for a certificate to serve with, under no name but the node's and no addresses but those
/// in its status? A node writes its status itself, so what is `reserved` is refused all the same.
pub fn serves_itself(
    csr: &CertificateSigningRequest,
    request: &CertificateRequest,
    node: &Node,
    reserved: &Reserved<'_>,
) -> bool {
    let usages = csr.spec.usages.as_deref().unwrap_or_default();
    let Some(own) = node.metadata.name.as_deref().filter(|name| node_name(request) == Some(name)) else {
        return false;
    };
    let states = |wanted: IpAddr| {
        addresses(node).any(|text| text.parse::<IpAddr>().is_ok_and(|known| known.to_canonical() == wanted))
    };
    csr.spec.signer_name == KUBELET_SERVING
        && check(KUBELET_SERVING, request, usages).is_ok()
        && csr.spec.username.as_deref() == Some(&request.common_name)
        && csr.spec.groups.iter().flatten().any(|group| group == "system:nodes")
        && request.dns_names.iter().all(|name| name == own && !reserved.holds_name(name, own))
        && request
            .addresses
            .iter()
            .map(IpAddr::to_canonical)
            .all(|address| states(address) && !reserved.holds_address(address, own))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str, addresses: &[&str]) -> Node {
        use k8s_openapi::api::core::v1::{NodeAddress, NodeStatus};
        let address = |text: &&str| NodeAddress { type_: "InternalIP".into(), address: text.to_string() };
        let mut node = Node::default();
        node.metadata.name = Some(name.into());
        let addresses = Some(addresses.iter().map(address).collect());
        node.status = Some(NodeStatus { addresses, ..Default::default() });
        node
    }

    fn csr(user: &str) -> CertificateSigningRequest {
        use k8s_openapi::api::certificates::v1::CertificateSigningRequestSpec;
        CertificateSigningRequest {
            spec: CertificateSigningRequestSpec {
                signer_name: KUBELET_SERVING.into(),
                username: Some(user.into()),
                groups: Some(vec!["system:nodes".into()]),
                usages: Some(usages(&["digital signature", "server auth"])),
                ..Default::default()
            },
            ..Default::default()
        }
    }

    fn asked(name: &str, names: &[&str], addresses: &[&str]) -> CertificateRequest {
        CertificateRequest {
            dns_names: names.iter().map(ToString::to_string).collect(),
            addresses: addresses.iter().map(|text| text.parse().unwrap()).collect(),
            ..of_node(name)
        }
    }

    #[test]
    fn a_node_serves_under_its_own_name_and_addresses_only() {
        let all = ["192.0.2.7", "n1", "fd00::7", "elsewhere.example"];
        let known = node("n1", &all);
        let reserved = Reserved { api_servers: BTreeSet::new(), ranges: &[], nodes: &[] };
        let check = |user: &str, names: &[&str], addresses: &[&str], expected: bool| {
            let (csr, request) = (csr(user), asked("n1", names, addresses));
            assert_eq!(serves_itself(&csr, &request, &known, &reserved), expected, "{names:?} {addresses:?}");
        };
        let own = "system:node:n1";
        check(own, &["n1"], &["192.0.2.7", "fd00::7"], true);
        check(own, &["n1"], &["::ffff:192.0.2.7"], true);
        check(own, &["kubernetes"], &["192.0.2.7"], false);
        check(own, &["elsewhere.example"], &[], false);
        check(own, &["n1"], &["192.0.2.1"], false);
        check("system:node:n2", &["n1"], &[], false);
    }

    #[test]
    fn serving_certificates_for_others_names_are_refused() {
        let nodes = [std::sync::Arc::new(node("n2", &["192.0.2.9", "n2", "api.example.net"]))];
        let ranges: [Cidr; 2] = ["10.96.0.0/16".parse().unwrap(), "10.244.0.0/16".parse().unwrap()];
        let api_servers = ["192.0.2.1", "api.example.com", "fd00::1"].map(String::from).into();
        let reserved = Reserved { api_servers, ranges: &ranges, nodes: &nodes };
        for address in [
            "192.0.2.1",
            "fd00::1",
            "::ffff:192.0.2.1",
            "192.0.2.9",
            "10.96.0.1",
            "10.244.1.2",
            "127.0.0.1",
            "::1",
            "169.254.169.254",
            "fe80::1",
            "0.0.0.0",
            "224.0.0.1",
        ] {
            let known = node("n1", &["192.0.2.7", address]);
            let request = asked("n1", &["n1"], &["192.0.2.7", address]);
            assert!(!serves_itself(&csr("system:node:n1"), &request, &known, &reserved), "{address}");
        }
        for name in [
            "kubernetes",
            "kubernetes.default",
            "kubernetes.default.svc",
            "kubernetes.default.svc.cluster.local",
            "localhost",
            "api.example.com",
            "API.example.com",
            "api.example.net",
        ] {
            let request = asked(name, &[name], &[]);
            let user = csr(&request.common_name);
            assert!(!serves_itself(&user, &request, &node(name, &[name]), &reserved), "{name}");
        }
        let known = node("n1", &["192.0.2.7"]);
        let request = asked("n1", &["n1"], &["192.0.2.7"]);
        assert!(serves_itself(&csr("system:node:n1"), &request, &known, &reserved));
    }

    fn of_node(name: &str) -> CertificateRequest {
        CertificateRequest {
            common_name: format!("system:node:{name}"),
            organizations: vec!["system:nodes".into()],
            ..Default::default()
        }
    }

    fn usages(list: &[&str]) -> Vec<String> {
        list.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_signer_signs_only_what_is_meant_for_it() {
        let client = usages(&["digital signature", "key encipherment", "client auth"]);
        let serving = usages(&["digital signature", "server auth"]);
        let (node, named) = (of_node("n1"), asked("n1", &["n1"], &[]));
        let masters = CertificateRequest { organizations: vec!["system:masters".into()], ..node.clone() };
        let unusual = CertificateRequest { unusual_subject: true, ..node.clone() };
        let nobody = CertificateRequest::default();
        assert_eq!(check(KUBELET_CLIENT, &node, &client), Ok(()));
        for refused in [&named, &masters, &unusual, &of_node("")] {
            assert!(check(KUBELET_CLIENT, refused, &client).is_err(), "{refused:?}");
        }
        assert!(check(KUBELET_CLIENT, &node, &serving).is_err());
        assert_eq!(check(KUBELET_SERVING, &named, &serving), Ok(()));
        assert!(check(KUBELET_SERVING, &node, &serving).is_err());
        assert!(check(KUBELET_SERVING, &named, &client).is_err());
        assert_eq!(check(CLIENT, &nobody, &client), Ok(()));
        assert!(check(CLIENT, &nobody, &serving).is_err());
    }
}
