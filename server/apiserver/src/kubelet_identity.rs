//! Whether the other end of a connection to a node is that node's kubelet.
//!
//! A node says itself where its kubelet listens, and the server shows kubelets a certificate of `system:masters`. An
//! address that leads back to an API server would make an administrator of whoever may proxy to the node; one that leads to
//! another node would take the right to one node for the right to the other.

use ferry_auth::user::{NODE_PREFIX, NODES};
use rustls::client::verify_server_name;
use rustls::server::ParsedCertificate;
use rustls_pki_types::{CertificateDer, ServerName};

/// A name that every API server's certificate has, and no kubelet's: it stands for others.
const API_SERVER: &str = "kubernetes.default.svc";

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotThisKubelet {
    #[error("it presents no readable certificate")]
    Unreadable,
    #[error("it is an API server")]
    ApiServer,
    #[error("it is the kubelet of {0}")]
    OfAnother(String),
}

/// The certificate was verified before: it is of the cluster's authority, for the address. Those of other makes than the
/// cluster's own signer need not name the node.
pub fn check(certificate: Option<&CertificateDer<'_>>, node: &str) -> Result<(), NotThisKubelet> {
    let certificate = certificate.ok_or(NotThisKubelet::Unreadable)?;
    let parsed = ParsedCertificate::try_from(certificate).map_err(|_| NotThisKubelet::Unreadable)?;
    let api_server = ServerName::try_from(API_SERVER).expect("is a name");
    if verify_server_name(&parsed, &api_server).is_ok() {
        return Err(NotThisKubelet::ApiServer);
    }
    let (_, read) =
        x509_parser::parse_x509_certificate(certificate).map_err(|_| NotThisKubelet::Unreadable)?;
    let subject = read.subject();
    let is_node = subject.iter_organization().any(|each| each.as_str().is_ok_and(|text| text == NODES));
    let mut names = subject.iter_common_name().filter_map(|name| name.as_str().ok());
    match names.find_map(|name| name.strip_prefix(NODE_PREFIX)).filter(|_| is_node) {
        Some(other) if other != node => Err(NotThisKubelet::OfAnother(other.to_owned())),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kubelets_are_identified_by_their_certificate() {
        let check =
            |organization: &str, name: &str, serves: &[&str], expected: Result<(), NotThisKubelet>| {
                let names: Vec<String> = serves.iter().map(ToString::to_string).collect();
                let mut parameters = rcgen::CertificateParams::new(names).expect("names");
                parameters.distinguished_name = rcgen::DistinguishedName::new();
                parameters.distinguished_name.push(rcgen::DnType::OrganizationName, organization);
                parameters.distinguished_name.push(rcgen::DnType::CommonName, name);
                let key = rcgen::KeyPair::generate().expect("a key");
                let certificate = parameters.self_signed(&key).expect("a certificate");
                assert_eq!(
                    super::check(Some(certificate.der()), "a"),
                    expected,
                    "{organization} {name} {serves:?}"
                );
            };
        check("system:nodes", "system:node:a", &["a", "10.0.0.1"], Ok(()));
        check("", "a", &["a"], Ok(()));
        let other = Err(NotThisKubelet::OfAnother("b".into()));
        check("system:nodes", "system:node:b", &["a", "10.0.0.1"], other);
        let server = ["127.0.0.1", "kubernetes.default.svc"];
        check("", "kube-apiserver", &server, Err(NotThisKubelet::ApiServer));
        check("system:nodes", "system:node:a", &server, Err(NotThisKubelet::ApiServer));
        check("", "kube-apiserver", &["*.default.svc"], Err(NotThisKubelet::ApiServer));
        assert_eq!(super::check(None, "a"), Err(NotThisKubelet::Unreadable));
        assert_eq!(super::check(Some(&vec![1, 2].into()), "a"), Err(NotThisKubelet::Unreadable));
    }
}
