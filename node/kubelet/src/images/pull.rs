//! Having a container's image: there already, or pulled with the credentials
//! that fit, and not asked for again too soon after a failure.
//!
//! An image that was loaded by hand counts as just pulled, whatever the policy:
//! on this node, then on the server. Registries are asked for all others.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, Secret};
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::containerd::{self, Source};
use super::credentials::{Login, logins};
use super::mirror::Mirror;
use super::oci::{Reference, canonical_name};
use super::records::{Credentials, Records};
use crate::backoff::Backoff;
use crate::cri;
use crate::metrics;
use crate::node::machine;
use crate::runtime::security::ImageUser;
use crate::status::containers::StartFailure;

/// An image ready to run.
#[derive(Clone, Debug)]
pub struct Present {
    pub reference: String,
    pub user: ImageUser,
    /// `None` when it was there already.
    pub pulled_in: Option<Duration>,
    pub size: u64,
}

pub struct Images {
    runtime: cri::Client,
    /// Who knows where an image came from; of other runtimes it is not known.
    containerd: Option<containerd::Client>,
    /// What was loaded on the server, for a node that is another host.
    mirror: Option<Mirror>,
    records: Records,
    permits: Arc<Semaphore>,
    backoff: Mutex<Backoff<Pull>>,
    /// What the last pull of an image failed with, while it is held back.
    problems: Mutex<HashMap<Pull, String>>,
}

/// How long a runtime may take to see an image that was written beside it.
const SEEN_WITHIN: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_millis(10);

/// A pod's uid and an image: what one pod may not pull, another may.
type Pull = (String, String);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Policy {
    Always,
    IfNotPresent,
    Never,
}

impl Images {
    pub fn new(
        runtime: cri::Client,
        containerd: Option<containerd::Client>,
        mirror: Option<Mirror>,
        records: Records,
        parallel: usize,
    ) -> Self {
        Self {
            runtime,
            containerd,
            mirror,
            records,
            permits: Arc::new(Semaphore::new(parallel.max(1))),
            backoff: Mutex::new(Backoff::new(Duration::from_secs(10), Duration::from_secs(300))),
            problems: Mutex::default(),
        }
    }

    /// Makes sure the image of a container is here. `pulling` is told when a
    /// pull begins.
    pub async fn ensure(
        &self,
        uid: &str,
        container: &Container,
        secrets: &[Arc<Secret>],
        sandbox_config: &cri::PodSandboxConfig,
        handler: &str,
        pulling: impl FnOnce(),
    ) -> Result<Present, StartFailure> {
        let image = container.image.as_deref().unwrap_or_default();
        check_name(image)?;
        let spec = cri::ImageSpec {
            image: with_tag(image),
            user_specified_image: image.into(),
            runtime_handler: handler.into(),
            ..Default::default()
        };
        let policy = policy(container.image_pull_policy.as_deref(), image);
        let logins = logins(&spec.image, secrets);
        match (self.usable(&spec, policy, &logins).await?, policy) {
            (Some(found), _) => return Ok(describe(&found, None)),
            // the same words for one that is there and not for this pod: it need not know
            (None, Policy::Never) => {
                let message = format!("Container image \"{image}\" is not present with pull policy of Never");
                return Err(failure("ErrImageNeverPull", message));
            }
            _ => {}
        }
        let pull = (uid.to_string(), spec.image.clone());
        self.check_backoff(&pull, image)?;
        let mut span = ferry_trace::span("kubelet.pull");
        span.set("image", image);
        pulling();
        let record = self.records.begin(image).map_err(|error| {
            let message =
                format!("Failed to record image pull intent for container image \"{image}\": {error}");
            failure("ErrImagePull", message)
        })?;
        let started = Instant::now();
        let pulled = span.in_scope(self.pull(&spec, logins, sandbox_config)).await;
        match pulled {
            Ok((reference, credentials)) => {
                record.succeeded(&reference, credentials);
                self.backoff.lock().reset(&pull);
                self.problems.lock().remove(&pull);
                Ok(self.pulled(&spec, reference, started.elapsed()).await)
            }
            Err(error) => {
                record.failed();
                span.fail_unquoted(&error);
                let failure = pull_failure(image, &error, machine::default_address().is_some());
                self.backoff.lock().failed(pull.clone(), Instant::now());
                self.problems.lock().insert(pull, format!("{}: {}", failure.reason, failure.message));
                Err(failure)
            }
        }
    }

