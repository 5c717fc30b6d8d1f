//! The objects `run` makes.

use serde_json::{Map, Value, json};

use crate::commands::create::policy::resource_list;
use crate::commands::expose::{self, ServiceSpec, pairs};
use crate::error::{Error, Result};
use crate::flags::Args;

pub fn pod(args: &Args, name: &str, words: &[String], restart: &str) -> Result<Value> {
    let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata(args, name)?,
        "spec": pod_spec(args, name, words, restart)?, "status": {}});
    pod["spec"]["dnsPolicy"] = json!("ClusterFirst");
    Ok(pod)
}

pub fn deployment(args: &Args, name: &str, words: &[String]) -> Result<Value> {
    let labels = labels(args, name)?;
    let mut spec = pod_spec(args, name, words, "Always")?;
    if let Some(map) = spec.as_object_mut() {
        map.remove("restartPolicy");
    }
    Ok(json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata(args, name)?,
        "spec": {"replicas": args.int("replicas"), "selector": {"matchLabels": labels}, "strategy": {},
                 "template": {"metadata": {"labels": labels}, "spec": spec}}, "status": {}}))
}

pub fn job(args: &Args, name: &str, words: &[String]) -> Result<Value> {
    let restart = if args.text("restart") == "Never" { "Never" } else { "OnFailure" };
    Ok(json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata(args, name)?,
        "spec": {"template": {"metadata": {"labels": labels(args, name)?}, "spec": pod_spec(args, name, words, restart)?}}, "status": {}}))
}

/// The service of `--expose`, in front of everything with the same labels.
pub fn service(args: &Args, name: &str) -> Result<Value> {
    let selector =
        if args.text("labels").is_empty() { format!("run={name}") } else { args.text("labels").to_owned() };
    let own_labels = if args.text("labels").is_empty() { Map::new() } else { pairs(args.text("labels"))? };
    expose::service(&ServiceSpec {
        name,
        selector,
        labels: own_labels,
        ports: vec![(args.text("port").to_owned(), "TCP".to_owned())],
        ..ServiceSpec::default()
    })
}

fn labels(args: &Args, name: &str) -> Result<Map<String, Value>> {
    match args.text("labels") {
        "" => Ok(Map::from_iter([("run".to_owned(), name.into())])),
        given => pairs(given),
    }
}

fn metadata(args: &Args, name: &str) -> Result<Value> {
    let mut metadata = json!({"name": name, "labels": labels(args, name)?});
    let mut annotations = Map::new();
    for pair in args.list("annotations") {
        let (key, value) =
            pair.split_once('=').ok_or_else(|| Error::message(format!("unexpected annotation: {pair}")))?;
        annotations.insert(key.to_owned(), value.into());
    }
    if !annotations.is_empty() {
        metadata["annotations"] = Value::Object(annotations);
    }
    Ok(metadata)
}

fn pod_spec(args: &Args, name: &str, words: &[String], restart: &str) -> Result<Value> {
    let mut container = json!({"name": name, "image": args.text("image"), "resources": {}});
    for field in ["limits", "requests"] {
        let list = resource_list(args.text(field))?;
        if !list.is_empty() {
            container["resources"][field] = Value::Object(list);
        }
    }
    if !words.is_empty() {
        container[if args.bool("command") { "command" } else { "args" }] = json!(words);
    }
    let mut env = Vec::new();
    for pair in args.list("env") {
        let (key, value) = pair
            .split_once('=')
            .filter(|(key, _)| is_env_name(key))
            .ok_or_else(|| Error::message(format!("invalid env: {pair}")))?;
        let mut variable = json!({"name": key});
        if !value.is_empty() {
            variable["value"] = json!(value);
        }
        env.push(variable);
    }
    if !env.is_empty() {
        container["env"] = Value::Array(env);
    }
    let port = args.text("port");
    if !port.is_empty() {
        let number: i64 = port
            .parse()
            .map_err(|_| Error::message(format!("strconv.Atoi: parsing {port:?}: invalid syntax")))?;
        container["ports"] = json!([{"containerPort": number}]);
    }
    if !args.text("image-pull-policy").is_empty() {
        container["imagePullPolicy"] = json!(args.text("image-pull-policy"));
    }
    if args.bool("privileged") {
        container["securityContext"] = json!({"privileged": true});
    }
    if args.bool("stdin") {
        container["stdin"] = json!(true);
        if !args.bool("leave-stdin-open") {
            container["stdinOnce"] = json!(true);
        }
    }
    if args.bool("tty") {
        container["tty"] = json!(true);
    }
    let mut spec = json!({"containers": [container], "restartPolicy": restart});
    if !args.text("serviceaccount").is_empty() {
        spec["serviceAccountName"] = json!(args.text("serviceaccount"));
    }
    Ok(spec)
}

pub fn is_env_name(name: &str) -> bool {
    ferry_api::names::strict_env_var_name(name).is_empty()
}
