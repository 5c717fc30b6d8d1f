//! With whose credentials the images on this node were pulled. A private
//! image is there for every pod once it is there at all; these records let it
//! be used only by pods that could pull it themselves (KEP-2535).
//!
//! ```text
//! image_manager/pulling/sha256-OF-NAME    a pull has begun; left by one that was cut short
//! image_manager/pulled/sha256-OF-REF      whose credentials have opened this image so far
//! ```
//!
//! The files are upstream's, so either kubelet goes on with the other's.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::oci::canonical_name;
use crate::cri;

const API_VERSION: &str = "kubelet.config.k8s.io/v1beta1";
/// A record takes in no more secrets than this while it is only looked at.
const MAX_NOTED: usize = 100;

/// For which images on the node a pod must show that it may pull them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Verification {
    NeverVerify,
    /// For those that a kubelet has pulled, not for those brought otherwise.
    NeverVerifyPreloadedImages,
    /// For all but those named in a list.
    NeverVerifyAllowlistedImages,
    AlwaysVerify,
}

/// A secret that opened an image, and a digest of what it held then.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PullSecret {
    uid: String,
    namespace: String,
    name: String,
    credential_hash: String,
}

impl PullSecret {
    pub fn new(secret: &ObjectMeta, auth: &cri::AuthConfig) -> Self {
        Self {
            uid: secret.uid.clone().unwrap_or_default(),
            namespace: secret.namespace.clone().unwrap_or_default(),
            name: secret.name.clone().unwrap_or_default(),
            credential_hash: digest(&stated(auth)),
        }
    }

    fn is_same_secret(&self, other: &Self) -> bool {
        (&self.uid, &self.namespace, &self.name) == (&other.uid, &other.namespace, &other.name)
    }
}

/// A login as upstream digests it: in this order, and what is empty left out.
#[derive(Serialize)]
struct Stated<'a> {
    #[serde(skip_serializing_if = "str::is_empty")]
    username: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    password: &'a str,
    #[serde(skip_serializing_if = "str::is_empty", rename = "identitytoken")]
    identity_token: &'a str,
    #[serde(skip_serializing_if = "str::is_empty", rename = "registrytoken")]
    registry_token: &'a str,
}

fn stated(auth: &cri::AuthConfig) -> String {
    let stated = Stated {
        username: &auth.username,
        password: &auth.password,
        identity_token: &auth.identity_token,
        registry_token: &auth.registry_token,
    };
    serde_json::to_string(&stated).expect("text is JSON")
}

/// Who may use an image by one of its names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Credentials {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    kubernetes_secrets: Vec<PullSecret>,
    /// Written by credential plugins, which are not here; kept for who has them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    kubernetes_service_accounts: Vec<serde_json::Value>,
    /// No credentials were needed.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    node_pods_accessible: bool,
}

impl Credentials {
    pub fn of_anyone() -> Self {
        Self { node_pods_accessible: true, ..Self::default() }
    }

    pub fn of_secret(secret: PullSecret) -> Self {
        Self { kubernetes_secrets: vec![secret], ..Self::default() }
    }

    /// Adds others, and says whether that changed anything.
    fn merge(&mut self, others: Credentials) -> bool {
        if self.node_pods_accessible || others == Self::default() {
            return false;
        }
        if others.node_pods_accessible {
            *self = Self::of_anyone();
            return true;
        }
        let before = self.clone();
        for secret in others.kubernetes_secrets {
            self.kubernetes_secrets.retain(|known| !known.is_same_secret(&secret));
            self.kubernetes_secrets.push(secret);
        }
        self.kubernetes_secrets.sort_by(|one, other| {
            (&one.namespace, &one.name, &one.uid).cmp(&(&other.namespace, &other.name, &other.uid))
        });
        *self != before
    }

    /// The pod's secret that shows it may use the image: it holds what opened
    /// the image before, or is the secret that did, with another content now.
    fn shown_by<'a>(&self, secrets: &'a [PullSecret]) -> Option<&'a PullSecret> {
        secrets.iter().find(|secret| {
            self.kubernetes_secrets
                .iter()
                .any(|known| known.credential_hash == secret.credential_hash || known.is_same_secret(secret))
        })
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Intent {
    kind: String,
    api_version: String,
    image: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Pulled {
    kind: String,
    api_version: String,
    last_updated_time: Time,
    image_ref: String,
    /// By the image's name without tag and digest.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    credential_mapping: BTreeMap<String, Credentials>,
}

pub struct Records {
    pulling: PathBuf,
    pulled: PathBuf,
    verification: Verification,
    allowlist: Vec<String>,
    /// Pulls under way by image; held while files change.
    under_way: Mutex<HashMap<String, usize>>,
}

/// A pull that has begun. Dropped without a word, it was cut short: whether
/// the runtime went on is not known, so the image counts as pulled.
#[must_use]
pub struct Pulling<'a> {
    records: &'a Records,
    image: String,
}