    /// The image that is here, where the pod may use it without a pull.
    async fn usable(
        &self,
        spec: &cri::ImageSpec,
        policy: Policy,
        logins: &[Login],
    ) -> Result<Option<cri::Image>, StartFailure> {
        let image = &spec.user_specified_image;
        let present = self.runtime.image_status(spec.clone()).await.map_err(|error| {
            failure("ImageInspectError", format!("Failed to inspect image \"{image}\": {error}"))
        })?;
        let counts = policy != Policy::Always || (present.is_some() && self.is_loaded(image).await);
        Ok(present.filter(|_| counts).filter(|found| {
            let secrets: Vec<_> = logins.iter().map(|login| login.secret.clone()).collect();
            !self.records.must_pull(image, &found.id, &secrets)
        }))
    }

    /// After a failed pull the next one waits.
    fn check_backoff(&self, pull: &(String, String), image: &str) -> Result<(), StartFailure> {
        let Some(left) = self.backoff.lock().blocked(pull, Instant::now()) else { return Ok(()) };
        tracing::debug!(image, ?left, "pull held back");
        let problem = self.problems.lock().get(pull).cloned().unwrap_or_default();
        Err(failure("ImagePullBackOff", format!("Back-off pulling image \"{image}\": {problem}")))
    }

    async fn pulled(&self, spec: &cri::ImageSpec, reference: String, took: Duration) -> Present {
        let status = self.runtime.image_status(cri::ImageSpec { image: reference.clone(), ..spec.clone() });
        let found = status.await.ok().flatten().unwrap_or_default();
        metrics::image_pulled(took, found.size);
        Present { reference, ..describe(&found, Some(took)) }
    }

    /// Nothing of a pod that is gone is held against anybody.
    pub fn forget(&self, uid: &str) {
        self.backoff.lock().retain(|(owner, _)| owner != uid);
        self.problems.lock().retain(|(owner, _), _| owner != uid);
    }

    /// The image's reference, and whose credentials opened the way to it.
    async fn pull(
        &self,
        spec: &cri::ImageSpec,
        logins: Vec<Login>,
        sandbox_config: &cri::PodSandboxConfig,
    ) -> Result<(String, Credentials), cri::Error> {
        // the semaphore is never closed; if it were, pulling at once is fine
        let _permit = self.permits.acquire().await;
        if let Some(reference) = self.bring(spec).await {
            return Ok((reference, Credentials::of_anyone()));
        }
        let pull = |auth| self.runtime.pull_image(spec.clone(), auth, Some(sandbox_config.clone()));
        let mut refused = None;
        for login in logins {
            match pull(Some(login.auth)).await {
                Ok(reference) => return Ok((reference, Credentials::of_secret(login.secret))),
                Err(error) => refused = Some(error),
            }
        }
        match refused {
            Some(error) => Err(error),
            None => Ok((pull(None).await?, Credentials::of_anyone())),
        }
    }

    /// Whether it was brought in by hand on this node.
    async fn is_loaded(&self, image: &str) -> bool {
        let Some(containerd) = &self.containerd else { return false };
        let found = containerd.image(&canonical_name(image)).await;
        let found = found.inspect_err(
            |error| tracing::warn!(image, %error, "cannot read the image's source from containerd"),
        );
        found.is_ok_and(|found| found.is_some_and(|found| found.source == Some(Source::Loaded)))
    }

    /// The full names of all that was brought in by hand on this node.
    pub async fn loaded(&self) -> Result<BTreeSet<String>, containerd::Error> {
        let Some(containerd) = &self.containerd else { return Ok(BTreeSet::new()) };
        Ok(containerd.loaded().await?.into_iter().map(|image| image.name).collect())
    }

    /// The reference of an image that was loaded on the server and is here now. One that cannot be brought is looked
    /// for where it is from.
    async fn bring(&self, spec: &cri::ImageSpec) -> Option<String> {
        let mirror = self.mirror.as_ref()?;
        let brought = mirror.bring(&canonical_name(&spec.image)).await;
        let brought = brought.inspect_err(
            |error| tracing::warn!(image = spec.image, %error, "cannot fetch an image from the server"),
        );
        if !brought.is_ok_and(|brought| brought) {
            return None;
        }
        // the runtime hears of a new image by an event of its own
        let deadline = Instant::now() + SEEN_WITHIN;
        loop {
            let found = self.runtime.image_status(spec.clone()).await;
            match found {
                Ok(Some(found)) => return Some(found.id),
                _ if Instant::now() > deadline => return None,
                _ => tokio::time::sleep(LOOK).await,
            }
        }
    }

    pub fn records(&self) -> &Records {
        &self.records
    }

    pub fn runtime(&self) -> &cri::Client {
        &self.runtime
    }
}

fn check_name(image: &str) -> Result<(), StartFailure> {
    if !image.trim().is_empty() && !image.contains(char::is_whitespace) {
        return Ok(());
    }
    let message = format!("Failed to apply default image tag \"{image}\": invalid reference format");
    Err(failure("InvalidImageName", message))
}

fn failure(reason: &str, message: String) -> StartFailure {
    StartFailure { reason: reason.into(), message }
}

