//! `debug`: a container with tools beside one that has none. In a running pod it is an ephemeral
//! container; it can also be put into a copy of the pod, or into a pod of its own on a node.

mod profile;

use std::hash::{BuildHasher, Hasher};

use ferry_api::{Schema, Types};
use http::Method;
use serde_json::{Value, json};

use super::{TROUBLESHOOT, attach};
use crate::cli::Cli;
use crate::command::Command;
use crate::error::{Error, Result};
use crate::fields::{self, Fields};
use crate::flags::{Args, Flag};
use crate::remote::Session;
use crate::selection::Selection;
use crate::transport::{JSON, Query, Request};
use crate::watch::Events;
use crate::write::difference;
use crate::{image_name, pods};
use profile::{KeepOptions, Profile, Style, container_mut};

pub const COMMAND: Command = Command {
    name: "debug",
    group: TROUBLESHOOT,
    short: "Create debugging sessions for troubleshooting workloads and nodes",
    usage: "(POD | TYPE[[.VERSION].GROUP]/NAME) [ -- COMMAND [args...] ]",
    flags: &[&[
        Flag::bool("arguments-only", "What follows -- is passed as arguments, not as the command"),
        Flag::bool("attach", "Wait for the container and attach to it; true with -i"),
        Flag::text("container", "Name of the debugging container").short('c'),
        Flag::text("copy-to", "Make a copy of the pod with this name"),
        Flag::text("custom", "File with a partial container spec that changes the profile"),
        Flag::list("env", "Environment variables (name=value) of the container"),
        Flag::list("filename", "File that holds the object to debug").short('f'),
        Flag::text("image", "Image of the debugging container"),
        Flag::text("image-pull-policy", "When to pull the image; empty leaves it to the server"),
        Flag::bool("keep-annotations", "With --copy-to, keep the pod's annotations"),
        Flag::bool("keep-init-containers", "With --copy-to, keep the init containers").default("true"),
        Flag::bool("keep-labels", "With --copy-to, keep the pod's labels"),
        Flag::bool("keep-liveness", "With --copy-to, keep liveness probes"),
        Flag::bool("keep-readiness", "With --copy-to, keep readiness probes"),
        Flag::bool("keep-startup", "With --copy-to, keep startup probes"),
        Flag::text("profile", "general, baseline, restricted, netadmin or sysadmin").default("general"),
        Flag::bool("quiet", "Only what the container prints").short('q'),
        Flag::bool("replace", "With --copy-to, delete the original pod"),
        Flag::bool("same-node", "With --copy-to, run the copy on the same node"),
        Flag::list("set-image", "With --copy-to, name=image pairs; * is every container"),
        Flag::bool("share-processes", "With --copy-to, share the process namespace").default("true"),
        Flag::bool("stdin", "Keep standard input open").short('i'),
        Flag::text("target", "Container whose processes an ephemeral container sees"),
        Flag::bool("tty", "Allocate a terminal").short('t'),
    ]],
    run: Some(|cli| Box::pin(run(cli))),
    ..Command::NONE
};

/// The command line, read and checked.
struct Plan<'a> {
    args: &'a Args,
    targets: Vec<String>,
    /// What follows `--`.
    command: Vec<String>,
    environment: Vec<(String, String)>,
    images: Vec<(String, String)>,
    attaches: bool,
    profile: Profile,
    keep: KeepOptions,
    custom: Option<Value>,
}

async fn run(cli: &Cli) -> Result<()> {
    let plan = Plan::read(&cli.args)?;
    plan.check(cli)?;
    let mut selection = Selection::from_args(cli, &plan.targets);
    selection.default_type = Some("pods");
    selection.live = !cli.args.has_files();
    for info in selection.fetch(cli).await?.all()? {
        let target = &info.object;
        let (pod, container) = match target.kind() {
            "Pod" if !plan.args.text("copy-to").is_empty() => plan.copy(cli, target).await?,
            "Pod" => plan.add_container(cli, target).await?,
            "Node" => plan.on_node(cli, target).await?,
            kind => {
                let version = target.text("apiVersion");
                return Err(Error::message(format!("\"{version}, Kind={kind}\" not supported by debug")));
            }
        };
        if plan.attaches && !container.is_empty() {
            cli.flush()?;
            plan.attach(cli, &pod, &container).await?;
        }
    }
    Ok(())
}

