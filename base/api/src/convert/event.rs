//! Events are one resource in two groups, under different field names.

use crate::object::Object;

const NAMES: [(&str, &str); 7] = [
    // core, events.k8s.io
    ("involvedObject", "regarding"),
    ("message", "note"),
    ("source", "deprecatedSource"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("count", "deprecatedCount"),
    ("reportingComponent", "reportingController"),
];

pub fn to_core(event: &mut Object) {
    for (core, name) in NAMES {
        rename(event, name, core);
    }
}

pub fn from_core(event: &mut Object) {
    for (core, name) in NAMES {
        rename(event, core, name);
    }
}

fn rename(event: &mut Object, from: &str, to: &str) {
    if let Some(value) = event.0.remove(from) {
        event.0.insert(to.to_string(), value);
    }
}
