//! `ferry bench objects`: what requests about custom objects cost an API server, beside the same requests about built-in
//! objects of the same content.

use std::collections::BTreeMap;

use anyhow::Context;
use clap::Args;
use ferry_client::Client;
use http::Method;
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::load::Load;
use super::requests::{JSON, get, post, send};
use super::{Output, report};

const GROUP: &str = "bench.example.com";
const NAMESPACE: &str = "bench";
/// Both sides take turns, so that what else the machine does falls on both.
const ROUNDS: usize = 5;

#[derive(Args)]
pub struct Flags {
    /// Number of objects of each kind that are created, read, changed and listed
    #[arg(long, default_value_t = 5_000)]
    objects: usize,
    /// Number of concurrent clients
    #[arg(long, default_value_t = 16)]
    clients: usize,
    /// Number of watches for each kind
    #[arg(long, default_value_t = 100)]
    watches: usize,
    /// Output format
    #[arg(long, short, value_enum, default_value_t = Output::Table)]
    output: Output,
}

/// A built-in kind, and a custom kind whose objects have the same fields.
struct Pair {
    builtin: Side,
    custom: Side,
    content: Value,
}

struct Side {
    api_version: String,
    kind: &'static str,
    plural: &'static str,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Compared {
    kind: &'static str,
    operation: &'static str,
    builtin_cpu_micros: f64,
    custom_cpu_micros: f64,
    ratio: f64,
}

pub fn run(flags: &Flags) -> anyhow::Result<()> {
    report(flags.output, measure(flags), |all| {
        println!(
            "{:<12} {:<18} {:>11} {:>11} {:>6}",
            "KIND", "OPERATION", "BUILT-IN US", "CUSTOM US", "RATIO"
        );
        for Compared { kind, operation, builtin_cpu_micros, custom_cpu_micros, ratio } in all {
            println!(
                "{kind:<12} {operation:<18} {builtin_cpu_micros:>11.1} {custom_cpu_micros:>11.1} {ratio:>6.2}"
            );
        }
    })
}

async fn measure(flags: &Flags) -> anyhow::Result<Vec<Compared>> {
    let directory = tempfile::tempdir().context("make a temporary directory")?;
    let load = Load::start(directory.path(), flags.clients).await?;
    post(&load.clients[0], "/api/v1/namespaces", json!({"metadata": {"name": NAMESPACE}})).await?;
    let mut all = Vec::new();
    for pair in pairs() {
        all.extend(compare(&load, &pair, flags).await?);
    }
    load.server.part.stop()?;
    Ok(all)
}

/// The flattest built-in kind, and one of the deepest. Their content has all that the server would add.
fn pairs() -> [Pair; 2] {
    let side = |api_version: &str, kind, plural| Side { api_version: api_version.into(), kind, plural };
    let custom = format!("{GROUP}/v1");
    let data: Map<String, Value> =
        (0..8).map(|number| (format!("key-{number}"), "x".repeat(100).into())).collect();
    [
        Pair {
            builtin: side("v1", "ConfigMap", "configmaps"),
            custom: side(&custom, "Settings", "settings"),
            content: json!({"data": data}),
        },
        Pair {
            builtin: side("apps/v1", "Deployment", "deployments"),
            custom: side(&custom, "Rollout", "rollouts"),
            content: json!({"spec": deployment()}),
        },
    ]
}

