//! How devices are, as their drivers stream it, and how a pod's status tells it (ResourceHealthStatus).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ferry_plugins_api::dra_health::dra_resource_health_client::DraResourceHealthClient;
use ferry_plugins_api::dra_health::{DeviceHealth, HealthStatus, NodeWatchResourcesRequest};
use k8s_openapi::api::core::v1::{Container, Pod, ResourceHealth, ResourceStatus};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::checkpoint::Device;
use super::claims::{self, Claims};
use super::drivers::Plugin;
use crate::pod;

/// A stream that ended is opened again after this. It is also how a plugin that was restarted is found again.
const REOPEN: Duration = Duration::from_secs(5);
/// What a driver said counts this long, if it says nothing of that.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30);
/// The API's bound of a message.
const MAX_MESSAGE: usize = 1024;
/// Of one driver's devices.
const MAX_DEVICES: usize = 65_536;

#[derive(Clone, Debug, PartialEq, Eq)]
struct Health {
    health: &'static str,
    message: String,
    until: Instant,
}

/// By pool and device.
type OfDevices = BTreeMap<(String, String), Health>;

#[derive(Default)]
pub struct Healths {
    by_driver: Mutex<BTreeMap<String, OfDevices>>,
}

impl Healths {
    /// Follows what a plugin says of its devices until it is gone; `changed` is told which of them changed.
    pub async fn follow(&self, plugin: &Plugin, changed: impl Fn(&BTreeSet<(String, String)>)) {
        loop {
            let mut client = DraResourceHealthClient::new(plugin.channel.clone());
            // one that does not serve this says so at once; the connection stays, and shows whether it lives
            match client.node_watch_resources(NodeWatchResourcesRequest {}).await {
                Err(status) => tracing::debug!(driver = plugin.driver, %status, "no word of devices' health"),
                Ok(answer) => {
                    let mut stream = answer.into_inner();
                    while let Ok(Some(said)) = stream.message().await {
                        changed(&self.take_in(&plugin.driver, said.devices, Instant::now()));
                    }
                    changed(&self.take_in(&plugin.driver, vec![], Instant::now()));
                }
            }
            tokio::time::sleep(REOPEN).await;
        }
    }

    /// A driver tells of all its devices. Says which are not as they were.
    fn take_in(&self, driver: &str, devices: Vec<DeviceHealth>, now: Instant) -> BTreeSet<(String, String)> {
        let said = devices.into_iter().take(MAX_DEVICES).filter_map(|each| {
            let device = each.device?;
            let seconds =
                u64::try_from(each.health_check_timeout_seconds).ok().filter(|seconds| *seconds > 0);
            let timeout = seconds.map_or(DEFAULT_TIMEOUT, Duration::from_secs);
            let health = match HealthStatus::try_from(each.health) {
                Ok(HealthStatus::Healthy) => "Healthy",
                Ok(HealthStatus::Unhealthy) => "Unhealthy",
                Ok(HealthStatus::Unknown) | Err(_) => "Unknown",
            };
            let until = now.checked_add(timeout).unwrap_or(now + DEFAULT_TIMEOUT);
            Some((
                (device.pool_name, device.device_name),
                Health { health, message: shortened(each.message), until },
            ))
        });
        let said: BTreeMap<_, _> = said.collect();
        let mut known = self.by_driver.lock();
        let before = match said.is_empty() {
            true => known.remove(driver).unwrap_or_default(),
            false => known.insert(driver.into(), said.clone()).unwrap_or_default(),
        };
        let is_same = |a: Option<&Health>, b: Option<&Health>| match (a, b) {
            (Some(a), Some(b)) => (a.health, &a.message) == (b.health, &b.message),
            (a, b) => a.is_none() && b.is_none(),
        };
        let all = before.keys().chain(said.keys());
        all.filter(|key| !is_same(before.get(*key), said.get(*key))).cloned().collect()
    }

    fn of(&self, driver: &str, device: &Device, now: Instant) -> (&'static str, Option<String>) {
        let known = self.by_driver.lock();
        let key = (device.pool_name.clone(), device.device_name.clone());
        match known.get(driver).and_then(|devices| devices.get(&key)).filter(|health| health.until > now) {
            Some(health) => (health.health, Some(health.message.clone()).filter(|text| !text.is_empty())),
            None => ("Unknown", None),
        }
    }

