//! `run -it`: waits for the pod, attaches to it, and ends with its exit code.

use std::time::Duration;

use serde_json::Value;

use crate::cli::Cli;
use crate::commands::attach;
use crate::commands::delete::{Options, delete_all};
use crate::error::{Error, Result};
use crate::fields::Fields;
use crate::pods;
use crate::selection::Info;

pub async fn run(cli: &Cli, workload: &Value, service: Option<&Value>) -> Result<()> {
    let outcome = attach_and_wait(cli, workload).await;
    if cli.args.bool("rm") {
        remove(cli, [Some(workload), service].into_iter().flatten()).await?;
    }
    outcome
}

async fn attach_and_wait(cli: &Cli, workload: &Value) -> Result<()> {
    let args = &cli.args;
    let timeout = args.duration("pod-running-timeout");
    let pod = pods::first_pod_of(cli, workload, timeout).await?;
    let (namespace, name) = (pod.namespace().to_owned(), pod.name().to_owned());
    let ready = pods::wait_for(cli, &namespace, &name, timeout, |pod| {
        matches!(pod.text("status.phase"), "Succeeded" | "Failed") || pods::is_ready(pod)
    })
    .await?;
    if matches!(ready.text("status.phase"), "Succeeded" | "Failed") {
        pods::print_logs(cli, &ready).await?;
    } else if let Err(error) = attach::to_pod(cli, &ready).await {
        eprintln!("warning: couldn't attach to pod/{name}, falling back to streaming logs: {error}");
        pods::print_logs(cli, &ready).await?;
    }
    let restart = ready.text("spec.restartPolicy");
    if args.bool("leave-stdin-open") || restart == "Always" {
        return Ok(());
    }
    let ended =
        pods::wait_for(cli, &namespace, &name, Duration::ZERO, |pod| match pod.text("status.phase") {
            "Succeeded" => true,
            "Failed" => restart == "Never",
            _ => false,
        })
        .await?;
    exit_of(&ended)
}

/// The container's exit code becomes ours.
fn exit_of(pod: &Value) -> Result<()> {
    if pod.text("status.phase") == "Succeeded" {
        return Ok(());
    }
    let name = format!("{}/{}", pod.namespace(), pod.name());
    let terminated = pod.list("status.containerStatuses").first().map(|status| status.at("state.terminated"));
    match terminated.and_then(|terminated| Some((terminated, terminated.int("exitCode")?))) {
        Some((terminated, code)) if code != 0 => Err(Error::Exit {
            code: u8::try_from(code & 0xff).unwrap_or(1),
            message: format!(
                "pod {name} terminated ({})\n{}",
                terminated.text("reason"),
                terminated.text("message")
            ),
        }),
        _ => Err(Error::message(format!("pod {name} failed with unknown exit code"))),
    }
}

async fn remove(cli: &Cli, objects: impl Iterator<Item = &Value>) -> Result<()> {
    let options = Options { quiet: cli.args.bool("quiet"), ..Options::from_args(&cli.args)? };
    let mut errors = Vec::new();
    for object in objects {
        let info = Info {
            resource: cli.resource_of(object).await?,
            namespace: object.namespace().to_owned(),
            name: object.name().to_owned(),
            object: object.clone(),
            source: String::new(),
        };
        delete_all(cli, &[info], &options, true, &mut errors).await?;
    }
    Error::collect(errors)
}