async fn compare(load: &Load, pair: &Pair, flags: &Flags) -> anyhow::Result<Vec<Compared>> {
    let first = &load.clients[0];
    post(first, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", pair.definition()).await?;
    while get(first, &pair.custom.path()).await.is_err() {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    let mut sums: BTreeMap<(usize, &'static str), [f64; 2]> = BTreeMap::new();
    for round in 0..ROUNDS {
        for (index, side) in [&pair.builtin, &pair.custom].into_iter().enumerate() {
            for (place, (operation, micros)) in
                side.round(load, pair, round, flags).await?.into_iter().enumerate()
            {
                sums.entry((place, operation)).or_default()[index] += micros / ROUNDS as f64;
            }
        }
    }
    let compared = sums.into_iter().map(|((_, operation), [builtin, custom])| Compared {
        kind: pair.builtin.kind,
        operation,
        builtin_cpu_micros: builtin,
        custom_cpu_micros: custom,
        ratio: custom / builtin,
    });
    Ok(compared.collect())
}

impl Side {
    fn path(&self) -> String {
        let root = if self.api_version.contains('/') { "apis" } else { "api" };
        format!("/{root}/{}/namespaces/{NAMESPACE}/{}", self.api_version, self.plural)
    }

    fn object(&self, name: &str, content: &Value) -> Value {
        let mut object = content.clone();
        object["apiVersion"] = self.api_version.as_str().into();
        object["kind"] = self.kind.into();
        object["metadata"] = json!({"name": name, "labels": {"app": NAMESPACE}});
        object
    }

    /// CPU of each operation, in microseconds.
    async fn round(
        &self,
        load: &Load,
        pair: &Pair,
        round: usize,
        flags: &Flags,
    ) -> anyhow::Result<Vec<(&'static str, f64)>> {
        let (path, count) = (self.path(), (flags.objects / ROUNDS).max(1));
        let name = |number: usize| format!("o{round}-{number}");
        let created = load.phase("create", count, async |client, number| {
            post(client, &path, self.object(&name(number), &pair.content)).await
        });
        let created = created.await?;
        let got = load.phase("get", 2 * count, async |client, number| {
            // in an order that is not the one they were written in
            get(client, &format!("{path}/{}", name(number * 7919 % count))).await.map(drop)
        });
        let got = got.await?;
        let objects = listed(&load.clients[0], &path).await?;
        let updated = load.phase("update", count, async |client, number| {
            let object = objects.get(&name(number)).context("it was created")?;
            send(client, Method::PUT, &format!("{path}/{}", name(number)), JSON, object.clone()).await
        });
        let updated = updated.await?;
        let listed = load.phase("list", 20, async |client, _| get(client, &path).await.map(drop)).await?;
        let seen = load.events(&path, flags.watches.max(1), |number| {
            self.object(&format!("e{round}-{number}"), &pair.content)
        });
        let seen = seen.await?;
        Ok([created, got, updated, listed, seen].map(|it| (it.operation, it.cpu_micros)).into())
    }
}

/// What there is, by name, with a change to be written.
async fn listed(client: &Client, path: &str) -> anyhow::Result<BTreeMap<String, Value>> {
    let list: Value = serde_json::from_slice(&get(client, path).await?)?;
    let objects = list["items"].as_array().into_iter().flatten().map(|object| {
        let mut object = object.clone();
        object["metadata"]["annotations"] = json!({"touched": "yes"});
        (object["metadata"]["name"].as_str().unwrap_or_default().to_owned(), object)
    });
    Ok(objects.collect())
}

impl Pair {
    fn definition(&self) -> Value {
        let Side { kind, plural, .. } = self.custom;
        json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": format!("{plural}.{GROUP}")},
            "spec": {
                "group": GROUP, "scope": "Namespaced",
                "names": {"plural": plural, "singular": kind.to_lowercase(), "kind": kind, "listKind": format!("{kind}List")},
                "versions": [{
                    "name": "v1", "served": true, "storage": true, "subresources": {"status": {}},
                    "schema": {"openAPIV3Schema": schema(&self.content)},
                }],
            },
        })
    }
}

/// A schema that knows every field of a value.
fn schema(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let properties: Map<String, Value> =
                fields.iter().map(|(name, field)| (name.clone(), schema(field))).collect();
            json!({"type": "object", "properties": properties})
        }
        Value::Array(items) => json!({"type": "array", "items": schema(items.first().unwrap_or(&json!("")))}),
        Value::Bool(_) => json!({"type": "boolean"}),
        Value::Number(_) => json!({"type": "integer"}),
        Value::String(_) | Value::Null => json!({"type": "string"}),
    }
}

fn deployment() -> Value {
    json!({
        "replicas": 3, "revisionHistoryLimit": 10, "progressDeadlineSeconds": 600,
        "selector": {"matchLabels": {"app": "web"}},
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": "25%"}},
        "template": {
            "metadata": {"labels": {"app": "web"}},
            "spec": {
                "schedulerName": "default-scheduler", "restartPolicy": "Always", "dnsPolicy": "ClusterFirst",
                "terminationGracePeriodSeconds": 30, "automountServiceAccountToken": false,
                "securityContext": {"runAsUser": 1000},
                "containers": [{
                    "name": "c", "image": "registry.example/app:1.2.3", "imagePullPolicy": "IfNotPresent",
                    "command": ["/app", "--serve"], "ports": [{"containerPort": 8080, "protocol": "TCP"}],
                    "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File",
                    "env": [{"name": "LEVEL", "value": "info"}, {"name": "MODE", "value": "production"}],
                    "resources": {
                        "requests": {"cpu": "100m", "memory": "64Mi"},
                        "limits": {"cpu": "1", "memory": "128Mi"},
                    },
                    "livenessProbe": {
                        "httpGet": {"path": "/healthz", "port": 8080, "scheme": "HTTP"},
                        "timeoutSeconds": 1, "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3,
                    },
                    "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
                }],
                "volumes": [{"name": "tmp", "hostPath": {"path": "/tmp", "type": ""}}],
            },
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schema_knows_every_field() {
        let value = json!({"a": [{"b": 1}], "c": true, "d": "", "e": {}});
        let expected = json!({"type": "object", "properties": {
            "a": {"type": "array", "items": {"type": "object", "properties": {"b": {"type": "integer"}}}},
            "c": {"type": "boolean"}, "d": {"type": "string"}, "e": {"type": "object", "properties": {}},
        }});
        assert_eq!(schema(&value), expected);
    }
}
