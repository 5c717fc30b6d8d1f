//! `kubectl logs`: of a pod, of a workload's pod, or of everything a selector finds.

use std::rc::Rc;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use serde_json::Value;

use super::TROUBLESHOOT;
use crate::cli::Cli;
use crate::command::Command;
use crate::error::{Error, Result, Status};
use crate::fields::Fields;
use crate::flags::{Args, Flag, parse_duration};
use crate::pods;
use crate::selection::{SELECTOR_FLAGS, Selection};
use crate::transport::{Query, Request};

pub const COMMAND: Command = Command {
    name: "logs",
    group: TROUBLESHOOT,
    short: "Show the logs of a container",
    usage: "[-f] [-p] (POD | TYPE/NAME) [-c CONTAINER]",
    flags: &[
        SELECTOR_FLAGS,
        &[
            Flag::bool("all-containers", "Of all containers of the pod"),
            Flag::bool("all-pods", "Of all pods of the workload"),
            Flag::text("container", "Of this container").short('c'),
            Flag::bool("follow", "Go on as more is written").short('f'),
            Flag::bool("ignore-errors", "Go on when one of several logs breaks"),
            Flag::bool("insecure-skip-tls-verify-backend", "Do not check the certificate of the node"),
            Flag::int("limit-bytes", "At most this many bytes"),
            Flag::int("max-log-requests", "At most this many logs at once").default("5"),
            Flag::duration("pod-running-timeout", "How long to wait for a running pod").default("20s"),
            Flag::bool("prefix", "Name the source of each line"),
            Flag::bool("previous", "Of the container's previous run").short('p'),
            Flag::text("since", "Only what is newer than this, as 5s or 2m"),
            Flag::text("since-time", "Only what is newer than this time"),
            Flag::text("stream", "All, Stdout or Stderr"),
            Flag::int("tail", "Only the last lines; -1 shows all").default("-1"),
            Flag::bool("timestamps", "Show when each line was written"),
        ],
    ],
    run: Some(|cli| Box::pin(run(cli))),
    ..Command::NONE
};

/// One container whose log is wanted.
struct Source {
    namespace: String,
    pod: String,
    container: String,
}

async fn run(cli: &Cli) -> Result<()> {
    let args = &cli.args;
    let selector = args.text("selector");
    if args.positional.is_empty() && selector.is_empty() {
        return Err(args.usage_error("expected 'logs [-f] [-p] (POD | TYPE/NAME) [-c CONTAINER]'.\nPOD or TYPE/NAME is a required argument for the logs command"));
    }
    if args.positional.len() > 2 {
        return Err(args.usage_error("expected 'logs [-f] [-p] (POD | TYPE/NAME) [-c CONTAINER]'.\nPOD or TYPE/NAME is a required argument for the logs command"));
    }
    if !selector.is_empty() && !args.positional.is_empty() {
        return Err(args.usage_error("only a selector (-l) or a POD name is allowed"));
    }
    let options = options(args)?;
    let named = args.positional.get(1).map_or(args.text("container"), String::as_str);
    if args.bool("all-containers") && !named.is_empty() {
        return Err(Error::message(format!(
            "--all-containers=true should not be specified with container name {named}"
        )));
    }
    if args.changed("container") && args.positional.len() == 2 {
        return Err(Error::message("only one of -c or an inline [CONTAINER] arg is allowed"));
    }
    let pods = wanted_pods(cli).await?;
    let mut sources = Vec::new();
    for pod in &pods {
        sources.extend(sources_of(args, pod)?);
    }
    let limit = usize::try_from(args.int("max-log-requests")).unwrap_or(5);
    if args.bool("follow") && sources.len() > 1 {
        if sources.len() > limit {
            return Err(Error::message(format!(
                "you are attempting to follow {} log streams, but maximum allowed concurrency is {limit}, use --max-log-requests to increase the limit",
                sources.len()
            )));
        }
        return follow_all(cli, sources, &options).await;
    }
    for source in &sources {
        let outcome = show(cli, source, &options).await;
        cli.flush()?;
        match outcome {
            Err(error @ Error::Exit { .. }) => return Err(error),
            Err(error) if args.bool("ignore-errors") => eprintln!("error: {error}"),
            outcome => outcome?,
        }
    }
    Ok(())
}

async fn wanted_pods(cli: &Cli) -> Result<Vec<Value>> {
    let args = &cli.args;
    if !args.text("selector").is_empty() {
        let namespace = cli.namespace()?.name;
        let pods = pods::list(cli, &namespace, args.text("selector")).await?;
        if pods.is_empty() {
            eprintln!("No resources found in {namespace} namespace.");
        }
        return Ok(pods);
    }
    let mut selection = Selection::from_args(cli, &args.positional[..1]);
    selection.default_type = Some("pods");
    let infos = selection.fetch(cli).await?.all().map_err(|error| match error {
        Error::Status(status) if status.reason == "NotFound" => {
            let namespace = cli.namespace().map(|namespace| namespace.name).unwrap_or_default();
            Error::message(format!(
                "error from server (NotFound): {} in namespace {namespace:?}",
                status.message
            ))
        }
        other => other,
    })?;
    let info = infos.first().ok_or_else(|| Error::message("no pod of that name"))?;
    if info.resource.kind == "Pod" {
        return Ok(vec![info.object.clone()]);
    }
    let selector = pods::selector_of(&info.object).map_err(|error| {
        error.context(format_args!("cannot get the logs from {}", pods::go_type(&info.object)))
    })?;
    let mut found = pods::list(cli, &info.namespace, &selector).await?;
    pods::sort_by_activity(&mut found);
    if args.bool("all-pods") {
        return Ok(found);
    }
    let pod = match found.len() {
        0 => pods::first_pod_of(cli, &info.object, args.duration("pod-running-timeout")).await?,
        count => {
            let pod = found.swap_remove(0);
            if count > 1 {
                eprintln!("Found {count} pods, using pod/{}", pod.name());
            }
            pod
        }
    };
    Ok(vec![pod])
}

