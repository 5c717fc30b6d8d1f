//! `create service clusterip|nodeport|loadbalancer|externalname`.

use serde_json::{Value, json};

use super::{create_generated, generator_flags, int_or_string, one_name};
use crate::cli::Cli;
use crate::command::Command;
use crate::error::{Error, Result};
use crate::flags::{Args, Flag};

pub const COMMAND: Command = Command {
    name: "service",
    aliases: &["svc"],
    short: "Create a service",
    usage: "(clusterip | externalname | loadbalancer | nodeport)",
    children: &[&CLUSTER_IP, &EXTERNAL_NAME, &LOAD_BALANCER, &NODE_PORT],
    ..Command::NONE
};

const TCP: Flag = Flag::list("tcp", "Port pair, as port:targetPort or port");

const CLUSTER_IP: Command = Command {
    name: "clusterip",
    short: "Create a service with an address inside the cluster",
    usage: "NAME [--tcp=<port>:<targetPort>]",
    flags: generator_flags!(&[
        TCP,
        Flag::text("clusterip", "Address to use, or None for a headless service")
    ]),
    run: Some(|cli| Box::pin(run(cli, "ClusterIP"))),
    ..Command::NONE
};

const NODE_PORT: Command = Command {
    name: "nodeport",
    short: "Create a service on a port of every node",
    usage: "NAME [--tcp=port:targetPort]",
    flags: generator_flags!(&[TCP, Flag::int("node-port", "Port on the nodes")]),
    run: Some(|cli| Box::pin(run(cli, "NodePort"))),
    ..Command::NONE
};

const LOAD_BALANCER: Command = Command {
    name: "loadbalancer",
    short: "Create a service behind a load balancer",
    usage: "NAME [--tcp=port:targetPort]",
    flags: generator_flags!(&[TCP]),
    run: Some(|cli| Box::pin(run(cli, "LoadBalancer"))),
    ..Command::NONE
};

const EXTERNAL_NAME: Command = Command {
    name: "externalname",
    short: "Create a service that is an alias of a DNS name",
    usage: "NAME --external-name external.name",
    flags: generator_flags!(&[
        TCP,
        Flag::text("external-name", "DNS name the service stands for").required()
    ]),
    run: Some(|cli| Box::pin(run(cli, "ExternalName"))),
    ..Command::NONE
};

async fn run(cli: &Cli, kind: &str) -> Result<()> {
    create_generated(cli, service(&cli.args, kind)?, &format!("failed to create {kind} service:")).await
}

fn service(args: &Args, kind: &str) -> Result<Value> {
    let name = one_name(args)?;
    let cluster_ip = args.text("clusterip");
    if args.list("tcp").is_empty() && cluster_ip != "None" && kind != "ExternalName" {
        return Err(Error::message("at least one tcp port specifier must be provided"));
    }
    let mut ports = Vec::new();
    for pair in args.list("tcp") {
        ports.push(port(pair, args.int("node-port"))?);
    }
    let labels = json!({"app": name});
    let mut spec = json!({"type": kind, "selector": labels});
    if !ports.is_empty() {
        spec["ports"] = Value::Array(ports);
    }
    if !cluster_ip.is_empty() {
        spec["clusterIP"] = json!(cluster_ip);
    }
    if kind == "ExternalName" {
        spec["externalName"] = json!(args.text("external-name"));
    }
    Ok(
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "labels": labels}, "spec": spec, "status": {"loadBalancer": {}}}),
    )
}

fn port(pair: &str, node_port: i64) -> Result<Value> {
    let mut parts = pair.split(':');
    let port = parts.next().unwrap_or(pair);
    let target = parts.next().unwrap_or(port);
    let number: i64 = port
        .parse()
        .map_err(|_| Error::message(format!("strconv.ParseInt: parsing {port:?}: invalid syntax")))?;
    if !(1..=65535).contains(&number) {
        return Err(Error::message("must be between 1 and 65535, inclusive"));
    }
    let mut entry = json!({"name": pair.replace(':', "-"), "port": number, "protocol": "TCP", "targetPort": int_or_string(target)});
    if node_port > 0 {
        entry["nodePort"] = json!(node_port);
    }
    Ok(entry)
}
