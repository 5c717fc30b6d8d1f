//! The loop that acts: what informers report is gathered, decided on, and brought to the kernel.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
    time::{Duration, Instant},
};

use ferry_client::events::{EventType, Events, Recorder};
use ferry_client::{CancellationToken, Client, Index, Informer, Informers, NamespacedName, Selection};
use ferry_linux::net::conntrack;
use jiff::Timestamp;
use k8s_openapi::api::{
    core::v1::{Node as ApiNode, Service},
    discovery::v1::EndpointSlice,
};
use parking_lot::Mutex;
use tokio::{sync::Notify, time::MissedTickBehavior};

use crate::{
    Config, Family, HostPorts, Node,
    backend::{Backend, Changed},
    health::{self, Health, HealthChecks},
    host_firewall,
    host_ports::{balanced_ports, conflicts},
    ledger::{Owner, Rank},
    metrics,
    node_ports::{all_addresses, primary_addresses},
    report::Report,
    service::{self, ServicePort},
    stale_flows::stale_flows,
};

const SERVICE_NAME: &str = "kubernetes.io/service-name";
/// Since when endpoints have what a slice says.
const CHANGED_AT: &str = "endpoints.kubernetes.io/last-change-trigger-time";
const ZONE: &str = "topology.kubernetes.io/zone";

/// After a refusal by the kernel: the first wait, and the longest.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));

/// How often the host is looked at, which tells nobody when it changes: what listens there, its firewall.
const LOOK: Duration = Duration::from_secs(30);

/// Keeps the kernel's rules what Services and EndpointSlices ask for, until told to stop. The rules stay
/// when it ends: traffic does not depend on the proxy running. [`crate::remove`] takes them out.
///
/// `own` is who may write to the own Node what there is to say of the host.
pub async fn run(informers: Informers, own: Client, config: Config, shutdown: CancellationToken) {
    let dirty = Dirty::default();
    let services = informers.of::<Service>();
    let slices = informers.of::<EndpointSlice>();
    let by_service = slices
        .index(SERVICE_NAME, |slice| service_of(slice).map(|key| key.to_string()).into_iter().collect());
    let own_name = Selection { fields: Some(format!("metadata.name={}", config.node_name)), labels: None };
    let nodes = informers.selected::<ApiNode>(own_name);
    watch(&dirty, &services, &slices, &nodes);

    let health = Health::default();
    serve_health(&config, &health, &shutdown);
    tokio::select! {
        () = async { services.synced().await; slices.synced().await; nodes.synced().await } => {}
        () = shutdown.cancelled() => return,
    }
    let host_ports = read_host_ports().await;
    let node = node_of(&config, nodes.list().first().map(|node| &**node), host_ports);
    let events = Events::start(own.clone(), config.node_name.clone(), shutdown.clone());
    let proxy = Proxy {
        started: Timestamp::now(),
        look_soon: false,
        told: Report::default(),
        own,
        recorder: events.reporting_recorder("kube-proxy"),
        backend: Some(Backend::new(&config, &node)),
        checks: HealthChecks::new(health.clone(), shutdown.clone()),
        config,
        node,
        services,
        by_service,
        nodes,
        known: HashMap::new(),
        programmed: HashMap::new(),
        whole: true,
    };
    proxy.keep(&dirty, &health, &shutdown).await;
}

fn serve_health(config: &Config, health: &Health, shutdown: &CancellationToken) {
    let Some(address) = config.health_address else { return };
    let (health, shutdown) = (health.clone(), shutdown.clone());
    tokio::spawn(async move {
        if let Err(error) = health::serve_own(address, health, shutdown).await {
            tracing::warn!(%address, %error, "the proxy's health cannot be served");
        }
    });
}

/// The services to look at again, with the revisions that ask for it.
#[derive(Clone, Default)]
struct Dirty {
    keys: Arc<Mutex<BTreeMap<NamespacedName, Option<i64>>>>,
    notify: Arc<Notify>,
}

impl Dirty {
    fn add(&self, key: NamespacedName, revision: Option<i64>) {
        self.keys.lock().insert(key, revision);
        self.notify.notify_one();
    }

    fn take(&self) -> BTreeMap<NamespacedName, Option<i64>> {
        std::mem::take(&mut *self.keys.lock())
    }
}

