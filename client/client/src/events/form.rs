//! The two ways to tell an event. Most components name their source and count; scheduler and proxy tell it in the way
//! of `events.k8s.io`, with an action and series. Both are one resource with one set of fields, kept in the core group's
//! version, and both are written in that: the other version would be converted on the way in and for the answer, which
//! costs the server more than the write itself.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, EventSeries, EventSource};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, Time};
use kube::Resource;
use kube::api::ObjectMeta;
use kube::core::Request;
use serde_json::{Value, json};

use super::{EventType, PendingEvent};

/// Who speaks, as the reader of an event sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// A component of the cluster, on whichever host.
    Component,
    /// A component of one host.
    ComponentOnHost,
    /// In the way of `events.k8s.io`: a controller, and which of its instances.
    Reported,
}

pub(super) fn requests(namespace: &str) -> Request {
    Request::new(Event::url_path(&(), Some(namespace)))
}

impl Form {
    /// A merge patch that says how often an event has been told, and when last.
    pub fn count(self, count: i32, at: Timestamp) -> Value {
        match self {
            Form::Component | Form::ComponentOnHost => json!({"count": count, "lastTimestamp": Time(at)}),
            Form::Reported => {
                json!({"series": EventSeries { count: Some(count), last_observed_time: Some(MicroTime(at)) }})
            }
        }
    }
}

impl PendingEvent {
    /// Events about cluster-scoped objects live in the default namespace.
    pub fn namespace(&self) -> String {
        let namespace = self.regarding.namespace.clone().filter(|namespace| !namespace.is_empty());
        namespace.unwrap_or_else(|| "default".into())
    }

    pub fn event_name(&self) -> String {
        format!("{}.{:x}", self.regarding.name.as_deref().unwrap_or("unknown"), self.at.as_nanosecond())
    }

    /// The event as it goes to the server, with the note that was decided on.
    pub fn body(&self, namespace: &str, name: &str, note: &str) -> Vec<u8> {
        let event = match self.form {
            Form::Component => self.counted(None),
            Form::ComponentOnHost => self.counted(Some(&self.instance)),
            Form::Reported => self.reported(),
        };
        let event = Event {
            metadata: metadata(namespace, name),
            type_: Some(self.type_()),
            reason: Some(self.reason.clone()),
            message: Some(short(note).into()),
            involved_object: self.regarding.clone(),
            related: self.related.clone(),
            ..event
        };
        serde_json::to_vec(&event).expect("an event is JSON")
    }

    fn counted(&self, host: Option<&String>) -> Event {
        let at = Time(self.at);
        Event {
            first_timestamp: Some(at.clone()),
            last_timestamp: Some(at),
            count: Some(1),
            source: Some(EventSource { component: Some(self.controller.into()), host: host.cloned() }),
            reporting_component: Some(self.controller.into()),
            reporting_instance: Some(host.cloned().unwrap_or_default()),
            ..Default::default()
        }
    }

    fn reported(&self) -> Event {
        Event {
            event_time: Some(MicroTime(self.at)),
            action: Some(self.action.clone()),
            reporting_component: Some(self.controller.into()),
            reporting_instance: Some(format!("{}-{}", self.controller, self.instance)),
            ..Default::default()
        }
    }

    fn type_(&self) -> String {
        match self.kind {
            EventType::Normal => "Normal".into(),
            EventType::Warning => "Warning".into(),
        }
    }
}

/// The server refuses longer notes.
const MAX_NOTE: usize = 1024;

fn short(note: &str) -> &str {
    &note[..note.floor_char_boundary(MAX_NOTE)]
}

fn metadata(namespace: &str, name: &str) -> ObjectMeta {
    ObjectMeta { name: Some(name.into()), namespace: Some(namespace.into()), ..Default::default() }
}

#[cfg(test)]
mod tests {
    use super::super::correlator::tests::entry;
    use super::*;

    fn written(form: Form) -> Value {
        let entry = PendingEvent { form, ..entry("a", "hello", 0) };
        serde_json::from_slice(&entry.body("ns", "a.1", &entry.note)).expect("JSON")
    }

    #[test]
    fn a_long_note_is_cut_to_what_the_server_takes() {
        let entry = entry("a", &"é".repeat(1000), 0);
        assert_eq!((short(&entry.note).len(), entry.namespace().as_str()), (1024, "default"));
    }

    #[test]
    fn each_form_says_who_speaks_as_its_readers_expect() {
        let event = written(Form::ComponentOnHost);
        assert_eq!(event["source"], json!({"component": "test", "host": "host"}));
        assert_eq!(
            (&event["reportingComponent"], &event["reportingInstance"]),
            (&json!("test"), &json!("host"))
        );
        assert_eq!((&event["count"], &event["firstTimestamp"]), (&json!(1), &event["lastTimestamp"]));
        assert_eq!((&event["message"], &event["eventTime"]), (&json!("hello"), &Value::Null));

        let event = written(Form::Component);
        assert_eq!(event["source"], json!({"component": "test"}));
        assert_eq!(event["reportingInstance"], "");

        let event = written(Form::Reported);
        assert_eq!(event["reportingComponent"], "test");
        assert_eq!(event["reportingInstance"], "test-host");
        assert_eq!((&event["message"], &event["action"]), (&json!("hello"), &json!("Create")));
        assert_eq!((&event["source"], &event["count"]), (&Value::Null, &Value::Null));
    }

    #[test]
    fn repetitions_are_counted_in_the_words_of_each_form() {
        let at = Timestamp::from_second(1_000_000).expect("a time");
        assert_eq!(
            Form::Component.count(3, at),
            json!({"count": 3, "lastTimestamp": "1970-01-12T13:46:40Z"})
        );
        let series = &Form::Reported.count(3, at)["series"];
        assert_eq!(series, &json!({"count": 3, "lastObservedTime": "1970-01-12T13:46:40.000000Z"}));
    }
}
