//! A kubeconfig with one cluster, one user and one context.

use base64::{Engine, engine::general_purpose::STANDARD};
use ferry_api::private_key;

pub struct Kubeconfig<'a> {
    /// Names the cluster and the context.
    pub cluster: &'a str,
    pub server: &'a str,
    pub ca_pem: &'a str,
    /// Names the entry in `users`; the identity is in the credentials.
    pub user: &'a str,
    pub credentials: KubeconfigCredentials<'a>,
}

pub enum KubeconfigCredentials<'a> {
    Certificate { certificate_pem: &'a str, key_pem: &'a str },
    Token(&'a str),
}

impl Kubeconfig<'_> {
    pub fn to_yaml(&self) -> String {
        let (cluster, user) = (scalar(self.cluster), scalar(self.user));
        let credentials = match &self.credentials {
            KubeconfigCredentials::Certificate { certificate_pem, key_pem } => format!(
                "client-certificate-data: {}\n    client-key-data: {}",
                STANDARD.encode(certificate_pem),
                STANDARD.encode(private_key::sec1_pem(key_pem).as_deref().unwrap_or(key_pem))
            ),
            KubeconfigCredentials::Token(token) => format!("token: {}", scalar(token)),
        };
        format!(
            "\
apiVersion: v1
kind: Config
clusters:
- name: {cluster}
  cluster:
    server: {server}
    certificate-authority-data: {ca}
users:
- name: {user}
  user:
    {credentials}
contexts:
- name: {cluster}
  context:
    cluster: {cluster}
    user: {user}
current-context: {cluster}
preferences: {{}}
",
            server = scalar(self.server),
            ca = STANDARD.encode(self.ca_pem),
        )
    }
}

/// JSON's strings are YAML's double-quoted ones, so any name is safe.
fn scalar(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}
