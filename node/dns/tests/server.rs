//! The server on real sockets of the loopback: UDP, TCP, forwarding, and what nobody should send.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use ferry_client::CancellationToken;
use ferry_dns::{
    forward::Forwarder,
    server::Server,
    zone::{Zone, records_of},
};
use hickory_proto::{
    op::{Edns, Message, MessageType, OpCode, Query, ResponseCode},
    rr::{Name, RData, Record, RecordType, rdata::A},
};
use k8s_openapi::api::{core::v1::Service, discovery::v1::EndpointSlice};
use parking_lot::RwLock;
use serde_json::json;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpStream, UdpSocket},
    task::JoinHandle,
    time::timeout,
};

const PATIENCE: Duration = Duration::from_secs(5);

struct Running {
    address: SocketAddr,
    zone: Arc<RwLock<Zone>>,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Running {
    async fn start(upstreams: Vec<SocketAddr>) -> Self {
        let server = Server::bind(&["127.0.0.1:0".parse().unwrap()]).await.unwrap();
        let address = server.addresses()[0];
        let zone = Arc::new(RwLock::new(zone()));
        let stop = CancellationToken::new();
        let task =
            tokio::spawn(server.serve(zone.clone(), Arc::new(Forwarder::new(upstreams)), stop.clone()));
        Running { address, zone, stop, task }
    }

    async fn stop(self) {
        self.stop.cancel();
        timeout(PATIENCE, self.task).await.unwrap().unwrap();
    }

    async fn ask(&self, name: &str, kind: RecordType) -> Message {
        self.ask_message(&query(name, kind)).await
    }

    async fn ask_message(&self, message: &Message) -> Message {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        socket.send_to(&message.to_vec().unwrap(), self.address).await.unwrap();
        let mut buffer = [0; 4096];
        let length = timeout(PATIENCE, socket.recv(&mut buffer)).await.unwrap().unwrap();
        let answer = Message::from_vec(&buffer[..length]).unwrap();
        assert_eq!(answer.metadata.id, message.metadata.id);
        answer
    }

    async fn ask_tcp(&self, message: &Message) -> Message {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        let bytes = message.to_vec().unwrap();
        stream.write_u16(bytes.len() as u16).await.unwrap();
        stream.write_all(&bytes).await.unwrap();
        let mut answer = vec![0; timeout(PATIENCE, stream.read_u16()).await.unwrap().unwrap().into()];
        stream.read_exact(&mut answer).await.unwrap();
        Message::from_vec(&answer).unwrap()
    }
}

fn query(name: &str, kind: RecordType) -> Message {
    let mut message = Message::new(4711, MessageType::Query, OpCode::Query);
    message.metadata.recursion_desired = true;
    message.add_query(Query::query(Name::from_ascii(name).unwrap(), kind));
    message
}

fn service(spec: serde_json::Value) -> Service {
    serde_json::from_value(json!({ "metadata": {}, "spec": spec })).unwrap()
}

fn zone() -> Zone {
    let mut zone = Zone::new("cluster.local").unwrap();
    let none: [Arc<EndpointSlice>; 0] = [];
    let plain = service(json!({ "clusterIP": "10.96.0.1", "ports": [{ "name": "http", "port": 80 }] }));
    zone.update("shop", "web", records_of(&plain, &none));
    let external = service(json!({ "type": "ExternalName", "externalName": "www.example.org" }));
    zone.update("shop", "away", records_of(&external, &none));
    let endpoints: Vec<_> =
        (0..200).map(|n| json!({ "addresses": [format!("10.244.{}.{}", n / 100, n % 100 + 1)] })).collect();
    let slice = json!({ "metadata": {}, "addressType": "IPv4", "ports": [], "endpoints": endpoints });
    let slice: Arc<EndpointSlice> = Arc::new(serde_json::from_value(slice).unwrap());
    zone.update("shop", "many", records_of(&service(json!({ "clusterIP": "None" })), &[slice]));
    zone
}

fn addresses(message: &Message) -> Vec<String> {
    message.answers.iter().map(|record| record.data.to_string()).collect()
}

/// A name server that answers every question with one address and counts them.
async fn upstream(truncated: bool) -> (SocketAddr, Arc<std::sync::atomic::AtomicUsize>, JoinHandle<()>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let socket = UdpSocket::bind(address).await.unwrap();
    let asked = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let count = asked.clone();
    let respond = move |bytes: &[u8], full: bool| {
        let request = Message::from_vec(bytes).unwrap();
        let question = request.queries[0].clone();
        let mut response = Message::new(request.metadata.id, MessageType::Response, OpCode::Query);
        response.add_query(question.clone());
        response.metadata.truncation = !full;
        if full {
            response.add_answer(Record::from_rdata(
                question.name().clone(),
                60,
                RData::A(A([192, 0, 2, 80].into())),
            ));
        }
        response.to_vec().unwrap()
    };
    let task = tokio::spawn(async move {
        let mut buffer = [0; 4096];
        loop {
            tokio::select! {
                Ok((length, peer)) = socket.recv_from(&mut buffer) => {
                    count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    socket.send_to(&respond(&buffer[..length], !truncated), peer).await.unwrap();
                }
                Ok((mut stream, _)) = listener.accept() => {
                    let mut bytes = vec![0; stream.read_u16().await.unwrap().into()];
                    stream.read_exact(&mut bytes).await.unwrap();
                    let answer = respond(&bytes, true);
                    stream.write_u16(answer.len() as u16).await.unwrap();
                    stream.write_all(&answer).await.unwrap();
                }
            }
        }
    });
    (address, asked, task)
}

#[tokio::test]
async fn the_clusters_names_are_answered() {
    let server = Running::start(vec![]).await;
    let answer = server.ask("web.shop.svc.cluster.local.", RecordType::A).await;
    assert_eq!(addresses(&answer), ["10.96.0.1"]);
    assert!(answer.metadata.authoritative && answer.metadata.recursion_available);
    let tcp = server.ask_tcp(&query("web.shop.svc.cluster.local.", RecordType::A)).await;
    assert_eq!(addresses(&tcp), ["10.96.0.1"]);
    let none = server.ask("nothing.shop.svc.cluster.local.", RecordType::A).await;
    assert_eq!(none.metadata.response_code, ResponseCode::NXDomain);
    assert_eq!(none.authorities.len(), 1, "how long the no may be kept");
    let srv = server.ask("_http._tcp.web.shop.svc.cluster.local.", RecordType::SRV).await;
    assert_eq!((srv.answers.len(), srv.additionals.len()), (1, 1));

    // A change holds with the next question.
    server.zone.write().update("shop", "web", None);
    let gone = server.ask("web.shop.svc.cluster.local.", RecordType::A).await;
    assert_eq!(gone.metadata.response_code, ResponseCode::NXDomain);
    server.stop().await;
}

#[tokio::test]
async fn large_answers_are_cut_to_what_the_client_takes() {
    let server = Running::start(vec![]).await;
    let plain = server.ask("many.shop.svc.cluster.local.", RecordType::A).await;
    assert!(plain.metadata.truncation && plain.answers.is_empty());
    let whole = server.ask_tcp(&query("many.shop.svc.cluster.local.", RecordType::A)).await;
    assert_eq!(whole.answers.len(), 200);
    let mut roomy = query("web.shop.svc.cluster.local.", RecordType::A);
    let mut edns = Edns::new();
    edns.set_max_payload(4096);
    roomy.set_edns(edns);
    let answer = server.ask_message(&roomy).await;
    assert_eq!(answer.edns.unwrap().max_payload(), 1232);
    server.stop().await;
}

#[tokio::test]
async fn other_names_are_forwarded_and_cached() {
    let (address, asked, task) = upstream(false).await;
    let server = Running::start(vec![address]).await;
    for _ in 0..3 {
        let answer = server.ask("example.org.", RecordType::A).await;
        assert_eq!(addresses(&answer), ["192.0.2.80"]);
        assert!(!answer.metadata.authoritative);
    }
    assert_eq!(asked.load(std::sync::atomic::Ordering::Relaxed), 1, "the cache answers the second time");
    let alias = server.ask("away.shop.svc.cluster.local.", RecordType::A).await;
    assert_eq!(addresses(&alias), ["www.example.org.", "192.0.2.80"], "the alias and what it stands for");
    server.stop().await;
    task.abort();

    let (address, _, task) = upstream(true).await;
    let server = Running::start(vec![address]).await;
    let answer = server.ask("example.org.", RecordType::A).await;
    assert_eq!(addresses(&answer), ["192.0.2.80"], "what does not fit is asked for by TCP");
    server.stop().await;
    task.abort();

    let alone = Running::start(vec![]).await;
    let failed = alone.ask("example.org.", RecordType::A).await;
    assert_eq!(failed.metadata.response_code, ResponseCode::ServFail);
    alone.stop().await;
}

#[tokio::test]
async fn malformed_packets_do_no_harm() {
    let server = Running::start(vec![]).await;
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let mut seed = 42_u64;
    let mut random = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) as usize
    };
    let good = query("_http._tcp.web.shop.svc.cluster.local.", RecordType::SRV).to_vec().unwrap();
    for round in 0..5000 {
        let mut packet = good.clone();
        match round % 4 {
            // flipped bytes
            0 => (0..1 + random() % 6).for_each(|_| {
                let at = random() % packet.len();
                packet[at] = random() as u8;
            }),
            // cut short
            1 => packet.truncate(random() % packet.len()),
            // noise
            2 => packet = (0..random() % 600).map(|_| random() as u8).collect(),
            // compression pointers that lead anywhere
            _ => {
                let at = 12 + random() % (packet.len() - 13);
                packet[at] = 0xc0 | (random() as u8 & 0x3f);
                packet[at + 1] = random() as u8;
            }
        }
        socket.send_to(&packet, server.address).await.unwrap();
        if round % 100 == 0 {
            // Still there, and still right.
            let answer = server.ask("web.shop.svc.cluster.local.", RecordType::A).await;
            assert_eq!(addresses(&answer), ["10.96.0.1"]);
        }
    }
    // A frame that announces more than comes, and one of no length.
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    stream.write_all(&[0xff, 0xff, 1, 2, 3]).await.unwrap();
    drop(stream);
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    stream.write_all(&[0, 0]).await.unwrap();
    assert_eq!(
        timeout(PATIENCE, stream.read(&mut [0; 16])).await.unwrap().unwrap(),
        0,
        "the connection is closed"
    );

    let two = {
        let mut message = query("web.shop.svc.cluster.local.", RecordType::A);
        message.add_query(Query::query(Name::from_ascii("a.").unwrap(), RecordType::A));
        message
    };
    assert_eq!(server.ask_message(&two).await.metadata.response_code, ResponseCode::FormErr);
    let mut update = query("web.shop.svc.cluster.local.", RecordType::A);
    update.metadata.op_code = OpCode::Notify;
    assert_eq!(server.ask_message(&update).await.metadata.response_code, ResponseCode::NotImp);
    server.stop().await;
}
