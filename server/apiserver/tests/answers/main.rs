//! Ferry's answers beside Kubernetes': the recorded requests of `golden/answers`, `golden/updates`, `golden/on_request` and `golden/custom_resources`, one
//! after the other, on one fresh server each. `README.md` there explains the format.
//!
//! What still differs is listed in a folder's `differences.txt`, and the list is checked in both directions:
//! an answer that is wrong and not listed fails, and so does one that is listed and has become right.
//! `FERRY_REWRITE=1` rewrites the list; the diff is reviewed.

mod case;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;

use case::{Case, cases};
use ferry_apiserver::RuntimeConfig;
use ferry_apiserver::run::{Config, start};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_are_those_of_kubernetes() {
    let folder = Path::new("tests/golden/answers");
    let cases = cases(folder, Path::new(""), false);
    assert!(cases.len() >= 1_400, "the table has lost rows");
    compare(folder, &cases).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_about_custom_resources_are_those_of_kubernetes() {
    let folder = Path::new("tests/golden/custom_resources");
    let shared = Path::new("../../../shared/crds");
    let mut cases = cases(folder, shared, true);
    assert!(cases.len() >= 900, "the table has lost rows");
    if !shared.is_dir() {
        ferry_skip::unchecked("objects of others' definitions: ../shared/crds is missing");
        cases.retain(|case| !case.file.contains("shared"));
    }
    compare(folder, &cases).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_to_updates_are_those_of_kubernetes() {
    let folder = Path::new("tests/golden/updates");
    let cases = cases(folder, Path::new(""), true);
    assert!(cases.len() >= 700, "the table has lost rows");
    compare(folder, &cases).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_about_kinds_on_request_are_those_of_kubernetes() {
    let folder = Path::new("tests/golden/on_request");
    let cases = cases(folder, Path::new(""), true);
    assert!(cases.len() >= 450, "the table has lost rows");
    compare_with(folder, &cases, RuntimeConfig::parse("api/all=true").unwrap()).await;
}

async fn compare(folder: &Path, cases: &[Case]) {
    compare_with(folder, cases, RuntimeConfig::default()).await;
}

async fn compare_with(folder: &Path, cases: &[Case], runtime_config: RuntimeConfig) {
    let home = tempfile::tempdir().unwrap();
    let mut config = Config::new(home.path());
    config.runtime_config = runtime_config;
    config.bind = ([127, 0, 0, 1], 0).into();
    config.token_auth_file = Some("tests/golden/answers/users.csv".into());
    let store =
        ferry_store::Embedded::open(ferry_store::embedded::Config::new(home.path().join("store"))).unwrap();
    let server = start(config, std::sync::Arc::new(store)).await.unwrap();

    let mut differences = String::new();
    for (number, case) in cases.iter().enumerate() {
        let answer = case.ask(&server.api).await;
        if case.fits(&answer) {
            continue;
        }
        writeln!(differences, "{}", case.title(number)).unwrap();
        for (word, answer) in [("expected", &case.answer), ("answered", &answer)] {
            writeln!(differences, "  {word} {} {} {:?}", answer.code, answer.reason, answer.message).unwrap();
            if case.answer.warnings != answer.warnings || !case.answer.warnings.is_empty() {
                writeln!(differences, "    warnings {:?}", answer.warnings).unwrap();
            }
            if let (true, Some(object)) = (case.answer.object.is_some(), &answer.object) {
                writeln!(differences, "    {object}").unwrap();
            }
        }
        differences.push('\n');
    }
    server.stop().await;

    let list = folder.join("differences.txt");
    if std::env::var_os("FERRY_REWRITE").is_some() {
        std::fs::write(&list, &differences).unwrap();
    }
    let known = std::fs::read_to_string(&list).unwrap();
    let ran: BTreeSet<&str> = cases.iter().map(|case| case.file.as_str()).collect();
    let titles = |text: &str| -> BTreeSet<String> {
        let titles = text.lines().filter(|line| !line.is_empty() && !line.starts_with(' '));
        let titles = titles.filter(|line| ran.contains(line.split(' ').next().unwrap_or_default()));
        titles.map(str::to_owned).collect()
    };
    let (known, found) = (titles(&known), titles(&differences));
    let new: Vec<_> = found.difference(&known).collect();
    let mended: Vec<_> = known.difference(&found).collect();
    assert!(
        new.is_empty() && mended.is_empty(),
        "differ now: {new:#?}\nare right now: {mended:#?}\n{differences}"
    );
}