impl Records {
    pub fn new(root_dir: &Path, verification: Verification, allowlist: Vec<String>) -> Self {
        let directory = root_dir.join("image_manager");
        Self {
            pulling: directory.join("pulling"),
            pulled: directory.join("pulled"),
            verification,
            allowlist,
            under_way: Mutex::default(),
        }
    }

    /// Turns what a former kubelet began into what it got, unless its pull
    /// got nothing.
    pub fn take_over(&self, images: &[cri::Image]) {
        let _held = self.under_way.lock();
        for intent in self.all::<Intent>(&self.pulling) {
            let wanted = canonical_name(&intent.image);
            let found = images.iter().find(|image| {
                image.repo_tags.iter().chain(&image.repo_digests).any(|name| canonical_name(name) == wanted)
            });
            if let Some(found) = found {
                self.add(&intent.image, &found.id, Credentials::default());
            }
            self.remove(&self.pulling, &intent.image);
        }
    }

    /// Whether a pod has to pull an image that is here already. Records that
    /// cannot be read let nobody in without a pull.
    pub fn must_pull(&self, image: &str, image_ref: &str, secrets: &[PullSecret]) -> bool {
        let held = self.under_way.lock();
        let record = match read::<Pulled>(&self.pulled.join(file_name(image_ref))) {
            Ok(record) => record.filter(|record| record.image_ref == image_ref),
            Err(error) => {
                tracing::warn!(image, %error, "cannot read an image's record; pulling the image again");
                return true;
            }
        };
        let is_pulled = record.is_some()
            || held.contains_key(image)
            || self.pulling.join(file_name(image)).try_exists().unwrap_or(true);
        if !self.must_verify(image, is_pulled) {
            return false;
        }
        let Some(credentials) = record.and_then(|mut record| record.credential_mapping.remove(bare(image)))
        else {
            return true;
        };
        if credentials.node_pods_accessible {
            return false;
        }
        let Some(secret) = credentials.shown_by(secrets) else { return true };
        if credentials.kubernetes_secrets.len() < MAX_NOTED {
            self.add(image, image_ref, Credentials::of_secret(secret.clone()));
        }
        false
    }

    fn must_verify(&self, image: &str, is_pulled: bool) -> bool {
        match self.verification {
            Verification::NeverVerify => false,
            Verification::NeverVerifyPreloadedImages => is_pulled,
            Verification::AlwaysVerify => true,
            Verification::NeverVerifyAllowlistedImages => {
                let name = bare(image);
                !self.allowlist.iter().any(|pattern| match pattern.strip_suffix('*') {
                    Some(prefix) => prefix.ends_with('/') && name.starts_with(prefix),
                    None => pattern == name,
                })
            }
        }
    }

