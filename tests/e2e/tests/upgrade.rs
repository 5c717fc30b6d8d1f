//! A data directory from one version of Ferry to another: an earlier one's goes on, a later one's is refused untouched.
//!
//! `upgrade/store-0.1.0.tar.gz` is the store of `ferry apiserver` 0.1.0 after a few objects of built-in and custom kinds were
//! applied to it. A release that changes what is stored adds one of its own and leaves the others.

use std::path::Path;
use std::process::Command;

use ferry_e2e::binary::{Process, ferry};
use http::Method;

const CONFIG_MAP: &str = "/api/v1/namespaces/default/configmaps/kept";
const UID: &str = "d4e5375b-2d83-49e9-ba06-ab4362af3ee0";

fn unpack(into: &Path) {
    let archive = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/upgrade/store-0.1.0.tar.gz");
    let unpacked = Command::new("tar").arg("-xzf").arg(&archive).arg("-C").arg(into).status();
    assert!(unpacked.expect("tar runs").success(), "{}", archive.display());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_store_of_an_earlier_version_goes_on() {
    let Some(ferry) = ferry() else { return };
    let process = Process::apiserver(&ferry, |directory| {
        unpack(directory);
        Vec::new()
    })
    .await;
    let admin = process.admin().await;
    let get = |path: &'static str| {
        let admin = admin.clone();
        async move { ferry_testkit::send(&admin, Method::GET, path, &[], Vec::new()).await.expect(200) }
    };
    let kept = get(CONFIG_MAP).await;
    assert_eq!((&kept["data"]["greeting"], &kept["metadata"]["uid"]), (&"ahoy".into(), &UID.into()));
    let secret = get("/api/v1/namespaces/default/secrets/kept").await;
    assert_eq!(secret["data"]["password"], "aGlkZGVu");
    assert_eq!(get("/apis/apps/v1/namespaces/default/deployments/web").await["spec"]["replicas"], 2);
    let service = get("/api/v1/namespaces/default/services/web").await;
    assert!(service["spec"]["clusterIP"].as_str().is_some_and(|address| address.starts_with("10.96.")));
    assert_eq!(get("/apis/example.com/v1/namespaces/default/boats/ferry").await["spec"]["berths"], 12);

    // It is written on, at a later revision.
    let headers = [("content-type", "application/merge-patch+json")];
    let patch = br#"{"data": {"greeting": "ahoy again"}}"#.to_vec();
    let changed = ferry_testkit::send(&admin, Method::PATCH, CONFIG_MAP, &headers, patch).await.expect(200);
    let revision = |object: &serde_json::Value| -> u64 {
        object["metadata"]["resourceVersion"].as_str().expect("text").parse().expect("a number")
    };
    assert!(revision(&changed) > revision(&kept));
    let noted = std::fs::read_to_string(process.directory().join("version")).expect("the version is noted");
    assert_eq!(noted.trim(), env!("CARGO_PKG_VERSION"));
}

#[test]
fn the_directory_of_a_later_version_is_refused_untouched() {
    let Some(ferry) = ferry() else { return };
    let folder = tempfile::tempdir().expect("a directory");
    unpack(folder.path());
    std::fs::write(folder.path().join("version"), "999.1.0\n").expect("written");
    let before = contents(folder.path());
    // It ends before it listens anywhere.
    let mut command = Command::new(ferry);
    command
        .args(["apiserver", "--bind-address", "127.0.0.1", "--port", "0", "--data-dir"])
        .arg(folder.path());
    let refused = command.output().expect("ferry runs");
    let words = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success(), "{words}");
    assert!(
        words.contains("was last used by ferry 999.1.0") && words.contains("snapshot restore"),
        "{words}"
    );
    assert_eq!(contents(folder.path()), before);
}

/// Every file below, by path.
fn contents(directory: &Path) -> std::collections::BTreeMap<std::path::PathBuf, Vec<u8>> {
    let mut found = std::collections::BTreeMap::new();
    for entry in std::fs::read_dir(directory).expect("a directory") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            found.extend(contents(&path));
        } else {
            found.insert(path.clone(), std::fs::read(&path).expect("a file"));
        }
    }
    found
}
