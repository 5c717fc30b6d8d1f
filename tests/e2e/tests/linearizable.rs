//! Three API servers on three members of etcd, of which any is killed or stands still for a while. What clients saw that ask
//! one server after the other has one order ([`ferry_linearizable`]): no read is stale, no write is lost or done twice.
//!
//! FERRY_HISTORIES: how many histories are recorded (1 if not set); FERRY_HISTORY_FAULTS: how many faults each has (5).

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ferry_e2e::binary::{Process, ferry};
use ferry_linearizable::{Action, Call, Outcome, Seen, is_linearizable};
use http::{Method, Request};
use http_body_util::BodyExt;
use kube::Client;
use kube::client::Body;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};

const CLIENTS: u64 = 6;
const KEYS: usize = 3;
/// The search for an order must come to its end.
const MOST_CALLS: usize = 400;
const MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// One of three members on this machine; it dies with its value.
struct Member {
    command: Command,
    child: Child,
}

impl Member {
    fn all(directory: &std::path::Path) -> (Vec<Member>, String) {
        let ports: Vec<(u16, u16)> = {
            let listeners: Vec<TcpListener> =
                (0..6).map(|_| TcpListener::bind("127.0.0.1:0").expect("a free port")).collect();
            let port = |at: usize| listeners[at].local_addr().expect("it listens").port();
            (0..3).map(|at| (port(2 * at), port(2 * at + 1))).collect()
        };
        let url = |port: u16| format!("http://127.0.0.1:{port}");
        let cluster: Vec<String> =
            ports.iter().enumerate().map(|(at, (_, peer))| format!("m{at}={}", url(*peer))).collect();
        let members = ports.iter().enumerate().map(|(at, (port, peer))| {
            let mut command = Command::new("etcd");
            command
                .arg(format!("--name=m{at}"))
                .arg(format!("--data-dir={}", directory.join(format!("m{at}")).display()))
                .arg(format!("--listen-client-urls={}", url(*port)))
                .arg(format!("--advertise-client-urls={}", url(*port)))
                .arg(format!("--listen-peer-urls={}", url(*peer)))
                .arg(format!("--initial-advertise-peer-urls={}", url(*peer)))
                .arg(format!("--initial-cluster={}", cluster.join(",")))
                .arg("--log-level=fatal")
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null());
            let child = command.spawn().expect("etcd starts");
            Member { command, child }
        });
        let endpoints: Vec<String> = ports.iter().map(|(port, _)| url(*port)).collect();
        (members.collect(), endpoints.join(","))
    }

    fn restart(&mut self) {
        self.end();
        self.child = self.command.spawn().expect("etcd starts");
    }

    fn end(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.end();
    }
}

/// What a server said within the time that a client has: a status and an object.
async fn ask(client: &Client, method: Method, path: &str, body: Value) -> Option<(u16, Value)> {
    const PATIENCE: Duration = Duration::from_secs(3);
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("content-type", "application/json")
        .body(Body::from(serde_json::to_vec(&body).expect("JSON")))
        .expect("a request");
    let answer = async {
        let response = client.send(request).await.ok()?;
        let status = response.status().as_u16();
        let bytes = response.into_body().collect().await.ok()?.to_bytes();
        Some((status, serde_json::from_slice(&bytes).ok()?))
    };
    tokio::time::timeout(PATIENCE, answer).await.ok().flatten()
}

fn revision(object: &Value) -> u64 {
    object["metadata"]["resourceVersion"].as_str().and_then(|text| text.parse().ok()).expect("a revision")
}

async fn read(client: &Client, name: &str) -> Option<Seen> {
    match ask(client, Method::GET, &format!("{MAPS}/{name}"), json!({})).await? {
        (200, map) => Some(Some((map["data"]["value"].as_str()?.to_owned(), revision(&map)))),
        (404, _) => Some(None),
        (429 | 500.., _) => None,
        (status, answer) => panic!("get: {status}: {answer}"),
    }
}

async fn write(client: &Client, name: &str, expected: u64, value: Option<&str>) -> Outcome {
    let path = format!("{MAPS}/{name}");
    let mut map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"value": value}});
    let answer = match value {
        Some(_) if expected == 0 => ask(client, Method::POST, MAPS, map).await,
        Some(_) => {
            map["metadata"]["resourceVersion"] = json!(expected.to_string());
            ask(client, Method::PUT, &path, map).await
        }
        None => {
            let only = json!({"preconditions": {"resourceVersion": expected.to_string()}});
            ask(client, Method::DELETE, &path, only).await
        }
    };
    match answer {
        Some((200 | 201, _)) if value.is_none() => Outcome::Done(None),
        Some((200 | 201, map)) => Outcome::Done(Some(revision(&map))),
        Some((409, _)) => Outcome::Conflict(None),
        Some((404, _)) => Outcome::Conflict(Some(None)),
        None | Some((429 | 500.., _)) => Outcome::Unknown,
        Some((status, answer)) => panic!("write: {status}: {answer}"),
    }
}