fn sources_of(args: &Args, pod: &Value) -> Result<Vec<Source>> {
    let source = |container: &str| Source {
        namespace: pod.namespace().to_owned(),
        pod: pod.name().to_owned(),
        container: container.to_owned(),
    };
    if args.bool("all-containers") {
        let lists = ["spec.initContainers", "spec.containers", "spec.ephemeralContainers"];
        return Ok(lists
            .into_iter()
            .flat_map(|list| pod.list(list))
            .map(|container| source(container.text("name")))
            .collect());
    }
    let asked = match (args.text("container"), args.positional.get(1)) {
        ("", Some(second)) => second.as_str(),
        (flag, _) => flag,
    };
    Ok(vec![source(pods::container(pod, asked, false)?)])
}

fn options(args: &Args) -> Result<Query> {
    if !args.text("since").is_empty() && !args.text("since-time").is_empty() {
        return Err(Error::message("at most one of `sinceTime` or `sinceSeconds` may be specified"));
    }
    let since = match args.text("since") {
        "" => String::new(),
        text => {
            parse_duration(text).map(|duration| duration.as_secs().max(1).to_string()).ok_or_else(|| {
                Error::message(format!(
                    "invalid argument {text:?} for \"--since\" flag: time: invalid duration {text:?}"
                ))
            })?
        }
    };
    let tail = match (args.int("tail"), args.changed("tail")) {
        // many pods at once would drown each other
        (-1, false) if !args.text("selector").is_empty() => "10".to_owned(),
        (-1, _) => String::new(),
        (lines, _) if lines < -1 => return Err(Error::message("--tail must be greater than or equal to -1")),
        (lines, _) => lines.to_string(),
    };
    let yes = |name: &str| if args.bool(name) { "true" } else { "" };
    let limit = match args.int("limit-bytes") {
        0 if !args.changed("limit-bytes") => String::new(),
        limit if limit <= 0 => return Err(Error::message("--limit-bytes must be greater than 0")),
        limit => limit.to_string(),
    };
    Ok(Query::new()
        .with("follow", yes("follow"))
        .with("insecureSkipTLSVerifyBackend", yes("insecure-skip-tls-verify-backend"))
        .with("limitBytes", &limit)
        .with("previous", yes("previous"))
        .with("sinceSeconds", &since)
        .with("sinceTime", args.text("since-time"))
        .with("stream", args.text("stream"))
        .with("tailLines", &tail)
        .with("timestamps", yes("timestamps")))
}

async fn show(cli: &Cli, source: &Source, options: &Query) -> Result<()> {
    let query = options.clone().with("container", &source.container);
    let path = format!("/api/v1/namespaces/{}/pods/{}/log{query}", source.namespace, source.pod);
    let client = cli.client()?;
    let mut response = client.send(Request::get(&path).accept("application/json, */*")).await?;
    if !response.status.is_success() {
        let code = response.status.as_u16();
        let body = client.read(response).await?;
        return Err(Error::Status(Box::new(Status::from_response(code, &body, "GET", ""))));
    }
    let prefix = cli.args.bool("prefix").then(|| format!("[pod/{}/{}] ", source.pod, source.container));
    let mut partial: Vec<u8> = Vec::new();
    while let Some(piece) = response.chunk().await? {
        match &prefix {
            None => cli.print_bytes(&piece)?,
            Some(prefix) => {
                partial.extend_from_slice(&piece);
                while let Some(end) = partial.iter().position(|byte| *byte == b'\n') {
                    cli.print(prefix)?;
                    cli.print_bytes(&partial.drain(..=end).collect::<Vec<u8>>())?;
                }
            }
        }
        cli.flush()?;
    }
    if let (Some(prefix), false) = (&prefix, partial.is_empty()) {
        cli.print(prefix)?;
        cli.print_bytes(&partial)?;
    }
    Ok(())
}

/// Several logs at once, line by line as they come.
async fn follow_all(cli: &Cli, sources: Vec<Source>, options: &Query) -> Result<()> {
    let options = Rc::new(options.clone());
    let mut streams: FuturesUnordered<_> = sources
        .iter()
        .map(|source| {
            let options = options.clone();
            async move { show(cli, source, &options).await }
        })
        .collect();
    while let Some(outcome) = streams.next().await {
        match outcome {
            Err(error) if cli.args.bool("ignore-errors") => eprintln!("error: {error}"),
            outcome => outcome?,
        }
    }
    Ok(())
}
