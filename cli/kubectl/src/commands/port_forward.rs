//! `kubectl port-forward`: local ports that lead into a pod. Each connection has a stream of its own.

use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::TROUBLESHOOT;
use crate::cli::Cli;
use crate::command::Command;
use crate::error::{Error, Result};
use crate::fields::Fields;
use crate::flags::Flag;
use crate::pods;
use crate::selection::Selection;
use crate::transport::SharedClient;
use crate::transport::websocket::{Channels, PORT_FORWARD};

pub const COMMAND: Command = Command {
    name: "port-forward",
    group: TROUBLESHOOT,
    short: "Forward local ports to a pod",
    usage: "TYPE/NAME [options] [LOCAL_PORT:]REMOTE_PORT [...[LOCAL_PORT_N:]REMOTE_PORT_N]",
    flags: &[&[
        Flag::list("address", "Addresses to listen on").default("localhost"),
        Flag::duration("pod-running-timeout", "How long to wait for a running pod").default("1m0s"),
    ]],
    run: Some(|cli| Box::pin(run(cli))),
    ..Command::NONE
};

#[derive(Debug, PartialEq)]
struct Forward {
    local: u16,
    remote: u16,
}

async fn run(cli: &Cli) -> Result<()> {
    let args = &cli.args;
    if args.positional.len() < 2 {
        return Err(args.usage_error("TYPE/NAME and list of ports are required for port-forward"));
    }
    let mut selection = Selection::from_args(cli, &args.positional[..1]);
    selection.default_type = Some("pods");
    let infos = selection.fetch(cli).await?.all()?;
    let info = infos.first().ok_or_else(|| Error::message("no pod to forward to"))?;
    let pod = pods::first_pod_of(cli, &info.object, args.duration("pod-running-timeout")).await?;
    let mut forwards = Vec::new();
    for word in &args.positional[1..] {
        forwards.push(parse(word, &info.object, &pod)?);
    }
    if pod.text("status.phase") != "Running" {
        return Err(Error::message(format!(
            "unable to forward port because pod is not running. Current status={}",
            pod.text("status.phase")
        )));
    }
    let path = format!("/api/v1/namespaces/{}/pods/{}/portforward", pod.namespace(), pod.name());
    let client = cli.client()?;
    let mut tasks = tokio::task::JoinSet::new();
    for forward in &forwards {
        for listener in listen(&args.list("address"), forward).await? {
            let local = listener.local_addr()?;
            cli.line(format!("Forwarding from {local} -> {}", forward.remote))?;
            tasks.spawn_local(serve(client.clone(), listener, path.clone(), local.port(), forward.remote));
        }
    }
    cli.flush()?;
    if tasks.is_empty() {
        return Err(Error::message("unable to listen on any of the requested ports"));
    }
    tokio::select! {
        _ = tokio::signal::ctrl_c() => Ok(()),
        ended = tasks.join_next() => match ended {
            Some(Ok(outcome)) => outcome,
            _ => Err(Error::message("lost connection to pod")),
        },
    }
}

/// `8080:80`, `:80` (any local port) or `80`; for a service the port is the service's.
fn parse(word: &str, target: &Value, pod: &Value) -> Result<Forward> {
    let (local, remote) = word.split_once(':').unwrap_or((word, word));
    let remote = remote_port(remote, target, pod)?;
    let local = match local {
        "" => 0,
        text => match text.parse() {
            Ok(port) => port,
            Err(_) if word == text => remote,
            Err(_) => {
                return Err(Error::message(format!(
                    "error parsing local port '{text}': strconv.ParseUint: parsing {text:?}: invalid syntax"
                )));
            }
        },
    };
    Ok(Forward { local, remote })
}

fn remote_port(text: &str, target: &Value, pod: &Value) -> Result<u16> {
    let container_port = |name: &str| {
        let ports = pod.list("spec.containers").iter().flat_map(|container| container.list("ports"));
        ports.filter(|port| port.text("name") == name).find_map(|port| port.int("containerPort"))
    };
    let number = if target.kind() == "Service" {
        let port = target
            .list("spec.ports")
            .iter()
            .find(|port| {
                port.int("port").is_some_and(|number| number.to_string() == text) || port.text("name") == text
            })
            .ok_or_else(|| {
                Error::message(format!("Service {} does not have a service port {text}", target.name()))
            })?;
        if target.text("spec.clusterIP") == "None" && !port.has("targetPort") {
            port.int("port")
        } else {
            match port.at("targetPort") {
                Value::String(name) => container_port(name),
                Value::Number(number) => number.as_i64(),
                _ => port.int("port"),
            }
        }
    } else {
        text.parse().ok().or_else(|| container_port(text))
    };
    number.and_then(|number| u16::try_from(number).ok()).filter(|number| *number > 0).ok_or_else(|| {
        Error::message(format!(
            "error parsing remote port '{text}': strconv.ParseUint: parsing {text:?}: invalid syntax"
        ))
    })
}