    pub fn begin(&self, image: &str) -> io::Result<Pulling<'_>> {
        let mut under_way = self.under_way.lock();
        let intent =
            Intent { kind: "ImagePullIntent".into(), api_version: API_VERSION.into(), image: image.into() };
        write(&self.pulling, image, &intent)?;
        *under_way.entry(image.into()).or_default() += 1;
        Ok(Pulling { records: self, image: image.into() })
    }

    /// Forgets images that are no longer here, as they were listed `at`.
    pub fn prune(&self, present: &[&str], at: Timestamp) {
        let _held = self.under_way.lock();
        for record in self.all::<Pulled>(&self.pulled) {
            if record.last_updated_time.0 < at && !present.contains(&record.image_ref.as_str()) {
                self.remove(&self.pulled, &record.image_ref);
            }
        }
    }

    fn add(&self, image: &str, image_ref: &str, credentials: Credentials) {
        let known = read::<Pulled>(&self.pulled.join(file_name(image_ref)));
        let known = known.unwrap_or_else(|error| {
            tracing::warn!(image, %error, "cannot read an image's record; starting a new one");
            None
        });
        let mut record = known.filter(|record| record.image_ref == image_ref);
        let is_new = record.is_none();
        let mut changed = record.take().unwrap_or_else(|| Pulled {
            kind: "ImagePulledRecord".into(),
            api_version: API_VERSION.into(),
            last_updated_time: Time(Timestamp::now()),
            image_ref: image_ref.into(),
            credential_mapping: BTreeMap::new(),
        });
        let merged = credentials != Credentials::default()
            && changed.credential_mapping.entry(bare(image).into()).or_default().merge(credentials);
        if is_new || merged {
            changed.last_updated_time = Time(Timestamp::now());
            if let Err(error) = write(&self.pulled, image_ref, &changed) {
                tracing::warn!(image, %error, "cannot write an image's record");
            }
        }
    }

    fn remove(&self, directory: &Path, key: &str) {
        match fs::remove_file(directory.join(file_name(key))) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(key, %error, "cannot remove an image's record");
            }
            _ => {}
        }
    }

    /// Every record of a directory that can be read.
    fn all<T: DeserializeOwned>(&self, directory: &Path) -> Vec<T> {
        let entries = fs::read_dir(directory).into_iter().flatten().flatten();
        let files = entries.map(|entry| entry.path()).filter(|path| path.extension().is_none());
        let records = files.filter_map(|path| {
            read(&path).unwrap_or_else(|error| {
                tracing::warn!(file = %path.display(), %error, "cannot read an image's record");
                None
            })
        });
        records.collect()
    }
}

impl Pulling<'_> {
    pub fn succeeded(self, image_ref: &str, credentials: Credentials) {
        let under_way = self.records.under_way.lock();
        self.records.add(&self.image, image_ref, credentials);
        self.end(&under_way);
    }

    pub fn failed(self) {
        let under_way = self.records.under_way.lock();
        self.end(&under_way);
    }

    /// The last of several pulls of an image takes the intent away.
    fn end(&self, under_way: &HashMap<String, usize>) {
        if under_way.get(&self.image).is_none_or(|count| *count <= 1) {
            self.records.remove(&self.records.pulling, &self.image);
        }
    }
}

impl Drop for Pulling<'_> {
    fn drop(&mut self) {
        let mut under_way = self.records.under_way.lock();
        if let Some(count) = under_way.get_mut(&self.image) {
            *count -= 1;
            if *count == 0 {
                under_way.remove(&self.image);
            }
        }
    }
}

/// An image's name without tag and digest.
fn bare(image: &str) -> &str {
    let name = image.split_once('@').map_or(image, |(name, _)| name);
    match name.rsplit_once(':') {
        Some((before, tag)) if !tag.contains('/') => before,
        _ => name,
    }
}