impl<'a> Plan<'a> {
    fn read(args: &'a Args) -> Result<Plan<'a>> {
        let (targets, command) = match args.dash {
            Some(dash) if args.positional.len() > dash => args.positional.split_at(dash),
            _ => (args.positional.as_slice(), &[][..]),
        };
        let custom = match args.text("custom") {
            "" => None,
            path => {
                let text = std::fs::read_to_string(path).map_err(|error| {
                    Error::message(format!(
                        "must pass a container spec json file for custom profile: {error}"
                    ))
                })?;
                let container =
                    crate::yaml::document(&text).ok().filter(Value::is_object).ok_or_else(|| {
                        Error::message(format!("{path} does not contain a valid container spec"))
                    })?;
                Some(container)
            }
        };
        Ok(Plan {
            args,
            targets: targets.to_vec(),
            command: command.to_vec(),
            environment: pairs(args, "env")?,
            images: pairs(args, "set-image")?,
            attaches: if args.changed("attach") { args.bool("attach") } else { args.bool("stdin") },
            profile: Profile::named(args.text("profile"))?,
            keep: KeepOptions {
                labels: args.bool("keep-labels"),
                annotations: args.bool("keep-annotations"),
                liveness: args.bool("keep-liveness"),
                readiness: args.bool("keep-readiness"),
                startup: args.bool("keep-startup"),
                init_containers: args.bool("keep-init-containers"),
            },
            custom,
        })
    }

    /// The flags that require `--copy-to`, and those that a copy requires.
    fn check_copy(&self) -> Result<()> {
        let args = self.args;
        let refuse = |words: &str| Err(Error::message(words));
        let (image, container) = (args.text("image"), args.text("container"));
        if !args.text("copy-to").is_empty() {
            if image.is_empty() && self.images.is_empty() && self.command.is_empty() {
                return refuse("you must specify --image, --set-image or command arguments.");
            }
            if !self.command.is_empty() && container.is_empty() && image.is_empty() {
                return refuse("you must specify an existing container or a new image when specifying args.");
            }
        } else if args.bool("replace") {
            return refuse("--replace may only be used with --copy-to.");
        } else if args.bool("same-node") {
            return refuse("--same-node may only be used with --copy-to.");
        } else if !self.images.is_empty() {
            return refuse("--set-image may only be used with --copy-to.");
        } else if image.is_empty() {
            return refuse("you must specify --image when not using --copy-to.");
        }
        Ok(())
    }

    fn check(&self, cli: &Cli) -> Result<()> {
        let args = self.args;
        let refuse = |words: &str| Err(Error::message(words));
        let (image, container) = (args.text("image"), args.text("container"));
        if args.bool("attach") && image.is_empty() && container.is_empty() {
            return refuse(
                "you must specify --container or create a new container using --image in order to attach.",
            );
        }
        self.check_copy()?;
        if !image.is_empty() && !image_name::is_valid(image) {
            return Err(Error::message(format!("invalid image name {image:?}: invalid reference format")));
        }
        if self.targets.is_empty() && !args.has_files() {
            return refuse("NAME or filename is required for debug");
        }
        let policy = args.text("image-pull-policy");
        if !["", "Always", "IfNotPresent", "Never"].contains(&policy) {
            return Err(Error::message(format!("invalid image pull policy: {policy}")));
        }
        if let Some((name, image)) = self.images.iter().find(|(_, image)| !image_name::is_valid(image)) {
            return Err(Error::message(format!(
                "invalid image name {image:?} for container {name:?}: invalid reference format"
            )));
        }
        let target = args.text("target");
        if !target.is_empty() {
            if !args.text("copy-to").is_empty() {
                return refuse("--target is incompatible with --copy-to. Use --share-processes instead.");
            }
            if !args.bool("quiet") {
                cli.line(format!("Targeting container {target:?}. If you don't see processes from this container it may be because the container runtime doesn't support this feature."))?;
            }
        }
        if args.bool("tty") && !args.bool("stdin") {
            return refuse("-i/--stdin is required for containers with -t/--tty=true");
        }
        let fixed = ["name", "command", "image", "lifecycle", "volumeDevices"];
        if self.custom.as_ref().is_some_and(|custom| fixed.iter().any(|field| custom.has(field))) {
            return refuse(
                "name, command, image, lifecycle and volume devices are not modifiable via custom profile",
            );
        }
        if self.profile == Profile::Legacy {
            eprintln!(
                "--profile=legacy is deprecated and planned to be removed in v1.39. It is recommended to specify other profile, for example \"--profile=general\"."
            );
        }
        Ok(())
    }

    /// A new container as the flags say.
    fn container(&self, name: &str) -> Value {
        let args = self.args;
        let mut container = json!({
            "name": name,
            "image": args.text("image"),
            "terminationMessagePolicy": "File",
            "resources": {},
        });
        self.set_environment(&mut container);
        for (field, given) in [("stdin", args.bool("stdin")), ("tty", args.bool("tty"))] {
            if given {
                fields::set(&mut container, field, true.into());
            }
        }
        if !args.text("image-pull-policy").is_empty() {
            fields::set(&mut container, "imagePullPolicy", args.text("image-pull-policy").into());
        }
        if !self.command.is_empty() {
            let field = if args.bool("arguments-only") { "args" } else { "command" };
            fields::set(&mut container, field, self.command.clone().into());
        }
        container
    }

    fn set_environment(&self, container: &mut Value) {
        if !self.environment.is_empty() {
            let entries = self.environment.iter().map(|(name, value)| json!({"name": name, "value": value}));
            fields::set(container, "env", entries.collect::<Vec<_>>().into());
        }
    }

    /// Applies the profile and then what the user's own says.
    fn finish(&self, pod: &mut Value, name: &str, style: Style) -> Result<()> {
        self.profile.apply(pod, name, style, self.keep);
        let Some(custom) = &self.custom else { return Ok(()) };
        let pod_name = pod.name().to_owned();
        let container = container_mut(pod, name).ok_or_else(|| {
            Error::message(format!("unable to find the {name} container in the pod {pod_name}"))
        })?;
        let mut patch = custom.clone();
        fields::set(&mut patch, "name", name.into());
        let types = Types::builtin();
        let root = types.by_name("io.k8s.api.core.v1.Container").expect("a type of the table");
        let schema = Schema { types: types.clone(), root };
        ferry_patch::strategic::apply(container, patch, &schema).map_err(|error| {
            Error::message(format!("error creating three way patch to add debug container: {error}"))
        })
    }

    async fn add_container(&self, cli: &Cli, pod: &Value) -> Result<(Value, String)> {
        let name = self.container_name(cli, pod)?;
        let mut changed = pod.clone();
        let mut containers = pod.list("spec.ephemeralContainers").to_vec();
        let mut container = self.container(&name);
        if !self.args.text("target").is_empty() {
            fields::set(&mut container, "targetContainerName", self.args.text("target").into());
        }
        containers.push(container);
        fields::set(&mut changed, "spec.ephemeralContainers", containers.into());
        self.finish(&mut changed, &name, Style::Ephemeral)?;
        if let Some(added) = changed.list("spec.ephemeralContainers").last() {
            warn_of_user(added, pod);
        }
        let (patch, content_type) = difference(pod, &changed)?;
        let path = format!("{}/ephemeralcontainers", pod_path(pod));
        let request = Request::with_body(Method::PATCH, &path, content_type, patch.to_string());
        let patched = cli.client()?.json(request).await.map_err(|error| match &error {
            Error::Status(status)
                if status.reason == "NotFound" && status.details.text("name").is_empty() =>
            {
                Error::message(format!(
                    "ephemeral containers are disabled for this cluster (error from server: {:?})",
                    status.message
                ))
            }
            _ => error,
        })?;
        Ok((patched, name))
    }

    async fn copy(&self, cli: &Cli, pod: &Value) -> Result<(Value, String)> {
        let args = self.args;
        let mut copy = json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": args.text("copy-to"), "namespace": pod.namespace()},
            "spec": pod.at("spec"),
        });
        for field in ["metadata.labels", "metadata.annotations"] {
            if pod.has(field) {
                fields::set(&mut copy, field, pod.at(field).clone());
            }
        }
        fields::remove(&mut copy, "spec.ephemeralContainers");
        if args.changed("share-processes") {
            fields::set(&mut copy, "spec.shareProcessNamespace", args.bool("share-processes").into());
        }
        if !args.bool("same-node") {
            fields::remove(&mut copy, "spec.nodeName");
        }
        let image_of = |wanted: &str| {
            self.images.iter().rev().find(|(name, _)| name == wanted).map(|(_, image)| image.as_str())
        };
        let containers = copy.pointer_mut("/spec/containers").and_then(Value::as_array_mut);
        for container in containers.into_iter().flatten() {
            if let Some(image) = image_of(container.text("name")).or_else(|| image_of("*")) {
                fields::set(container, "image", image.into());
            }
        }
        let name = self.debugged(cli, &mut copy)?;
        if !name.is_empty() {
            self.finish(&mut copy, &name, Style::Copy)?;
            if let Some(container) = copy.list("spec.containers").iter().find(|one| one.text("name") == name)
            {
                warn_of_user(container, &copy);
            }
        }
        let path = format!("/api/v1/namespaces/{}/pods", pod.namespace());
        let request = Request::with_body(Method::POST, &path, JSON, copy.to_string());
        let created = cli.client()?.json(request).await?;
        if args.bool("replace") {
            let options = json!({"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 0});
            let path = pod_path(pod);
            cli.client()?.json(Request::with_body(Method::DELETE, &path, JSON, options.to_string())).await?;
        }
        Ok((created, name))
    }

    /// The container of a copy that is changed, or added; no name when only images were changed.
    fn debugged(&self, cli: &Cli, copy: &mut Value) -> Result<String> {
        let args = self.args;
        let mut name = args.text("container").to_owned();
        if name.is_empty() || container_mut(copy, &name).is_none() {
            if args.text("image").is_empty() {
                if !self.images.is_empty() {
                    return Ok(String::new());
                }
                return Err(Error::message("you must specify image when creating new container"));
            }
            if name.is_empty() {
                name = self.container_name(cli, copy)?;
            }
            let mut containers = copy.list("spec.containers").to_vec();
            containers.push(json!({"name": name, "terminationMessagePolicy": "File", "resources": {}}));
            fields::set(copy, "spec.containers", containers.into());
        }
        let container = container_mut(copy, &name).expect("it was there or was added");
        if !self.command.is_empty() {
            if args.bool("arguments-only") {
                fields::set(container, "args", self.command.clone().into());
            } else {
                fields::set(container, "command", self.command.clone().into());
                fields::remove(container, "args");
            }
        }
        self.set_environment(container);
        for (field, flag) in [("image", "image"), ("imagePullPolicy", "image-pull-policy")] {
            if !args.text(flag).is_empty() {
                fields::set(container, field, args.text(flag).into());
            }
        }
        for field in ["stdin", "tty"] {
            if args.bool(field) {
                fields::set(container, field, true.into());
            } else {
                fields::remove(container, field);
            }
        }
        Ok(name)
    }

    async fn on_node(&self, cli: &Cli, node: &Value) -> Result<(Value, String)> {
        let args = self.args;
        let container = if args.text("container").is_empty() { "debugger" } else { args.text("container") };
        let name = format!("node-debugger-{}-{}", node.name(), suffix());
        if !args.bool("quiet") {
            cli.line(format!(
                "Creating debugging pod {name} with container {container} on node {}.",
                node.name()
            ))?;
        }
        let mut pod = json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "labels": {"app.kubernetes.io/managed-by": "kubectl-debug"}},
            "spec": {
                "containers": [self.container(container)],
                "nodeName": node.name(),
                "restartPolicy": "Never",
                "tolerations": [{"operator": "Exists"}],
            },
        });
        self.finish(&mut pod, container, Style::Node)?;
        let path = format!("/api/v1/namespaces/{}/pods", cli.namespace()?.name);
        let request = Request::with_body(Method::POST, &path, JSON, pod.to_string());
        let created = cli.client()?.json(request).await?;
        Ok((created, container.to_owned()))
    }

    /// The name asked for, or one that the pod does not have.
    fn container_name(&self, cli: &Cli, pod: &Value) -> Result<String> {
        if !self.args.text("container").is_empty() {
            return Ok(self.args.text("container").to_owned());
        }
        let mut pod = pod.clone();
        let name = std::iter::repeat_with(|| format!("debugger-{}", suffix()))
            .find(|name| container_mut(&mut pod, name).is_none())
            .expect("it never ends");
        if !self.args.bool("quiet") {
            cli.line(format!("Defaulting debug container name to {name}."))?;
            cli.flush()?;
        }
        Ok(name)
    }

    async fn attach(&self, cli: &Cli, pod: &Value, container: &str) -> Result<()> {
        let args = self.args;
        let pod = self.wait_for(cli, pod, container).await?;
        let ended = status_of(&pod, container).is_some_and(|status| status.has("state.terminated"));
        if !ended {
            let session =
                Session { stdin: args.bool("stdin"), tty: args.bool("tty"), quiet: args.bool("quiet") };
            let Err(error) = attach::to_container(cli, &pod, container, session).await else {
                return Ok(());
            };
            eprintln!(
                "warning: couldn't attach to pod/{}, falling back to streaming logs: {error}",
                pod.name()
            );
        }
        pods::print_logs_of(cli, &pod, container).await
    }

    /// Waits until the container runs or has run.
    async fn wait_for(&self, cli: &Cli, pod: &Value, container: &str) -> Result<Value> {
        let path = format!("/api/v1/namespaces/{}/pods", pod.namespace());
        let query = Query::new().with("fieldSelector", &format!("metadata.name={}", pod.name()));
        loop {
            let mut events = Events::start(cli.client()?, &path, query.clone(), JSON).await?;
            while let Some(event) = events.next().await? {
                if event.kind == "DELETED" {
                    return Err(Error::message("pods \"\" not found"));
                }
                let Some(status) = status_of(&event.object, container) else { continue };
                if status.has("state.running") || status.has("state.terminated") {
                    return Ok(event.object);
                }
                let waiting = status.text("state.waiting.message");
                if !waiting.is_empty() && !self.args.bool("quiet") {
                    eprintln!("Warning: container {container}: {waiting}");
                }
            }
        }
    }
}

