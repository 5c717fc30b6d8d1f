//! The lives of a name: an object that is deleted and created again has another uid, and is another object.
//!
//! A commit names the uid of the object that it wrote. Other steps about the object (a reconcile, a pod's worker) know
//! only its name; they belong to the life that the revision they answer is of, or, without one, to the life that had
//! begun when they did.

use serde::{Deserialize, Serialize};

use crate::record::Record;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Life {
    pub uid: String,
    /// The first write that is recorded, and when it was: nanoseconds since 1970.
    pub first_revision: i64,
    pub began: u64,
    /// Whether that was its creation; otherwise the beginning is older than what is kept.
    pub is_whole: bool,
    /// The last write that is recorded.
    pub last_revision: i64,
    /// When it was removed from the store: nanoseconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub ended: Option<u64>,
}

/// How a commit names what it did to its object, in the attribute `verb`.
pub const CREATE: &str = "create";
pub const UPDATE: &str = "update";
/// Sets the deletionTimestamp; others have to let go before the object is removed.
pub const MARK: &str = "mark";
pub const DELETE: &str = "delete";

/// The lives of an object, oldest first. Empty where no commit of it is recorded.
pub fn lives(records: &[Record], object: &str) -> Vec<Life> {
    let commits = records.iter().filter(|record| record.object.as_deref() == Some(object));
    let mut commits: Vec<(i64, &str, &Record)> = commits
        .filter_map(|record| {
            Some((record.committed?, record.text("uid").filter(|uid| !uid.is_empty())?, record))
        })
        .collect();
    commits.sort_by_key(|(revision, ..)| *revision);
    let mut lives: Vec<Life> = Vec::new();
    for (revision, uid, record) in commits {
        let verb = record.text("verb");
        match lives.iter_mut().find(|life| life.uid == uid) {
            Some(life) => life.last_revision = revision,
            None => lives.push(Life {
                uid: uid.to_owned(),
                first_revision: revision,
                began: record.start,
                is_whole: verb == Some(CREATE),
                last_revision: revision,
                ended: None,
            }),
        }
        if verb == Some(DELETE)
            && let Some(life) = lives.iter_mut().find(|life| life.uid == uid)
        {
            life.ended = Some(record.end());
        }
    }
    lives
}

/// The life that a record about the object is part of. `lives` are in their order.
pub fn life_of<'a>(record: &Record, lives: &'a [Life]) -> Option<&'a Life> {
    if let Some(uid) = record.text("uid")
        && let Some(life) = lives.iter().find(|life| life.uid == uid)
    {
        return Some(life);
    }
    let revision = record.committed.or_else(|| record.causes.iter().copied().max());
    let has_begun = |life: &&Life| match revision {
        Some(revision) => life.first_revision <= revision,
        None => life.began <= record.start,
    };
    // What comes before the first write that is recorded is of the oldest life that is known.
    lives.iter().rev().find(has_begun).or_else(|| lives.first())
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use super::*;
    use crate::record::tests::record;
    use crate::value::Value;

    const WEB: &str = "deployments.apps/default/web";

    fn commit(start: u64, revision: i64, uid: &str, verb: &str) -> Record {
        let mut record = record("store.commit", start);
        (record.object, record.committed) = (Some(WEB.into()), Some(revision));
        record.attributes =
            vec![(Cow::Borrowed("uid"), Value::from(uid)), (Cow::Borrowed("verb"), Value::from(verb))];
        record
    }

    fn about(start: u64, causes: &[i64]) -> Record {
        Record { object: Some(WEB.into()), causes: causes.to_vec(), ..record("reconcile", start) }
    }

    fn history() -> Vec<Record> {
        vec![
            commit(100, 10, "one", CREATE),
            commit(110, 12, "one", UPDATE),
            commit(120, 20, "one", DELETE),
            commit(200, 30, "two", CREATE),
            commit(210, 33, "two", UPDATE),
        ]
    }

    #[test]
    fn each_uid_is_a_life_of_its_own() {
        let found = lives(&history(), WEB);
        let seen: Vec<(&str, i64, i64, bool)> = found
            .iter()
            .map(|life| (life.uid.as_str(), life.first_revision, life.last_revision, life.ended.is_some()))
            .collect();
        assert_eq!(seen, [("one", 10, 20, true), ("two", 30, 33, false)]);
        assert!(lives(&history(), "pods/default/web").is_empty());
        assert!(!lives(&history()[1..], WEB)[0].is_whole, "its creation is no longer kept");
    }

    #[test]
    fn a_step_belongs_to_the_life_whose_revision_it_answers() {
        let lives = lives(&history(), WEB);
        let check = |record: Record, expected: &str| {
            assert_eq!(life_of(&record, &lives).map(|life| life.uid.as_str()), Some(expected), "{record:?}");
        };
        check(about(500, &[12]), "one");
        check(about(500, &[12, 30]), "two");
        check(about(130, &[]), "one");
        check(about(205, &[]), "two");
        check(about(50, &[]), "one");
        check(about(50, &[2]), "one");
        check(commit(500, 40, "one", UPDATE), "one");
        assert_eq!(life_of(&about(1, &[]), &[]), None);
    }

    #[test]
    fn the_timeline_of_a_life_leaves_the_others_out() {
        use crate::timeline::{Focus, timeline};
        let mut records = history();
        records.extend([about(105, &[10]), about(205, &[30])]);
        let starts = |uid: &str| {
            let focus = Focus::Life { object: WEB.into(), uid: uid.into() };
            let mut starts: Vec<u64> =
                timeline(&records, &focus).entries.iter().map(|entry| entry.record.start).collect();
            starts.sort_unstable();
            starts
        };
        assert_eq!(starts("one"), [100, 105, 110, 120]);
        assert_eq!(starts("two"), [200, 205, 210]);
    }
}
