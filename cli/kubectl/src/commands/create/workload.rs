//! `create deployment`, `create job`, `create cronjob`.

use serde_json::{Value, json};

use super::{command_words, create_generated, generator_flags, one_name};
use crate::cli::Cli;
use crate::command::Command;
use crate::error::{Error, Result};
use crate::fields::Fields;
use crate::flags::{Args, Flag};
use crate::selection::Selection;

pub const DEPLOYMENT: Command = Command {
    name: "deployment",
    aliases: &["deploy"],
    short: "Create a deployment",
    usage: "NAME --image=image -- [COMMAND] [args...]",
    flags: generator_flags!(&[
        Flag::list("image", "Image to run; may be repeated").required(),
        Flag::int("port", "Port the container listens on").default("-1"),
        Flag::int("replicas", "Number of pods").short('r').default("1"),
    ]),
    run: Some(|cli| {
        Box::pin(async move {
            create_generated(cli, deployment(&cli.args)?, "failed to create deployment:").await
        })
    }),
    ..Command::NONE
};

pub const JOB: Command = Command {
    name: "job",
    short: "Create a job",
    usage: "NAME --image=image [--from=cronjob/name] -- [COMMAND] [args...]",
    flags: generator_flags!(&[
        Flag::text("image", "Image to run"),
        Flag::text("from", "Cron job to create the job from"),
    ]),
    run: Some(|cli| Box::pin(job(cli))),
    ..Command::NONE
};

pub const CRON_JOB: Command = Command {
    name: "cronjob",
    aliases: &["cj"],
    short: "Create a cron job",
    usage: "NAME --image=image --schedule='0/5 * * * ?' -- [COMMAND] [args...]",
    flags: generator_flags!(&[
        Flag::text("image", "Image to run").required(),
        Flag::text("schedule", "When to run, in cron's format").required(),
        Flag::text("restart", "OnFailure or Never"),
    ]),
    run: Some(|cli| {
        Box::pin(
            async move { create_generated(cli, cron_job(&cli.args)?, "failed to create cronjob:").await },
        )
    }),
    ..Command::NONE
};

fn deployment(args: &Args) -> Result<Value> {
    let name = one_name(args)?;
    let images = args.list("image");
    let command = command_words(args);
    if images.len() > 1 && !command.is_empty() {
        return Err(Error::message("cannot specify multiple --image options and command"));
    }
    let mut containers: Vec<Value> = images
        .iter()
        .map(|image| json!({"name": container_name(image), "image": image, "resources": {}}))
        .collect();
    // two images of one name still need two container names
    for position in 1..containers.len() {
        let taken = containers[..position].iter().any(|other| other["name"] == containers[position]["name"]);
        if taken {
            let suffix = format!("{}-{}", containers[position].text("name"), random_suffix());
            containers[position]["name"] = json!(suffix);
        }
    }
    if let Some(first) = containers.first_mut() {
        if !command.is_empty() {
            first["command"] = json!(command);
        }
        if args.int("port") >= 0 {
            first["ports"] = json!([{"containerPort": args.int("port")}]);
        }
    }
    let labels = json!({"app": name});
    Ok(json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name, "labels": labels},
        "spec": {"replicas": args.int("replicas"), "selector": {"matchLabels": labels}, "strategy": {},
                 "template": {"metadata": {"labels": labels}, "spec": {"containers": containers}}}, "status": {}}))
}

/// The image's last path element without tag or digest, made fit for a container's name.
pub fn container_name(image: &str) -> String {
    let base = image.rsplit('/').next().unwrap_or(image);
    let base = base.split(['@', ':']).next().unwrap_or(base);
    base.replace(|c: char| !c.is_ascii_alphanumeric() && c != '-', "-").to_lowercase()
}

fn random_suffix() -> String {
    const LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
    let mut state = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(1, |now| now.subsec_nanos() as usize);
    (0..5)
        .map(|_| {
            let letter = char::from(LETTERS[state % LETTERS.len()]);
            state =
                state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407) >> 3;
            letter
        })
        .collect()
}

fn pod_spec(name: &str, image: &str, command: &[String], restart: &str) -> Value {
    let mut container = json!({"name": name, "image": image, "resources": {}});
    if !command.is_empty() {
        container["command"] = json!(command);
    }
    json!({"containers": [container], "restartPolicy": restart})
}

async fn job(cli: &Cli) -> Result<()> {
    let args = &cli.args;
    let name = one_name(args)?;
    let command = command_words(args);
    if args.text("image").is_empty() == args.text("from").is_empty() {
        return Err(Error::message("either --image or --from must be specified"));
    }
    if !args.text("from").is_empty() && !command.is_empty() {
        return Err(Error::message("cannot specify --from and command"));
    }
    let object = if args.text("from").is_empty() {
        json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name},
            "spec": {"template": {"metadata": {}, "spec": pod_spec(name, args.text("image"), command, "Never")}}, "status": {}})
    } else {
        let selection =
            Selection { words: vec![args.text("from").to_owned()], ..Selection::from_args(cli, &[]) };
        let infos = selection.fetch(cli).await?.all()?;
        let [info] = infos.as_slice() else { return Err(Error::message("from must be an existing cronjob")) };
        if info.resource.kind != "CronJob" {
            return Err(Error::message(format!("unknown object type *v1.{}", info.resource.kind)));
        }
        job_from(name, &info.object)
    };
    create_generated(cli, object, "failed to create job:").await
}

fn job_from(name: &str, cron_job: &Value) -> Value {
    let template = cron_job.at("spec.jobTemplate");
    let mut annotations = json!({"cronjob.kubernetes.io/instantiate": "manual"});
    for (key, value) in template.entries("metadata.annotations") {
        annotations[key] = value.clone();
    }
    let mut job = json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name, "annotations": annotations,
            "ownerReferences": [{"apiVersion": "batch/v1", "kind": "CronJob", "name": cron_job.name(),
                                 "uid": cron_job.text("metadata.uid"), "controller": true}]},
        "spec": template.at("spec"), "status": {}});
    if template.has("metadata.labels") {
        job["metadata"]["labels"] = template.at("metadata.labels").clone();
    }
    job
}

fn cron_job(args: &Args) -> Result<Value> {
    let name = one_name(args)?;
    let restart = match args.text("restart") {
        "" => "OnFailure",
        policy => policy,
    };
    Ok(json!({"apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": name},
        "spec": {"schedule": args.text("schedule"),
                 "jobTemplate": {"metadata": {"name": name},
                    "spec": {"template": {"metadata": {}, "spec": pod_spec(name, args.text("image"), command_words(args), restart)}}}},
        "status": {}}))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_container_is_named_after_its_image() {
        let check = |image: &str, expected: &str| assert_eq!(container_name(image), expected, "{image}");
        check("nginx", "nginx");
        check("nginx:1.29", "nginx");
        check("registry.example:5000/team/My_App@sha256:abc", "my-app");
    }
}
