//! How many queries one core answers: a server with 10,000 services on the loopback, asked by `dnsperf`.
//! `cargo bench -p ferry-dns`. Prints queries per second of wall time and per second of the server's own
//! CPU, which says more on a busy machine.

use std::{io::Write, process::Command, sync::Arc};

use ferry_client::CancellationToken;
use ferry_dns::{
    forward::Forwarder,
    server::Server,
    zone::{Zone, records_of},
};
use k8s_openapi::api::{core::v1::Service, discovery::v1::EndpointSlice};
use parking_lot::RwLock;
use serde_json::json;

const SERVICES: usize = 10_000;
const SECONDS: u32 = 5;

fn main() {
    let mut zone = Zone::new("cluster.local").expect("a domain");
    let none: [Arc<EndpointSlice>; 0] = [];
    let mut queries = String::new();
    for n in 0..SERVICES {
        let spec = json!({ "clusterIP": format!("10.96.{}.{}", n >> 8, n & 255), "ports": [{ "name": "http", "port": 80 }] });
        let service: Service =
            serde_json::from_value(json!({ "metadata": {}, "spec": spec })).expect("a service");
        zone.update("shop", &format!("s{n}"), records_of(&service, &none));
        queries.push_str(&format!("s{n}.shop.svc.cluster.local A\n"));
        if n % 4 == 0 {
            queries.push_str(&format!(
                "s{n}.shop.svc.cluster.local AAAA\nexample.org.shop.svc.cluster.local A\n"
            ));
            queries.push_str(&format!("_http._tcp.s{n}.shop.svc.cluster.local SRV\n"));
        }
    }
    let mut file = tempfile::NamedTempFile::new().expect("a file");
    file.write_all(queries.as_bytes()).expect("room for it");

    // One worker: the figure is for one core.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime");
    let server =
        runtime.block_on(Server::bind(&["127.0.0.1:0".parse().expect("an address")])).expect("a free port");
    let port = server.addresses()[0].port().to_string();
    let stop = CancellationToken::new();
    let serving = runtime.spawn(server.serve(
        Arc::new(RwLock::new(zone)),
        Arc::new(Forwarder::new(vec![])),
        stop.clone(),
    ));
    let before = cpu_seconds();
    let seconds = SECONDS.to_string();
    let arguments = [
        "-s",
        "127.0.0.1",
        "-p",
        &port,
        "-d",
        file.path().to_str().expect("a path"),
        "-l",
        &seconds,
        "-c",
        "8",
        "-q",
        "256",
    ];
    let output = Command::new("dnsperf").args(arguments).output().expect("dnsperf is installed");
    let cpu = cpu_seconds() - before;
    let text = String::from_utf8_lossy(&output.stdout);
    let of = |label: &str| {
        text.lines().find_map(|l| l.trim().strip_prefix(label)).map(str::trim).unwrap_or("?").to_string()
    };
    let completed = of("Queries completed:");
    let number: f64 = completed.split_whitespace().next().and_then(|n| n.parse().ok()).unwrap_or(0.0);
    println!(
        "completed {completed}, lost {}, {} per second of wall time",
        of("Queries lost:"),
        of("Queries per second:")
    );
    println!("{:.0} queries per second of the server's CPU ({cpu:.2} s)", number / cpu);
    println!("{}", of("Response codes:"));
    stop.cancel();
    runtime.block_on(serving).expect("the server ends");
}

fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("procfs");
    let fields: Vec<&str> = stat.rsplit(')').next().expect("fields").split_whitespace().collect();
    let ticks = |at: usize| fields[at].parse::<f64>().expect("a number");
    (ticks(11) + ticks(12)) / 100.0
}