/// Runtimes name two causes by the first word of what they say. A registry that cannot be reached is told with what
/// can be done about it.
fn pull_failure(image: &str, error: &cri::Error, has_route: bool) -> StartFailure {
    let said = error.to_string();
    let words = error.words();
    let causes = [
        ("RegistryUnavailable", "the registry is unavailable"),
        ("SignatureValidationFailed", "the signature validation failed"),
    ];
    for (cause, meaning) in causes {
        if let Some(rest) = words.strip_prefix(cause) {
            return failure(cause, format!("image pull failed for {image} because {meaning}{rest}"));
        }
    }
    match unreachable(words, has_route) {
        None => failure("ErrImagePull", said),
        Some(cause) => {
            let full = canonical_name(image);
            let registry = Reference::of(&full).map_or("the registry", |reference| reference.registry);
            let advice = "bring the image in with `ferry image load ARCHIVE`";
            failure("ErrImagePull", format!("{cause}: {registry} cannot be reached; {advice}: {said}"))
        }
    }
}

/// Why a registry was not reached, in words of its user's. The runtime's are those of Go's network calls.
fn unreachable(words: &str, has_route: bool) -> Option<&'static str> {
    let says = |any: &[&str]| any.iter().any(|text| words.contains(text));
    if !says(&["dial tcp", "dial udp", "lookup "]) {
        return None;
    }
    let no_way = ["network is unreachable", "no route to host", "i/o timeout", "connection timed out"];
    let no_name = ["no such host", "server misbehaving", ":53: read: connection refused"];
    match () {
        () if says(&no_way) || (says(&no_name) && !has_route) => Some("no network"),
        () if says(&no_name) => Some("no network, or no registry of that name"),
        () => None,
    }
}

fn describe(image: &cri::Image, pulled_in: Option<Duration>) -> Present {
    let uid = image.uid.as_ref().map(|uid| uid.value);
    let user = ImageUser { uid, name: image.username.clone() };
    Present { reference: image.id.clone(), user, pulled_in, size: image.size }
}

/// Without a policy, an image that can change under its tag is always asked
/// for again.
fn policy(said: Option<&str>, image: &str) -> Policy {
    match said {
        Some("Always") => Policy::Always,
        Some("Never") => Policy::Never,
        Some("IfNotPresent") => Policy::IfNotPresent,
        _ if with_tag(image).ends_with(":latest") => Policy::Always,
        _ => Policy::IfNotPresent,
    }
}

fn with_tag(image: &str) -> String {
    let last = image.rsplit('/').next().unwrap_or(image);
    if last.contains([':', '@']) { image.to_string() } else { format!("{image}:latest") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_registry_that_cannot_be_reached_is_told_with_what_helps() {
        let (none, maybe) = (Some("no network"), Some("no network, or no registry of that name"));
        let lookup = "failed to resolve reference \"docker.io/library/nginx:latest\": failed to do request: Head \
                      \"https://registry-1.docker.io/v2/library/nginx/manifests/latest\": dial tcp: lookup \
                      registry-1.docker.io";
        for (words, has_route, expected) in [
            (": no such host", true, maybe),
            (": no such host", false, none),
            (" on 10.0.0.1:53: dial udp 10.0.0.1:53: connect: network is unreachable", false, none),
            (" on [::1]:53: read udp [::1]:4->[::1]:53: read: connection refused", true, maybe),
            (": i/o timeout", true, none),
            (" 192.0.2.1:443: connect: connection refused", true, None),
        ] {
            assert_eq!(unreachable(&format!("{lookup}{words}"), has_route), expected, "{words}");
        }
        assert_eq!(unreachable("pull access denied, repository does not exist", true), None);
        let message = format!("{lookup}: no such host");
        let error = cri::Error::Call { method: "PullImage", code: tonic::Code::Unknown, message };
        let told = pull_failure("nginx", &error, false);
        assert_eq!(told.reason, "ErrImagePull");
        let start = "no network: docker.io cannot be reached; bring the image in with `ferry image load ARCHIVE`: rpc";
        assert!(told.message.starts_with(start), "{}", told.message);
    }

    #[test]
    fn the_policy_follows_the_tag_unless_said() {
        for (said, image, expected) in [
            (None, "nginx", Policy::Always),
            (None, "nginx:latest", Policy::Always),
            (None, "nginx:1.29", Policy::IfNotPresent),
            (None, "host:5000/nginx", Policy::Always),
            (None, "nginx@sha256:00", Policy::IfNotPresent),
            (Some("Never"), "nginx", Policy::Never),
            (Some("IfNotPresent"), "nginx", Policy::IfNotPresent),
        ] {
            assert_eq!(policy(said, image), expected, "{image}");
        }
    }
}