/// Asks one server after the other until it is told to stop.
async fn work(
    servers: Vec<Client>,
    name: u64,
    seed: u64,
    clock: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
) -> Vec<(usize, Call)> {
    let mut random = StdRng::seed_from_u64(seed * CLIENTS + name);
    let mut known = [0; KEYS];
    let mut calls = Vec::new();
    for step in 0..MOST_CALLS {
        if stop.load(Ordering::SeqCst) {
            break;
        }
        let at = random.random_range(0..KEYS);
        let (key, kind) = (format!("key-{at}"), random.random_range(0..10));
        let server = &servers[random.random_range(0..servers.len())];
        let begin = clock.fetch_add(1, Ordering::SeqCst);
        let action = if kind < 5 {
            // A read that told nothing has no place in the history.
            read(server, &key).await.map(|saw| Action::Read { saw })
        } else {
            let expected = known[at];
            let value = (kind < 9 || expected == 0).then(|| format!("{name} {step}"));
            let outcome = write(server, &key, expected, value.as_deref()).await;
            Some(Action::Write { expected, value, outcome })
        };
        let end = clock.fetch_add(1, Ordering::SeqCst);
        known[at] = match &action {
            Some(Action::Read { saw: Some((_, revision)) })
            | Some(Action::Write { value: Some(_), outcome: Outcome::Done(Some(revision)), .. }) => *revision,
            _ => 0,
        };
        calls.extend(action.map(|action| (at, Call { begin, end, action })));
        // Spread over the faults.
        tokio::time::sleep(Duration::from_millis(random.random_range(5..40))).await;
    }
    calls
}

/// A server or a member is killed and started again, or stands still for longer than an election takes.
async fn fault(random: &mut StdRng, servers: &mut [Process], members: &mut [Member]) {
    let at = random.random_range(0..3);
    let still = Duration::from_millis(random.random_range(300..2_000));
    let pause = async |pid: u32| {
        let pid = Pid::from_raw(pid.try_into().expect("a process"));
        kill(pid, Signal::SIGSTOP).expect("it runs");
        tokio::time::sleep(still).await;
        kill(pid, Signal::SIGCONT).expect("it stands still");
    };
    match random.random_range(0..4) {
        0 => servers[at].restart().await,
        1 => pause(servers[at].pid()).await,
        2 => members[at].restart(),
        _ => pause(members[at].child.id()).await,
    }
    tokio::time::sleep(Duration::from_millis(random.random_range(300..900))).await;
}

fn number(variable: &str, otherwise: u64) -> u64 {
    std::env::var(variable).map_or(otherwise, |text| text.parse().expect("a number"))
}

/// The members have a leader: a server that asks them starts.
async fn start(binary: &std::path::Path, endpoints: &str) -> Vec<Process> {
    let mut servers = Vec::new();
    for _ in 0..3 {
        servers.push(Process::apiserver(binary, |_| vec![format!("--etcd-servers={endpoints}")]).await);
    }
    servers
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn requests_through_three_servers_are_linearizable() {
    let Some(binary) = ferry() else { return };
    if Command::new("etcd").arg("--version").stdout(Stdio::null()).status().is_err() {
        ferry_skip::missing("etcd (Debian: etcd-server)");
        return;
    }
    let (histories, faults) = (number("FERRY_HISTORIES", 1), number("FERRY_HISTORY_FAULTS", 5));
    let mut told = (0, 0);
    for seed in 0..histories {
        let directory = tempfile::tempdir().expect("a directory");
        let (mut members, endpoints) = Member::all(directory.path());
        let mut servers = start(&binary, &endpoints).await;
        let mut admins = Vec::new();
        for server in &servers {
            admins.push(server.admin_without_retries().await);
        }
        let (clock, stop) = (Arc::<AtomicU64>::default(), Arc::<AtomicBool>::default());
        let clients: Vec<_> = (0..CLIENTS)
            .map(|name| tokio::spawn(work(admins.clone(), name, seed, clock.clone(), stop.clone())))
            .collect();
        let mut random = StdRng::seed_from_u64(seed);
        for _ in 0..faults {
            fault(&mut random, &mut servers, &mut members).await;
        }
        stop.store(true, Ordering::SeqCst);
        let mut keys: [Vec<Call>; KEYS] = Default::default();
        for client in clients {
            for (at, call) in client.await.expect("a client") {
                keys[at].push(call);
            }
        }
        let begin = Instant::now();
        for (at, calls) in keys.iter_mut().enumerate() {
            calls.sort_by_key(|call| call.begin);
            let unknown =
                |call: &&Call| matches!(call.action, Action::Write { outcome: Outcome::Unknown, .. });
            told = (told.0 + calls.len(), told.1 + calls.iter().filter(unknown).count());
            assert!(is_linearizable(calls), "history {seed}: key {at} has no order: {calls:#?}");
        }
        println!("history {seed}: judged in {:?}", begin.elapsed());
    }
    println!(
        "{histories} histories of {} calls, {} of them without an answer, are linearizable",
        told.0, told.1
    );
    assert!(told.0 > 0, "nobody was answered");
}
