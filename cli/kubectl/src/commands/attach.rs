//! `kubectl attach`: joins the process a container already runs.

use serde_json::Value;

use super::TROUBLESHOOT;
use crate::cli::Cli;
use crate::command::Command;
use crate::error::{Error, Result};
use crate::fields::Fields;
use crate::flags::Flag;
use crate::pods;
use crate::remote::{self, Session};
use crate::selection::Selection;
use crate::transport::Query;

pub const COMMAND: Command = Command {
    name: "attach",
    group: TROUBLESHOOT,
    short: "Attach to a running container",
    usage: "(POD | TYPE/NAME) -c CONTAINER",
    flags: &[&[
        Flag::text("container", "Container to attach to").short('c'),
        Flag::bool("stdin", "Pass standard input").short('i'),
        Flag::bool("tty", "Standard input is a terminal").short('t'),
        Flag::bool("quiet", "Only what the container prints").short('q'),
        Flag::text("detach-keys", "Accepted for compatibility").default("ctrl-p,ctrl-q"),
        Flag::duration("pod-running-timeout", "How long to wait for a running pod").default("1m0s"),
    ]],
    run: Some(|cli| Box::pin(run(cli))),
    ..Command::NONE
};

async fn run(cli: &Cli) -> Result<()> {
    let args = &cli.args;
    match args.positional.len() {
        0 => return Err(Error::message("at least 1 argument is required for attach")),
        1 | 2 => {}
        count => {
            return Err(Error::message(format!(
                "expected POD, TYPE/NAME, or TYPE NAME, (at most 2 arguments) saw {count}: [{}]",
                args.positional.join(" ")
            )));
        }
    }
    let mut selection = Selection::from_args(cli, &args.positional);
    selection.default_type = Some("pods");
    let infos = selection.fetch(cli).await?.all()?;
    let info = infos.first().ok_or_else(|| Error::message("no pod to attach to"))?;
    let pod = pods::first_pod_of(cli, &info.object, args.duration("pod-running-timeout")).await?;
    let phase = pod.text("status.phase");
    if matches!(phase, "Succeeded" | "Failed") {
        return Err(Error::message(format!(
            "cannot attach a container in a completed pod; current phase is {phase}"
        )));
    }
    to_pod(cli, &pod).await
}

/// Attaches as the flags say; `run -it` comes here too.
pub async fn to_pod(cli: &Cli, pod: &Value) -> Result<()> {
    let args = &cli.args;
    let name = pods::container(pod, args.text("container"), args.bool("quiet"))?;
    let session = Session { stdin: args.bool("stdin"), tty: args.bool("tty"), quiet: args.bool("quiet") };
    to_container(cli, pod, name, session).await
}

/// Attaches to one container of a pod, whichever list holds it.
pub async fn to_container(cli: &Cli, pod: &Value, name: &str, mut session: Session) -> Result<()> {
    let find = |list: &str| pod.list(list).iter().find(|container| container.text("name") == name);
    let ephemeral = find("spec.ephemeralContainers");
    let spec = find("spec.containers").or_else(|| find("spec.initContainers")).or(ephemeral);
    if session.tty && !spec.is_some_and(|container| container.flag("tty")) {
        eprintln!("Unable to use a TTY - container {name} did not allocate one");
        session.tty = false;
    }
    let query = Query::new()
        .with("container", name)
        .with("stdin", if session.stdin { "true" } else { "" })
        .with("stdout", "true")
        .with("stderr", if session.tty { "" } else { "true" })
        .with("tty", if session.tty { "true" } else { "" });
    let path = format!("/api/v1/namespaces/{}/pods/{}/attach{query}", pod.namespace(), pod.name());
    if !session.quiet {
        eprintln!(
            "All commands and output from this session will be recorded in container logs, including credentials and sensitive information passed through the command prompt."
        );
        eprintln!("If you don't see a command prompt, try pressing enter.");
    }
    remote::run(cli, &path, session).await?;
    let at_terminal = std::io::IsTerminal::is_terminal(&std::io::stdin());
    if session.stdin && session.tty && !session.quiet && at_terminal {
        let again = format!("kubectl attach {} -c {name} -n {} -i -t", pod.name(), pod.namespace());
        cli.line(match ephemeral {
            Some(_) => format!(
                "Session ended, the ephemeral container will not be restarted but may be reattached using '{again}' if it is still running"
            ),
            None => format!("Session ended, resume using '{again}' command"),
        })?;
    }
    Ok(())
}
