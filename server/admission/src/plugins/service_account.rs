//! ServiceAccount: sets a pod's service account, which must exist, mounts its token and adds its pull secrets.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use ferry_api::{GroupResource, Object, Status};
use ferry_registry::Registry;
use ferry_registry::cache::{self, Delta};
use ferry_registry::verbs::Operation;
use ferry_registry::verbs::list::Freshness;
use serde_json::{Value, json};

use super::Context;
use crate::chain::{Phase, Plugin, Request};

const DEFAULT: &str = "default";
const MIRROR: &str = "kubernetes.io/config.mirror";
const MOUNT_PATH: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
const VOLUME: &str = "kube-api-access-";
/// An hour and a little: kubelets renew it long before, and old clients that never read it again are noticed.
const LIFETIME: i64 = 3607;
/// A namespace and its first pod are often made together; a controller makes the account a moment later.
const PATIENCE: Duration = Duration::from_millis(1500);
const ENFORCE_MOUNTABLE: &str = "kubernetes.io/enforce-mountable-secrets";

pub fn make(context: &Context) -> Arc<dyn Plugin> {
    Arc::new(ServiceAccount { registry: context.registry.clone() })
}

struct ServiceAccount {
    registry: Arc<Registry>,
}

impl ServiceAccount {
    /// From the cache; else as the store has it now; and the account that every namespace gets by itself is
    /// waited for.
    async fn account(&self, request: &Request<'_>, name: &str) -> Result<Arc<Object>, Status> {
        let accounts = self
            .registry
            .resource(&GroupResource::new("", "serviceaccounts"))
            .ok_or_else(|| Status::internal("service accounts are not served"))?;
        let key = accounts.key(request.call.namespace, name);
        if let Some(entry) = accounts.cache.get(&key) {
            return entry.shared_object();
        }
        self.registry.wait_until_fresh(Freshness::Current).await?;
        let patience = if name == DEFAULT { PATIENCE } else { Duration::ZERO };
        let found = cache::until(&accounts.cache, request.call.namespace, name, None, |seen| match seen {
            Some(Delta::Set { entry, .. }) => Some(entry.shared_object()),
            Some(Delta::Gone(_)) | None => None,
        });
        tokio::time::timeout(patience, found).await.unwrap_or_else(|_| {
            Err(request.forbid(format!(
                "error looking up service account {}/{name}: serviceaccount {name:?} not found",
                request.call.namespace
            )))
        })
    }
}

#[async_trait]
impl Plugin for ServiceAccount {
    fn phases(&self) -> &'static [Phase] {
        &[Phase::Mutate, Phase::Validate]
    }

    fn handles(&self, request: &Request<'_>) -> bool {
        match request.operation {
            Operation::Create => request.is_for("", "pods"),
            Operation::Update => request.is_sub("", "pods", "ephemeralcontainers"),
            Operation::Delete | Operation::Connect => false,
        }
    }

    async fn mutate(
        &self,
        request: &Request<'_>,
        pod: &mut Object,
        _old: Option<&Object>,
    ) -> Result<(), Status> {
        // The kubelet takes a mirror pod that differs from its file for another pod.
        if request.operation != Operation::Create || pod.annotation(MIRROR).is_some() {
            return Ok(());
        }
        if pod.text_at(&["spec", "serviceAccountName"]).is_empty() {
            let spec = pod.section_mut("spec");
            // The field's old name follows the new one.
            for field in ["serviceAccountName", "serviceAccount"] {
                spec.insert(field.into(), DEFAULT.into());
            }
        }
        let account = self.account(request, pod.text_at(&["spec", "serviceAccountName"])).await?;
        if mounts_token(pod, &account) {
            mount_token(pod);
        }
        let secrets = account.get(&["imagePullSecrets"]).and_then(Value::as_array);
        if let Some(secrets) = secrets.filter(|secrets| !secrets.is_empty())
            && list(pod, "imagePullSecrets").next().is_none()
        {
            pod.section_mut("spec").insert("imagePullSecrets".into(), secrets.clone().into());
        }
        Ok(())
    }

    async fn validate(
        &self,
        request: &Request<'_>,
        pod: Option<&Object>,
        _old: Option<&Object>,
    ) -> Result<(), Status> {
        let Some(pod) = pod else { return Ok(()) };
        let containers: &[(&str, &str)] = match request.operation {
            Operation::Create if pod.annotation(MIRROR).is_some() => {
                return match mirror_problem(pod) {
                    Some(why) => Err(request.forbid(why)),
                    None => Ok(()),
                };
            }
            Operation::Create => &[("initContainers", "init container"), ("containers", "container")],
            _ => &[("ephemeralContainers", "ephemeral container")],
        };
        let name = pod.text_at(&["spec", "serviceAccountName"]);
        if name.is_empty() {
            let place = format!("{}/{}", request.call.namespace, pod.name());
            return Err(request.forbid(format!("no service account specified for pod {place}")));
        }
        let account = self.account(request, name).await?;
        if !is_true(account.annotation(ENFORCE_MOUNTABLE)) {
            return Ok(());
        }
        let is_new = request.operation == Operation::Create;
        let problem = is_new
            .then(|| volume_problem(pod, &account))
            .flatten()
            .or_else(|| {
                containers.iter().find_map(|(field, word)| container_problem(pod, field, word, &account))
            })
            .or_else(|| is_new.then(|| pull_problem(pod, &account)).flatten());
        problem.map_or(Ok(()), |why| Err(request.forbid(why)))
    }
}

