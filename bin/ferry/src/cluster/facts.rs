//! The facts of the cluster that joining nodes need, in an object that nodes may read.

use anyhow::Context;
use ferry_client::{Api, Client};
use ferry_cni::overlay;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Patch, PatchParams};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::ranges::Ranges;

pub const NAMESPACE: &str = "kube-system";
pub const NAME: &str = "ferry-cluster";

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Facts {
    #[serde(flatten)]
    pub ranges: Ranges,
    pub domain: String,
    pub overlay: Overlay,
}

/// How the pods of one host reach those of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "mode")]
pub enum Overlay {
    Vxlan { id: u32, port: u16 },
    HostGateway,
    None,
}

impl Overlay {
    pub fn mode(self) -> Option<overlay::Mode> {
        match self {
            Overlay::Vxlan { id, port } => Some(overlay::Mode::Vxlan { id, port }),
            Overlay::HostGateway => Some(overlay::Mode::HostGateway),
            Overlay::None => None,
        }
    }
}

pub async fn publish(client: &Client, facts: &Facts) -> anyhow::Result<()> {
    let text = serde_json::to_string_pretty(facts).context("write down the cluster's facts")?;
    let map = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": { "name": NAME, "namespace": NAMESPACE },
        "data": { "cluster.json": text },
    });
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), NAMESPACE);
    maps.patch(NAME, &PatchParams::apply("ferry").force(), &Patch::Apply(map))
        .await
        .context("write down the cluster's facts")?;
    Ok(())
}

pub async fn fetch(client: &Client) -> anyhow::Result<Facts> {
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), NAMESPACE);
    let map = maps.get(NAME).await.context("read the cluster's facts")?;
    let text = map.data.as_ref().and_then(|data| data.get("cluster.json"));
    let text = text.with_context(|| format!("the ConfigMap {NAMESPACE}/{NAME} is no Ferry cluster's"))?;
    serde_json::from_str(text).context("understand the cluster's facts")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_survive_being_written_down() {
        let ranges = Ranges {
            cluster_cidr: "10.244.0.0/16".parse().unwrap(),
            service_cidr: "10.96.0.0/16".parse().unwrap(),
        };
        for overlay in [Overlay::Vxlan { id: 7, port: 8472 }, Overlay::HostGateway, Overlay::None] {
            let facts = Facts { ranges: ranges.clone(), domain: "cluster.local".into(), overlay };
            let text = serde_json::to_string(&facts).unwrap();
            assert_eq!(serde_json::from_str::<Facts>(&text).unwrap(), facts, "{text}");
        }
    }
}
