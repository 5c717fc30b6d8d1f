//! DNS messages: queries from anybody who reaches the port, and answers from servers that are asked in turn.

use std::net::IpAddr;
use std::sync::LazyLock;

use ferry_dns::answer::{self, Action};
use ferry_dns::zone::{Endpoint, Port, ServiceRecords, Zone};
use hickory_proto::op::{Edns, Message, MessageType, OpCode, Query};
use hickory_proto::rr::{Name, RecordType};

static ZONE: LazyLock<Zone> = LazyLock::new(|| {
    let mut zone = Zone::new("cluster.local").expect("a domain");
    let port = Port { name: "http".into(), protocol: "tcp".into(), number: 80 };
    let address = |last: u8| IpAddr::from([10, 96, 0, last]);
    let service = ServiceRecords {
        cluster_ips: vec![address(1), "fd00::1".parse().expect("an address")],
        ports: vec![port.clone()],
        ..ServiceRecords::default()
    };
    let endpoint =
        |last| Endpoint { hostname: format!("a-{last}"), ip: address(last), ports: vec![port.clone()] };
    let headless = ServiceRecords {
        endpoints: (0..100).map(endpoint).collect(),
        headless: true,
        ..ServiceRecords::default()
    };
    let alias = ServiceRecords {
        external_name: Some(Name::from_ascii("elsewhere.example.").expect("a name")),
        ..ServiceRecords::default()
    };
    for (name, records) in [("web", service), ("db", headless), ("alias", alias)] {
        zone.update("default", name, Some(records));
    }
    zone
});

pub fn run(data: &[u8]) {
    let limit = answer::udp_limit(data);
    match answer::answer(data, &ZONE) {
        Action::Ignore => {}
        Action::Reply(response) => sendable(&response, limit),
        Action::Forward { response, question, .. } => {
            let mut upstream = Message::new(1, MessageType::Response, OpCode::Query);
            upstream.add_query(question);
            sendable(&answer::complete(*response, upstream), limit);
        }
    }
    // The same bytes as a server's answer to a question of ours.
    if let Ok(message) = Message::from_vec(data) {
        let name = Name::from_ascii("a.example.").expect("a name");
        let question = Query::query(name.clone(), RecordType::A);
        let _ = answer::is_answer_to(&message, message.metadata.id, &name, &question);
        let _ = answer::least_ttl(&message);
        let begun = Message::new(2, MessageType::Response, OpCode::Query);
        sendable(&answer::complete(begun, message), 512);
    }
}

/// What goes out over UDP fits, and is a message.
fn sendable(response: &Message, limit: usize) {
    if let Some(bytes) = answer::encode(response, limit) {
        assert!(bytes.len() <= limit.max(512), "{} bytes for {limit}", bytes.len());
        Message::from_vec(&bytes).unwrap_or_else(|why| panic!("{why}: {}", bytes.escape_ascii()));
    }
}

pub fn seeds() -> Vec<Vec<u8>> {
    const NAMES: &[(&str, RecordType)] = &[
        ("web.default.svc.cluster.local.", RecordType::A),
        ("web.default.svc.cluster.local.", RecordType::AAAA),
        ("_http._tcp.web.default.svc.cluster.local.", RecordType::SRV),
        ("db.default.svc.cluster.local.", RecordType::A),
        ("a-7.db.default.svc.cluster.local.", RecordType::ANY),
        ("alias.default.svc.cluster.local.", RecordType::A),
        ("1.0.96.10.in-addr.arpa.", RecordType::PTR),
        ("dns-version.cluster.local.", RecordType::TXT),
        ("elsewhere.example.", RecordType::MX),
        ("cluster.local.", RecordType::SOA),
    ];
    let message = |(name, kind): &(&str, RecordType)| {
        let mut message = Message::new(7, MessageType::Query, OpCode::Query);
        message.add_query(Query::query(Name::from_ascii(name).ok()?, *kind));
        let mut edns = Edns::new();
        edns.set_max_payload(1232).set_dnssec_ok(true);
        message.set_edns(edns);
        message.to_vec().ok()
    };
    let mut seeds: Vec<Vec<u8>> = NAMES.iter().filter_map(message).collect();
    let answers = seeds.iter().filter_map(|query| match answer::answer(query, &ZONE) {
        Action::Reply(response) => answer::encode(&response, 4096),
        _ => None,
    });
    let answers: Vec<Vec<u8>> = answers.collect();
    seeds.extend(answers);
    seeds
}
