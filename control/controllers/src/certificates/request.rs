//! What a certificate request asks for, and which of Kubernetes' signers it is for.

use std::net::IpAddr;

use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::core::v1::Node;
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::pem::Pem;
use x509_parser::prelude::FromDer;

pub const KUBELET_CLIENT: &str = "kubernetes.io/kube-apiserver-client-kubelet";
pub const KUBELET_SERVING: &str = "kubernetes.io/kubelet-serving";
pub const CLIENT: &str = "kubernetes.io/kube-apiserver-client";
pub const LEGACY: &str = "kubernetes.io/legacy-unknown";

/// The parts of a request that decide.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Request {
    pub common_name: String,
    pub organizations: Vec<String>,
    pub names: Vec<String>,
    pub addresses: Vec<IpAddr>,
    /// Mail addresses and URIs.
    pub others: usize,
    /// More than one common name, or attributes beside name and organization.
    pub unusual_subject: bool,
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Malformed(pub String);

/// Reads the PEM a user sent and checks that they hold the key.
pub fn parse(pem: &[u8]) -> Result<Request, Malformed> {
    let (pem, _) =
        Pem::read(std::io::Cursor::new(pem)).map_err(|error| Malformed(format!("PEM block: {error}")))?;
    if pem.label != "CERTIFICATE REQUEST" && pem.label != "NEW CERTIFICATE REQUEST" {
        return Err(Malformed("PEM block type must be CERTIFICATE REQUEST".into()));
    }
    let (_, parsed) =
        X509CertificationRequest::from_der(&pem.contents).map_err(|error| Malformed(error.to_string()))?;
    let mut request = Request::default();
    let mut names = 0;
    for attribute in parsed.certification_request_info.subject.iter_attributes() {
        let value = attribute.as_str().unwrap_or_default().to_string();
        match attribute.attr_type().to_id_string().as_str() {
            "2.5.4.3" => {
                names += 1;
                request.common_name = value;
            }
            "2.5.4.10" => request.organizations.push(value),
            _ => request.unusual_subject = true,
        }
    }
    request.unusual_subject |= names > 1;
    for extension in parsed.requested_extensions().into_iter().flatten() {
        if let ParsedExtension::SubjectAlternativeName(alternative) = extension {
            for name in &alternative.general_names {
                match name {
                    GeneralName::DNSName(name) => request.names.push(name.to_string()),
                    GeneralName::IPAddress(bytes) => match address(bytes) {
                        Some(address) => request.addresses.push(address),
                        None => request.others += 1,
                    },
                    _ => request.others += 1,
                }
            }
        }
    }
    Ok(request)
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
    v4.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from)).ok()
}

impl Request {
    fn is_of_node(&self) -> bool {
        self.organizations == ["system:nodes"]
            && self.common_name.starts_with("system:node:")
            && self.common_name.len() > "system:node:".len()
    }

    pub fn node_name(&self) -> Option<&str> {
        self.common_name.strip_prefix("system:node:")
    }

    fn has_no_alternatives(&self) -> bool {
        self.names.is_empty() && self.addresses.is_empty() && self.others == 0
    }
}

