//! Whether a server answers for the cluster: what a start waits for and a status shows.

use std::net::SocketAddr;
use std::time::Duration;

use hickory_proto::op::{Message, MessageType, OpCode, Query};
use hickory_proto::rr::{Name, RecordType};
use tokio::net::UdpSocket;

/// A server on this host answers well within it.
const PATIENCE: Duration = Duration::from_millis(100);

/// Asks for the address of the API server's own Service.
pub async fn answers(server: SocketAddr, domain: &str) -> bool {
    let asked = tokio::time::timeout(PATIENCE, ask(server, domain)).await;
    matches!(asked, Ok(Some(true)))
}

async fn ask(server: SocketAddr, domain: &str) -> Option<bool> {
    let name = Name::from_ascii(format!("kubernetes.default.svc.{domain}.")).ok()?;
    let mut question = Message::new(0x4653, MessageType::Query, OpCode::Query);
    question.add_query(Query::query(name, if server.is_ipv4() { RecordType::A } else { RecordType::AAAA }));
    let any: SocketAddr = if server.is_ipv4() { ([0, 0, 0, 0], 0).into() } else { ([0; 16], 0).into() };
    let socket = UdpSocket::bind(any).await.ok()?;
    socket.connect(server).await.ok()?;
    socket.send(&question.to_vec().ok()?).await.ok()?;
    let mut buffer = [0; 1232];
    let length = socket.recv(&mut buffer).await.ok()?;
    let answer = Message::from_vec(&buffer[..length]).ok()?;
    Some(!answer.answers.is_empty())
}