fn digest(text: &str) -> String {
    Sha256::digest(text.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn file_name(key: &str) -> String {
    format!("sha256-{}", digest(key))
}

fn read<T: DeserializeOwned>(path: &Path) -> io::Result<Option<T>> {
    match fs::read(path) {
        Ok(text) => Ok(Some(serde_json::from_slice(&text)?)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whole or not at all: beside its place first, then into it.
fn write(directory: &Path, key: &str, record: &impl Serialize) -> io::Result<()> {
    use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
    fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    let place = directory.join(file_name(key));
    let draft = place.with_extension("tmp");
    let mut file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&draft)?;
    io::Write::write_all(&mut file, &serde_json::to_vec(record)?)?;
    fs::rename(draft, place)
}

#[cfg(test)]
mod tests {
    use super::*;

    const IMAGE: &str = "registry.example:5000/team/app:1";
    const REF: &str = "sha256:aa";

    fn secret(name: &str, password: &str) -> PullSecret {
        let metadata = ObjectMeta {
            name: Some(name.into()),
            namespace: Some("ns".into()),
            uid: Some(format!("{name}-uid")),
            ..ObjectMeta::default()
        };
        PullSecret::new(&metadata, &cri::AuthConfig { password: password.into(), ..Default::default() })
    }

    fn records(verification: Verification) -> (tempfile::TempDir, Records) {
        let directory = tempfile::tempdir().expect("a directory can be made");
        let records = Records::new(directory.path(), verification, vec![]);
        (directory, records)
    }

    #[test]
    fn images_need_the_pull_secret_also_when_present() {
        let (_directory, records) = records(Verification::NeverVerifyPreloadedImages);
        assert!(!records.must_pull(IMAGE, REF, &[]), "an image that was brought is for everybody");
        records.begin(IMAGE).expect("it is noted").succeeded(REF, Credentials::of_secret(secret("a", "1")));
        let check = |secrets: &[PullSecret], expected: bool| {
            assert_eq!(records.must_pull(IMAGE, REF, secrets), expected, "{secrets:?}");
        };
        check(&[], true);
        check(&[secret("b", "2")], true);
        check(&[secret("a", "1")], false);
        check(&[secret("b", "1")], false);
        // the same secret with a new password, and from then on whoever has that password
        check(&[secret("c", "3")], true);
        check(&[secret("a", "3")], false);
        check(&[secret("c", "3")], false);
        assert!(records.must_pull("other.example/app:1", REF, &[secret("a", "1")]), "another name of it");
        records.begin(IMAGE).expect("it is noted").succeeded(REF, Credentials::of_anyone());
        check(&[], false);
    }

    #[test]
    fn a_pull_that_was_cut_short_is_not_taken_for_an_image_that_was_brought() {
        let (directory, records) = records(Verification::NeverVerifyPreloadedImages);
        drop(records.begin(IMAGE).expect("it is noted"));
        assert!(records.must_pull(IMAGE, REF, &[]));
        let after = Records::new(directory.path(), Verification::NeverVerifyPreloadedImages, vec![]);
        let image = cri::Image { id: REF.into(), repo_tags: vec![IMAGE.into()], ..Default::default() };
        after.take_over(&[image]);
        assert!(after.must_pull(IMAGE, REF, &[]), "nobody has shown anything yet");
        assert!(after.all::<Intent>(&after.pulling).is_empty());

        records.begin("gone.example/app").expect("it is noted").failed();
        assert!(!records.must_pull("gone.example/app", "sha256:bb", &[]), "nothing came of it");
    }

    #[test]
    fn of_two_pulls_at_once_the_last_ends_the_intent() {
        let (_directory, records) = records(Verification::NeverVerifyPreloadedImages);
        let (one, other) = (records.begin(IMAGE).expect("noted"), records.begin(IMAGE).expect("noted"));
        one.failed();
        assert_eq!(records.all::<Intent>(&records.pulling).len(), 1);
        other.failed();
        assert!(records.all::<Intent>(&records.pulling).is_empty());
    }

    #[test]
    fn policies_decide_for_whom_it_matters() {
        let check = |verification: Verification, allowlist: &[&str], image: &str, expected: bool| {
            let directory = tempfile::tempdir().expect("a directory can be made");
            let allowlist = allowlist.iter().map(ToString::to_string).collect();
            let records = Records::new(directory.path(), verification, allowlist);
            assert_eq!(records.must_pull(image, REF, &[]), expected, "{verification:?} {image}");
        };
        check(Verification::NeverVerify, &[], IMAGE, false);
        check(Verification::AlwaysVerify, &[], IMAGE, true);
        let allowed = Verification::NeverVerifyAllowlistedImages;
        check(allowed, &[], IMAGE, true);
        check(allowed, &["registry.example:5000/team/app"], IMAGE, false);
        check(allowed, &["registry.example:5000/*"], IMAGE, false);
        check(allowed, &["registry.example:5000/other/*"], IMAGE, true);
    }

    #[test]
    fn records_of_removed_images_are_pruned() {
        let (_directory, records) = records(Verification::NeverVerifyPreloadedImages);
        records.begin(IMAGE).expect("noted").succeeded(REF, Credentials::of_anyone());
        records.prune(&[], Timestamp::UNIX_EPOCH);
        assert_eq!(records.all::<Pulled>(&records.pulled).len(), 1, "it is newer than the list");
        records.prune(&[REF], Timestamp::MAX);
        assert_eq!(records.all::<Pulled>(&records.pulled).len(), 1);
        records.prune(&[], Timestamp::MAX);
        assert!(records.all::<Pulled>(&records.pulled).is_empty());
    }

    #[test]
    fn names_lose_tag_and_digest_but_not_port() {
        for (image, expected) in [
            (IMAGE, "registry.example:5000/team/app"),
            ("nginx", "nginx"),
            ("nginx:1", "nginx"),
            ("host:5000/nginx", "host:5000/nginx"),
            ("nginx:1@sha256:00", "nginx"),
        ] {
            assert_eq!(bare(image), expected);
        }
    }
}