fn pod_path(pod: &Value) -> String {
    format!("/api/v1/namespaces/{}/pods/{}", pod.namespace(), pod.name())
}

fn status_of<'p>(pod: &'p Value, container: &str) -> Option<&'p Value> {
    ["initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses"]
        .iter()
        .flat_map(|list| pod.list(&format!("status.{list}")))
        .find(|status| status.text("name") == container)
}

/// Rights granted to a container do little when the whole pod runs as another user.
fn warn_of_user(container: &Value, pod: &Value) {
    let pod_user = pod.int("spec.securityContext.runAsUser");
    let granted = container.flag("securityContext.privileged")
        || !container.list("securityContext.capabilities.add").is_empty();
    if pod_user.is_some_and(|user| user != 0)
        && container.int("securityContext.runAsUser") != Some(0)
        && granted
    {
        eprintln!(
            "Warning: Non-root user is configured for the entire target Pod, and some capabilities granted by debug profile may not work. Please consider using \"--custom\" with a custom profile that specifies \"securityContext.runAsUser: 0\"."
        );
    }
}

/// Name-value pairs of a flag, by name.
fn pairs(args: &Args, flag: &str) -> Result<Vec<(String, String)>> {
    let mut pairs = Vec::new();
    for word in args.list(flag) {
        let (name, value) = word.split_once('=').ok_or_else(|| {
            Error::message(format!(
                "invalid argument {word:?} for \"--{flag}\" flag: {word} must be formatted as key=value\nSee 'kubectl debug --help' for usage."
            ))
        })?;
        pairs.push((name.to_owned(), value.to_owned()));
    }
    pairs.sort();
    Ok(pairs)
}

/// Five characters of those that generated names are made of.
fn suffix() -> String {
    const LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
    let mut number = std::collections::hash_map::RandomState::new().build_hasher().finish();
    let mut letter = || {
        let letter = LETTERS[(number % LETTERS.len() as u64) as usize];
        number /= LETTERS.len() as u64;
        char::from(letter)
    };
    (0..5).map(|_| letter()).collect()
}
