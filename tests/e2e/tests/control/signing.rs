//! The controller manager's signing key, and the requests that it signs.

use std::io::Read;
use std::path::PathBuf;
use std::process::Stdio;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use kube::core::DynamicObject;
use kube::discovery::ApiResource;
use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair};
use serde_json::{Value, json};

use super::processes::{Cluster, Process};
use super::until;

/// A signing authority's certificate and key, as files.
struct Authority {
    directory: tempfile::TempDir,
}

impl Authority {
    fn new() -> Self {
        let authority = Authority { directory: tempfile::tempdir().expect("a directory") };
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        authority.write("ca.crt", &params.self_signed(&key).expect("a certificate").pem());
        authority.write("ca.key", &key.serialize_pem());
        authority
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), text).expect("it is written");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_signing_key_that_cannot_be_used_ends_the_start() {
    let Some(cluster) = Cluster::start().await else { return };
    let authority = Authority::new();
    authority.write("broken.key", "-----BEGIN RSA PRIVATE KEY-----\nAAAA\n-----END RSA PRIVATE KEY-----\n");
    authority.write("text.key", "no key at all\n");
    authority.write("other.key", &KeyPair::generate().expect("a key").serialize_pem());
    for (key, why) in [
        ("missing.key", "missing.key"),
        ("broken.key", "private key"),
        ("text.key", "private key"),
        ("other.key", "the private key is not the certificate's"),
    ] {
        let mut command = cluster.signing_controller_manager(&authority.path("ca.crt"), &authority.path(key));
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("ferry starts");
        let mut stderr = child.stderr.take().expect("it is piped");
        let mut process = Process::from(child);
        let status = until(&format!("it ends with {key}"), || {
            let status = process.ended();
            async move { status }
        })
        .await;
        let mut said = String::new();
        stderr.read_to_string(&mut said).expect("text");
        assert!(!status.success() && said.contains(why), "{key}: {status}, {said}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_with_text_before_its_pem_is_signed() {
    let Some(cluster) = Cluster::start().await else { return };
    let authority = Authority::new();
    let mut command =
        cluster.signing_controller_manager(&authority.path("ca.crt"), &authority.path("ca.key"));
    let _controllers = Process::of(&mut command);

    let mut params = CertificateParams::default();
    params.distinguished_name.push(rcgen::DnType::CommonName, "ann");
    let pem =
        params.serialize_request(&KeyPair::generate().expect("a key")).and_then(|request| request.pem());
    // As `openssl req -text` writes it.
    let text =
        format!("Certificate Request:\n    Data:\n        Version: 1 (0x0)\n{}", pem.expect("a request"));
    let resource = ApiResource::erase::<k8s_openapi::api::certificates::v1::CertificateSigningRequest>(&());
    let requests: Api<DynamicObject> = Api::all_with(cluster.client.clone(), &resource);
    let mut request = DynamicObject::new("ann", &resource);
    request.data = json!({"spec": {
        "request": BASE64_STANDARD.encode(text), "signerName": "kubernetes.io/kube-apiserver-client",
        "usages": ["client auth"],
    }});
    requests.create(&PostParams::default(), &request).await.expect("it is accepted");
    let approved = json!({"status": {"conditions": [{
        "type": "Approved", "status": "True", "reason": "Test", "message": "by the test",
    }]}});
    let approved = Patch::Merge(approved);
    let written = requests.patch_subresource("approval", "ann", &PatchParams::default(), &approved).await;
    written.expect("it is approved");
    let certificate = until("it is signed", || async {
        let found = requests.get("ann").await.expect("it is there");
        found.data["status"]["certificate"].as_str().map(str::to_owned).or_else(|| {
            assert_eq!(found.data["status"]["conditions"].as_array().map(Vec::len), Some(1), "{found:?}");
            None
        })
    })
    .await;
    let certificate = BASE64_STANDARD.decode(certificate).expect("base64");
    assert!(certificate.starts_with(b"-----BEGIN CERTIFICATE-----"), "{}", Value::from(certificate.clone()));
}
