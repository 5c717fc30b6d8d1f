//! HTTP extenders: programs outside that filter, score, bind or choose victims for the pods that
//! ask for resources they manage. Asked in the order of the configuration, each only about what
//! the plugins and the extenders before it have left.
//!
//! What is sent and answered is upstream's extender/v1: field names begin with capital letters.

use std::collections::BTreeMap;
use std::time::Duration;

use ferry_client::Client;
use k8s_openapi::api::core::v1::{Container, Node, Pod};
use kube::config::{AuthInfo, Cluster, Context, KubeConfigOptions, Kubeconfig, NamedAuthInfo};
use kube::config::{NamedCluster, NamedContext};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::plugins::MAX_SCORE;
use crate::pod_info::PodInfo;

/// Stands for whichever extender refused a pod, where plugins are named.
pub const EXTENDER: &str = "Extender";

/// Extenders score from 0 to this.
const MAX_EXTENDER_SCORE: i64 = 10;

const DEFAULT_TIMEOUT: Duration = Duration::from_secs(5);

/// One extender of the configuration. A verb that is empty is not asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    pub url_prefix: String,
    pub filter_verb: String,
    pub prioritize_verb: String,
    pub bind_verb: String,
    pub preempt_verb: String,
    pub weight: i64,
    pub tls: Tls,
    pub timeout: Option<Duration>,
    /// It knows the nodes and is only told their names.
    pub node_cache_capable: bool,
    /// Only pods that ask for one of these are its business; all pods if there are none.
    pub managed_resources: Vec<String>,
    /// A pod can do without its answer.
    pub ignorable: bool,
}

/// How an extender is known and we to it: files, or their contents in base64.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tls {
    pub insecure: bool,
    pub server_name: Option<String>,
    pub cert_file: Option<String>,
    pub key_file: Option<String>,
    pub ca_file: Option<String>,
    pub cert_data: Option<String>,
    pub key_data: Option<String>,
    pub ca_data: Option<String>,
}

#[derive(Debug, thiserror::Error)]
pub enum ExtenderError {
    #[error("extender {url}: {source}")]
    Connect { url: String, source: ferry_client::ConnectError },
    #[error("extender {url}: {verb}: {source}")]
    Request { url: String, verb: String, source: Box<kube::Error> },
    #[error("extender {url}: {verb}: no answer within {seconds} s")]
    Late { url: String, verb: String, seconds: f64 },
    #[error("extender {url}: {message}")]
    Said { url: String, message: String },
}

pub struct Extender {
    settings: Settings,
    client: Client,
}

/// What an extender said about the nodes it was asked about.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Filtered {
    pub passed: Vec<String>,
    pub failed: BTreeMap<String, String>,
    /// Refused, and no preemption would help.
    pub failed_for_good: BTreeMap<String, String>,
}

/// A node and the uids of those who have to leave it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Victims {
    pub uids: Vec<String>,
    pub violations: usize,
}

impl Extender {
    /// Reads certificates; nothing is asked yet.
    pub async fn connect(settings: Settings) -> Result<Self, ExtenderError> {
        let failed = |source| ExtenderError::Connect { url: settings.url_prefix.clone(), source };
        let (file, options) = (kubeconfig(&settings.url_prefix, &settings.tls), KubeConfigOptions::default());
        let config = kube::Config::from_custom_kubeconfig(file, &options).await;
        let config = config.map_err(|error| failed(error.into()))?;
        let client = ferry_client::connect::connect_with(config).map_err(failed)?;
        Ok(Extender { settings, client })
    }

    pub fn is_ignorable(&self) -> bool {
        self.settings.ignorable
    }

    pub fn filters(&self) -> bool {
        !self.settings.filter_verb.is_empty()
    }

    pub fn prioritizes(&self) -> bool {
        !self.settings.prioritize_verb.is_empty()
    }

    pub fn binds(&self) -> bool {
        !self.settings.bind_verb.is_empty()
    }

    pub fn preempts(&self) -> bool {
        !self.settings.preempt_verb.is_empty()
    }

    /// Whether the pod asks for something this extender manages.
    pub fn is_interested(&self, pod: &PodInfo) -> bool {
        let managed = &self.settings.managed_resources;
        let asks = |container: &Container| {
            let resources = container.resources.iter();
            let mut lists = resources.flat_map(|own| [&own.requests, &own.limits]).flatten();
            lists.any(|list| managed.iter().any(|name| list.contains_key(name)))
        };
        let spec = pod.spec();
        managed.is_empty()
            || spec.containers.iter().any(asks)
            || spec.init_containers.iter().flatten().any(asks)
    }

