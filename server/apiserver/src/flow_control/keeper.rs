//! Keeps the bootstrap objects and the `Dangling` condition of every FlowSchema, through the API, whenever a configuration
//! object changed.

use std::sync::Arc;
use std::time::Duration;

use ferry_api::time;
use ferry_client::error;
use futures::future::try_join_all;
use jiff::Timestamp;
use k8s_openapi::api::flowcontrol::v1::{FlowSchema, PriorityLevelConfiguration};
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use kube::{Client, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::bootstrap::{self, Write};
use super::levels::LevelSpec;
use super::{Fairness, Objects};
use crate::founding::FirstObject;

const PRODUCER: &str = "api-priority-and-fairness-config-producer-v1";
const CONSUMER: &str = "api-priority-and-fairness-config-consumer-v1";

/// For objects that were written to arrive by the caches.
const IN_FORCE: Duration = Duration::from_secs(2);
/// How often bootstrap objects are written in one round. A server of another version may write them back.
const TRIES: usize = 5;
/// Between two rounds: servers of different versions that disagree do not write without pause.
const PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

impl Fairness {
    /// Writes what is missing or wrong, and returns when it is in force, or when others keep changing it.
    pub async fn write_objects(&self, client: &Client) -> Result<(), kube::Error> {
        let _span = ferry_trace::span("apiserver.flowControl");
        for _ in 0..TRIES {
            let (levels, schemas) = self.planned();
            if levels.is_empty() && schemas.is_empty() {
                break;
            }
            tokio::try_join!(write_all(client, levels), write_all(client, schemas))?;
            self.objects_in_force().await;
        }
        Ok(())
    }

    /// What [`write_objects`](Fairness::write_objects) writes into a cluster that has nothing yet.
    pub fn first_objects() -> Result<Vec<FirstObject>, serde_json::Error> {
        let levels = bootstrap::LEVELS.iter().map(|boot| serde_json::to_value(&boot.object));
        let schemas = bootstrap::SCHEMAS.iter().map(|boot| serde_json::to_value(&boot.object));
        levels.chain(schemas).map(|object| Ok(FirstObject { manager: PRODUCER, object: object? })).collect()
    }

    /// Returns when the objects are in force that others or this server have written.
    pub async fn objects_in_force(&self) {
        self.until(|| self.planned() == (Vec::new(), Vec::new())).await;
    }

    async fn write_conditions(&self, client: &Client) -> Result<(), kube::Error> {
        for _ in 0..TRIES {
            let conditions = self.wrong_conditions();
            if conditions.is_empty() {
                break;
            }
            try_join_all(conditions.into_iter().map(|condition| write_condition(client, condition))).await?;
            self.until(|| self.wrong_conditions().is_empty()).await;
        }
        Ok(())
    }

    /// What was written comes back through the caches. What another server wrote counts as well.
    async fn until(&self, is_in_force: impl Fn() -> bool) {
        let wait = async {
            while !is_in_force() {
                self.changed.notified().await;
            }
        };
        let _ = tokio::time::timeout(IN_FORCE, wait).await;
    }

    /// Whether its objects and their conditions are written, and read back.
    pub fn is_settled(&self) -> bool {
        self.planned() == (Vec::new(), Vec::new()) && self.wrong_conditions().is_empty()
    }

    fn wrong_conditions(&self) -> Vec<(String, Value)> {
        dangling(&self.objects.lock(), Timestamp::now())
    }

    fn planned(&self) -> (Vec<Write<PriorityLevelConfiguration>>, Vec<Write<FlowSchema>>) {
        let objects = self.objects.lock();
        let levels: Vec<_> = objects.levels.values().cloned().collect();
        let schemas: Vec<_> = objects.schemas.values().cloned().collect();
        (bootstrap::plan(&bootstrap::LEVELS, &levels), bootstrap::plan(&bootstrap::SCHEMAS, &schemas))
    }

    async fn reconcile(&self, client: &Client) -> Result<(), kube::Error> {
        self.write_objects(client).await?;
        self.write_conditions(client).await
    }

    /// Keeps objects and conditions until the server stops.
    pub async fn keep(self: Arc<Self>, client: Client, stop: CancellationToken) {
        let mut pause = PAUSE;
        loop {
            let changed = self.changed.notified();
            let failed = match self.reconcile(&client).await {
                Ok(()) => false,
                Err(error) => {
                    tracing::warn!(%error, "flow control objects cannot be written, trying again");
                    true
                }
            };
            pause = if failed { (2 * pause).min(LONGEST_PAUSE) } else { PAUSE };
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(pause) => {}
            }
            if !failed {
                tokio::select! {
                    () = stop.cancelled() => return,
                    () = changed => {}
                }
            }
        }
    }
}

