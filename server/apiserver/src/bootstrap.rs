//! What a new cluster starts with: its namespaces, the `kubernetes` Service and the system's priority classes. Made
//! through the API like everything else, by the server's own identity; what exists is left alone.

use std::net::IpAddr;

use ferry_client::error;
use futures::future::try_join_all;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Client;
use kube::api::{Api, DynamicObject, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::{Value, json};

#[derive(Clone)]
pub struct Bootstrap {
    pub service_cidr: String,
    pub service_ip: IpAddr,
    pub port: u16,
    pub trust: Trust,
}

/// Whom other servers of the cluster believe, as they read it from a ConfigMap; it can change while this one runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trust {
    pub ca_pem: String,
    pub front_proxy_ca_pem: String,
}

/// How often something is written again when another server was quicker.
const TRIES: usize = 8;

const NAMESPACES: [&str; 4] = ["kube-system", "kube-public", "kube-node-lease", "default"];

/// What the cluster's own pods may ask for; higher than anything a user may define.
const PRIORITY_CLASSES: [(&str, i32, &str); 2] = [
    (
        "system-node-critical",
        2_000_001_000,
        "Used for system critical pods that must not be moved from their current node.",
    ),
    (
        "system-cluster-critical",
        2_000_000_000,
        "Used for system critical pods that must run in the cluster, but can be moved to another node if necessary.",
    ),
];

const TOKEN_TRACKING: &str = "kube-apiserver-legacy-service-account-token-tracking";

impl Bootstrap {
    /// All of it, for a cluster that has nothing yet.
    pub fn objects(&self) -> Vec<Value> {
        let mut objects = self.objects_without_namespace();
        objects.extend([self.service(), self.trust(), token_tracking()]);
        objects
    }

    fn objects_without_namespace(&self) -> Vec<Value> {
        let range = json!({"spec": {"cidrs": [self.service_cidr]}});
        let range = object("networking.k8s.io/v1", "ServiceCIDR", "", "kubernetes", range);
        let namespaces = NAMESPACES.map(|name| object("v1", "Namespace", "", name, json!({})));
        let classes = PRIORITY_CLASSES.map(|(name, value, description)| {
            let class = json!({"value": value, "description": description});
            object("scheduling.k8s.io/v1", "PriorityClass", "", name, class)
        });
        namespaces.into_iter().chain([range]).chain(classes).collect()
    }

    /// The namespaces themselves, and what is in none.
    pub async fn without_namespace(&self, client: &Client) -> Result<(), kube::Error> {
        let mut span = ferry_trace::span("apiserver.bootstrap");
        span.set("namespaces", NAMESPACES.len() as i64);
        let objects = self.objects_without_namespace().into_iter();
        try_join_all(objects.map(|object| ensure(client, object))).await?;
        Ok(())
    }

    /// What is in namespaces, which are there.
    pub async fn in_namespaces(&self, client: &Client) -> Result<(), kube::Error> {
        let service = ensure(client, self.service());
        let tracking = again_after_others(|| track_tokens(client));
        tokio::try_join!(service, self.announce(client), tracking)?;
        Ok(())
    }

    /// Tells whom to believe; again whenever that changed.
    pub async fn announce(&self, client: &Client) -> Result<(), kube::Error> {
        let _span = ferry_trace::span("apiserver.announce");
        again_after_others(|| ensure(client, self.trust())).await
    }

    /// What extension API servers and other components need to know to believe our callers.
    fn trust(&self) -> Value {
        let data = json!({
            "client-ca-file": self.trust.ca_pem,
            "requestheader-allowed-names": "[\"front-proxy-client\"]",
            "requestheader-client-ca-file": self.trust.front_proxy_ca_pem,
            "requestheader-extra-headers-prefix": "[\"X-Remote-Extra-\"]",
            "requestheader-group-headers": "[\"X-Remote-Group\"]",
            "requestheader-uid-headers": "[\"X-Remote-Uid\"]",
            "requestheader-username-headers": "[\"X-Remote-User\"]",
        });
        let name = "extension-apiserver-authentication";
        object("v1", "ConfigMap", "kube-system", name, json!({"data": data}))
    }