    pub async fn filter(&self, pod: &Pod, nodes: &[&Node]) -> Result<Filtered, ExtenderError> {
        let answer: FilterResult = self.send(&self.settings.filter_verb, &self.arguments(pod, nodes)).await?;
        if let Some(message) = answer.error.filter(|message| !message.is_empty()) {
            return Err(self.said(message));
        }
        let passed = match (self.settings.node_cache_capable, answer.node_names, answer.nodes) {
            (true, Some(names), _) => names,
            (_, _, Some(nodes)) => nodes.items.into_iter().map(|node| node.metadata.name).collect(),
            _ => Vec::new(),
        };
        if let Some(stranger) = passed.iter().find(|name| !nodes.iter().any(|node| named(node) == **name)) {
            return Err(self.said(format!("passes node {stranger:?}, which it was not asked about")));
        }
        Ok(Filtered {
            passed,
            failed: answer.failed_nodes.unwrap_or_default(),
            failed_for_good: answer.failed_and_unresolvable_nodes.unwrap_or_default(),
        })
    }

    /// Scores by node, already weighed and on the plugins' scale.
    pub async fn prioritize(
        &self,
        pod: &Pod,
        nodes: &[&Node],
    ) -> Result<BTreeMap<String, i64>, ExtenderError> {
        let answer: Vec<HostPriority> =
            self.send(&self.settings.prioritize_verb, &self.arguments(pod, nodes)).await?;
        let weight = self.settings.weight * (MAX_SCORE / MAX_EXTENDER_SCORE);
        Ok(answer.into_iter().map(|entry| (entry.host, entry.score.saturating_mul(weight))).collect())
    }

    pub async fn bind(&self, pod: &PodInfo, node: &str) -> Result<(), ExtenderError> {
        let arguments = BindingArguments {
            pod_name: &pod.key.name,
            pod_namespace: &pod.key.namespace,
            pod_uid: &pod.uid,
            node,
        };
        let answer: BindingResult = self.send(&self.settings.bind_verb, &arguments).await?;
        match answer.error.filter(|message| !message.is_empty()) {
            Some(message) => Err(self.said(message)),
            None => Ok(()),
        }
    }

    /// Which of the candidates remain, and with which victims.
    pub async fn preempt(
        &self,
        pod: &Pod,
        candidates: &[(&str, &[std::sync::Arc<PodInfo>], usize)],
    ) -> Result<BTreeMap<String, Victims>, ExtenderError> {
        let mut arguments = PreemptionArguments { pod, victims: None, meta_victims: None };
        for (node, victims, violations) in candidates {
            let number = *violations as i64;
            if self.settings.node_cache_capable {
                let pods = victims.iter().map(|victim| MetaPod { uid: victim.uid.clone() }).collect();
                let meta = MetaVictims { pods: Some(pods), violations: number };
                arguments.meta_victims.get_or_insert_default().insert((*node).into(), meta);
            } else {
                let pods = victims.iter().map(|victim| &victim.pod).collect();
                let full = FullVictims { pods, violations: number };
                arguments.victims.get_or_insert_default().insert(node, full);
            }
        }
        let answer: PreemptionResult = self.send(&self.settings.preempt_verb, &arguments).await?;
        let remaining = answer.meta_victims.unwrap_or_default().into_iter().map(|(node, victims)| {
            let uids = victims.pods.unwrap_or_default().into_iter().map(|pod| pod.uid).collect();
            (node, Victims { uids, violations: usize::try_from(victims.violations).unwrap_or(0) })
        });
        Ok(remaining.collect())
    }