/// What Go's `strconv.ParseBool` takes for true.
fn is_true(text: Option<&str>) -> bool {
    text.is_some_and(|text| ["1", "t", "T", "true", "TRUE", "True"].contains(&text))
}

fn list<'a>(object: &'a Object, field: &str) -> impl Iterator<Item = &'a Value> {
    object.get(&["spec", field]).and_then(Value::as_array).into_iter().flatten()
}

/// The pod's word counts before the account's.
fn mounts_token(pod: &Object, account: &Object) -> bool {
    let of_pod = pod.get(&["spec", "automountServiceAccountToken"]).and_then(Value::as_bool);
    let of_account = account.get(&["automountServiceAccountToken"]).and_then(Value::as_bool);
    of_pod.or(of_account).unwrap_or(true)
}

/// Mounts a volume with a token, the cluster's certificates and the namespace where a container has nothing
/// of its own at that place.
fn mount_token(pod: &mut Object) {
    let name_of = |volume: &Value| volume.get("name").and_then(Value::as_str).map(str::to_string);
    let existing = list(pod, "volumes").filter_map(name_of).find(|name| name.starts_with(VOLUME));
    let name = existing.clone().unwrap_or_else(|| ferry_registry::metadata::generated_name(VOLUME));
    let spec = pod.section_mut("spec");
    let mut needed = false;
    for containers in ["initContainers", "containers"] {
        for container in spec.get_mut(containers).and_then(Value::as_array_mut).into_iter().flatten() {
            let Some(container) = container.as_object_mut() else { continue };
            let mounts = container.entry("volumeMounts").or_insert_with(|| json!([]));
            if mounts.is_null() {
                *mounts = json!([]);
            }
            let Some(mounts) = mounts.as_array_mut() else { continue };
            if !mounts.iter().any(|mount| mount.get("mountPath").is_some_and(|path| path == MOUNT_PATH)) {
                mounts.push(json!({"name": name, "readOnly": true, "mountPath": MOUNT_PATH}));
                needed = true;
            }
        }
    }
    if existing.is_none() && needed {
        let volumes = spec.entry("volumes").or_insert_with(|| json!([]));
        if volumes.is_null() {
            *volumes = json!([]);
        }
        if let Some(volumes) = volumes.as_array_mut() {
            volumes.push(token_volume(&name));
        }
    }
}

fn token_volume(name: &str) -> Value {
    json!({"name": name, "projected": {"defaultMode": 0o644, "sources": [
        {"serviceAccountToken": {"path": "token", "expirationSeconds": LIFETIME}},
        {"configMap": {
            "name": "kube-root-ca.crt",
            "items": [{"key": "ca.crt", "path": "ca.crt"}],
        }},
        {"downwardAPI": {"items": [{
            "path": "namespace",
            "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"},
        }]}},
    ]}})
}

