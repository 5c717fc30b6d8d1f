//! From a query's bytes to what is to be done about it. Pure but for reading the zone.

use hickory_proto::{
    op::{Edns, Message, MessageType, OpCode, Query, ResponseCode},
    rr::{DNSClass, Name, Record, RecordData},
};

use crate::zone::{Lookup, Zone};

/// The largest answer over UDP we offer; fits every path without fragments.
pub const UDP_PAYLOAD: u16 = 1232;

/// What becomes of a packet.
#[derive(Debug)]
pub enum Action {
    /// Not a query at all: saying anything would only help an attacker.
    Ignore,
    Reply(Box<Message>),
    /// Ask elsewhere; `response` is the beginning of the answer (a name that stands for another).
    Forward {
        response: Box<Message>,
        question: Query,
        dnssec_ok: bool,
    },
}

pub fn answer(packet: &[u8], zone: &Zone) -> Action {
    // Twelve bytes are a header; the third has the response bit.
    if packet.len() < 12 || packet[2] & 0x80 != 0 {
        return Action::Ignore;
    }
    let request = match Message::from_vec(packet) {
        Ok(request) => request,
        Err(_) => {
            let id = u16::from_be_bytes([packet[0], packet[1]]);
            return Action::Reply(Box::new(Message::error_msg(id, OpCode::Query, ResponseCode::FormErr)));
        }
    };
    let mut response = Message::new(request.metadata.id, MessageType::Response, request.metadata.op_code);
    response.metadata.recursion_desired = request.metadata.recursion_desired;
    response.metadata.recursion_available = true;
    let mut dnssec_ok = false;
    if let Some(edns) = &request.edns {
        let mut own = Edns::new();
        own.set_max_payload(UDP_PAYLOAD);
        dnssec_ok = edns.flags().dnssec_ok;
        own.set_dnssec_ok(dnssec_ok);
        response.set_edns(own);
        if edns.version() != 0 {
            return refuse(response, ResponseCode::BADVERS);
        }
    }
    if request.metadata.op_code != OpCode::Query {
        return refuse(response, ResponseCode::NotImp);
    }
    let mut queries = request.queries;
    let (Some(question), true) = (queries.pop(), queries.is_empty()) else {
        return refuse(response, ResponseCode::FormErr);
    };
    response.add_query(question.clone());
    if question.query_class() != DNSClass::IN {
        return refuse(response, ResponseCode::Refused);
    }
    match zone.lookup(question.name(), question.query_type()) {
        Lookup::Elsewhere => Action::Forward { response: Box::new(response), question, dnssec_ok },
        lookup => follow(response, question, lookup, zone, dnssec_ok),
    }
}

fn follow(mut response: Message, question: Query, lookup: Lookup, zone: &Zone, dnssec_ok: bool) -> Action {
    response.metadata.authoritative = true;
    match lookup {
        Lookup::Found { answers, additionals } => {
            response.add_answers(answers);
            response.add_additionals(additionals);
        }
        Lookup::Alias { answer, target } => {
            response.add_answer(*answer);
            // One step within the zone; a service cannot stand for itself by way of others for long.
            match zone.lookup(&target, question.query_type()) {
                Lookup::Found { answers, .. } => drop(response.add_answers(answers)),
                Lookup::NoData | Lookup::NoName | Lookup::Alias { .. } => {}
                Lookup::Elsewhere => {
                    response.metadata.authoritative = false;
                    let question = Query::query(target, question.query_type());
                    return Action::Forward { response: Box::new(response), question, dnssec_ok };
                }
            }
        }
        Lookup::NoData => drop(response.add_authority(zone.authority())),
        Lookup::NoName => {
            response.metadata.response_code = ResponseCode::NXDomain;
            response.add_authority(zone.authority());
        }
        Lookup::Elsewhere => {}
    }
    Action::Reply(Box::new(response))
}

fn refuse(mut response: Message, code: ResponseCode) -> Action {
    response.metadata.response_code = code;
    Action::Reply(Box::new(response))
}