    fn labels(&self) -> Value {
        json!({"component": "apiserver", "provider": "kubernetes"})
    }

    fn service(&self) -> Value {
        let service = json!({
            "metadata": {"labels": self.labels()},
            "spec": {
                "clusterIP": self.service_ip.to_string(), "clusterIPs": [self.service_ip.to_string()],
                "ports": [{"name": "https", "port": 443, "protocol": "TCP", "targetPort": self.port}],
                "sessionAffinity": "None", "type": "ClusterIP",
            },
        });
        object("v1", "Service", "default", "kubernetes", service)
    }
}

/// An object of this place, whose `content` may have metadata already.
pub(crate) fn object(
    api_version: &str,
    kind: &str,
    namespace: &str,
    name: &str,
    mut content: Value,
) -> Value {
    content["apiVersion"] = api_version.into();
    content["kind"] = kind.into();
    content["metadata"]["name"] = name.into();
    if !namespace.is_empty() {
        content["metadata"]["namespace"] = namespace.into();
    }
    content
}

fn token_tracking() -> Value {
    let today = jiff::Timestamp::now().strftime("%Y-%m-%d").to_string();
    object("v1", "ConfigMap", "kube-system", TOKEN_TRACKING, json!({"data": {"since": today}}))
}

/// Since when the use of long-lived tokens is noted: their cleaner counts from here. A day that is written stays.
async fn track_tokens(client: &Client) -> Result<(), kube::Error> {
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), "kube-system");
    let since =
        |tracking: &ConfigMap| tracking.data.as_ref()?.get("since")?.parse::<jiff::civil::Date>().ok();
    if api.get_opt(TOKEN_TRACKING).await?.as_ref().and_then(since).is_some() {
        return Ok(());
    }
    ensure(client, token_tracking()).await
}

/// Servers that start together write the same things at the same time. Whoever was slower looks again at what there is.
pub(crate) async fn again_after_others<F>(write: impl Fn() -> F) -> Result<(), kube::Error>
where
    F: Future<Output = Result<(), kube::Error>>,
{
    let is_others = |error: &kube::Error| {
        error::is_conflict(error) || error::is_already_exists(error) || error::is_not_found(error)
    };
    for _ in 1..TRIES {
        match write().await {
            Err(error) if is_others(&error) => {}
            written => return written,
        }
    }
    write().await
}

/// Creates the object, or brings what is there to the same content.
pub(crate) async fn ensure(client: &Client, object: Value) -> Result<(), kube::Error> {
    let object: DynamicObject = serde_json::from_value(object).map_err(kube::Error::SerdeError)?;
    let types = object.types.clone().unwrap_or_default();
    let resource = ApiResource::from_gvk(&GroupVersionKind::try_from(&types).map_err(unreadable)?);
    let api: Api<DynamicObject> = match &object.metadata.namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    };
    let name = object.metadata.name.clone().unwrap_or_default();
    match api.create(&PostParams::default(), &object).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 409 => refresh(&api, &name, object).await,
        Err(error) => Err(error),
    }
}

fn unreadable(error: impl std::fmt::Display) -> kube::Error {
    kube::Error::SerdeError(serde::de::Error::custom(error))
}

/// The server's address may have changed since the last start.
async fn refresh(api: &Api<DynamicObject>, name: &str, wanted: DynamicObject) -> Result<(), kube::Error> {
    if !["EndpointSlice", "Endpoints", "ConfigMap"]
        .contains(&wanted.types.as_ref().map_or("", |types| &types.kind))
    {
        return Ok(());
    }
    let mut live = api.get(name).await?;
    if live.data == wanted.data {
        return Ok(());
    }
    live.data = wanted.data;
    api.replace(name, &PostParams::default(), &live).await.map(|_| ())
}