/// What a node shows of its own files must not lead to what the API keeps.
fn mirror_problem(pod: &Object) -> Option<&'static str> {
    if !pod.text_at(&["spec", "serviceAccountName"]).is_empty() {
        return Some("a mirror pod may not reference service accounts");
    }
    if names_secret(pod) {
        return Some("a mirror pod may not reference secrets");
    }
    let projects_token = |volume: &Value| {
        let sources = volume.pointer("/projected/sources").and_then(Value::as_array).into_iter().flatten();
        sources.into_iter().any(|source| source.get("serviceAccountToken").is_some())
    };
    list(pod, "volumes")
        .any(projects_token)
        .then_some("a mirror pod may not use ServiceAccountToken volume projections")
}

/// Any secret at all: pull secrets, variables, and every sort of volume that has one.
fn names_secret(pod: &Object) -> bool {
    const IN_VOLUMES: [&str; 4] = ["secret", "secretName", "secretRef", "nodePublishSecretRef"];
    fn names(value: &Value) -> bool {
        match value {
            Value::Object(map) => map
                .iter()
                .any(|(key, value)| (IN_VOLUMES.contains(&key.as_str()) && !value.is_null()) || names(value)),
            Value::Array(items) => items.iter().any(names),
            _ => false,
        }
    }
    let containers = ["initContainers", "containers", "ephemeralContainers"];
    list(pod, "imagePullSecrets").next().is_some()
        || list(pod, "volumes").any(names)
        || containers
            .into_iter()
            .flat_map(|field| list(pod, field))
            .any(|container| secrets_of(container).next().is_some())
}

/// Secrets that a container's variables come from, and the variable where it is one alone.
fn secrets_of(container: &Value) -> impl Iterator<Item = (Option<&str>, &str)> {
    fn text<'a>(value: &'a Value, path: &str) -> Option<&'a str> {
        value.pointer(path).and_then(Value::as_str)
    }
    let part = |field: &str| container.get(field).and_then(Value::as_array).into_iter().flatten();
    let variables = part("env").filter_map(|variable| {
        Some((text(variable, "/name"), text(variable, "/valueFrom/secretKeyRef/name")?))
    });
    variables.chain(part("envFrom").filter_map(|from| Some((None, text(from, "/secretRef/name")?))))
}

/// The account names this object in one of its lists.
fn lists(account: &Object, field: &str, name: &str) -> bool {
    let entries = account.get(&[field]).and_then(Value::as_array).into_iter().flatten();
    entries.into_iter().any(|entry| entry.get("name").is_some_and(|known| known == name))
}

fn volume_problem(pod: &Object, account: &Object) -> Option<String> {
    let secrets = list(pod, "volumes").filter_map(|volume| volume.pointer("/secret/secretName")?.as_str());
    let secret = secrets.into_iter().find(|name| !lists(account, "secrets", name))?;
    Some(format!(
        "volume with secret.secretName={secret:?} is not allowed because service account {} does not reference that secret",
        account.name()
    ))
}

fn container_problem(pod: &Object, field: &str, word: &str, account: &Object) -> Option<String> {
    list(pod, field).find_map(|container| {
        let name = container.get("name").and_then(Value::as_str).unwrap_or("");
        let (variable, secret) = secrets_of(container).find(|(_, name)| !lists(account, "secrets", name))?;
        let place = variable.map_or("envFrom".to_string(), |variable| format!("envVar {variable}"));
        Some(format!(
            "{word} {name} with {place} referencing secret.secretName={secret:?} is not allowed because service account {} does not reference that secret",
            account.name()
        ))
    })
}

