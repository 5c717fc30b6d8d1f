//! A volume made ready for a pod: attached, staged, published, given to the pod's group, grown.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ferry_client::EventType;
use ferry_plugins_api::csi;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod, Secret, SecretReference};
use k8s_openapi::api::storage::v1::CSIDriver;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use super::attachment::Refused;
use super::drivers::{Capabilities, Driver};
use super::record::{Use, is_mounted};
use super::request::{TOKENS, Wanted};
use super::{Csi, Failed, Problem, allocatable, attachment, io_problem};
use crate::blocking::blocking;
use crate::pod;
use crate::volumes::ownership::{self, ChangePolicy};
use crate::volumes::{Mounted, change_policy, fs_group, local};

/// A volume that wants that is published again with the next look at its pod after this.
const REPUBLISH_AFTER: Duration = Duration::from_secs(30);

type Strings = HashMap<String, String>;

/// A volume that is published.
pub(super) struct Published {
    at: Instant,
    /// The driver wants to be asked again and again.
    again: bool,
}

/// The objects behind a volume that is not inline.
pub struct Claimed<'a> {
    pub claim: &'a PersistentVolumeClaim,
    pub volume: &'a PersistentVolume,
}

/// All that drivers are asked with, read before they are.
struct Job {
    wanted: Wanted,
    one: Use,
    publish_context: Strings,
    context: Strings,
    stage_secrets: Strings,
    publish_secrets: Strings,
    /// Of the pod, where the files become a group's.
    group: Option<u32>,
    is_given: bool,
    policy: ChangePolicy,
}

impl Csi {
    /// Makes a volume ready. Done again it asks the driver only where that wants it, or the volume has grown. What is
    /// begun is among `work`, and ends when nobody waits for it too.
    pub async fn set_up(
        self: &Arc<Self>,
        pod: &Pod,
        wanted: Wanted,
        claimed: Option<Claimed<'_>>,
        work: &TaskTracker,
    ) -> Result<Mounted, Failed> {
        let (uid, name) = (pod::uid(pod).to_owned(), wanted.record.name.clone());
        let path = self.paths.target(&uid, &name, wanted.is_block);
        let (read_only, is_block) = (wanted.read_only, wanted.is_block);
        let mounted = Mounted { path, read_only, is_block };
        let one = Use { uid: uid.clone(), record: wanted.record.clone(), is_block };
        let is_due = match self.published.lock().get(&(uid, name.clone())) {
            Some(published) => published.again && published.at.elapsed() >= REPUBLISH_AFTER,
            None => true,
        };
        if is_due {
            self.publish(pod, wanted.clone(), one.clone(), work).await?;
        }
        if let Some(claimed) = claimed
            && let Some(status) = local::grown(claimed.claim, claimed.volume)
        {
            self.grow(pod, wanted, one, &claimed, status, work).await;
        }
        Ok(mounted)
    }