/// `localhost` is both loopback addresses; one of them is enough.
async fn listen(addresses: &[&str], forward: &Forward) -> Result<Vec<TcpListener>> {
    let mut listeners: Vec<TcpListener> = Vec::new();
    let mut local = forward.local;
    for address in addresses {
        let hosts: &[&str] =
            if *address == "localhost" { &["127.0.0.1", "::1"] } else { std::slice::from_ref(address) };
        let mut last = None;
        let mut bound = false;
        for host in hosts {
            match TcpListener::bind((*host, local)).await {
                Ok(listener) => {
                    // both addresses share the port that was picked for the first
                    local = listener.local_addr()?.port();
                    listeners.push(listener);
                    bound = true;
                }
                Err(error) => last = Some(error),
            }
        }
        if let (false, Some(error)) = (bound, last) {
            return Err(Error::message(format!(
                "unable to listen on port {}: Listeners failed to create with the following errors: [unable to create listener: Error listen tcp {address}:{}: {error}]",
                forward.local, forward.local
            )));
        }
    }
    Ok(listeners)
}

async fn serve(
    client: SharedClient,
    listener: TcpListener,
    path: String,
    local: u16,
    port: u16,
) -> Result<()> {
    loop {
        let (stream, _) = listener.accept().await?;
        println!("Handling connection for {local}");
        let (client, path) = (client.clone(), path.clone());
        tokio::task::spawn_local(async move {
            if let Err(error) = forward(&client, &path, port, stream).await {
                eprintln!("error: an error occurred forwarding {local} -> {port}: {error}");
            }
        });
    }
}

const DATA: u8 = 0;
const FAILURE: u8 = 1;
/// The server names the port first on both channels.
const PORT_HEADER: usize = 2;
const HALF_CLOSED_LINGER: Duration = Duration::from_secs(30);

async fn forward(client: &SharedClient, path: &str, port: u16, mut local: TcpStream) -> Result<()> {
    let mut channels: Channels = client.channels(&format!("{path}?ports={port}"), PORT_FORWARD).await?;
    let (mut reader, mut writer) = local.split();
    let mut buffer = vec![0; 32 * 1024];
    let (mut greeted_data, mut greeted_failure, mut reading) = (false, false, true);
    loop {
        tokio::select! {
            message = channels.next() => match message? {
                Some((DATA, data)) => {
                    let data = if greeted_data { data } else { data.slice(PORT_HEADER.min(data.len())..) };
                    greeted_data = true;
                    writer.write_all(&data).await?;
                }
                Some((FAILURE, data)) => {
                    let data = if greeted_failure { data } else { data.slice(PORT_HEADER.min(data.len())..) };
                    greeted_failure = true;
                    if !data.is_empty() {
                        return Err(Error::message(String::from_utf8_lossy(&data).into_owned()));
                    }
                }
                Some(_) => {}
                None => return Ok(()),
            },
            length = reader.read(&mut buffer), if reading => match length? {
                0 => reading = false,
                length => channels.send(DATA, &buffer[..length]).await?,
            },
            // the local side has finished sending; its answer may still be on the way
            _ = tokio::time::sleep(HALF_CLOSED_LINGER), if !reading => {
                channels.close().await;
                return Ok(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn ports_are_numbers_names_or_a_services() {
        let pod = json!({"kind": "Pod", "spec": {"containers": [{"ports": [{"name": "http", "containerPort": 8080}]}]}});
        let service = json!({"kind": "Service", "metadata": {"name": "s"}, "spec": {"ports": [{"name": "web", "port": 80, "targetPort": "http"}, {"port": 443, "targetPort": 8443}]}});
        let check = |word: &str, target: &Value, local: u16, remote: u16| {
            assert_eq!(parse(word, target, &pod).unwrap(), Forward { local, remote }, "{word}")
        };
        check("5000:80", &pod, 5000, 80);
        check("80", &pod, 80, 80);
        check(":80", &pod, 0, 80);
        check("5000:http", &pod, 5000, 8080);
        check("5000:80", &service, 5000, 8080);
        check("5000:web", &service, 5000, 8080);
        check("443", &service, 443, 8443);
        assert!(parse("x:80", &pod, &pod).is_err());
        assert!(parse("5000:81", &service, &pod).is_err());
    }
}
