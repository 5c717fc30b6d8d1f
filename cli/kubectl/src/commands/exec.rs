//! `kubectl exec`.

use super::TROUBLESHOOT;
use crate::cli::Cli;
use crate::command::Command;
use crate::error::{Error, Result};
use crate::fields::Fields;
use crate::flags::Flag;
use crate::pods;
use crate::remote::{self, Session};
use crate::selection::{FILE_FLAGS, Selection, Target};
use crate::transport::Query;

pub const COMMAND: Command = Command {
    name: "exec",
    group: TROUBLESHOOT,
    short: "Run a command in a container",
    usage: "(POD | TYPE/NAME) [-c CONTAINER] [flags] -- COMMAND [args...]",
    flags: &[
        FILE_FLAGS,
        &[
            Flag::text("container", "Container to run in").short('c'),
            Flag::bool("stdin", "Pass standard input").short('i'),
            Flag::bool("tty", "Standard input is a terminal").short('t'),
            Flag::bool("quiet", "Only what the command prints").short('q'),
            Flag::duration("pod-running-timeout", "How long to wait for a running pod").default("1m0s"),
        ],
    ],
    run: Some(|cli| Box::pin(run(cli))),
    ..Command::NONE
};

async fn run(cli: &Cli) -> Result<()> {
    let args = &cli.args;
    let from_file = args.has_files();
    if args.positional.is_empty() && !from_file {
        return Err(Error::message("pod, type/name or --filename must be specified"));
    }
    let Some(dash) = args.dash.filter(|dash| *dash <= 1) else {
        if args.dash.is_none() && args.positional.len() > 1 {
            return Err(Error::message(
                "exec [POD] [COMMAND] is not supported anymore. Use exec [POD] -- [COMMAND] instead\nSee 'kubectl exec -h' for help and examples",
            ));
        }
        return Err(Error::message("you must specify at least one command for the container"));
    };
    let command = &args.positional[dash..];
    if command.is_empty() {
        return Err(Error::message("you must specify at least one command for the container"));
    }
    if args.text("container").is_empty() && args.changed("container") {
        return Err(Error::message("--container must not be empty"));
    }
    let mut selection = Selection::from_args(cli, &args.positional[..dash]);
    selection.default_type = Some("pods");
    let targets = selection.targets(cli).await?;
    if let Some(Target::Broken(error)) = targets.iter().find(|target| matches!(target, Target::Broken(_))) {
        return Err(error.clone());
    }
    if targets.len() > 1 {
        return Err(Error::message("cannot exec into multiple objects at a time"));
    }
    let infos = selection.fetch(cli).await?.all()?;
    let info =
        infos.first().ok_or_else(|| Error::message("pod, type/name or --filename must be specified"))?;
    let pod = pods::first_pod_of(cli, &info.object, args.duration("pod-running-timeout")).await?;
    let phase = pod.text("status.phase");
    if matches!(phase, "Succeeded" | "Failed") {
        return Err(Error::message(format!(
            "cannot exec into a container in a completed pod; current phase is {phase}"
        )));
    }
    let container = pods::container(&pod, args.text("container"), args.bool("quiet"))?;
    let mut session = Session { stdin: args.bool("stdin"), tty: args.bool("tty"), quiet: true };
    if session.tty && session.stdin && !std::io::IsTerminal::is_terminal(&std::io::stdin()) {
        eprintln!("Unable to use a TTY - input is not a terminal or the right kind of file");
        session.tty = false;
    }
    let mut query = Query::new();
    for word in command {
        query.push("command", word);
    }
    query = query
        .with("container", container)
        .with("stdin", if session.stdin { "true" } else { "" })
        .with("stdout", "true")
        .with("stderr", if session.tty { "" } else { "true" })
        .with("tty", if session.tty { "true" } else { "" });
    let path = format!("/api/v1/namespaces/{}/pods/{}/exec{query}", pod.namespace(), pod.name());
    remote::run(cli, &path, session).await
}