    async fn publish(
        self: &Arc<Self>,
        pod: &Pod,
        wanted: Wanted,
        one: Use,
        work: &TaskTracker,
    ) -> Result<(), Failed> {
        let (volume, is_block) = (wanted.record.name.clone(), wanted.is_block);
        let failed = |step: &'static str| {
            let volume = volume.clone();
            move |source: Problem| Failed { step, volume, source }
        };
        let set_up = if is_block { "MapVolume.SetUpDevice" } else { "MountVolume.SetUp" };
        let client = self.client.clone().ok_or(Problem::NoServer).map_err(failed(set_up))?;
        let objects: Api<CSIDriver> = Api::all(client.clone());
        let object = objects.get_opt(&wanted.record.driver_name).await;
        let object = object.map_err(|error| failed(set_up)(error.into()))?;
        wanted.check_lifecycle(object.as_ref()).map_err(|problem| {
            let shown = format!("mounter.SetupAt failed to check volume lifecycle mode: {problem}");
            failed(set_up)(Problem::Refused(shown))
        })?;
        let again = object.as_ref().is_some_and(|driver| driver.spec.requires_republish == Some(true));
        let path = self.paths.target(&one.uid, &one.record.name, is_block);
        let looked = blocking(work, move || is_mounted(&path)).await;
        let is_mounted = looked.map_err(io_problem("looking at the volume")).map_err(failed(set_up))?;
        if is_mounted && !again {
            // by a former kubelet
            self.take_over(pod, &wanted, &one, object.as_ref(), work).await.map_err(failed(set_up))?;
            self.is_published(&one, again);
            return Ok(());
        }
        // before the driver is looked for: what waits for a driver waits for nothing else when it comes
        let publish_context = if wanted.is_attached(object.as_ref()) {
            let step = if is_block { "MapVolume.WaitForAttach" } else { "MountVolume.WaitForAttach" };
            self.wait_for_attach(&client, &one, object.as_ref()).await.map_err(failed(step))?
        } else {
            Strings::new()
        };
        let job = self.job(&client, pod, wanted, one, object.as_ref(), publish_context).await;
        let job = job.map_err(failed(set_up))?;
        let csi = self.clone();
        let done = finish(work, async move {
            let result = csi.carry_out(&job).await;
            if result.is_ok() {
                csi.is_published(&job.one, again);
            }
            result
        });
        done.await.map_err(|(step, source)| failed(step)(source))
    }

    fn is_published(&self, one: &Use, again: bool) {
        let key = (one.uid.clone(), one.record.name.clone());
        self.published.lock().insert(key, Published { at: Instant::now(), again });
    }

    /// Goes on with a volume that a former kubelet has published. It may have ended before its files were the group's;
    /// the top comes last, and says whether they are.
    async fn take_over(
        &self,
        pod: &Pod,
        wanted: &Wanted,
        one: &Use,
        driver: Option<&CSIDriver>,
        work: &TaskTracker,
    ) -> Result<(), Problem> {
        if !one.record.is_ephemeral() && wanted.is_attached(driver) {
            self.in_use.add(&one.record.unique_name(), &one.uid);
        }
        let Some(group) = fs_group(pod).filter(|_| wanted.is_given_to_group(driver)) else { return Ok(()) };
        // a driver that gives files to groups itself has done so
        let Ok(registered) = self.drivers.get(&one.record.driver_name) else { return Ok(()) };
        if registered.capabilities().await?.mount_group {
            return Ok(());
        }
        let path = self.paths.target(&one.uid, &one.record.name, false);
        let policy = ChangePolicy::OnRootMismatch;
        let given = blocking(work, move || ownership::give_to_group(&path, group, false, policy)).await;
        given.map_err(io_problem("giving the volume to its group"))
    }

    async fn wait_for_attach(
        &self,
        client: &kube::Client,
        one: &Use,
        driver: Option<&CSIDriver>,
    ) -> Result<Strings, Problem> {
        let mut span = ferry_trace::span("kubelet.wait_for_attach");
        span.set("volume", one.record.name.as_str());
        self.in_use.add(&one.record.unique_name(), &one.uid);
        let waited = async {
            attachment::until_reported(self.node.clone(), &one.record).await?;
            attachment::until_attached(client, self.node.clone(), &one.record).await
        };
        let refused = match span.in_scope(waited).await {
            Ok(context) => return Ok(context),
            Err(refused) => refused,
        };
        span.fail_unquoted(&refused.message);
        Err(self.refused(refused, &one.record.driver_name, driver).await)
    }

    /// What is wrong where a volume was not attached; a limit that was reached is asked for again.
    pub(super) async fn refused(&self, refused: Refused, name: &str, driver: Option<&CSIDriver>) -> Problem {
        // Only where the limit is kept up to date: elsewhere the scheduler would send the next pod here again.
        if !refused.is_exhausted || driver.and_then(allocatable::period).is_none() {
            return Problem::Attachment(refused.message);
        }
        if let Err(problem) = self.ask_again(name).await {
            tracing::warn!(driver = name, problem, "attach limit not updated");
        }
        Problem::AttachLimit(refused.message)
    }

    async fn job(
        &self,
        client: &kube::Client,
        pod: &Pod,
        wanted: Wanted,
        one: Use,
        driver: Option<&CSIDriver>,
        publish_context: Strings,
    ) -> Result<Job, Problem> {
        let stage_secrets = secrets(client, "NodeStageSecretRef", wanted.stage_secret.as_ref()).await?;
        let mut publish_secrets =
            secrets(client, "NodePublishSecretRef", wanted.publish_secret.as_ref()).await?;
        let mut context = wanted.context(pod, driver);
        if let Some(tokens) = self.tokens_for(pod, driver).await? {
            let in_secrets =
                driver.is_some_and(|driver| driver.spec.service_account_token_in_secrets == Some(true));
            let into = if in_secrets { &mut publish_secrets } else { &mut context };
            into.insert(TOKENS.into(), tokens);
        }
        let (group, is_given) = (fs_group(pod), wanted.is_given_to_group(driver));
        let policy = change_policy(pod);
        Ok(Job {
            wanted,
            one,
            publish_context,
            context,
            stage_secrets,
            publish_secrets,
            group,
            is_given,
            policy,
        })
    }

    /// Tokens of the pod's account for the audiences that a driver names, as JSON.
    async fn tokens_for(&self, pod: &Pod, driver: Option<&CSIDriver>) -> Result<Option<String>, Problem> {
        let requests = driver.and_then(|driver| driver.spec.token_requests.as_deref()).unwrap_or_default();
        if requests.is_empty() {
            return Ok(None);
        }
        let mut tokens = serde_json::Map::new();
        for request in requests {
            let (token, expires) =
                self.tokens.get_with_end(pod, &request.audience, request.expiration_seconds).await?;
            let token = json!({"token": token, "expirationTimestamp": expires});
            tokens.insert(request.audience.clone(), token);
        }
        Ok(Some(Value::Object(tokens).to_string()))
    }

    /// Stages and publishes. The error names the step.
    async fn carry_out(&self, job: &Job) -> Result<(), (&'static str, Problem)> {
        let is_block = job.wanted.is_block;
        let (stage, publish) = if is_block {
            ("MapVolume.SetUpDevice", "MapVolume.MapPodDevice")
        } else {
            ("MountVolume.MountDevice", "MountVolume.SetUp")
        };
        let first = if job.one.record.is_ephemeral() { publish } else { stage };
        let record = &job.one.record;
        let _alone = self.alone(&record.unique_name()).await;
        let driver = self.drivers.get(&record.driver_name).map_err(|source| {
            let doing = match first {
                "MountVolume.SetUp" => "kubernetes.io/csi: mounter.SetUpAt failed to get CSI client",
                "MountVolume.MountDevice" => {
                    "kubernetes.io/csi: attacher.MountDevice failed to create newCsiDriverClient"
                }
                _ => "kubernetes.io/csi: blockMapper.SetUpDevice failed to get CSI client",
            };
            (first, Problem::Driver { doing, source })
        })?;
        if job.wanted.is_for_one_pod() {
            let users = self.users(record).await;
            let users = users.map_err(|error| (first, io_problem("looking for users")(error)))?;
            if users.iter().any(|uid| *uid != job.one.uid) {
                return Err((first, Problem::InUse));
            }
        }
        let capabilities = driver.capabilities().await.map_err(|error| (first, error.into()))?;
        let one = job.one.clone();
        let noted = self.on_disk(move |paths| paths.note_use(&one)).await;
        noted.map_err(io_problem("writing down the volume")).map_err(|problem| (first, problem))?;
        let is_staged = !record.is_ephemeral() && capabilities.stage;
        let staging = if is_staged { text(self.paths.staging(record, is_block)) } else { String::new() };
        if is_staged {
            self.stage(job, &driver, capabilities, &staging).await.map_err(|problem| (stage, problem))?;
        }
        self.publish_at(job, &driver, capabilities, staging).await.map_err(|problem| (publish, problem))
    }

    async fn stage(
        &self,
        job: &Job,
        driver: &Driver,
        capabilities: Capabilities,
        staging: &str,
    ) -> Result<(), Problem> {
        let record = &job.one.record;
        if self.staged.lock().contains(&record.unique_name()) {
            return Ok(());
        }
        let (staged, is_block) = (record.clone(), job.wanted.is_block);
        let noted = self.on_disk(move |paths| paths.note_staged(&staged, is_block)).await;
        noted.map_err(io_problem("making the volume's global mount"))?;
        driver
            .stage(csi::NodeStageVolumeRequest {
                volume_id: record.volume_handle.clone(),
                publish_context: job.publish_context.clone(),
                staging_target_path: staging.into(),
                volume_capability: Some(job.capability(capabilities)),
                secrets: job.stage_secrets.clone(),
                volume_context: job.wanted.attributes.clone().into_iter().collect(),
            })
            .await?;
        self.staged.lock().insert(record.unique_name());
        Ok(())
    }

    async fn publish_at(
        &self,
        job: &Job,
        driver: &Driver,
        capabilities: Capabilities,
        staging: String,
    ) -> Result<(), Problem> {
        let record = &job.one.record;
        let target = self.paths.target(&job.one.uid, &record.name, job.wanted.is_block);
        driver
            .publish(csi::NodePublishVolumeRequest {
                volume_id: record.volume_handle.clone(),
                publish_context: job.publish_context.clone(),
                staging_target_path: staging,
                target_path: text(target.clone()),
                volume_capability: Some(job.capability(capabilities)),
                readonly: job.wanted.read_only,
                secrets: job.publish_secrets.clone(),
                volume_context: job.context.clone(),
            })
            .await?;
        let is_first = !self.published.lock().contains_key(&(job.one.uid.clone(), record.name.clone()));
        if let Some(group) = job.group.filter(|_| job.is_given && is_first && !capabilities.mount_group) {
            let policy = job.policy;
            let give = move || ownership::give_to_group(&target, group, false, policy);
            let given = blocking(&self.work, give).await;
            given.map_err(io_problem("applyFSGroup failed"))?;
        }
        Ok(())
    }

    /// Has the driver grow a volume whose claim has grown, and says so in the claim. A volume that cannot grow yet can
    /// be used as it is.
    async fn grow(
        self: &Arc<Self>,
        pod: &Pod,
        wanted: Wanted,
        one: Use,
        claimed: &Claimed<'_>,
        status: Value,
        work: &TaskTracker,
    ) {
        let name = wanted.record.name.clone();
        let Some(client) = self.client.clone() else { return };
        let bytes = local::capacity(claimed.volume);
        let grown = async {
            let secrets = secrets(&client, "NodeExpandSecretRef", wanted.expand_secret.as_ref()).await?;
            let csi = self.clone();
            finish(work, async move { csi.expand(wanted, one, bytes, secrets).await }).await
        };
        let told = match grown.await {
            Ok(false) => return,
            Ok(true) => tell_grown(&client, claimed.claim, status).await.map_err(Problem::from),
            Err(problem) => Err(problem),
        };
        let (kind, reason, note) = match told {
            Ok(()) => {
                let note = format!(
                    "MountVolume.NodeExpandVolume succeeded for volume \"{name}\" {}",
                    self.node_name
                );
                (EventType::Normal, "FileSystemResizeSuccessful", note)
            }
            Err(problem) => {
                let note =
                    format!("NodeExpandVolume.NodeExpandVolume failed for volume \"{name}\" : {problem}");
                (EventType::Warning, "VolumeResizeFailed", note)
            }
        };
        self.events.event(pod, kind, reason, "Mount", note.clone());
        self.events.event(claimed.claim, kind, reason, "Mount", note);
    }

    /// `false` where the driver's volumes need nothing of the node to grow.
    async fn expand(&self, wanted: Wanted, one: Use, bytes: u64, secrets: Strings) -> Result<bool, Problem> {
        let _alone = self.alone(&one.record.unique_name()).await;
        let driver = self.drivers.get(&one.record.driver_name)?;
        let capabilities = driver.capabilities().await?;
        if !capabilities.expand {
            return Ok(false);
        }
        let staging = capabilities.stage.then(|| text(self.paths.staging(&one.record, one.is_block)));
        driver
            .expand(csi::NodeExpandVolumeRequest {
                volume_id: one.record.volume_handle.clone(),
                volume_path: text(self.paths.target(&one.uid, &one.record.name, one.is_block)),
                capacity_range: Some(csi::CapacityRange {
                    required_bytes: i64::try_from(bytes).unwrap_or(i64::MAX),
                    limit_bytes: 0,
                }),
                staging_target_path: staging.unwrap_or_default(),
                volume_capability: Some(wanted.capability(capabilities.single_node_multi_writer, None)),
                secrets,
            })
            .await?;
        Ok(true)
    }
}

