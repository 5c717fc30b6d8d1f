//! Mutating plugins run a second time if later plugins changed the object.

use std::collections::BTreeSet;

use ferry_api::Object;
use parking_lot::Mutex;

/// A configurable source of mutations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mutator {
    Policies,
    Webhooks,
}

/// What one request knows about who changed what.
#[derive(Default)]
pub struct Reinvocation(Mutex<State>);

#[derive(Default)]
struct State {
    second_round: bool,
    /// Someone from outside changed the object: everybody is asked once more.
    wanted: bool,
    accounts: [Account; 2],
}

#[derive(Default)]
struct Account {
    /// Members that were asked and may be asked again.
    invoked: BTreeSet<String>,
    /// Those of them that have to be asked again.
    due: BTreeSet<String>,
    /// The object as the party left it in the first round.
    output: Option<Object>,
}

impl Account {
    fn all_are_due(&mut self) {
        self.due.append(&mut self.invoked);
    }
}

impl State {
    fn of(&mut self, party: Mutator) -> &mut Account {
        &mut self.accounts[party as usize]
    }
}

impl Reinvocation {
    /// A party's turn begins; tells whether it is the second. If others changed the object since the first, all that
    /// want to hear of it are due.
    pub fn begin(&self, party: Mutator, object: &Object) -> bool {
        let mut state = self.0.lock();
        let second_round = state.second_round;
        let account = state.of(party);
        if second_round && account.output.as_ref().is_some_and(|output| output != object) {
            account.all_are_due();
        }
        second_round
    }

    pub fn end(&self, party: Mutator, object: &Object) {
        self.0.lock().of(party).output = Some(object.clone());
    }

    /// The member just asked changed the object.
    pub fn changed(&self, party: Mutator) {
        let mut state = self.0.lock();
        state.wanted = true;
        state.of(party).all_are_due();
    }

    pub fn invoked(&self, party: Mutator, member: &str) {
        self.0.lock().of(party).invoked.insert(member.to_string());
    }

    pub fn is_due(&self, party: Mutator, member: &str) -> bool {
        self.0.lock().of(party).due.contains(member)
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
        assert!(!state.begin(Mutator::Webhooks, &object("a")));
        state.invoked(Mutator::Webhooks, "first");
        state.changed(Mutator::Webhooks);
        state.invoked(Mutator::Webhooks, "second");
        state.end(Mutator::Webhooks, &object("b"));
        assert!(state.next_round());
        assert!(state.begin(Mutator::Webhooks, &object("b")));
        assert!(state.is_due(Mutator::Webhooks, "first"));
        assert!(!state.is_due(Mutator::Webhooks, "second"));
        assert!(!state.is_due(Mutator::Policies, "first"), "each party has its own account");
        assert!(!state.next_round(), "there are two rounds at most");
    }

    #[test]
    fn a_plugin_that_changed_the_object_makes_all_due() {
        let state = Reinvocation::default();
        state.begin(Mutator::Webhooks, &object("a"));
        state.changed(Mutator::Webhooks);
        state.invoked(Mutator::Webhooks, "only");
        state.end(Mutator::Webhooks, &object("b"));
        assert!(state.next_round());
        state.begin(Mutator::Webhooks, &object("c"));
        assert!(state.is_due(Mutator::Webhooks, "only"));
    }
}