fn watch(
    dirty: &Dirty,
    services: &Informer<Service>,
    slices: &Informer<EndpointSlice>,
    nodes: &Informer<ApiNode>,
) {
    let on_service = dirty.clone();
    services.handle(move |event| {
        metrics::service_changed();
        on_service.add(event.key(), event.revision());
    });
    let on_slice = dirty.clone();
    slices.handle(move |event| {
        metrics::endpoints_changed();
        // A slice may change hands, though nobody should do that to it.
        let keys: BTreeSet<NamespacedName> =
            event.old().into_iter().chain([event.object()]).filter_map(|slice| service_of(slice)).collect();
        for key in keys {
            on_slice.add(key, event.revision());
        }
    });
    let (on_node, services) = (dirty.clone(), services.clone());
    nodes.handle(move |event| {
        let zone =
            |node: &ApiNode| node.metadata.labels.as_ref().and_then(|labels| labels.get(ZONE)).cloned();
        // Heartbeats come often; only the zone and the addresses matter here.
        let seen = |node: &ApiNode| (zone(node), all_addresses(node));
        if event.old().is_none_or(|old| seen(old) != seen(event.object())) {
            for service in services.list() {
                on_node.add(NamespacedName::of(&*service), event.revision());
            }
        }
    });
}

struct Proxy {
    /// Away while a blocking task has it.
    backend: Option<Backend>,
    checks: HealthChecks,
    config: Config,
    node: Node,
    services: Informer<Service>,
    by_service: Index<EndpointSlice>,
    nodes: Informer<ApiNode>,
    /// What was last asked of each service: its owner and its ports of both families.
    known: HashMap<String, (Owner, [Vec<ServicePort>; 2])>,
    /// When the last change of endpoints happened that the kernel knows, by service.
    programmed: HashMap<String, Timestamp>,
    /// What the kernel has is not to be relied on.
    whole: bool,
    /// What changed before is no measure of how fast this proxy is.
    started: Timestamp,
    /// A service asks for ports that the host may have.
    look_soon: bool,
    /// What was last said of the host.
    told: Report,
    own: Client,
    recorder: Recorder,
}

impl Proxy {
    /// Applies what changes, again and later each time where that fails.
    async fn keep(mut self, dirty: &Dirty, health: &Health, shutdown: &CancellationToken) {
        let mut wait = BACKOFF.0;
        let mut look = tokio::time::interval(LOOK);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let keys = dirty.take();
            let applied = if keys.is_empty() && !self.whole { Ok(()) } else { self.sync(keys).await };
            health.set(applied.is_ok());
            if std::mem::take(&mut self.look_soon) {
                look.reset_immediately();
            }
            let retry = match applied {
                Ok(()) => {
                    wait = BACKOFF.0;
                    None
                }
                Err(error) => {
                    tracing::error!(%error, "the service rules could not be applied");
                    let now = wait;
                    wait = (wait * 2).min(BACKOFF.1);
                    Some(now)
                }
            };
            let again = async {
                match retry {
                    Some(wait) => tokio::time::sleep(wait).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = dirty.notify.notified() => {}
                () = again => {}
                _ = look.tick() => self.look_at_host(dirty).await,
                () = shutdown.cancelled() => return,
            }
        }
    }

    async fn sync(
        &mut self,
        mut keys: BTreeMap<NamespacedName, Option<i64>>,
    ) -> Result<(), ferry_linux::net::ToolError> {
        let began = Instant::now();
        let mut span = ferry_trace::span("proxy.sync");
        span.set("services", keys.len() as i64);
        for revision in keys.values().copied().flatten() {
            span.caused_by(revision);
        }
        self.refresh_node(&mut keys).await;
        let mut changes = Changes { services: Vec::with_capacity(keys.len()), ..Changes::default() };
        for key in keys.into_keys() {
            self.compare(&key, &mut changes).await;
        }
        self.programmed.retain(|service, _| self.known.contains_key(service));
        if changes.services.is_empty() && !self.whole {
            return Ok(());
        }
        let applied = self.write(changes, began).await;
        if let Err(error) = &applied {
            span.fail(error);
        }
        applied
    }

