//! What a server answers: what a start waits for, a status shows and a demo calls by name.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use hickory_proto::op::{Message, MessageType, OpCode, Query};
use hickory_proto::rr::{Name, RData, RecordType};
use tokio::net::UdpSocket;

/// A server on this host answers well within it.
const PATIENCE: Duration = Duration::from_millis(100);
/// Somebody waits for the address itself.
const LONG_PATIENCE: Duration = Duration::from_secs(5);

/// Asks for the address of the API server's own Service.
pub async fn answers(server: SocketAddr, domain: &str) -> bool {
    let name = format!("kubernetes.default.svc.{domain}");
    let asked = tokio::time::timeout(PATIENCE, ask(server, &name)).await;
    matches!(asked, Ok(Some(answer)) if !answer.answers.is_empty())
}

/// The first address of a full name, of the server's own family.
pub async fn address(server: SocketAddr, name: &str) -> Option<IpAddr> {
    let answer = tokio::time::timeout(LONG_PATIENCE, ask(server, name)).await.ok()??;
    answer.answers.iter().find_map(|record| match &record.data {
        RData::A(address) => Some(IpAddr::V4(address.0)),
        RData::AAAA(address) => Some(IpAddr::V6(address.0)),
        _ => None,
    })
}

async fn ask(server: SocketAddr, name: &str) -> Option<Message> {
    let name = Name::from_ascii(format!("{name}.")).ok()?;
    let mut question = Message::new(0x4653, MessageType::Query, OpCode::Query);
    question.add_query(Query::query(name, if server.is_ipv4() { RecordType::A } else { RecordType::AAAA }));
    let any: SocketAddr = if server.is_ipv4() { ([0, 0, 0, 0], 0).into() } else { ([0; 16], 0).into() };
    let socket = UdpSocket::bind(any).await.ok()?;
    socket.connect(server).await.ok()?;
    socket.send(&question.to_vec().ok()?).await.ok()?;
    let mut buffer = [0; 1232];
    let length = socket.recv(&mut buffer).await.ok()?;
    Message::from_vec(&buffer[..length]).ok()
}
