//! `ferry bench definitions`: what many CustomResourceDefinitions cost an API server, and one more beside them.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use clap::Args;
use ferry_client::Client;
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::Output;
use super::part::{Part, Server};
use super::requests::{get, post};

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
/// How long anything is waited for.
const PATIENCE: Duration = Duration::from_secs(300);
const STEP: Duration = Duration::from_millis(5);

#[derive(Args)]
pub struct Flags {
    /// Number of definitions before a further one is created
    #[arg(long, default_value_t = 1_000)]
    definitions: usize,
    /// Output format
    #[arg(long, short, value_enum, default_value_t = Output::Table)]
    output: Output,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Measured {
    definitions: usize,
    definition_bytes: usize,
    idle_memory_bytes: u64,
    memory_bytes: u64,
    cpu_millis_each: f64,
    openapi_v2_bytes: usize,
    openapi_v2_first_millis: f64,
    one_more_served_millis: f64,
    one_more_openapi_v3_millis: f64,
    one_more_cpu_millis: f64,
    openapi_v2_after_change_millis: f64,
    memory_after_openapi_v2_bytes: u64,
    start_millis: f64,
    start_memory_bytes: u64,
}

pub fn run(flags: &Flags) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Runtime::new().context("start the runtime")?;
    let measured = runtime.block_on(measure(flags.definitions.max(1)))?;
    let told = json!(measured);
    if flags.output == Output::Json {
        println!("{told}");
        return Ok(());
    }
    for (name, value) in told.as_object().into_iter().flatten() {
        match value.as_f64() {
            Some(number) if name.ends_with("Millis") || name.contains("MillisEach") => {
                println!("{name:<32} {number:>12.1}");
            }
            _ => println!("{name:<32} {value:>12}"),
        }
    }
    Ok(())
}

