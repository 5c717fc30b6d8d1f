//! What the DNS counts, by CoreDNS' names: dashboards of clusters know those.

use std::net::SocketAddr;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use ferry_metrics::{Counter, Counters, Histograms, Registry, exponential};
use hickory_proto::op::{Message, ResponseCode};
use hickory_proto::rr::RecordType;

static SECONDS: [f64; 16] = exponential(0.00025, 2.0);
static SIZES: [f64; 15] = [
    0.0, 100.0, 200.0, 300.0, 400.0, 511.0, 1023.0, 2047.0, 4095.0, 8291.0, 16_000.0, 32_000.0, 48_000.0,
    64_000.0, 65_535.0,
];

static REQUESTS: Counters<6> = Counters::new(
    "coredns_dns_requests_total",
    "Questions that were asked",
    &["family", "proto", "server", "type", "view", "zone"],
);
static DURATION: Histograms<3> = Histograms::new(
    "coredns_dns_request_duration_seconds",
    "How long it took to answer a question, in seconds",
    &["server", "view", "zone"],
    &SECONDS,
);
static REQUEST_SIZE: Histograms<4> = Histograms::new(
    "coredns_dns_request_size_bytes",
    "Bytes of questions",
    &["proto", "server", "view", "zone"],
    &SIZES,
);
static RESPONSE_SIZE: Histograms<4> = Histograms::new(
    "coredns_dns_response_size_bytes",
    "Bytes of answers",
    &["proto", "server", "view", "zone"],
    &SIZES,
);
static RESPONSES: Counters<5> = Counters::new(
    "coredns_dns_responses_total",
    "Answers, by their code",
    &["plugin", "rcode", "server", "view", "zone"],
);
static CACHE_REQUESTS: Counters<3> = Counters::new(
    "coredns_cache_requests_total",
    "Names outside the cluster that were looked for in the cache",
    &["server", "view", "zones"],
);
static CACHE_HITS: Counters<4> = Counters::new(
    "coredns_cache_hits_total",
    "Names outside the cluster that the cache had",
    &["server", "type", "view", "zones"],
);
static FORWARD_REQUESTS: Counters<1> =
    Counters::new("coredns_forward_requests_total", "Questions to other name servers", &["to"]);
static FORWARD_RESPONSES: Counters<2> = Counters::new(
    "coredns_forward_responses_total",
    "Answers of other name servers, by their code",
    &["rcode", "to"],
);
static FORWARD_DURATION: Histograms<2> = Histograms::new(
    "coredns_forward_request_duration_seconds",
    "How long other name servers took, in seconds",
    &["rcode", "to"],
    &SECONDS,
);

pub fn register(registry: &mut Registry) {
    ferry_client::metrics::register(registry);
    registry.add(&[
        &REQUESTS,
        &DURATION,
        &REQUEST_SIZE,
        &RESPONSE_SIZE,
        &RESPONSES,
        &CACHE_REQUESTS,
        &CACHE_HITS,
        &FORWARD_REQUESTS,
        &FORWARD_RESPONSES,
        &FORWARD_DURATION,
    ]);
}

/// What one server counts.
pub struct Counted {
    /// As CoreDNS names it: `dns://10.96.0.10:53`.
    server: String,
}

impl Counted {
    pub fn new(address: String) -> Counted {
        Counted { server: format!("dns://{address}") }
    }

    /// `sizes` are the bytes of the question and of the answer.
    pub fn answered(
        &self,
        proto: &str,
        is_ipv6: bool,
        response: &Message,
        sizes: (usize, usize),
        took: Duration,
    ) {
        let (server, zone, view) = (self.server.as_str(), ".", "");
        let family = if is_ipv6 { "2" } else { "1" };
        let kind = response.queries.first().map_or("other", |query| kind(query.query_type()));
        REQUESTS.with([family, proto, server, kind, view, zone]).inc();
        DURATION.with([server, view, zone]).observe_time(took);
        REQUEST_SIZE.with([proto, server, view, zone]).observe(sizes.0 as f64);
        RESPONSE_SIZE.with([proto, server, view, zone]).observe(sizes.1 as f64);
        let plugin = if response.metadata.authoritative { "kubernetes" } else { "forward" };
        RESPONSES.with([plugin, code(response.metadata.response_code), server, view, zone]).inc();
    }
}

/// The types that CoreDNS names; anybody may ask for others.
fn kind(kind: RecordType) -> &'static str {
    match kind {
        RecordType::A => "A",
        RecordType::AAAA => "AAAA",
        RecordType::CNAME => "CNAME",
        RecordType::MX => "MX",
        RecordType::NS => "NS",
        RecordType::PTR => "PTR",
        RecordType::SOA => "SOA",
        RecordType::SRV => "SRV",
        RecordType::TXT => "TXT",
        RecordType::HTTPS => "HTTPS",
        RecordType::ANY => "ANY",
        _ => "other",
    }
}

fn code(code: ResponseCode) -> &'static str {
    match code {
        ResponseCode::NoError => "NOERROR",
        ResponseCode::FormErr => "FORMERR",
        ResponseCode::ServFail => "SERVFAIL",
        ResponseCode::NXDomain => "NXDOMAIN",
        ResponseCode::NotImp => "NOTIMP",
        ResponseCode::Refused => "REFUSED",
        ResponseCode::BADVERS => "BADVERS",
        _ => "other",
    }
}

pub fn looked_up(was_found: bool) {
    static SERIES: LazyLock<[Arc<Counter>; 2]> = LazyLock::new(|| {
        [CACHE_REQUESTS.with(["dns://:53", "", "."]), CACHE_HITS.with(["dns://:53", "success", "", "."])]
    });
    SERIES[0].inc();
    if was_found {
        SERIES[1].inc();
    }
}

pub fn forwarded(to: SocketAddr, answer: Option<&Message>, took: Duration) {
    let to = to.to_string();
    FORWARD_REQUESTS.with([&to]).inc();
    if let Some(answer) = answer {
        let code = code(answer.metadata.response_code);
        FORWARD_RESPONSES.with([code, &to]).inc();
        FORWARD_DURATION.with([code, &to]).observe_time(took);
    }
}