    fn arguments<'a>(&self, pod: &'a Pod, nodes: &[&'a Node]) -> Arguments<'a> {
        let (mut list, mut names) = (None, None);
        if self.settings.node_cache_capable {
            names = Some(nodes.iter().map(|node| named(node)).collect());
        } else {
            list = Some(NodeList { api_version: "v1", kind: "NodeList", items: nodes.to_vec() });
        }
        Arguments { pod, nodes: list, node_names: names }
    }

    async fn send<A: Serialize, T: DeserializeOwned>(
        &self,
        verb: &str,
        arguments: &A,
    ) -> Result<T, ExtenderError> {
        let url = || self.settings.url_prefix.clone();
        let failed = |source: kube::Error| ExtenderError::Request {
            url: url(),
            verb: verb.into(),
            source: Box::new(source),
        };
        let mut span = ferry_trace::span("scheduler.extender");
        span.set("verb", verb.to_owned());
        let body = serde_json::to_vec(arguments).map_err(|error| failed(kube::Error::SerdeError(error)))?;
        let request = http::Request::post(format!("/{}", verb.trim_start_matches('/')))
            .header(http::header::CONTENT_TYPE, "application/json")
            .body(body)
            .map_err(|error| failed(kube::Error::HttpError(error)))?;
        let timeout = self.settings.timeout.unwrap_or(DEFAULT_TIMEOUT);
        let answered = tokio::time::timeout(timeout, span.in_scope(self.client.request::<T>(request))).await;
        let result = match answered {
            Ok(answer) => answer.map_err(failed),
            Err(_) => {
                let seconds = timeout.as_secs_f64();
                Err(ExtenderError::Late { url: url(), verb: verb.into(), seconds })
            }
        };
        if let Err(error) = &result {
            span.fail(error);
        }
        result
    }

    fn said(&self, message: String) -> ExtenderError {
        ExtenderError::Said { url: self.settings.url_prefix.clone(), message }
    }
}

fn named(node: &Node) -> &str {
    node.metadata.name.as_deref().unwrap_or("")
}

/// An extender's address and certificates are what a kubeconfig says of a cluster and a user.
fn kubeconfig(url: &str, tls: &Tls) -> Kubeconfig {
    const NAME: &str = "extender";
    let cluster = Cluster {
        server: Some(url.trim_end_matches('/').into()),
        insecure_skip_tls_verify: Some(tls.insecure),
        certificate_authority: tls.ca_file.clone(),
        certificate_authority_data: tls.ca_data.clone(),
        tls_server_name: tls.server_name.clone(),
        ..Cluster::default()
    };
    let user = AuthInfo {
        client_certificate: tls.cert_file.clone(),
        client_certificate_data: tls.cert_data.clone(),
        client_key: tls.key_file.clone(),
        client_key_data: tls.key_data.clone().map(Into::into),
        ..AuthInfo::default()
    };
    let context = Context { cluster: NAME.into(), user: Some(NAME.into()), ..Context::default() };
    Kubeconfig {
        clusters: vec![NamedCluster { name: NAME.into(), cluster: Some(cluster), other: Default::default() }],
        auth_infos: vec![NamedAuthInfo {
            name: NAME.into(),
            auth_info: Some(user),
            other: Default::default(),
        }],
        contexts: vec![NamedContext { name: NAME.into(), context: Some(context), other: Default::default() }],
        current_context: Some(NAME.into()),
        ..Kubeconfig::default()
    }
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Arguments<'a> {
    pod: &'a Pod,
    nodes: Option<NodeList<'a>>,
    node_names: Option<Vec<&'a str>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct NodeList<'a> {
    api_version: &'static str,
    kind: &'static str,
    items: Vec<&'a Node>,
}

/// A NodeList of an extender, of which only the names are read: the snapshot has the nodes.
#[derive(Deserialize)]
struct ReturnedNodes {
    items: Vec<ReturnedNode>,
}

#[derive(Deserialize)]
struct ReturnedNode {
    metadata: ReturnedMetadata,
}

#[derive(Deserialize)]
struct ReturnedMetadata {
    name: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct FilterResult {
    #[serde(alias = "nodes")]
    nodes: Option<ReturnedNodes>,
    #[serde(alias = "nodeNames", alias = "nodenames")]
    node_names: Option<Vec<String>>,
    #[serde(alias = "failedNodes")]
    failed_nodes: Option<BTreeMap<String, String>>,
    #[serde(alias = "failedAndUnresolvableNodes")]
    failed_and_unresolvable_nodes: Option<BTreeMap<String, String>>,
    #[serde(alias = "error")]
    error: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct HostPriority {
    #[serde(alias = "host")]
    host: String,
    #[serde(alias = "score")]
    score: i64,
}

#[derive(Serialize)]
struct BindingArguments<'a> {
    #[serde(rename = "PodName")]
    pod_name: &'a str,
    #[serde(rename = "PodNamespace")]
    pod_namespace: &'a str,
    #[serde(rename = "PodUID")]
    pod_uid: &'a str,
    #[serde(rename = "Node")]
    node: &'a str,
}

#[derive(Deserialize)]
struct BindingResult {
    #[serde(rename = "Error", alias = "error")]
    error: Option<String>,
}

#[derive(Serialize)]
struct PreemptionArguments<'a> {
    #[serde(rename = "Pod")]
    pod: &'a Pod,
    #[serde(rename = "NodeNameToVictims")]
    victims: Option<BTreeMap<&'a str, FullVictims<'a>>>,
    #[serde(rename = "NodeNameToMetaVictims")]
    meta_victims: Option<BTreeMap<String, MetaVictims>>,
}

#[derive(Serialize)]
struct FullVictims<'a> {
    #[serde(rename = "Pods")]
    pods: Vec<&'a Pod>,
    #[serde(rename = "NumPDBViolations")]
    violations: i64,
}

#[derive(Serialize, Deserialize)]
struct MetaVictims {
    #[serde(rename = "Pods", alias = "pods")]
    pods: Option<Vec<MetaPod>>,
    #[serde(rename = "NumPDBViolations", alias = "numPDBViolations", default)]
    violations: i64,
}

#[derive(Serialize, Deserialize)]
struct MetaPod {
    #[serde(rename = "UID", alias = "uid")]
    uid: String,
}

#[derive(Deserialize)]
struct PreemptionResult {
    #[serde(rename = "NodeNameToMetaVictims", alias = "nodeNameToMetaVictims")]
    meta_victims: Option<BTreeMap<String, MetaVictims>>,
}
