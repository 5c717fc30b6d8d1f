//! `kubectl run`: an image becomes a pod, or with `--replicas` or `--generator` a deployment or a job;
//! `--expose` adds the service in front of it.
//!
//! Everything that must fail is refused before the first request.

mod attached;
mod generate;

use serde_json::Value;

use super::BEGINNER;
use super::create::report_generated;
use super::overrides::{OVERRIDE_FLAGS, apply_overrides};
use crate::cli::Cli;
use crate::command::Command;
use crate::error::{Error, Result};
use crate::flags::{Args, Flag};
use crate::image_name;
use crate::printers;
use crate::selection::FILE_FLAGS;
use crate::write::{
    DRY_RUN_FLAGS, DryRun, RECORD_FLAGS, SAVE_CONFIG_FLAGS, Writer, enforce_namespace, record_cause,
    save_generated_config,
};

pub const COMMAND: Command = Command {
    name: "run",
    group: BEGINNER,
    short: "Run an image on the cluster",
    usage: "[NAME] --image=image [--env=\"key=value\"] [--port=port] [--replicas=N] [--expose] [--dry-run=server|client] [--overrides=inline-json] [--command] -- [COMMAND] [args...]",
    flags: &[
        printers::FLAGS,
        DRY_RUN_FLAGS,
        SAVE_CONFIG_FLAGS,
        RECORD_FLAGS,
        OVERRIDE_FLAGS,
        FILE_FLAGS,
        &[
            Flag::text("image", "Image to run").required(),
            Flag::text("image-pull-policy", "Always, IfNotPresent or Never"),
            Flag::int("replicas", "Number of pods; makes a deployment").short('r').default("1"),
            Flag::text("generator", "What to make: run-pod/v1, deployment/apps.v1 or job/v1"),
            Flag::text("port", "Port the container listens on"),
            Flag::bool("expose", "Create a service too; needs --port"),
            Flag::array("env", "Environment variable, as key=value"),
            Flag::text("labels", "Labels, as key=value separated by commas").short('l'),
            Flag::array("annotations", "Annotation, as key=value"),
            Flag::text("requests", "Resource requests, as cpu=100m,memory=256Mi"),
            Flag::text("limits", "Resource limits, as cpu=200m,memory=512Mi"),
            Flag::text("serviceaccount", "Service account of the pod"),
            Flag::text("restart", "Always, OnFailure or Never").default("Always"),
            Flag::bool("command", "What follows -- replaces the image's entry point, not its arguments"),
            Flag::bool("privileged", "Run the container privileged"),
            Flag::bool("stdin", "Keep standard input open and attach to it").short('i'),
            Flag::bool("tty", "Give the container a terminal").short('t'),
            Flag::bool("attach", "Attach to the container once it runs"),
            Flag::bool("leave-stdin-open", "Keep standard input open after the first attach"),
            Flag::bool("rm", "Delete the pod after it ended; only when attached"),
            Flag::bool("quiet", "No prompts").short('q'),
            Flag::text("detach-keys", "Accepted for compatibility").default("ctrl-p,ctrl-q"),
            Flag::duration("pod-running-timeout", "How long to wait for the pod to run").default("1m0s"),
            Flag::text("field-manager", "Name of the field manager").default("kubectl-run"),
            Flag::text("cascade", "background, orphan or foreground")
                .default("background")
                .bare("background"),
            Flag::bool("force", "With --rm, delete at once"),
            Flag::int("grace-period", "With --rm, seconds the pod gets to stop").default("-1"),
            Flag::duration("timeout", "With --rm, how long to wait for the deletion"),
            Flag::bool("wait", "With --rm, wait for the deletion"),
        ],
    ],
    run: Some(|cli| Box::pin(run(cli))),
    ..Command::NONE
};

/// What the flags ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Pod,
    Deployment,
    Job,
}