    /// Looks at the node and the host again. Where the rules rest on other addresses than before, all services count as
    /// changed.
    async fn refresh_node(&mut self, keys: &mut BTreeMap<NamespacedName, Option<i64>>) {
        let mut host_ports = self.node.host_ports.clone();
        if keys.keys().any(|key| self.services.get(key).is_some_and(|service| is_balanced(&service))) {
            host_ports = read_host_ports().await;
            self.look_soon = true;
        }
        // A port that nobody asks for any more is looked at anew when somebody does.
        let has_said = self.told.balanced_ports.as_ref().is_some_and(|ports| !ports.is_empty());
        self.look_soon |= has_said && keys.keys().any(|key| self.services.get(key).is_none());
        let node = node_of(&self.config, self.nodes.list().first().map(|node| &**node), host_ports);
        // The load balancer waits for what a new node has to say.
        self.look_soon |= node.all_addresses != self.node.all_addresses;
        if node.addresses != self.node.addresses {
            self.backend = Some(Backend::new(&self.config, &node));
            self.whole = true;
            for service in self.services.list() {
                keys.entry(NamespacedName::of(&*service)).or_insert(None);
            }
        }
        self.node = node;
    }

    /// What a service asks for now, beside what the kernel has of it.
    async fn compare(&mut self, key: &NamespacedName, changes: &mut Changes) {
        let name = key.to_string();
        let service = self.services.get(key);
        let slices = self.by_service.get(&name);
        changes.triggers.extend(slices.iter().filter_map(|slice| self.news(slice)));
        let ports = |family| match &service {
            Some(service) => service::ports(service, &slices, &self.node, family),
            None => Vec::new(),
        };
        let now = [ports(Family::V4), ports(Family::V6)];
        let check = service.as_ref().and_then(|service| health_check_port(service));
        self.checks
            .set(key, check.map(|port| (port, now.iter().map(|p| service::local_endpoints(p)).sum())))
            .await;
        let before = self.known.get(&name);
        let owner = match (&service, before) {
            (Some(service), _) => owner(service, &name),
            (None, Some((owner, _))) => owner.clone(),
            (None, None) => return,
        };
        if !self.whole && before.is_some_and(|(known, ports)| *known == owner && *ports == now) {
            return;
        }
        let none = [Vec::new(), Vec::new()];
        let old = before.map_or(&none, |(_, ports)| ports);
        changes.stale_flows.extend(stale_flows(&old[0], &now[0], Family::V4));
        changes.stale_flows.extend(stale_flows(&old[1], &now[1], Family::V6));
        let [ipv4, ipv6] = now.clone();
        changes.services.push(Changed { owner: owner.clone(), ipv4, ipv6 });
        match service {
            Some(_) => drop(self.known.insert(name, (owner, now))),
            None => drop(self.known.remove(&name)),
        }
    }

    /// Brings changes to the kernel.
    async fn write(&mut self, changes: Changes, began: Instant) -> Result<(), ferry_linux::net::ToolError> {
        let Changes { services, triggers, stale_flows } = changes;
        let mut backend = self.backend.take().expect("the backend is back after every sync");
        let whole = self.whole;
        let at: Vec<Timestamp> = triggers.iter().map(|(_, at)| *at).collect();
        let (backend, applied) = tokio::task::spawn_blocking(move || {
            let applied = backend.apply(&services, whole);
            if applied.is_ok() {
                forget(&stale_flows);
            }
            (backend, applied)
        })
        .await
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()));
        self.backend = Some(backend);
        metrics::synced(self.config.mode, whole, applied.is_ok(), began.elapsed(), &at);
        if applied.is_ok() {
            self.programmed.extend(triggers);
        }
        // The tables know what is wanted; after a refusal all of it is written again.
        self.whole = applied.is_err();
        applied
    }
}

/// What differs from what the kernel has.
#[derive(Default)]
struct Changes {
    services: Vec<Changed>,
    /// Slices, and when their endpoints changed.
    triggers: Vec<(String, Timestamp)>,
    /// Connections to endpoints that are gone.
    stale_flows: BTreeSet<conntrack::Flows>,
}

