//! Discovery and the index of OpenAPI v3 are made of parts that are carried over from one picture of what is served to the
//! next. Whatever changes in whatever order, they are what is made of nothing but the present rows.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ferry_api::discovery::{Aggregated, Groups, Remote};
use ferry_api::openapi::{Documents, Form};
use ferry_api::{Kind, kinds};
use serde_json::json;

/// What is served at one moment.
#[derive(Default)]
struct State {
    rows: BTreeMap<usize, Vec<Arc<Kind>>>,
    remotes: BTreeMap<usize, Remote>,
    /// Of definitions, as they are made and changed.
    generations: usize,
}

/// Numbers that look random and are the same in every run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % end
    }
}

impl State {
    /// The rows of a definition: one or two versions, in a group that others may have too.
    fn define(&mut self, number: usize, numbers: &mut Numbers) {
        self.generations += 1;
        let config_map =
            kinds::builtin().iter().find(|kind| kind.kind == "ConfigMap").expect("a built-in kind");
        let group = ["a.example.com", "b.example.com", "c.example.com"][number % 3];
        let versions = &["v1", "v2beta1"][..=numbers.below(2)];
        let row = |version: &&str| {
            let mut row = Kind::clone(config_map);
            row.group = group.into();
            row.version = version.to_string().into();
            row.plural = format!("things{number}").into();
            row.kind = format!("Thing{number}").into();
            row.short_names = vec![format!("t{}", self.generations).into()];
            row.generation = Some(format!("uid/{}", self.generations).into());
            Arc::new(row)
        };
        self.rows.insert(number, versions.iter().map(row).collect());
    }

    /// Another API server, also for a version that definitions made.
    fn register(&mut self, number: usize, numbers: &mut Numbers) {
        let remote = Remote {
            group: ["a.example.com", "wardle.example.com"][number % 2].into(),
            version: ["v1", "v3"][number / 2 % 2].into(),
            group_priority: [10, 5_000][numbers.below(2)],
            version_priority: [1, 200][numbers.below(2)],
            resources: vec![json!({"resource": format!("flunders{}", numbers.below(2))})],
            is_current: numbers.below(2) == 0,
        };
        self.remotes.insert(number, remote);
    }

    fn change(&mut self, numbers: &mut Numbers) {
        let number = numbers.below(6);
        match numbers.below(6) {
            0 | 1 => self.define(number, numbers),
            2 => drop(self.rows.remove(&number)),
            3 => self.register(number % 4, numbers),
            4 => drop(self.remotes.remove(&(number % 4))),
            _ => {}
        }
    }

    /// As the server hands them on: what others answer for is not among its own.
    fn own(&self) -> Vec<Arc<Kind>> {
        let elsewhere: BTreeSet<(&str, &str)> =
            self.remotes.values().map(|remote| (&*remote.group, &*remote.version)).collect();
        let rows = kinds::builtin().iter().filter(|kind| ["", "autoscaling"].contains(&&*kind.group));
        let rows = rows.chain(self.rows.values().flatten());
        rows.filter(|row| !elsewhere.contains(&(&*row.group, &*row.version))).cloned().collect()
    }

    fn addresses(&self) -> BTreeMap<String, String> {
        let address = |remote: &Remote| {
            let path = format!("apis/{}/{}", remote.group, remote.version);
            (path.clone(), format!("/openapi/v3/{path}?hash={}", remote.is_current))
        };
        self.remotes.values().map(address).collect()
    }
}

#[test]
fn incremental_documents_equal_a_complete_rebuild() {
    // What is built in stays, and its documents take long to make.
    let builtin = Documents::new(State::default().own());
    for seed in 0..10 {
        let mut numbers = Numbers(seed);
        let mut state = State::default();
        let mut groups = Groups::new(&state.own(), Vec::new());
        let mut documents = Documents::after(Some(&builtin), state.own(), Vec::new());
        for step in 0..40 {
            state.change(&mut numbers);
            let (rows, remotes) = (state.own(), state.remotes.values().cloned().collect::<Vec<_>>());
            groups = Groups::after(Some(&groups), &rows, remotes.clone());
            documents = Documents::after(Some(&documents), rows.clone(), Vec::new());
            // Parts are made when somebody asks, which is not after every change.
            if numbers.below(2) == 0 {
                continue;
            }
            let told = format!("seed {seed}, step {step}");
            let anew = Groups::new(&rows, remotes);
            for form in [Aggregated::V2, Aggregated::V2Beta1] {
                for core in [true, false] {
                    assert_eq!(groups.aggregated(core, form), anew.aggregated(core, form), "{told}");
                }
            }
            assert_eq!(groups.list(), anew.list(), "{told}");
            let versions: BTreeSet<(&str, &str)> =
                rows.iter().map(|row| (&*row.group, &*row.version)).collect();
            for (group, version) in versions {
                assert_eq!(groups.group(group), anew.group(group), "{told}");
                assert_eq!(groups.resources(group, version), anew.resources(group, version), "{told}");
            }
            let anew = Documents::after(Some(&builtin), rows, Vec::new());
            let addresses = state.addresses();
            assert_eq!(documents.v3_index(&addresses), anew.v3_index(&addresses), "{told}");
            assert_eq!(documents.v2_hash(Form::Json), anew.v2_hash(Form::Json), "{told}");
        }
    }
}