impl Job {
    fn capability(&self, capabilities: Capabilities) -> csi::VolumeCapability {
        let group = self.group.filter(|_| capabilities.mount_group);
        self.wanted.capability(capabilities.single_node_multi_writer, group)
    }
}

/// What a driver is asked to do goes on though the pod's worker turns to something else; whoever takes the pod down
/// waits for it.
async fn finish<T: Send + 'static>(work: &TaskTracker, act: impl Future<Output = T> + Send + 'static) -> T {
    let span = ferry_trace::span("kubelet.csi_volume");
    match work.spawn(span.in_scope(act)).await {
        Ok(result) => result,
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        // cancelled: the process is ending, and so is whoever waits here
        Err(_) => std::future::pending().await,
    }
}

async fn tell_grown(client: &kube::Client, claim: &PersistentVolumeClaim, status: Value) -> kube::Result<()> {
    let metadata = json!({"resourceVersion": claim.metadata.resource_version});
    let patch = Patch::Merge(json!({"metadata": metadata, "status": status}));
    let namespace = claim.metadata.namespace.as_deref().unwrap_or_default();
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), namespace);
    let name = claim.metadata.name.as_deref().unwrap_or_default();
    claims.patch_status(name, &PatchParams::default(), &patch).await.map(|_| ())
}

/// What is in a secret; nothing where none is named.
async fn secrets(
    client: &kube::Client,
    kind: &'static str,
    reference: Option<&SecretReference>,
) -> Result<Strings, Problem> {
    let Some(reference) = reference else { return Ok(Strings::new()) };
    let namespace = reference.namespace.clone().unwrap_or_default();
    let name = reference.name.clone().unwrap_or_default();
    let api: Api<Secret> = Api::namespaced(client.clone(), &namespace);
    let secret = match api.get(&name).await {
        Ok(secret) => secret,
        Err(source) => return Err(Problem::Secret { kind, namespace, name, source }),
    };
    let data = secret.data.into_iter().flatten();
    Ok(data.map(|(key, value)| (key, String::from_utf8_lossy(&value.0).into_owned())).collect())
}

fn text(path: PathBuf) -> String {
    path.to_string_lossy().into_owned()
}