impl Proxy {
    /// When a slice's last change of endpoints happened, if the kernel does not know it.
    fn news(&self, slice: &EndpointSlice) -> Option<(String, Timestamp)> {
        let at = slice.metadata.annotations.as_ref()?.get(CHANGED_AT)?;
        let at: Timestamp = at.parse().ok()?;
        let service = service_of(slice)?.to_string();
        let is_news = self.programmed.get(&service).is_none_or(|known| *known < at);
        (is_news && at >= self.started).then_some((service, at))
    }

    /// What the host has changed is brought to the rules, and what there is to say of it is told.
    async fn look_at_host(&mut self, dirty: &Dirty) {
        let Some(node) = self.nodes.list().first().cloned() else { return };
        let balanced: Vec<Arc<Service>> =
            self.services.list().into_iter().filter(|service| is_balanced(service)).collect();
        let ports = if balanced.is_empty() { HostPorts::default() } else { read_host_ports().await };
        if ports != self.node.host_ports {
            for service in &balanced {
                dirty.add(NamespacedName::of(&**service), None);
            }
        }
        let asked_for: BTreeSet<_> = balanced.iter().flat_map(|service| balanced_ports(service)).collect();
        let report = Report {
            host_ports: conflicts(&asked_for, &ports, &all_addresses(&node)),
            balanced_ports: Some(asked_for),
            dropping_chains: dropping_chains(&self.config).await,
        };
        // What the API holds may be older than what was said.
        if report == self.told && report == Report::of(&node) {
            return;
        }
        if !report.dropping_chains.is_empty() && report.dropping_chains != Report::of(&node).dropping_chains {
            let note = host_firewall::explain(&report.dropping_chains);
            tracing::warn!("{note}");
            self.recorder.event(&*node, EventType::Warning, "HostFirewallDropsForwards", "Forward", note);
        }
        match report.publish(&self.own, &self.config.node_name).await {
            Ok(()) => self.told = report,
            Err(error) => {
                tracing::warn!(%error, "cannot write the host's problems to the Node");
            }
        }
    }
}

fn is_balanced(service: &Service) -> bool {
    service.spec.as_ref().is_some_and(|spec| spec.type_.as_deref() == Some("LoadBalancer"))
}

async fn read_host_ports() -> HostPorts {
    let read = tokio::task::spawn_blocking(HostPorts::read).await;
    match read.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic())) {
        Ok(ports) => ports,
        Err(error) => {
            tracing::warn!(%error, "cannot read the ports on which the host listens");
            HostPorts::default()
        }
    }
}

fn forget(stale: &BTreeSet<conntrack::Flows>) {
    if let Err(error) = conntrack::forget_all(stale) {
        tracing::warn!(%error, "stale UDP flows cannot be forgotten");
    }
}

async fn dropping_chains(config: &Config) -> Vec<String> {
    let pods = host_firewall::Pods::of(&config.cluster, &config.pod_cidrs);
    let looked = tokio::task::spawn_blocking(move || host_firewall::look(&pods)).await;
    looked.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()))
}

fn service_of(slice: &EndpointSlice) -> Option<NamespacedName> {
    let name = slice.metadata.labels.as_ref()?.get(SERVICE_NAME)?;
    Some(NamespacedName::new(slice.metadata.namespace.clone().unwrap_or_default(), name))
}

fn owner(service: &Service, name: &str) -> Owner {
    let created = service.metadata.creation_timestamp.as_ref().map(|time| time.0.to_string());
    Arc::new(Rank { created: created.unwrap_or_default(), name: name.into() })
}

fn health_check_port(service: &Service) -> Option<u16> {
    let port = service.spec.as_ref()?.health_check_node_port?;
    u16::try_from(port).ok().filter(|port| *port != 0)
}

fn node_of(config: &Config, node: Option<&ApiNode>, host_ports: HostPorts) -> Node {
    let labels = node.and_then(|node| node.metadata.labels.as_ref());
    Node {
        name: config.node_name.clone(),
        zone: labels.and_then(|labels| labels.get(ZONE)).cloned(),
        addresses: node.map_or_else(Vec::new, primary_addresses),
        all_addresses: node.map_or_else(Vec::new, all_addresses),
        host_ports,
        pod_cidrs: config.pod_cidrs.clone(),
    }
}