/// The bytes to send; over UDP no more than `limit`, with the truncation bit when something is left out.
pub fn encode(response: &Message, limit: usize) -> Option<Vec<u8>> {
    let bytes = response.to_vec().ok()?;
    if bytes.len() <= limit {
        return Some(bytes);
    }
    // First without what is only helpful, then without anything.
    let mut smaller = response.clone();
    smaller.additionals.clear();
    let bytes = smaller.to_vec().ok()?;
    if bytes.len() <= limit {
        return Some(bytes);
    }
    response.truncate().to_vec().ok()
}

/// How much a client takes over UDP.
pub fn udp_limit(packet: &[u8]) -> usize {
    let claimed = Message::from_vec(packet).map_or(512, |request| request.max_payload());
    usize::from(claimed.clamp(512, UDP_PAYLOAD.max(512)))
}

/// Joins what an upstream answered to the answer begun.
pub fn complete(mut response: Message, upstream: Message) -> Message {
    response.metadata.response_code = upstream.metadata.response_code;
    response.metadata.authentic_data = upstream.metadata.authentic_data && response.answers.is_empty();
    response.add_answers(upstream.answers.into_iter().filter(has_data));
    response.add_authorities(upstream.authorities.into_iter().filter(has_data));
    response.add_additionals(upstream.additionals.into_iter().filter(has_data));
    response
}

/// Only an update (RFC 2136) has records without data, and a client refuses an answer with one.
fn has_data(record: &Record) -> bool {
    !record.data.is_update()
}

/// The least time any record of an answer may be kept.
pub fn least_ttl(message: &Message) -> Option<u32> {
    let records = message.answers.iter().chain(&message.authorities);
    records.map(|record: &Record| record.ttl).min()
}

/// Whether an upstream's answer is to this question: names compare without case, but we ask with the
/// client's own, so an honest server repeats it.
pub fn is_answer_to(message: &Message, id: u16, name: &Name, question: &Query) -> bool {
    message.metadata.message_type == MessageType::Response
        && message.metadata.op_code == OpCode::Query
        && message.metadata.id == id
        && message
            .queries
            .first()
            .is_some_and(|asked| asked.name() == name && asked.query_type() == question.query_type())
}

#[cfg(test)]
mod tests {
    use hickory_proto::rr::{RData, RecordType, rdata::A};

    use super::*;

    /// A response with one record of each type, each behind the root's name.
    fn response(op_code: u8, records: &[(u16, &[u8])]) -> Vec<u8> {
        let mut bytes = vec![0, 7, 0x80 | op_code << 3, 0, 0, 0, 0, records.len() as u8, 0, 0, 0, 0];
        for (kind, data) in records {
            bytes.push(0);
            bytes.extend(
                [kind.to_be_bytes(), [0, 1], [0, 0], [0, 9], (data.len() as u16).to_be_bytes()].concat(),
            );
            bytes.extend_from_slice(data);
        }
        bytes
    }

    #[test]
    fn records_without_data_are_dropped() {
        let records: &[(u16, &[u8])] = &[(1, &[]), (1, &[10, 0, 0, 1])];
        let update = Message::from_vec(&response(5, records)).expect("an update has such records");
        assert_eq!(update.answers.len(), 2);
        let begun = Message::new(1, MessageType::Response, OpCode::Query);
        let bytes = encode(&complete(begun, update), 512).expect("bytes");
        let passed_on = Message::from_vec(&bytes).expect("clients can read it");
        let data: Vec<&RData> = passed_on.answers.iter().map(|record| &record.data).collect();
        assert_eq!(data, [&RData::A(A([10, 0, 0, 1].into()))]);
    }

    #[test]
    fn dns_updates_are_not_answers() {
        let name = Name::from_ascii("a.example.").expect("a name");
        let question = Query::query(name.clone(), RecordType::A);
        for (op_code, expected) in [(0, true), (4, false), (5, false)] {
            let mut message =
                Message::from_vec(&response(op_code, &[(1, &[10, 0, 0, 1])])).expect("a message");
            message.add_query(question.clone());
            assert_eq!(is_answer_to(&message, 7, &name, &question), expected, "{op_code}");
        }
    }
}
