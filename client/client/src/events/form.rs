//! The two forms in which events are written. Most components write that of the core group,
//! which names its source and counts; scheduler and proxy write that of `events.k8s.io`, which
//! names an action and has series. The server keeps both as one resource.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event as CoreEvent, EventSource};
use k8s_openapi::api::events::v1::{Event as ReportedEvent, EventSeries};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, Time};
use kube::Resource;
use kube::api::ObjectMeta;
use kube::core::Request;
use serde_json::{Value, json};

use super::{Entry, EventType};

/// Who speaks, as the reader of an event sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// Core: a component of the cluster, on whichever host.
    Component,
    /// Core: a component of one host.
    ComponentOnHost,
    /// `events.k8s.io`: a controller, and which of its instances.
    Reported,
}

impl Form {
    pub fn requests(self, namespace: &str) -> Request {
        Request::new(match self {
            Form::Component | Form::ComponentOnHost => CoreEvent::url_path(&(), Some(namespace)),
            Form::Reported => ReportedEvent::url_path(&(), Some(namespace)),
        })
    }

    /// A merge patch that says how often an event has been told, and when last.
    pub fn count(self, count: i32, at: Timestamp) -> Value {
        match self {
            Form::Component | Form::ComponentOnHost => json!({"count": count, "lastTimestamp": Time(at)}),
            Form::Reported => {
                json!({"series": EventSeries { count, last_observed_time: MicroTime(at) }})
            }
        }
    }
}

impl Entry {
    /// The server refuses longer notes.
    const MAX_NOTE: usize = 1024;

    /// Events about cluster-scoped objects live in the default namespace.
    pub fn namespace(&self) -> String {
        let namespace = self.regarding.namespace.clone().filter(|namespace| !namespace.is_empty());
        namespace.unwrap_or_else(|| "default".into())
    }

    pub fn event_name(&self) -> String {
        format!("{}.{:x}", self.regarding.name.as_deref().unwrap_or("unknown"), self.at.as_nanosecond())
    }

    /// The event as it goes to the server.
    pub fn body(&self, namespace: &str, name: &str) -> Vec<u8> {
        let encoded = match self.form {
            Form::Component => serde_json::to_vec(&self.core(namespace, name, None)),
            Form::ComponentOnHost => serde_json::to_vec(&self.core(namespace, name, Some(&self.instance))),
            Form::Reported => serde_json::to_vec(&self.reported(namespace, name)),
        };
        encoded.expect("an event is JSON")
    }

    fn core(&self, namespace: &str, name: &str, host: Option<&String>) -> CoreEvent {
        let at = Time(self.at);
        CoreEvent {
            metadata: metadata(namespace, name),
            type_: Some(self.type_()),
            reason: Some(self.reason.clone()),
            message: Some(self.note()),
            involved_object: self.regarding.clone(),
            related: self.related.clone(),
            first_timestamp: Some(at.clone()),
            last_timestamp: Some(at),
            count: Some(1),
            source: Some(EventSource { component: Some(self.controller.into()), host: host.cloned() }),
            reporting_component: Some(self.controller.into()),
            reporting_instance: Some(host.cloned().unwrap_or_default()),
            ..Default::default()
        }
    }

    fn reported(&self, namespace: &str, name: &str) -> ReportedEvent {
        ReportedEvent {
            metadata: metadata(namespace, name),
            event_time: Some(MicroTime(self.at)),
            type_: Some(self.type_()),
            reason: Some(self.reason.clone()),
            action: Some(self.action.clone()),
            note: Some(self.note()),
            regarding: Some(self.regarding.clone()),
            related: self.related.clone(),
            reporting_controller: Some(self.controller.into()),
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

    fn note(&self) -> String {
        self.note[..self.note.floor_char_boundary(Self::MAX_NOTE)].into()
    }
}

fn metadata(namespace: &str, name: &str) -> ObjectMeta {
    ObjectMeta { name: Some(name.into()), namespace: Some(namespace.into()), ..Default::default() }
}

#[cfg(test)]
mod tests {
    use super::super::correlator::tests::entry;
    use super::*;

    fn written(form: Form) -> Value {
        let entry = Entry { form, ..entry("a", "hello", 0) };
        serde_json::from_slice(&entry.body("ns", "a.1")).expect("JSON")
    }

    #[test]
    fn a_long_note_is_cut_to_what_the_server_takes() {
        let entry = entry("a", &"é".repeat(1000), 0);
        assert_eq!((entry.note().len(), entry.namespace().as_str()), (1024, "default"));
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
        assert_eq!(event["reportingController"], "test");
        assert_eq!(event["reportingInstance"], "test-host");
        assert_eq!((&event["note"], &event["action"]), (&json!("hello"), &json!("Create")));
        assert_eq!(event["deprecatedSource"], Value::Null);
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