async fn measure(count: usize) -> anyhow::Result<Measured> {
    let directory = tempfile::tempdir().context("make a temporary directory")?;
    let server = Server::start(directory.path()).await?;
    let client = server.client().await?;
    let idle = usage_at_rest(&server.part).await?;
    for number in 0..count {
        post(&client, DEFINITIONS, definition(number)).await?;
    }
    for number in 0..count {
        until_served(&client, number).await?;
    }
    let full = usage_at_rest(&server.part).await?;

    let (bytes, first) = timed(get(&client, "/openapi/v2")).await?;
    let before = usage_at_rest(&server.part).await?;
    let begin = Instant::now();
    post(&client, DEFINITIONS, definition(count)).await?;
    until_served(&client, count).await?;
    let served = begin.elapsed();
    until_in_openapi(&client, count).await?;
    let published = begin.elapsed();
    let after = usage_at_rest(&server.part).await?;
    let (_, again) = timed(get(&client, "/openapi/v2")).await?;
    let with_openapi = usage_at_rest(&server.part).await?;
    server.part.stop()?;

    let begin = Instant::now();
    let server = Server::start(directory.path()).await?;
    let start = begin.elapsed();
    let client = server.client().await?;
    until_served(&client, count).await?;
    let started = usage_at_rest(&server.part).await?;
    server.part.stop()?;
    Ok(Measured {
        definitions: count,
        definition_bytes: definition(0).to_string().len(),
        idle_memory_bytes: idle.resident_bytes,
        memory_bytes: full.resident_bytes,
        cpu_millis_each: (full.cpu_seconds - idle.cpu_seconds) * 1e3 / count as f64,
        openapi_v2_bytes: bytes.len(),
        openapi_v2_first_millis: millis(first),
        one_more_served_millis: millis(served),
        one_more_openapi_v3_millis: millis(published),
        one_more_cpu_millis: (after.cpu_seconds - before.cpu_seconds) * 1e3,
        openapi_v2_after_change_millis: millis(again),
        memory_after_openapi_v2_bytes: with_openapi.resident_bytes,
        start_millis: millis(start),
        start_memory_bytes: started.resident_bytes,
    })
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

async fn timed<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<(T, Duration)> {
    let begin = Instant::now();
    let result = work.await?;
    Ok((result, begin.elapsed()))
}

/// What the server uses once it works no more.
async fn usage_at_rest(part: &Part) -> anyhow::Result<crate::usage::Usage> {
    const QUIET: Duration = Duration::from_secs(1);
    /// A server that nobody asks for anything.
    const IDLE: f64 = 0.03;
    let deadline = Instant::now() + PATIENCE;
    let mut before = part.usage()?;
    loop {
        tokio::time::sleep(QUIET).await;
        let now = part.usage()?;
        if now.cpu_seconds - before.cpu_seconds < IDLE * QUIET.as_secs_f64() {
            return Ok(now);
        }
        ensure!(Instant::now() < deadline, "the server does not come to rest");
        before = now;
    }
}

async fn until_served(client: &Client, number: usize) -> anyhow::Result<()> {
    let path = format!("/apis/{}/v1/widgets", group(number));
    until(async || get(client, &path).await.is_ok(), &path).await
}

async fn until_in_openapi(client: &Client, number: usize) -> anyhow::Result<()> {
    let path = format!("apis/{}/v1", group(number));
    let is_there = async || {
        let index = get(client, "/openapi/v3").await.ok();
        let index: Option<Value> = index.and_then(|bytes| serde_json::from_slice(&bytes).ok());
        index.is_some_and(|index| index["paths"].get(&path).is_some())
    };
    until(is_there, &path).await
}

async fn until(holds: impl AsyncFn() -> bool, what: &str) -> anyhow::Result<()> {
    let deadline = Instant::now() + PATIENCE;
    while !holds().await {
        ensure!(Instant::now() < deadline, "{what} is not served after {PATIENCE:?}");
        tokio::time::sleep(STEP).await;
    }
    Ok(())
}

fn group(number: usize) -> String {
    format!("g{number}.bench.example.com")
}

/// A definition of some 130 KB, as those of Gateway API, cert-manager and the Prometheus operator are on average: many
/// fields, most of it descriptions.
fn definition(number: usize) -> Value {
    let group = group(number);
    let named = |name: &str, count: usize, schema: &dyn Fn(usize) -> Value| -> Value {
        let properties: Map<String, Value> =
            (0..count).map(|index| (format!("{name}{index}"), schema(index))).collect();
        json!({
            "type": "object", "properties": properties, "required": [format!("{name}0")],
            "description": format!("All that is to be said about the {name}s of a widget, of which there are {count}."),
        })
    };
    let leaf = |index: usize| {
        let description = format!(
            "Field {index} of a part of a widget. It says one thing about that part, which a controller reads."
        );
        match index % 4 {
            0 => {
                json!({"type": "string", "maxLength": 253, "pattern": "^[a-z0-9.-]*$", "description": description})
            }
            1 => json!({"type": "integer", "format": "int32", "minimum": 0, "description": description}),
            2 => {
                json!({"type": "array", "maxItems": 16, "items": {"type": "string", "maxLength": 63}, "description": description})
            }
            _ => json!({"x-kubernetes-int-or-string": true, "description": description}),
        }
    };
    let mut spec = named("section", 8, &|_| named("part", 8, &|_| named("field", 10, &leaf)));
    spec["x-kubernetes-validations"] = json!([{"rule": "has(self.section0) || !has(self.section1)", "message": "section1 stands on section0"}]);
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("widgets.{group}")},
        "spec": {
            "group": group, "scope": "Namespaced",
            "names": {"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList"},
            "versions": [{
                "name": "v1", "served": true, "storage": true, "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {
                    "spec": spec, "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
                }}},
            }],
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn definitions_are_as_large_as_those_of_others() {
        let size = definition(7).to_string().len();
        assert!((100_000..160_000).contains(&size), "{size} bytes");
    }
}
