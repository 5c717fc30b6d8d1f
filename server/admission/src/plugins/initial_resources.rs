//! InitialResources: a container that asks for nothing gets a request estimated from what containers of its
//! image used before. Off unless enabled, as it always was.
//!
//! The past is what this server has seen itself: while the plugin is enabled the server looks at every node's
//! `stats/summary` (CPU in nano-cores, working set in bytes), once a minute unless told otherwise, and keeps it in
//! memory, by image, for at most a month; a restart forgets it. An estimate needs thirty samples, so the first
//! containers of an image run without one for half an hour.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use ferry_api::quantity::Format;
use ferry_api::{Object, Quantity, Status};
use ferry_registry::verbs::Operation;
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Value, json};

use super::Context;
use crate::chain::{Phase, Plugin, Request};
use crate::configuration::{BadConfiguration, Configuration};
use crate::usage_history::{Usage, UsageHistory, UsageQuery};

pub const NAME: &str = "InitialResources";
const ANNOTATION: &str = "kubernetes.io/initial-resources";

pub fn make(context: &Context) -> Result<Arc<dyn Plugin>, BadConfiguration> {
    let settings = Settings::read(&context.configuration)?;
    Ok(Arc::new(InitialResources { history: context.usage.clone(), settings }))
}

/// The first two were flags once: `ir-percentile` and `ir-namespace-only`.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Settings {
    percentile: u8,
    /// Only containers of the pod's own namespace are its past.
    namespace_only: bool,
    /// Fewer samples say nothing.
    samples_threshold: usize,
    sample_seconds: u64,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { percentile: 90, namespace_only: false, samples_threshold: 30, sample_seconds: 60 }
    }
}

impl Settings {
    pub fn read(configuration: &Configuration) -> Result<Settings, BadConfiguration> {
        let settings: Settings = configuration.of(NAME)?;
        let must = |what: &str| Err(BadConfiguration(format!("configuration of {NAME}: {what}")));
        match settings {
            Settings { percentile: 0 | 101.., .. } => must("percentile must be from 1 to 100"),
            Settings { sample_seconds: 0, .. } => must("sampleSeconds must not be zero"),
            settings => Ok(settings),
        }
    }

    /// How often nodes are asked what their containers use.
    pub fn interval(&self) -> Duration {
        Duration::from_secs(self.sample_seconds)
    }
}

struct InitialResources {
    history: Arc<UsageHistory>,
    settings: Settings,
}

#[async_trait]
impl Plugin for InitialResources {
    fn phases(&self) -> &'static [Phase] {
        &[Phase::Mutate]
    }

    fn handles(&self, request: &Request<'_>) -> bool {
        request.operation == Operation::Create && request.is_for("", "pods")
    }

    async fn mutate(
        &self,
        request: &Request<'_>,
        pod: &mut Object,
        _old: Option<&Object>,
    ) -> Result<(), Status> {
        let namespace = self.settings.namespace_only.then_some(request.call.namespace);
        let now = Timestamp::now();
        set_requests(pod, |image| {
            let past = UsageQuery { image, namespace, enough: self.settings.samples_threshold };
            self.history.estimate(past, self.settings.percentile, now)
        });
        Ok(())
    }
}

/// Requests for containers that name neither a request nor a limit of the resource.
fn set_requests(pod: &mut Object, estimate: impl Fn(&str) -> Option<Usage>) {
    let mut said: Vec<String> = Vec::new();
    let spec = pod.section_mut("spec");
    for (list, word) in [("initContainers", "init container"), ("containers", "container")] {
        for container in spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
            let Some(container) = container.as_object_mut() else { continue };
            let text = |field: &str| container.get(field).and_then(Value::as_str).unwrap_or("").to_string();
            let (name, image) = (text("name"), text("image"));
            let names = |resource: &str| {
                ["requests", "limits"].iter().any(|side| {
                    container
                        .get("resources")
                        .and_then(|resources| resources.get(side)?.get(resource))
                        .is_some()
                })
            };
            let wanted: Vec<&str> =
                ["cpu", "memory"].into_iter().filter(|resource| !names(resource)).collect();
            let Some(usage) = (!wanted.is_empty()).then(|| estimate(&image)).flatten() else { continue };
            let resources = ferry_api::object::object_at(container, "resources");
            let requests = ferry_api::object::object_at(resources, "requests");
            for resource in &wanted {
                let amount = match *resource {
                    "cpu" => Quantity::from_milli(whole(usage.cpu_milli), Format::DecimalSi),
                    _ => Quantity::from_value(whole(usage.memory_bytes), Format::DecimalSi),
                };
                requests.insert((*resource).into(), json!(amount.to_string()));
            }
            said.push(format!("{} request for {word} {name}", wanted.join(", ")));
        }
    }
    if !said.is_empty() {
        let text = format!("Initial Resources plugin set: {}", said.join("; "));
        ferry_api::object::object_at(pod.metadata_mut(), "annotations")
            .insert(ANNOTATION.into(), text.into());
    }
}

fn whole(amount: u64) -> i64 {
    i64::try_from(amount).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_that_make_no_sense_are_refused() {
        let check = |value: Value, expected: Option<&str>| {
            let read = Settings::read(&Configuration::with(NAME, value));
            assert_eq!(read.err().map(|bad| bad.0), expected.map(String::from));
        };
        check(json!({}), None);
        check(json!({"percentile": 50, "samplesThreshold": 3, "sampleSeconds": 1}), None);
        check(
            json!({"percentile": 101}),
            Some("configuration of InitialResources: percentile must be from 1 to 100"),
        );
        check(
            json!({"percentile": 0}),
            Some("configuration of InitialResources: percentile must be from 1 to 100"),
        );
        check(
            json!({"sampleSeconds": 0}),
            Some("configuration of InitialResources: sampleSeconds must not be zero"),
        );
    }

    #[test]
    fn containers_without_requests_get_past_usage() {
        let mut pod = Object::from_value(json!({"spec": {"containers": [
            {"name": "a", "image": "known"},
            {"name": "b", "image": "known", "resources": {"limits": {"cpu": "1"}}},
            {"name": "c", "image": "unknown"},
        ]}}))
        .expect("an object");
        set_requests(&mut pod, |image| {
            (image == "known").then_some(Usage { cpu_milli: 250, memory_bytes: 64 << 20 })
        });
        let resources =
            |at: usize| pod.get(&["spec", "containers"]).expect("containers")[at]["resources"].clone();
        assert_eq!(resources(0), json!({"requests": {"cpu": "250m", "memory": "67108864"}}));
        assert_eq!(resources(1), json!({"limits": {"cpu": "1"}, "requests": {"memory": "67108864"}}));
        assert_eq!(resources(2), Value::Null);
        assert_eq!(
            pod.annotation(ANNOTATION),
            Some(
                "Initial Resources plugin set: cpu, memory request for container a; memory request for container b"
            )
        );
    }
}