async fn run(cli: &Cli) -> Result<()> {
    let plan = ferry_trace::span("kubectl.generate").enter(|| plan(&cli.args))?;
    let writer = Writer::new(cli)?;
    if plan.attach && writer.dry_run != DryRun::No {
        return Err(cli.args.usage_error("--dry-run=[server|client] can't be used with attached containers options (--attach, --stdin, or --tty)"));
    }
    let mut workload = plan.workload;
    apply_overrides(&cli.args, &mut workload)?;
    let workload = create(&writer, workload).await?;
    let service = match plan.service {
        Some(service) => {
            let service = create(&writer, service).await?;
            report(&writer, &service)?;
            if writer.format == printers::Format::Yaml {
                cli.print("---\n")?;
            }
            Some(service)
        }
        None => None,
    };
    if plan.attach {
        return attached::run(cli, &workload, service.as_ref()).await;
    }
    report(&writer, &workload)
}

fn report(writer: &Writer<'_>, object: &Value) -> Result<()> {
    if writer.dry_run == DryRun::Client {
        report_generated(writer, object)
    } else {
        writer.report(object, "created")
    }
}

async fn create(writer: &Writer<'_>, mut object: Value) -> Result<Value> {
    let cli = writer.cli;
    record_cause(&cli.args, &mut object);
    if writer.dry_run == DryRun::Client {
        enforce_namespace(cli, &mut object)?;
        return Ok(object);
    }
    if cli.args.bool("save-config") {
        save_generated_config(&mut object);
    }
    let resource = cli.resource_of(&object).await?;
    writer.create(&resource, &cli.namespace()?.name, &object).await
}

/// The objects to create, once every flag has been found sound.
#[derive(Debug)]
struct Plan {
    workload: Value,
    service: Option<Value>,
    attach: bool,
}

/// Decides everything from the flags alone.
fn plan(args: &Args) -> Result<Plan> {
    let image = args.text("image");
    if image.is_empty() {
        return Err(Error::message("--image is required"));
    }
    if !image_name::is_valid(image) {
        return Err(Error::message(format!("Invalid image name {image:?}: invalid reference format")));
    }
    let before_dash = args.dash.unwrap_or(args.positional.len());
    let (name, words) = match before_dash {
        0 => (image_name::base_name(image), &args.positional[..]),
        _ => (args.positional[0].as_str(), &args.positional[1..]),
    };
    let kind = kind(args)?;
    if args.bool("tty") && !args.bool("stdin") {
        return Err(args.usage_error("-i/--stdin is required for containers with -t/--tty=true"));
    }
    if args.bool("expose") && args.text("port").is_empty() {
        return Err(args.usage_error("--port must be set when exposing a service"));
    }
    if args.int("replicas") < 0 {
        return Err(
            args.usage_error(format!("--replicas must not be negative, got {}", args.int("replicas")))
        );
    }
    let restart = match args.text("restart") {
        "" if args.bool("stdin") => "OnFailure",
        "" => "Always",
        policy @ ("Always" | "OnFailure" | "Never") => policy,
        other => return Err(args.usage_error(format!("invalid restart policy: {other}"))),
    };
    let attach = if args.changed("attach") { args.bool("attach") } else { args.bool("stdin") };
    if args.bool("rm") && !attach {
        return Err(args.usage_error("--rm should only be used for attached containers"));
    }
    if attach && kind == Kind::Deployment && args.int("replicas") > 1 {
        return Err(args.usage_error("-i/--stdin can only be used with one replica"));
    }
    if !matches!(args.text("image-pull-policy"), "" | "Always" | "IfNotPresent" | "Never") {
        return Err(
            args.usage_error(format!("invalid image pull policy: {}", args.text("image-pull-policy")))
        );
    }
    let workload = match kind {
        Kind::Pod => generate::pod(args, name, words, restart)?,
        Kind::Deployment => generate::deployment(args, name, words)?,
        Kind::Job => generate::job(args, name, words)?,
    };
    let service = if args.bool("expose") { Some(generate::service(args, name)?) } else { None };
    Ok(Plan { workload, service, attach })
}

