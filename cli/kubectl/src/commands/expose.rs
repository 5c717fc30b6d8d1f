//! `kubectl expose`: a service for what a workload, a pod or another service selects.

use serde_json::{Map, Value, json};

use super::BEGINNER;
use super::create::{int_or_string, report_generated};
use super::overrides::{OVERRIDE_FLAGS, apply_overrides};
use crate::cli::Cli;
use crate::command::Command;
use crate::error::{Error, Result};
use crate::fields::Fields;
use crate::flags::{Args, Flag};
use crate::printers;
use crate::selection::{FILE_FLAGS, Info, Selection};
use crate::write::{
    DRY_RUN_FLAGS, DryRun, RECORD_FLAGS, SAVE_CONFIG_FLAGS, Writer, enforce_namespace, record_cause,
    save_generated_config,
};

pub const COMMAND: Command = Command {
    name: "expose",
    group: BEGINNER,
    short: "Create a service for a workload, a pod or another service",
    usage: "(-f FILENAME | TYPE NAME) [--port=port] [--protocol=TCP|UDP|SCTP] [--target-port=number-or-name] [--name=name] [--type=type]",
    flags: &[
        FILE_FLAGS,
        printers::FLAGS,
        DRY_RUN_FLAGS,
        SAVE_CONFIG_FLAGS,
        RECORD_FLAGS,
        OVERRIDE_FLAGS,
        SERVICE_FLAGS,
        &[Flag::text("field-manager", "Name of the field manager").default("kubectl-expose")],
    ],
    run: Some(|cli| Box::pin(run(cli))),
    ..Command::NONE
};

const SERVICE_FLAGS: &[Flag] = &[
    Flag::text("port", "Port of the service"),
    Flag::text("target-port", "Port of the container"),
    Flag::text("protocol", "TCP, UDP or SCTP"),
    Flag::text("name", "Name of the service"),
    Flag::text("type", "ClusterIP, NodePort, LoadBalancer or ExternalName"),
    Flag::text("load-balancer-ip", "Address of the load balancer"),
    Flag::text("external-ip", "Further address of the service"),
    Flag::text("session-affinity", "None or ClientIP"),
    Flag::text("cluster-ip", "Address of the service, or None"),
    Flag::text("labels", "Labels of the service").short('l'),
    Flag::text("selector", "What the service selects; by default what the exposed object does"),
];

/// What a service is made of, whoever asks for it.
#[derive(Debug, Default)]
pub struct ServiceSpec<'a> {
    pub name: &'a str,
    /// `a=b,c=d`
    pub selector: String,
    pub labels: Map<String, Value>,
    /// Numbers, each with the protocol it is used with.
    pub ports: Vec<(String, String)>,
    pub target_port: &'a str,
    pub kind: &'a str,
    pub cluster_ip: &'a str,
    pub external_ip: &'a str,
    pub load_balancer_ip: &'a str,
    pub session_affinity: &'a str,
}

/// The service itself.
pub fn service(spec: &ServiceSpec<'_>) -> Result<Value> {
    let mut ports = Vec::new();
    for (position, (port, protocol)) in spec.ports.iter().enumerate() {
        let number: i64 = port
            .parse()
            .map_err(|_| Error::message(format!("strconv.Atoi: parsing {port:?}: invalid syntax")))?;
        let target =
            if spec.target_port.is_empty() { json!(number) } else { int_or_string(spec.target_port) };
        let mut entry = json!({"port": number, "targetPort": target, "protocol": protocol});
        if spec.ports.len() > 1 {
            entry["name"] = json!(format!("port-{}", position + 1));
        }
        ports.push(entry);
    }
    let mut object = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": spec.name},
        "spec": {"selector": pairs(&spec.selector)?}, "status": {"loadBalancer": {}}});
    if !spec.labels.is_empty() {
        object["metadata"]["labels"] = Value::Object(spec.labels.clone());
    }
    if !ports.is_empty() {
        object["spec"]["ports"] = Value::Array(ports);
    }
    for (field, value) in [
        ("type", spec.kind),
        ("clusterIP", spec.cluster_ip),
        ("loadBalancerIP", spec.load_balancer_ip),
        ("sessionAffinity", spec.session_affinity),
    ] {
        if !value.is_empty() {
            object["spec"][field] = json!(value);
        }
    }
    if !spec.external_ip.is_empty() {
        object["spec"]["externalIPs"] = json!([spec.external_ip]);
    }
    Ok(object)
}

/// `a=b,c=d` as a map.
pub fn pairs(text: &str) -> Result<Map<String, Value>> {
    let mut map = Map::new();
    for pair in text.split(',').filter(|pair| !pair.is_empty()) {
        let (key, value) = pair
            .split_once('=')
            .filter(|(key, value)| !key.is_empty() && !value.contains('='))
            .ok_or_else(|| Error::message(format!("unexpected label spec: {pair}")))?;
        map.insert(key.to_owned(), value.into());
    }
    Ok(map)
}