fn pull_problem(pod: &Object, account: &Object) -> Option<String> {
    list(pod, "imagePullSecrets").enumerate().find_map(|(at, secret)| {
        let name = secret.get("name").and_then(Value::as_str).unwrap_or("");
        (!lists(account, "imagePullSecrets", name)).then(|| {
            format!(
                "imagePullSecrets[{at}].name={name:?} is not allowed because service account {} does not reference that imagePullSecret",
                account.name()
            )
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(value: Value) -> Object {
        Object::from_value(value).expect("an object")
    }

    #[test]
    fn the_pods_word_counts_before_the_accounts() {
        let check = |pod: Value, account: Value, expected: bool| {
            let pod = object(json!({"spec": {"automountServiceAccountToken": pod}}));
            let account = object(json!({"automountServiceAccountToken": account}));
            assert_eq!(mounts_token(&pod, &account), expected);
        };
        check(Value::Null, Value::Null, true);
        check(Value::Null, json!(false), false);
        check(json!(true), json!(false), true);
        check(json!(false), json!(true), false);
    }

    #[test]
    fn a_token_is_mounted_where_nothing_is() {
        let mut pod = object(json!({"spec": {"containers": [
            {"name": "a"},
            {"name": "b", "volumeMounts": [{"name": "own", "mountPath": MOUNT_PATH}]},
        ]}}));
        mount_token(&mut pod);
        let volumes: Vec<&Value> = list(&pod, "volumes").collect();
        assert_eq!(volumes.len(), 1);
        let containers: Vec<&Value> = list(&pod, "containers").collect();
        assert_eq!(containers[0]["volumeMounts"][0]["name"], volumes[0]["name"]);
        assert_eq!(containers[1]["volumeMounts"].as_array().map(Vec::len), Some(1));
        // A second time changes nothing.
        let before = pod.clone();
        mount_token(&mut pod);
        assert_eq!(pod, before);
    }

    #[test]
    fn a_mirror_pod_leads_to_nothing_of_the_api() {
        let check = |spec: Value, allowed: bool| {
            assert_eq!(mirror_problem(&object(json!({"spec": spec}))).is_none(), allowed, "{spec}");
        };
        check(json!({"containers": [{"name": "c", "env": [{"name": "a", "value": "b"}]}]}), true);
        check(json!({"volumes": [{"hostPath": {"path": "/"}}]}), true);
        check(json!({"serviceAccountName": "x"}), false);
        check(json!({"volumes": [{"secret": {"secretName": "s"}}]}), false);
        check(json!({"volumes": [{"csi": {"nodePublishSecretRef": {"name": "s"}}}]}), false);
        check(json!({"containers": [{"envFrom": [{"secretRef": {"name": "s"}}]}]}), false);
        check(json!({"volumes": [{"projected": {"sources": [{"serviceAccountToken": {}}]}}]}), false);
    }

    #[test]
    fn an_account_may_keep_its_pods_to_its_own_secrets() {
        let account = object(json!({
            "metadata": {"name": "a"}, "secrets": [{"name": "s"}], "imagePullSecrets": [{"name": "p"}],
        }));
        let check = |spec: Value, expected: Option<&str>| {
            let pod = object(json!({"spec": spec}));
            let found = container_problem(&pod, "containers", "container", &account)
                .or_else(|| volume_problem(&pod, &account))
                .or_else(|| pull_problem(&pod, &account));
            assert_eq!(found.as_deref(), expected, "{spec}");
        };
        check(
            json!({"volumes": [{"secret": {"secretName": "s"}}], "imagePullSecrets": [{"name": "p"}]}),
            None,
        );
        check(
            json!({"volumes": [{"secret": {"secretName": "x"}}]}),
            Some(
                "volume with secret.secretName=\"x\" is not allowed because service account a does not reference that secret",
            ),
        );
        check(
            json!({"containers": [{"name": "c", "env": [{"name": "E", "valueFrom": {"secretKeyRef": {"name": "x"}}}]}]}),
            Some(
                "container c with envVar E referencing secret.secretName=\"x\" is not allowed because service account a does not reference that secret",
            ),
        );
        check(
            json!({"containers": [{"name": "c", "envFrom": [{"secretRef": {"name": "x"}}]}]}),
            Some(
                "container c with envFrom referencing secret.secretName=\"x\" is not allowed because service account a does not reference that secret",
            ),
        );
        check(
            json!({"imagePullSecrets": [{"name": "s"}]}),
            Some(
                "imagePullSecrets[0].name=\"s\" is not allowed because service account a does not reference that imagePullSecret",
            ),
        );
    }
}
