//! Questions to the authorizer. `authorizer.group('apps').resource('deployments').check('get').allowed()`
//! builds a [`Question`]; its answer may take a network call, which no expression waits for. So an
//! unanswered question ends the evaluation with [`crate::Failure::Asks`], and the caller, having found
//! out, evaluates again with one more answer.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

/// What an expression wants to know: may this be done?
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Question {
    /// Who: the user of the request, or the service account named (namespace, name).
    pub service_account: Option<(String, String)>,
    pub verb: String,
    /// A path that is no resource; the fields below are empty then.
    pub path: Option<String>,
    pub group: String,
    pub resource: String,
    pub subresource: String,
    pub namespace: String,
    pub name: String,
    pub field_selector: String,
    pub label_selector: String,
}

/// What the authorizer said.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Access {
    pub allowed: bool,
    pub reason: String,
    pub error: Option<String>,
}

/// The access reviews of one request: those with a result, and those that an expression needs. All expressions of a
/// request share it, so that no review runs twice.
#[derive(Debug, Clone, Default)]
pub struct AccessReviews(Arc<Mutex<BTreeMap<Question, Option<Access>>>>);

impl AccessReviews {
    pub fn answer(&self, question: Question, access: Access) {
        self.0.lock().insert(question, Some(access));
    }

    /// The answer, if it is known; else the question is noted.
    pub fn look_up(&self, question: &Question) -> Option<Access> {
        self.0.lock().entry(question.clone()).or_insert(None).clone()
    }

    /// Questions without an answer.
    pub fn open(&self) -> Vec<Question> {
        let book = self.0.lock();
        book.iter().filter(|(_, answer)| answer.is_none()).map(|(question, _)| question.clone()).collect()
    }
}

impl PartialEq for AccessReviews {
    fn eq(&self, other: &AccessReviews) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}