async fn run(cli: &Cli) -> Result<()> {
    let args = &cli.args;
    let writer = Writer::new(cli)?;
    let mut selection = Selection::from_args(cli, &args.positional);
    selection.selector = String::new();
    // what a file says is exposed, whether it is there yet or not
    selection.live = false;
    let selected = selection.fetch(cli).await?;
    let mut errors = selected.errors;
    for info in selected.infos {
        if let Err(error) = expose(&writer, &info).await {
            errors.push(error);
        }
    }
    Error::collect(errors)
}

async fn expose(writer: &Writer<'_>, info: &Info) -> Result<()> {
    let cli = writer.cli;
    let mut object = service_for(&cli.args, info)?;
    apply_overrides(&cli.args, &mut object)?;
    record_cause(&cli.args, &mut object);
    if writer.dry_run == DryRun::Client {
        enforce_namespace(cli, &mut object)?;
        if writer.format.is_human() {
            return writer.report(&object, "exposed");
        }
        return report_generated(writer, &object);
    }
    if cli.args.bool("save-config") {
        save_generated_config(&mut object);
    }
    let services = cli.resource("services").await?;
    let created = writer.create(&services, &info.namespace, &object).await?;
    writer.report(&created, "exposed")
}

fn service_for(args: &Args, info: &Info) -> Result<Value> {
    let object = &info.object;
    let default_name = shortened(&info.name);
    let name = if args.text("name").is_empty() { default_name.as_str() } else { args.text("name") };
    let selector = match args.text("selector") {
        "" => selector_of(info)?,
        given => given.to_owned(),
    };
    let headless = args.text("cluster-ip") == "None";
    let mut ports = Vec::new();
    if args.text("port").is_empty() {
        let found = container_ports(object);
        if found.is_empty() && !headless {
            return Err(Error::message("couldn't find port via --port flag or introspection"));
        }
        ports.extend(found);
    } else {
        let known = container_ports(object);
        for port in args.text("port").split(',') {
            let protocol = known
                .iter()
                .find(|(number, _)| number == port)
                .map_or("TCP", |(_, protocol)| protocol.as_str());
            ports.push((port.to_owned(), protocol.to_owned()));
        }
    }
    if !args.text("protocol").is_empty() {
        for port in &mut ports {
            port.1 = args.text("protocol").to_owned();
        }
    }
    let labels = match args.text("labels") {
        "" => object.map("metadata.labels").cloned().unwrap_or_default(),
        given => pairs(given)?,
    };
    service(&ServiceSpec {
        name,
        selector,
        labels,
        ports,
        target_port: args.text("target-port"),
        kind: args.text("type"),
        cluster_ip: args.text("cluster-ip"),
        external_ip: args.text("external-ip"),
        load_balancer_ip: args.text("load-balancer-ip"),
        session_affinity: args.text("session-affinity"),
    })
}

/// Service names are DNS labels.
fn shortened(name: &str) -> String {
    name.chars().take(63).collect()
}

/// What the exposed object itself selects, or the labels of a pod.
fn selector_of(info: &Info) -> Result<String> {
    let object = &info.object;
    let missing = |kind: &str| {
        Error::message(format!("couldn't retrieve selectors via --selector flag or introspection: {kind}"))
    };
    let labels = match info.resource.kind.as_str() {
        "Pod" => object
            .map("metadata.labels")
            .ok_or_else(|| missing("the pod has no labels and cannot be exposed"))?,
        "Service" => {
            object.map("spec.selector").ok_or_else(|| missing("the service has no pod selector set"))?
        }
        "ReplicationController" => object
            .map("spec.selector")
            .ok_or_else(|| missing("the replication controller has no pod selector set"))?,
        "Deployment" | "ReplicaSet" => {
            let kind = info.resource.kind.to_lowercase();
            if !object.list("spec.selector.matchExpressions").is_empty() {
                return Err(missing(
                    "couldn't convert expressions - \"matchExpressions\" to map-based selector format",
                ));
            }
            object.map("spec.selector.matchLabels").ok_or_else(|| {
                missing(&format!("invalid {kind}: no selectors, therefore cannot be exposed"))
            })?
        }
        kind => {
            let group = &info.resource.group;
            let dot = if group.is_empty() { "" } else { "." };
            return Err(Error::message(format!("cannot expose a {kind}{dot}{group}")));
        }
    };
    Ok(labels
        .iter()
        .map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default()))
        .collect::<Vec<_>>()
        .join(","))
}

/// Every port the containers, or the service, declare.
fn container_ports(object: &Value) -> Vec<(String, String)> {
    let protocol = |port: &Value| {
        if port.text("protocol").is_empty() { "TCP".to_owned() } else { port.text("protocol").to_owned() }
    };
    if object.kind() == "Service" {
        return object
            .list("spec.ports")
            .iter()
            .filter_map(|port| Some((port.int("port")?.to_string(), protocol(port))))
            .collect();
    }
    let containers = if object.kind() == "Pod" {
        object.list("spec.containers")
    } else {
        object.list("spec.template.spec.containers")
    };
    containers
        .iter()
        .flat_map(|container| container.list("ports"))
        .filter_map(|port| Some((port.int("containerPort")?.to_string(), protocol(port))))
        .collect()
}
