//! Export in Chrome's trace event format (JSON), which ui.perfetto.dev, chrome://tracing and speedscope open.
//!
//! Each room of Ferry is a process there. Steps of a room that overlap without one calling the other stand in lanes of
//! their own, since the format nests by time alone; causes are arrows from the commit to what it woke.

use std::collections::{BTreeMap, HashMap};

use ferry_trace::Record;
use serde_json::{Value as Json, json};

pub fn events(records: &[Record]) -> Json {
    let rooms: BTreeMap<&str, usize> = {
        let mut names: Vec<&str> = records.iter().map(room).collect();
        names.sort_unstable();
        names.dedup();
        names.into_iter().enumerate().map(|(index, name)| (name, index + 1)).collect()
    };
    let mut events: Vec<Json> = rooms
        .iter()
        .map(|(room, pid)| json!({"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": room}}))
        .collect();
    let placed = place(records, &rooms);
    let mut writers: HashMap<i64, &Placed<'_>> = HashMap::new();
    for step in &placed {
        if let Some(revision) = step.record.committed {
            writers.entry(revision).or_insert(step);
        }
    }
    for step in &placed {
        events.push(step.event());
        for cause in &step.record.causes {
            if let Some(writer) = writers.get(cause) {
                events.extend(arrow(writer, step, *cause));
            }
        }
    }
    json!({ "displayTimeUnit": "ms", "traceEvents": events })
}

struct Placed<'a> {
    record: &'a Record,
    pid: usize,
    tid: usize,
}

/// By start, the outer of two that begin together first; each in the first lane in which it nests.
fn place<'a>(records: &'a [Record], rooms: &BTreeMap<&str, usize>) -> Vec<Placed<'a>> {
    let mut ordered: Vec<&Record> = records.iter().collect();
    ordered.sort_by_key(|record| (record.start, std::cmp::Reverse(record.duration)));
    // Of each room, each lane's open steps: when each will end, the innermost last.
    let mut lanes: HashMap<usize, Vec<Vec<u64>>> = HashMap::new();
    let mut placed = Vec::new();
    for record in ordered {
        let pid = rooms.get(room(record)).copied().unwrap_or(0);
        let lanes = lanes.entry(pid).or_default();
        let nests = |lane: &mut Vec<u64>| {
            lane.retain(|end| *end > record.start);
            lane.last().is_none_or(|end| record.end() <= *end)
        };
        let tid = lanes.iter_mut().position(nests).unwrap_or_else(|| {
            lanes.push(Vec::new());
            lanes.len() - 1
        });
        lanes[tid].push(record.end());
        placed.push(Placed { record, pid, tid: tid + 1 });
    }
    placed
}

impl Placed<'_> {
    fn event(&self) -> Json {
        let record = self.record;
        let mut args = serde_json::Map::new();
        for (key, value) in &record.attributes {
            args.insert(key.to_string(), json!(value));
        }
        let facts = [
            ("object", record.object.as_deref().map(Json::from)),
            ("revision", record.committed.map(Json::from)),
            ("error", record.error.as_deref().map(Json::from)),
            ("source", record.source.as_deref().map(Json::from)),
            ("trace", Some(record.trace.to_string().into())),
        ];
        for (key, value) in facts {
            args.extend(value.map(|value| (key.to_owned(), value)));
        }
        json!({
            "ph": "X", "name": record.name, "cat": room(record), "pid": self.pid, "tid": self.tid,
            "ts": micros(record.start), "dur": micros(record.duration), "args": args,
        })
    }
}

/// A flow from the end of the commit to the start of what it woke.
fn arrow(from: &Placed<'_>, to: &Placed<'_>, revision: i64) -> [Json; 2] {
    let end = |phase: &str, at: &Placed<'_>, time: u64| {
        json!({
            "ph": phase, "name": format!("r{revision}"), "cat": "cause", "pid": at.pid, "tid": at.tid,
            "id": to.record.span.to_string(), "ts": micros(time), "bp": "e",
        })
    };
    // A flow that ends before it begins is not drawn: the watch may be faster than the commit's span.
    let begins = from.record.end().min(to.record.start).max(from.record.start);
    [end("s", from, begins), end("f", to, to.record.start.max(begins))]
}

fn room(record: &Record) -> &str {
    record.name.split('.').next().unwrap_or("ferry")
}

/// The format counts in microseconds, with a fraction.
fn micros(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1_000.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferry_trace::script::{COMMAND, history};

    #[test]
    fn every_span_is_an_event_and_every_cause_an_arrow() {
        let records = history(COMMAND);
        let exported = events(&records);
        let events = exported["traceEvents"].as_array().expect("events");
        let of = |phase: &str| events.iter().filter(|event| event["ph"] == phase).collect::<Vec<_>>();
        assert_eq!(of("X").len(), records.len());
        let causes: usize = records.iter().map(|record| record.causes.len()).sum();
        assert_eq!((of("s").len(), of("f").len()), (causes, causes));
        let commit = of("X").into_iter().find(|event| event["name"] == "store.commit").expect("a commit");
        assert_eq!(commit["args"]["revision"], 10);
        assert_eq!((commit["ts"].as_f64(), commit["dur"].as_f64()), (Some(1_007_000.0), Some(1_000.0)));
        let rooms: Vec<&str> = of("M").iter().filter_map(|event| event["args"]["name"].as_str()).collect();
        assert!(rooms.contains(&"kubelet") && rooms.contains(&"store"), "{rooms:?}");
    }

    #[test]
    fn steps_that_overlap_without_nesting_stand_in_lanes_of_their_own() {
        let mut records = history("kubelet.a\nkubelet.b\nkubelet.c\nkubelet.d");
        for (record, (start, end)) in records.iter_mut().zip([(0, 100), (10, 50), (40, 80), (60, 90)]) {
            (record.start, record.duration) = (start, end - start);
        }
        let rooms = BTreeMap::from([("kubelet", 1)]);
        let lanes: Vec<usize> = place(&records, &rooms).iter().map(|step| step.tid).collect();
        assert_eq!(lanes, [1, 1, 2, 1]);
    }
}