/// May this signer sign this request with these usages? The error is what the user is told.
pub fn check(signer: &str, request: &Request, usages: &[String]) -> Result<(), String> {
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
            if !request.has_no_alternatives() {
                return Err("subjectAltNames are not allowed".into());
            }
            if !request.is_of_node() {
                return Err("subject common name does not begin with system:node:".into());
            }
            both_forms("client auth")
                .then_some(())
                .ok_or_else(|| "usages did not match [client auth digital signature key encipherment]".into())
        }
        KUBELET_SERVING => {
            if !request.is_of_node() {
                return Err("subject is not that of a node".into());
            }
            if request.others > 0 {
                return Err("email and URI subjectAltNames are not allowed".into());
            }
            if request.names.is_empty() && request.addresses.is_empty() {
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
pub fn recognize(csr: &CertificateSigningRequest, request: &Request) -> Option<Asker> {
    let usages = csr.spec.usages.as_deref().unwrap_or_default();
    if csr.spec.signer_name != KUBELET_CLIENT || check(KUBELET_CLIENT, request, usages).is_err() {
        return None;
    }
    let own = csr.spec.username.as_deref() == Some(&request.common_name);
    Some(if own { Asker::SelfNode } else { Asker::Node })
}

/// Is this a node's request for a certificate to serve with, under no names and addresses but the node's own?
pub fn serves_itself(csr: &CertificateSigningRequest, request: &Request, node: &Node) -> bool {
    let usages = csr.spec.usages.as_deref().unwrap_or_default();
    let own = csr.spec.signer_name == KUBELET_SERVING
        && check(KUBELET_SERVING, request, usages).is_ok()
        && csr.spec.username.as_deref() == Some(&request.common_name)
        && csr.spec.groups.iter().flatten().any(|group| group == "system:nodes")
        && request.node_name() == node.metadata.name.as_deref();
    let known: Vec<&str> = node
        .status
        .iter()
        .flat_map(|status| status.addresses.iter().flatten())
        .map(|address| address.address.as_str())
        .collect();
    let is_known = |text: &str| known.contains(&text);
    own && request.names.iter().all(|name| is_known(name))
        && request.addresses.iter().all(|address| is_known(&address.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_serves_under_its_own_names_only() {
        use k8s_openapi::api::certificates::v1::CertificateSigningRequestSpec;
        use k8s_openapi::api::core::v1::{NodeAddress, NodeStatus};
        let address = |kind: &str, text: &str| NodeAddress { type_: kind.into(), address: text.into() };
        let mut known = Node::default();
        known.metadata.name = Some("n1".into());
        known.status = Some(NodeStatus {
            addresses: Some(vec![address("InternalIP", "192.0.2.7"), address("Hostname", "n1")]),
            ..Default::default()
        });
        let csr = |user: &str| CertificateSigningRequest {
            spec: CertificateSigningRequestSpec {
                signer_name: KUBELET_SERVING.into(),
                username: Some(user.into()),
                groups: Some(vec!["system:nodes".into()]),
                usages: Some(usages(&["digital signature", "server auth"])),
                ..Default::default()
            },
            ..Default::default()
        };
        let asked = |names: &[&str], addresses: &[&str]| Request {
            names: names.iter().map(ToString::to_string).collect(),
            addresses: addresses.iter().map(|text| text.parse().unwrap()).collect(),
            ..node()
        };
        let own = csr("system:node:n1");
        assert!(serves_itself(&own, &asked(&["n1"], &["192.0.2.7"]), &known));
        assert!(!serves_itself(&own, &asked(&["kubernetes"], &["192.0.2.7"]), &known));
        assert!(!serves_itself(&own, &asked(&["n1"], &["192.0.2.1"]), &known));
        assert!(!serves_itself(&csr("system:node:n2"), &asked(&["n1"], &[]), &known));
    }

    fn node() -> Request {
        Request {
            common_name: "system:node:n1".into(),
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
        let named = Request { names: vec!["n1".into()], ..node() };
        assert_eq!(check(KUBELET_CLIENT, &node(), &client), Ok(()));
        assert!(check(KUBELET_CLIENT, &named, &client).is_err());
        assert!(check(KUBELET_CLIENT, &node(), &serving).is_err());
        assert!(
            check(
                KUBELET_CLIENT,
                &Request { organizations: vec!["system:masters".into()], ..node() },
                &client
            )
            .is_err()
        );
        assert!(
            check(KUBELET_CLIENT, &Request { common_name: "system:node:".into(), ..node() }, &client)
                .is_err()
        );
        assert_eq!(check(KUBELET_SERVING, &named, &serving), Ok(()));
        assert!(check(KUBELET_SERVING, &node(), &serving).is_err());
        assert!(check(KUBELET_SERVING, &named, &client).is_err());
        assert_eq!(check(CLIENT, &Request::default(), &client), Ok(()));
        assert!(check(CLIENT, &Request::default(), &serving).is_err());
    }

    #[test]
    fn a_request_is_read_from_pem_and_nonsense_is_refused() {
        let mut params = rcgen::CertificateParams::new(vec!["n1.example".to_string()]).unwrap();
        params.distinguished_name.push(rcgen::DnType::CommonName, "system:node:n1");
        params.distinguished_name.push(rcgen::DnType::OrganizationName, "system:nodes");
        let key = rcgen::KeyPair::generate().unwrap();
        let pem = params.serialize_request(&key).unwrap().pem().unwrap();
        let request = parse(pem.as_bytes()).unwrap();
        assert_eq!(
            (request.common_name.as_str(), request.organizations.len(), request.names.len()),
            ("system:node:n1", 1, 1)
        );
        for bad in [
            "",
            "x",
            "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
            "-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----\n",
        ] {
            assert!(parse(bad.as_bytes()).is_err(), "{bad}");
        }
    }
}
