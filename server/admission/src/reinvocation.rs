//! Plugins that change an object may be asked again, once, when others changed it after them.

use std::collections::BTreeSet;

use ferry_api::Object;
use parking_lot::Mutex;

/// What one request knows about who changed what.
#[derive(Default)]
pub struct Reinvocation(Mutex<State>);

#[derive(Default)]
struct State {
    second_round: bool,
    /// Someone from outside changed the object: everybody is asked once more.
    wanted: bool,
    /// Webhooks that were asked and may be asked again.
    invoked: BTreeSet<String>,
    /// Those of them that have to be asked again.
    due: BTreeSet<String>,
    /// The object as the webhooks of the first round left it.
    output: Option<Object>,
}

impl Reinvocation {
    /// A webhook's turn begins; tells whether it is the second. If plugins changed the object since the
    /// first, all that want to hear of it are due.
    pub fn begin(&self, object: &Object) -> bool {
        let mut state = self.0.lock();
        if state.second_round && state.output.as_ref().is_some_and(|output| output != object) {
            let mut invoked = std::mem::take(&mut state.invoked);
            state.due.append(&mut invoked);
        }
        state.second_round
    }

    pub fn end(&self, object: &Object) {
        self.0.lock().output = Some(object.clone());
    }

    /// The webhook just called changed the object.
    pub fn changed(&self) {
        let mut state = self.0.lock();
        state.wanted = true;
        let mut invoked = std::mem::take(&mut state.invoked);
        state.due.append(&mut invoked);
    }

    pub fn invoked(&self, uid: &str) {
        self.0.lock().invoked.insert(uid.to_string());
    }

    pub fn is_due(&self, uid: &str) -> bool {
        self.0.lock().due.contains(uid)
    }

    /// Whether there is a second round; from then on it is the second.
    pub fn next_round(&self) -> bool {
        let mut state = self.0.lock();
        let next = state.wanted && !state.second_round;
        state.second_round |= next;
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn object(value: &str) -> Object {
        Object::from_value(json!({"metadata": {"name": value}})).expect("an object")
    }

    #[test]
    fn a_webhook_is_due_when_another_changed_the_object_after_it() {
        let state = Reinvocation::default();
        assert!(!state.begin(&object("a")));
        state.invoked("first");
        state.changed();
        state.invoked("second");
        state.end(&object("b"));
        assert!(state.next_round());
        assert!(state.begin(&object("b")));
        assert!(state.is_due("first"));
        assert!(!state.is_due("second"));
        assert!(!state.next_round(), "there are two rounds at most");
    }

    #[test]
    fn a_plugin_that_changed_the_object_makes_all_due() {
        let state = Reinvocation::default();
        state.begin(&object("a"));
        state.changed();
        state.invoked("only");
        state.end(&object("b"));
        assert!(state.next_round());
        state.begin(&object("c"));
        assert!(state.is_due("only"));
    }
}