    /// What a container's status says of the devices it has: `claim:NAME`, or `claim:NAME/REQUEST`.
    pub fn statuses(
        &self,
        claims: &Claims,
        pod: &Pod,
        container: &Container,
        now: Instant,
    ) -> Vec<ResourceStatus> {
        let wanted = container.resources.iter().flat_map(|resources| resources.claims.iter().flatten());
        let mut statuses: Vec<ResourceStatus> = Vec::new();
        for wanted in wanted {
            let mut all = pod::spec(pod).resource_claims.iter().flatten();
            let claim =
                all.find(|claim| claim.name == wanted.name).map(|claim| claims::reference(pod, claim));
            let Some(Ok(Some(reference))) = claim else { continue };
            let Some(devices) = claims.devices(pod, &reference.claim) else { continue };
            let request = wanted.request.as_deref().unwrap_or_default();
            let mut resources: Vec<ResourceHealth> = Vec::new();
            for (driver, device) in devices.filter(|(_, device)| device.is_for(request)) {
                let resource_id = device
                    .cdi_device_ids
                    .first()
                    .cloned()
                    .unwrap_or_else(|| format!("{driver}/{}/{}", device.pool_name, device.device_name));
                if resources.iter().all(|each| each.resource_id != resource_id) {
                    let (health, message) = self.of(driver, device, now);
                    resources.push(ResourceHealth { resource_id, health: Some(health.into()), message });
                }
            }
            let name = match request {
                "" => format!("claim:{}", wanted.name),
                request => format!("claim:{}/{request}", wanted.name),
            };
            if !resources.is_empty() && statuses.iter().all(|each| each.name != name) {
                statuses.push(ResourceStatus { name, resources: Some(resources) });
            }
        }
        statuses
    }
}

fn shortened(message: String) -> String {
    if message.len() <= MAX_MESSAGE {
        return message;
    }
    let end = (0..=MAX_MESSAGE - 3).rev().find(|end| message.is_char_boundary(*end)).unwrap_or(0);
    format!("{}...", &message[..end])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::devices::checkpoint::ClaimState;
    use ferry_plugins_api::dra_health::DeviceIdentifier;
    use serde_json::json;

    fn said(device: &str, health: HealthStatus, message: &str) -> DeviceHealth {
        DeviceHealth {
            device: Some(DeviceIdentifier { pool_name: "n".into(), device_name: device.into() }),
            health: health.into(),
            message: message.into(),
            ..DeviceHealth::default()
        }
    }

    #[test]
    fn a_status_tells_how_the_devices_are_and_nothing_that_is_too_old() {
        let state: ClaimState = serde_json::from_value(json!({
            "ClaimUID": "c", "ClaimName": "gpu", "Namespace": "default", "PodUIDs": {"p": {}},
            "DriverState": {"d": {"Devices": [
                {"PoolName": "n", "DeviceName": "a", "RequestNames": ["one"], "CDIDeviceIDs": ["v/c=a"]},
                {"PoolName": "n", "DeviceName": "b", "RequestNames": ["two"], "CDIDeviceIDs": null},
            ]}},
        }))
        .expect("a state");
        let claims = Claims::new(vec![state]);
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"namespace": "default"},
            "spec": {
                "resourceClaims": [{"name": "mine", "resourceClaimName": "gpu"}],
                "containers": [{"name": "c", "resources": {"claims": [
                    {"name": "mine"}, {"name": "mine", "request": "two"}, {"name": "none"},
                ]}}],
            },
        }))
        .expect("a pod");
        let healths = Healths::default();
        let now = Instant::now();
        let shown = |now| {
            let container = &pod.spec.as_ref().expect("a spec").containers[0];
            serde_json::to_value(healths.statuses(&claims, &pod, container, now)).expect("JSON")
        };
        let unknown = json!([
            {"name": "claim:mine", "resources": [
                {"resourceID": "v/c=a", "health": "Unknown"}, {"resourceID": "d/n/b", "health": "Unknown"},
            ]},
            {"name": "claim:mine/two", "resources": [{"resourceID": "d/n/b", "health": "Unknown"}]},
        ]);
        assert_eq!(shown(now), unknown);

        let key = |device: &str| ("n".to_owned(), device.to_owned());
        let both =
            || vec![said("a", HealthStatus::Healthy, ""), said("b", HealthStatus::Unhealthy, "too hot")];
        assert_eq!(healths.take_in("d", both(), now), BTreeSet::from([key("a"), key("b")]));
        assert_eq!(healths.take_in("d", both(), now), BTreeSet::new());
        let told = shown(now);
        assert_eq!(told[0]["resources"][0]["health"], "Healthy");
        assert_eq!(
            told[1]["resources"][0],
            json!({"resourceID": "d/n/b", "health": "Unhealthy", "message": "too hot"})
        );
        assert_eq!(shown(now + DEFAULT_TIMEOUT), unknown);
        assert_eq!(healths.take_in("d", vec![], now), BTreeSet::from([key("a"), key("b")]));
    }

    #[test]
    fn a_long_message_is_cut_between_letters() {
        assert_eq!(shortened("short".into()), "short");
        let cut = shortened("ü".repeat(MAX_MESSAGE));
        assert!(cut.len() <= MAX_MESSAGE && cut.ends_with("ü..."), "{}", cut.len());
    }
}