/// `--generator` decides, then `--replicas`.
fn kind(args: &Args) -> Result<Kind> {
    match args.text("generator") {
        "" => {}
        "run-pod/v1" => return Ok(Kind::Pod),
        "deployment/v1beta1" | "deployment/apps.v1beta1" | "deployment/apps.v1" | "deployment/v1" => {
            return Ok(Kind::Deployment);
        }
        "job/v1" => return Ok(Kind::Job),
        unknown => return Err(args.usage_error(format!("generator {unknown:?} not found"))),
    }
    if args.changed("replicas") {
        return match args.text("restart") {
            "Always" | "" => Ok(Kind::Deployment),
            other => Err(args.usage_error(format!(
                "--restart={other} requires that --replicas=1, found {}",
                args.int("replicas")
            ))),
        };
    }
    Ok(Kind::Pod)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fields::Fields;
    use crate::flags;
    use serde_json::json;

    fn planned(line: &str) -> Result<Plan> {
        let known: Vec<&Flag> = COMMAND.own_flags().collect();
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        let mut args = flags::parse(&known, &words)?;
        args.command = "kubectl run".to_owned();
        plan(&args)
    }

    #[test]
    fn the_one_liner_makes_a_deployment_and_a_service() {
        let plan = planned("--image=nginx --replicas=3 --port=80 --expose").unwrap();
        assert_eq!(plan.workload.kind(), "Deployment");
        assert_eq!(plan.workload.name(), "nginx");
        assert_eq!(plan.workload.int("spec.replicas"), Some(3));
        assert_eq!(plan.workload.at("spec.selector.matchLabels"), &json!({"run": "nginx"}));
        assert_eq!(plan.workload.at("spec.template.metadata.labels"), &json!({"run": "nginx"}));
        let service = plan.service.unwrap();
        assert_eq!(
            service.at("spec"),
            &json!({"selector": {"run": "nginx"}, "ports": [{"port": 80, "protocol": "TCP", "targetPort": 80}]})
        );
    }

    #[test]
    fn flags_decide_the_kind() {
        let check =
            |line: &str, kind: &str| assert_eq!(planned(line).unwrap().workload.kind(), kind, "{line}");
        check("web --image=nginx", "Pod");
        check("web --image=nginx --restart=Never", "Pod");
        check("web --image=nginx --restart=OnFailure", "Pod");
        check("web --image=nginx --replicas=1", "Deployment");
        check("web --image=nginx --generator=deployment/apps.v1", "Deployment");
        check("web --image=nginx --generator=job/v1", "Job");
        check("web --image=nginx --generator=run-pod/v1", "Pod");
    }

    #[test]
    fn invalid_run_commands_fail_before_any_request() {
        let refusal = |line: &str| planned(line).unwrap_err().to_string();
        let see = "\nSee 'kubectl run -h' for help and examples";
        assert_eq!(refusal("web --image=A:::b"), "Invalid image name \"A:::b\": invalid reference format");
        assert_eq!(refusal("web --image=nginx --generator=foo"), format!("generator \"foo\" not found{see}"));
        assert_eq!(
            refusal("web --image=nginx --expose"),
            format!("--port must be set when exposing a service{see}")
        );
        assert_eq!(refusal("web --image=nginx --restart=foo"), format!("invalid restart policy: foo{see}"));
        assert_eq!(
            refusal("web --image=nginx --rm"),
            format!("--rm should only be used for attached containers{see}")
        );
        assert_eq!(
            refusal("web --image=nginx -t"),
            format!("-i/--stdin is required for containers with -t/--tty=true{see}")
        );
        assert_eq!(refusal("web --image=nginx --env=foo"), "invalid env: foo");
        assert_eq!(refusal("web --image=nginx --labels=foo"), "unexpected label spec: foo");
        assert_eq!(refusal("web --image=nginx --port=foo"), "strconv.Atoi: parsing \"foo\": invalid syntax");
    }

    #[test]
    fn words_become_arguments_or_the_command() {
        let container = |line: &str| planned(line).unwrap().workload.list("spec.containers")[0].clone();
        assert_eq!(container("web --image=x -- a b").at("args"), &json!(["a", "b"]));
        assert_eq!(container("web --image=x --command -- a b").at("command"), &json!(["a", "b"]));
        assert_eq!(container("--image=x -- a").at("args"), &json!(["a"]));
        assert_eq!(
            container("web --image=x --limits=cpu=1 --requests=cpu=1").at("resources"),
            &json!({"limits": {"cpu": "1"}, "requests": {"cpu": "1"}})
        );
    }
}
