//! Upstream's configuration file of kube-proxy, `kind: KubeProxyConfiguration`, as kubeadm writes one: what it says replaces
//! what the flags say, as in upstream.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use serde::Deserialize;
use serde_json::Value;

const API_VERSION: &str = "kubeproxy.config.k8s.io/v1alpha1";

/// What is empty or null counts as not said.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct File {
    api_version: String,
    kind: String,
    pub mode: Option<String>,
    #[serde(rename = "clusterCIDR")]
    pub cluster_cidr: Option<String>,
    pub hostname_override: Option<String>,
    pub node_port_addresses: Option<Vec<String>>,
    healthz_bind_address: Option<String>,
    metrics_bind_address: Option<String>,
    client_connection: Option<ClientConnection>,
    iptables: Option<Iptables>,
    #[serde(flatten)]
    unused: BTreeMap<String, Value>,
}

#[derive(Debug, Deserialize)]
struct ClientConnection {
    kubeconfig: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Iptables {
    localhost_node_ports: Option<bool>,
}

pub fn read(path: &Path) -> anyhow::Result<File> {
    let text = std::fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
    let file = parse(&text).with_context(|| format!("understand {}", path.display()))?;
    let unused: Vec<&str> =
        file.unused.iter().filter(|(_, value)| is_said(value)).map(|(name, _)| name.as_str()).collect();
    if !unused.is_empty() {
        tracing::warn!(file = %path.display(), fields = unused.join(","), "settings without effect");
    }
    Ok(file)
}

fn parse(text: &str) -> anyhow::Result<File> {
    let file: File = ferry_api::yaml::one(text).map_err(|error| anyhow::anyhow!("{error}"))?;
    if file.api_version != API_VERSION || file.kind != "KubeProxyConfiguration" {
        bail!("no KubeProxyConfiguration of {API_VERSION}");
    }
    Ok(file)
}

/// kubeadm writes every field, most of them without a value.
fn is_said(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Bool(value) => *value,
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::String(text) => !text.is_empty() && text != "0s",
        Value::Array(items) => items.iter().any(is_said),
        Value::Object(fields) => fields.values().any(is_said),
    }
}

fn said(text: &Option<String>) -> Option<&str> {
    text.as_deref().filter(|text| !text.is_empty())
}

impl File {
    pub fn kubeconfig(&self) -> Option<PathBuf> {
        self.client_connection.as_ref().and_then(|connection| said(&connection.kubeconfig)).map(PathBuf::from)
    }

    pub fn localhost_node_ports(&self) -> Option<bool> {
        self.iptables.as_ref().and_then(|iptables| iptables.localhost_node_ports)
    }

    pub fn healthz_bind_address(&self) -> anyhow::Result<Option<SocketAddr>> {
        address("healthzBindAddress", said(&self.healthz_bind_address), 10256)
    }

    pub fn metrics_bind_address(&self) -> anyhow::Result<Option<SocketAddr>> {
        address("metricsBindAddress", said(&self.metrics_bind_address), 10249)
    }
}

/// An address may come without its port.
fn address(field: &str, text: Option<&str>, port: u16) -> anyhow::Result<Option<SocketAddr>> {
    let Some(text) = text else { return Ok(None) };
    let parsed = text.parse().or_else(|_| text.parse().map(|address| SocketAddr::new(address, port)));
    Ok(Some(parsed.with_context(|| format!("{field}: {text:?} is no address"))?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_kubeadm_is_understood() {
        let file = parse(
            "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nbindAddress: 0.0.0.0\n\
             bindAddressHardFail: false\nclientConnection:\n  acceptContentTypes: \"\"\n  burst: 0\n  \
             kubeconfig: /var/lib/kube-proxy/kubeconfig.conf\nclusterCIDR: 10.244.0.0/16\n\
             conntrack: {maxPerCore: null, min: null}\nhealthzBindAddress: \"\"\nhostnameOverride: \"\"\n\
             iptables: {localhostNodePorts: false, masqueradeBit: null}\nipvs: {syncPeriod: 0s}\n\
             metricsBindAddress: 127.0.0.1\nmode: nftables\nnodePortAddresses: null\n",
        )
        .expect("a configuration");
        assert_eq!(file.kubeconfig(), Some("/var/lib/kube-proxy/kubeconfig.conf".into()));
        assert_eq!(
            (file.mode.as_deref(), file.cluster_cidr.as_deref()),
            (Some("nftables"), Some("10.244.0.0/16"))
        );
        assert_eq!(file.localhost_node_ports(), Some(false));
        assert_eq!(file.healthz_bind_address().expect("nothing"), None);
        assert_eq!(
            file.metrics_bind_address().expect("an address"),
            Some("127.0.0.1:10249".parse().unwrap())
        );
        let unused: Vec<&String> =
            file.unused.iter().filter(|(_, value)| is_said(value)).map(|(name, _)| name).collect();
        assert_eq!(unused, ["bindAddress"]);
    }

    #[test]
    fn another_kind_is_refused() {
        assert!(parse("apiVersion: v1\nkind: Pod\n").is_err());
        assert!(address("metricsBindAddress", Some("here"), 1).is_err());
    }
}