async fn write_condition(client: &Client, (name, condition): (String, Value)) -> Result<(), kube::Error> {
    let status = json!({
        "apiVersion": FlowSchema::api_version(&()), "kind": FlowSchema::kind(&()),
        "metadata": {"name": name}, "status": {"conditions": [condition]},
    });
    let (schemas, params) = (Api::<FlowSchema>::all(client.clone()), PatchParams::apply(CONSUMER).force());
    match schemas.patch_status(&name, &params, &Patch::Apply(status)).await {
        Err(error) if !error::is_not_found(&error) => Err(error),
        _ => Ok(()),
    }
}

/// The conditions that are not as they should be, by the names of their schemas.
fn dangling(objects: &Objects, now: Timestamp) -> Vec<(String, Value)> {
    let exists =
        |level: &str| objects.levels.get(level).is_some_and(|level| LevelSpec::read(level).is_some());
    let mut wrong = Vec::new();
    for (name, schema) in &objects.schemas {
        let level = schema.spec.as_ref().map_or("", |spec| spec.priority_level_configuration.name.as_str());
        let (status, reason, end) = match exists(level) {
            true => ("False", "Found", "and it exists"),
            false => ("True", "NotFound", "but there is no such object"),
        };
        let message =
            format!("This FlowSchema references the PriorityLevelConfiguration object named {level:?} {end}");
        let conditions = schema.status.as_ref().and_then(|status| status.conditions.as_ref());
        let is_right = conditions.into_iter().flatten().any(|condition| {
            condition.type_.as_deref() == Some("Dangling")
                && condition.status.as_deref() == Some(status)
                && condition.reason.as_deref() == Some(reason)
                && condition.message.as_deref() == Some(&message)
        });
        if !is_right {
            let since = time::format(now, time::Precision::Seconds);
            let condition = json!({
                "type": "Dangling", "status": status, "reason": reason, "message": message,
                "lastTransitionTime": since,
            });
            wrong.push((name.clone(), condition));
        }
    }
    wrong
}

/// Requests go out together, so that the store writes them in few batches.
async fn write_all<K>(client: &Client, writes: Vec<Write<K>>) -> Result<(), kube::Error>
where
    K: Resource<DynamicType = ()> + Clone + Serialize + DeserializeOwned + std::fmt::Debug,
{
    let objects: Api<K> = Api::all(client.clone());
    let params = PostParams { field_manager: Some(PRODUCER.into()), ..PostParams::default() };
    let write = |write: Write<K>| {
        let (objects, params) = (&objects, &params);
        async move {
            let written = match write {
                Write::Create(object) => objects.create(params, &object).await.map(drop),
                Write::Update(object) => {
                    let name = object.meta().name.clone().unwrap_or_default();
                    objects.replace(&name, params, &object).await.map(drop)
                }
                Write::Delete(name) => objects.delete(&name, &DeleteParams::default()).await.map(drop),
            };
            match written {
                // Another server was faster; the next plan looks at what it wrote.
                Err(error)
                    if error::is_conflict(&error)
                        || error::is_already_exists(&error)
                        || error::is_not_found(&error) =>
                {
                    Ok(())
                }
                written => written,
            }
        }
    };
    try_join_all(writes.into_iter().map(write)).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schema_dangles_while_its_level_does_not_exist() {
        let mut objects = Objects::default();
        for boot in bootstrap::flow_schemas() {
            objects.schemas.insert(boot.object.metadata.name.clone().expect("a name"), boot.object);
        }
        for boot in bootstrap::priority_levels() {
            objects.levels.insert(boot.object.metadata.name.clone().expect("a name"), boot.object);
        }
        objects.levels.remove("system");
        let wrong = dangling(&objects, Timestamp::UNIX_EPOCH);
        assert_eq!(wrong.len(), 11);
        let of = |name: &str| wrong.iter().find(|(schema, _)| schema == name).expect("a condition").1.clone();
        let expected = |level: &str, status: &str, reason: &str, end: &str| {
            json!({
                "type": "Dangling", "status": status, "reason": reason, "lastTransitionTime": "1970-01-01T00:00:00Z",
                "message": format!(
                    "This FlowSchema references the PriorityLevelConfiguration object named \"{level}\" {end}"
                ),
            })
        };
        assert_eq!(of("probes"), expected("exempt", "False", "Found", "and it exists"));
        assert_eq!(of("system-nodes"), expected("system", "True", "NotFound", "but there is no such object"));
        for (name, condition) in wrong {
            let schema = objects.schemas.get_mut(&name).expect("it is there");
            schema.status = serde_json::from_value(json!({"conditions": [condition]})).expect("a status");
        }
        assert_eq!(dangling(&objects, Timestamp::UNIX_EPOCH), []);
    }
}
