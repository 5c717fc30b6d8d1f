//! `kubectl cluster-info` and its `dump`.

use std::path::Path;

use serde_json::Value;

use super::CLUSTER;
use crate::cli::Cli;
use crate::command::Command;
use crate::error::{Error, Result, system_words};
use crate::fields::Fields;
use crate::flags::Flag;
use crate::printers::{Format, OBJECT_FORMATS};
use crate::transport::{Query, Request};

pub const COMMAND: Command = Command {
    name: "cluster-info",
    aliases: &["clusterinfo"],
    group: CLUSTER,
    short: "Show the addresses of the control plane",
    usage: "",
    children: &[&DUMP],
    run: Some(|cli| Box::pin(run(cli))),
    ..Command::NONE
};

const DUMP: Command = Command {
    name: "dump",
    short: "Print what helps to find out what is wrong",
    usage: "[flags]",
    flags: &[&[
        Flag::bool("all-namespaces", "Of all namespaces").short('A'),
        Flag::list("namespaces", "Of these namespaces"),
        Flag::text("output-directory", "Write files here instead of printing"),
        Flag::text("output", "Output format").short('o').default("json"),
        Flag::text("template", "Template of the go-template and jsonpath output formats"),
        Flag::bool("allow-missing-template-keys", "Leave out missing fields in templates").default("true"),
        Flag::bool("show-managed-fields", "Keep managedFields in json and yaml output"),
        Flag::duration("pod-running-timeout", "Accepted for compatibility").default("20s"),
    ]],
    run: Some(|cli| Box::pin(dump(cli))),
    ..Command::NONE
};

async fn run(cli: &Cli) -> Result<()> {
    let client = cli.client()?;
    cli.line(format!("{} is running at {}", green("Kubernetes control plane"), yellow(client.server())))?;
    let query = Query::new().with("labelSelector", "kubernetes.io/cluster-service=true");
    let services =
        client.json(Request::get(&format!("/api/v1/namespaces/kube-system/services{query}"))).await?;
    for service in services.list("items") {
        let name = match service.keyed("metadata.labels", "kubernetes.io/name") {
            "" => service.name(),
            name => name,
        };
        cli.line(format!("{} is running at {}", green(name), yellow(&link(client.server(), service))))?;
    }
    cli.print("\nTo further debug and diagnose cluster problems, use 'kubectl cluster-info dump'.\n")
}

/// A load balancer's address if there is one, else the proxy of the API server.
fn link(server: &str, service: &Value) -> String {
    let ingress = service.list("status.loadBalancer.ingress");
    if let Some(ingress) = ingress.first() {
        let host = if ingress.text("ip").is_empty() { ingress.text("hostname") } else { ingress.text("ip") };
        return service
            .list("spec.ports")
            .iter()
            .map(|port| format!("http://{host}:{} ", port.int("port").unwrap_or(0)))
            .collect();
    }
    let name = match service.list("spec.ports").first() {
        Some(port) => {
            let scheme =
                if port.text("name") == "https" || port.int("port") == Some(443) { "https:" } else { "" };
            format!("{scheme}{}:{}", service.name(), port.text("name"))
        }
        None => service.name().to_owned(),
    };
    format!("{server}/api/v1/namespaces/{}/services/{name}/proxy", service.namespace())
}

fn green(text: &str) -> String {
    coloured(text, 32)
}

fn yellow(text: &str) -> String {
    coloured(text, 33)
}

fn coloured(text: &str, colour: u8) -> String {
    if std::io::IsTerminal::is_terminal(&std::io::stdout()) {
        format!("\u{1b}[0;{colour}m{text}\u{1b}[0m")
    } else {
        text.to_owned()
    }
}

async fn dump(cli: &Cli) -> Result<()> {
    let client = cli.client()?;
    let format = Format::from_args(&cli.args, OBJECT_FORMATS)?;
    let extension = match format {
        Format::Json => "json",
        Format::Yaml => "yaml",
        _ => "txt",
    };
    let print = |name: &str, list: &Value| -> Result<()> {
        write(cli, &format!("{name}.{extension}"), format.print(list, &cli.args)?.as_bytes())
    };
    print("nodes", &client.get_json("/api/v1/nodes").await?)?;
    for namespace in &namespaces(cli).await? {
        for (root, names) in [
            ("/api/v1", &["events", "replicationcontrollers", "services"][..]),
            ("/apis/apps/v1", &["daemonsets", "deployments", "replicasets"][..]),
        ] {
            for name in names {
                let list = client.get_json(&format!("{root}/namespaces/{namespace}/{name}")).await?;
                let file = name.replace("replicationcontrollers", "replication-controllers");
                print(&format!("{namespace}/{file}"), &list)?;
            }
        }
        let pods = client.get_json(&format!("/api/v1/namespaces/{namespace}/pods")).await?;
        print(&format!("{namespace}/pods"), &pods)?;
        for pod in pods.list("items") {
            write(cli, &format!("{namespace}/{}/logs.txt", pod.name()), &logs(cli, namespace, pod).await?)?;
        }
    }
    match cli.args.text("output-directory") {
        "" | "-" => Ok(()),
        directory => cli.line(format!("Cluster info dumped to {directory}")),
    }
}

async fn namespaces(cli: &Cli) -> Result<Vec<String>> {
    if cli.args.bool("all-namespaces") {
        let list = cli.client()?.get_json("/api/v1/namespaces").await?;
        return Ok(list.list("items").iter().map(|namespace| namespace.name().to_owned()).collect());
    }
    match cli.args.list("namespaces") {
        names if names.is_empty() => Ok(vec!["kube-system".to_owned(), cli.namespace()?.name]),
        names => Ok(names.into_iter().map(str::to_owned).collect()),
    }
}

/// The logs of all containers of a pod; one that cannot be read is replaced by the error.
async fn logs(cli: &Cli, namespace: &str, pod: &Value) -> Result<Vec<u8>> {
    let mut text = Vec::new();
    for container in pod.list("spec.initContainers").iter().chain(pod.list("spec.containers")) {
        let (pod, container) = (pod.name(), container.text("name"));
        let query = Query::new().with("container", container);
        let path = format!("/api/v1/namespaces/{namespace}/pods/{pod}/log{query}");
        let log = match cli.client()?.bytes(Request::get(&path)).await {
            Ok(log) => log.to_vec(),
            Err(error) => format!("Request log error: {error}\n").into_bytes(),
        };
        let title = format!("logs for container {container} of pod {namespace}/{pod} ====\n");
        text.extend(format!("==== START {title}").into_bytes());
        text.extend(log);
        text.extend(format!("==== END {title}").into_bytes());
    }
    Ok(text)
}

fn write(cli: &Cli, name: &str, content: &[u8]) -> Result<()> {
    match cli.args.text("output-directory") {
        "" | "-" => cli.print_bytes(content),
        directory => {
            let path = Path::new(directory).join(name);
            if let Some(parent) = path.parent() {
                std::fs::create_dir_all(parent).map_err(|error| {
                    Error::message(format!("mkdir {directory}: {}", system_words(&error)))
                })?;
            }
            Ok(std::fs::write(path, content)?)
        }
    }
}
