//! A pod's volumes on the node: made before its containers start, kept in
//! step with the objects they show, taken away when the pod is gone.
//!
//! Directories are laid out as every kubelet lays them out:
//!
//! ```text
//! ROOT/pods/UID/volumes/kubernetes.io~KIND/NAME
//! ROOT/pods/UID/volume-subpaths/NAME/CONTAINER/INDEX
//! ```
//!
//! Volumes that outlive pods and are kept by this node lie beside them, in `ROOT/local-volumes` ([`local`]).

pub mod atomic;
pub mod csi;
pub mod host_path;
pub mod local;
pub mod ownership;
pub mod payload;
pub mod reclaim;
pub mod tokens;
pub mod usage;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ferry_api::local_volume;
use ferry_client::NamespacedName;
use ferry_linux::{beneath, mount, tree};
use k8s_openapi::api::core::v1::{
    ConfigMap, ConfigMapVolumeSource, EmptyDirVolumeSource, PersistentVolume, PersistentVolumeClaim, Pod,
    ProjectedVolumeSource, Secret, SecretVolumeSource, Volume, VolumeMount,
};
use kube::Api;
use tokio_util::task::TaskTracker;

use crate::blocking::blocking;
use crate::downward;
use crate::objects::{self, Objects};
use crate::pod;
use crate::resources::{amount_of, pod_limits};
use atomic::{File, Payload};
use csi::Csi;
use csi::mount::Claimed;
use csi::request::Wanted;
use csi::stats::Asked;
use local::LocalVolumes;
use ownership::ChangePolicy;
use tokens::Tokens;
use usage::{Claims, MountedClaim};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("MountVolume.SetUp failed for volume \"{volume}\" : {source}")]
    Volume { volume: String, source: Problem },
    #[error(transparent)]
    Csi(csi::Failed),
}

impl Error {
    /// The event's reason.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Volume { .. } => "FailedMount",
            Self::Csi(failed) => failed.reason(),
        }
    }
}

/// Why the volumes of a pod that has ended are still there.
#[derive(Debug, thiserror::Error)]
pub enum TearDownError {
    #[error(transparent)]
    Csi(#[from] csi::Failed),
    #[error("unmounting volumes: {0}")]
    Io(#[from] io::Error),
}

#[derive(Debug, thiserror::Error)]
pub enum Problem {
    #[error("{kind} \"{name}\" not found")]
    NotFound { kind: &'static str, name: String },
    #[error(transparent)]
    Objects(#[from] objects::Error),
    #[error(transparent)]
    Payload(#[from] payload::Error),
    #[error(transparent)]
    HostPath(#[from] host_path::Error),
    #[error(transparent)]
    Token(#[from] tokens::Error),
    #[error("{action}: {source}")]
    Io { action: &'static str, source: io::Error },
    #[error(transparent)]
    Api(#[from] kube::Error),
    #[error("persistentvolumeclaim \"{0}\" is not bound")]
    Unbound(String),
    #[error(transparent)]
    Local(#[from] local::Refused),
    #[error(transparent)]
    Csi(#[from] csi::Failed),
    #[error("no volume plugin matched")]
    NoPlugin,
    #[error("no API server")]
    NoServer,
}

fn io(action: &'static str) -> impl FnOnce(io::Error) -> Problem {
    move |source| Problem::Io { action, source }
}

/// A volume as containers can mount it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mounted {
    pub path: PathBuf,
    pub read_only: bool,
    /// A device, and no directory.
    pub is_block: bool,
}

/// By volume name.
pub type MountedVolumes = BTreeMap<String, Mounted>;

pub struct Volumes {
    root_dir: PathBuf,
    client: Option<kube::Client>,
    objects: Arc<Objects>,
    tokens: Arc<Tokens>,
    local: LocalVolumes,
    csi: Arc<Csi>,
    claims: Claims,
}

impl Volumes {
    pub fn new(
        root_dir: PathBuf,
        client: Option<kube::Client>,
        objects: Arc<Objects>,
        tokens: Arc<Tokens>,
        local: LocalVolumes,
        csi: Arc<Csi>,
    ) -> Self {
        Self { root_dir, tokens, client, objects, local, csi, claims: Claims::default() }
    }

    /// Volumes of CSI drivers.
    pub fn csi(&self) -> &Arc<Csi> {
        &self.csi
    }

    /// Volumes that this node keeps.
    pub fn local(&self) -> &LocalVolumes {
        &self.local
    }

    /// Claims that are mounted.
    pub fn claims(&self) -> &Claims {
        &self.claims
    }

    pub fn pod_dir(&self, uid: &str) -> PathBuf {
        self.root_dir.join("pods").join(uid)
    }

    /// Makes all volumes of a pod, and brings those made from objects up to
    /// date. Doing it again is cheap and changes only what differs. What is
    /// begun on disk is among `work`, and ends when nobody waits for it too.
    pub async fn set_up(
        &self,
        pod: &Pod,
        node: &downward::Node,
        work: &TaskTracker,
    ) -> Result<MountedVolumes, Error> {
        let mut mounted = MountedVolumes::new();
        let mut claims = Vec::new();
        for volume in pod::spec(pod).volumes.iter().flatten() {
            if volume.image.is_some() {
                // the runtime mounts these
                continue;
            }
            let failed = |source| match source {
                Problem::Csi(failed) => Error::Csi(failed),
                source => Error::Volume { volume: volume.name.clone(), source },
            };
            let one = self.set_up_one(pod, volume, node, work, &mut claims).await.map_err(failed)?;
            mounted.insert(volume.name.clone(), one);
        }
        self.claims.set(pod::uid(pod), claims);
        Ok(mounted)
    }

    async fn set_up_one(
        &self,
        pod: &Pod,
        volume: &Volume,
        node: &downward::Node,
        work: &TaskTracker,
        claims: &mut Vec<MountedClaim>,
    ) -> Result<Mounted, Problem> {
        let directory = |kind: &str| {
            self.pod_dir(pod::uid(pod))
                .join("volumes")
                .join(format!("kubernetes.io~{kind}"))
                .join(&volume.name)
        };
        if let Some(source) = &volume.empty_dir {
            let made = EmptyDir::of(pod, source, directory("empty-dir"));
            let path = made.path.clone();
            blocking(work, move || made.make()).await?;
            return Ok(directory_at(path, false));
        }
        if let Some(source) = &volume.host_path {
            let path = host_path(&source.path, source.type_.as_deref().unwrap_or_default(), work).await?;
            return Ok(directory_at(path, false));
        }
        if let Some(source) = &volume.config_map {
            let files = self.config_map_files(pod, source).await?;
            return self.write(pod, directory("configmap"), files, StorageMedium::OnDisk(work)).await;
        }
        if let Some(source) = &volume.secret {
            let files = self.secret_files(pod, source).await?;
            return self.write(pod, directory("secret"), files, StorageMedium::InMemory).await;
        }
        if let Some(source) = &volume.downward_api {
            let files = payload::downward_api(pod, source.items.as_ref(), source.default_mode, node)?;
            return self.write(pod, directory("downward-api"), files, StorageMedium::OnDisk(work)).await;
        }
        if let Some(source) = &volume.projected {
            let files = self.projected(pod, source, node).await?;
            return self.write(pod, directory("projected"), files, StorageMedium::InMemory).await;
        }
        if let Some(source) = &volume.persistent_volume_claim {
            let read_only = source.read_only == Some(true);
            let mounted =
                self.claim(pod, &volume.name, (&source.claim_name, read_only), work, claims).await?;
            return Ok(Mounted { read_only: mounted.read_only || read_only, ..mounted });
        }
        if volume.ephemeral.is_some() {
            let claim = format!("{}-{}", pod::name(pod), volume.name);
            return self.claim(pod, &volume.name, (&claim, false), work, claims).await;
        }
        if let Some(source) = &volume.csi {
            let wanted = Wanted::inline(pod, &volume.name, source, self.local.node());
            return Ok(self.csi.set_up(pod, wanted, None, work).await?);
        }
        Err(Problem::NoPlugin)
    }

    async fn config_map_files(&self, pod: &Pod, source: &ConfigMapVolumeSource) -> Result<Payload, Problem> {
        let optional = source.optional == Some(true);
        let object = self.config_map(pod, &source.name, optional).await?;
        Ok(payload::config_map(object.as_deref(), source.items.as_ref(), source.default_mode, optional)?)
    }

    async fn secret_files(&self, pod: &Pod, source: &SecretVolumeSource) -> Result<Payload, Problem> {
        let optional = source.optional == Some(true);
        let object = self.secret(pod, source.secret_name.as_deref().unwrap_or_default(), optional).await?;
        Ok(payload::secret(object.as_deref(), source.items.as_ref(), source.default_mode, optional)?)
    }

    async fn config_map(
        &self,
        pod: &Pod,
        name: &str,
        optional: bool,
    ) -> Result<Option<Arc<ConfigMap>>, Problem> {
        let found = self.objects.config_maps.get(&NamespacedName::new(pod::namespace(pod), name)).await?;
        if found.is_none() && !optional {
            return Err(Problem::NotFound { kind: "configmap", name: name.into() });
        }
        Ok(found)
    }

    async fn secret(&self, pod: &Pod, name: &str, optional: bool) -> Result<Option<Arc<Secret>>, Problem> {
        let found = self.objects.secrets.get(&NamespacedName::new(pod::namespace(pod), name)).await?;
        if found.is_none() && !optional {
            return Err(Problem::NotFound { kind: "secret", name: name.into() });
        }
        Ok(found)
    }

    async fn projected(
        &self,
        pod: &Pod,
        source: &ProjectedVolumeSource,
        node: &downward::Node,
    ) -> Result<Payload, Problem> {
        let mut files = Payload::new();
        for part in source.sources.iter().flatten() {
            if let Some(map) = &part.config_map {
                let optional = map.optional == Some(true);
                let object = self.config_map(pod, &map.name, optional).await?;
                let more = payload::config_map(
                    object.as_deref(),
                    map.items.as_ref(),
                    source.default_mode,
                    optional,
                )?;
                payload::merge(&mut files, more)?;
            }
            if let Some(secret) = &part.secret {
                let optional = secret.optional == Some(true);
                let object = self.secret(pod, &secret.name, optional).await?;
                let more =
                    payload::secret(object.as_deref(), secret.items.as_ref(), source.default_mode, optional)?;
                payload::merge(&mut files, more)?;
            }
            if let Some(downward) = &part.downward_api {
                let more = payload::downward_api(pod, downward.items.as_ref(), source.default_mode, node)?;
                payload::merge(&mut files, more)?;
            }
            if let Some(token) = &part.service_account_token {
                let audience = token.audience.as_deref().unwrap_or_default();
                let text = self.tokens.get(pod, audience, token.expiration_seconds).await?;
                let file = token_file(pod, text, source.default_mode);
                payload::merge(&mut files, Payload::from([(token.path.clone(), file)]))?;
            }
            if part.cluster_trust_bundle.is_some() || part.pod_certificate.is_some() {
                return Err(Problem::NoPlugin);
            }
        }
        Ok(files)
    }

    /// Writes the files of a volume; secret ones never touch the disk.
    async fn write(
        &self,
        pod: &Pod,
        path: PathBuf,
        mut files: Payload,
        keep: StorageMedium<'_>,
    ) -> Result<Mounted, Problem> {
        let in_memory = matches!(keep, StorageMedium::InMemory);
        let group = fs_group(pod);
        if group.is_some() {
            // as the group will get to see them, so that a second look finds nothing to change
            files.values_mut().for_each(|file| file.mode |= 0o440);
        }
        let target = path.clone();
        let write = move || -> Result<(), Problem> {
            fs::create_dir_all(&target).map_err(io("making the volume's directory"))?;
            if in_memory && !mount::has_own_file_system(&target).map_err(io("looking at the volume"))? {
                mount::tmpfs(&target, None).map_err(io("mounting a memory file system"))?;
            }
            let changed = atomic::write(&target, &files, group).map_err(io("writing the volume's files"))?;
            if let (true, Some(group)) = (changed, group) {
                ownership::give_to_group(&target, group, true, ChangePolicy::Always)
                    .map_err(io("giving the volume to its group"))?;
            }
            Ok(())
        };
        // what is in memory waits for no disk, and another thread would cost more than the work
        match keep {
            StorageMedium::InMemory => write()?,
            StorageMedium::OnDisk(work) => blocking(work, write).await?,
        }
        Ok(directory_at(path, true))
    }

    /// What is behind a claim: its volume must be one that this node has, or that a driver can bring.
    async fn claim(
        &self,
        pod: &Pod,
        volume_of_pod: &str,
        (name, read_only): (&str, bool),
        work: &TaskTracker,
        mounted: &mut Vec<MountedClaim>,
    ) -> Result<Mounted, Problem> {
        let client = self.client.clone().ok_or(Problem::NoServer)?;
        let (claim, volume_name) = bound_claim(&client, pod, name).await?;
        let volume = Api::<PersistentVolume>::all(client.clone()).get(&volume_name).await?;
        let spec = volume.spec.clone().unwrap_or_default();
        let is_local = spec.csi.as_ref().is_some_and(|source| source.driver == local_volume::DRIVER);
        if let Some(source) = spec.csi.as_ref().filter(|_| !is_local) {
            let wanted = Wanted::persistent(&volume, &spec, source, self.local.node(), read_only);
            let (record, is_block) = (wanted.record.clone(), wanted.is_block);
            let claimed = Claimed { claim: &claim, volume: &volume };
            let one = self.csi.set_up(pod, wanted, Some(claimed), work).await?;
            let path = one.path.clone();
            let asked = Asked { record, is_block, path: path.to_string_lossy().into_owned() };
            let of_pod = (volume_of_pod.into(), name.into());
            mounted.push(MountedClaim::of_driver(of_pod, path, asked));
            return Ok(one);
        }
        let path = if let Some(source) = &spec.host_path {
            let path = host_path(&source.path, source.type_.as_deref().unwrap_or_default(), work).await?;
            // a volume on the host is made when first used
            tokio::fs::create_dir_all(&path).await.map_err(io("making the volume's directory"))?;
            path
        } else if let Some(source) = &spec.local {
            host_path(&source.path, "Directory", work).await?
        } else if is_local {
            self.local.set_up(&client, pod, &claim, &volume, work).await?
        } else {
            return Err(Problem::NoPlugin);
        };
        let read_only_source = spec.csi.as_ref().is_some_and(|source| source.read_only == Some(true));
        if let (Some(group), true) = (fs_group(pod), (spec.local.is_some() || is_local) && !read_only_source)
        {
            let (path, policy) = (path.clone(), change_policy(pod));
            let given =
                self.pod_dir(pod::uid(pod)).join("volumes/kubernetes.io~local-volume").join(&volume_name);
            blocking(work, move || ownership::give_once(&path, group, policy, &given))
                .await
                .map_err(io("giving the volume to its group"))?;
        }
        if spec.host_path.is_none() {
            mounted.push(MountedClaim {
                volume: volume_of_pod.into(),
                claim: name.into(),
                path: path.clone(),
                is_shared: is_local,
                asked: None,
            });
        }
        let only_reads = spec.access_modes.iter().flatten().all(|mode| mode == "ReadOnlyMany");
        Ok(directory_at(path, read_only_source || (only_reads && spec.access_modes.is_some())))
    }

    /// What a container mounts of a volume: the whole, or a part of it, opened
    /// so that no link in it can lead elsewhere.
    pub async fn sub_path(
        &self,
        (pod, container): (&Pod, &str),
        (index, volume_mount): (usize, &VolumeMount),
        volume: &Mounted,
        sub_path: &str,
        work: &TaskTracker,
    ) -> io::Result<PathBuf> {
        if Path::new(sub_path).is_absolute() || sub_path.split('/').any(|part| part == "..") {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "subPath must stay within the volume"));
        }
        let target = self
            .pod_dir(pod::uid(pod))
            .join("volume-subpaths")
            .join(&volume_mount.name)
            .join(container)
            .join(index.to_string());
        let (volume, part, at) = (volume.clone(), PathBuf::from(sub_path), target.clone());
        blocking(work, move || bind_part(&volume, &part, &at)).await?;
        Ok(target)
    }

    /// Takes a stopped pod's volumes away. Mounts go first, so that removing
    /// files can reach nothing but the pod's own.
    pub async fn tear_down_mounts(&self, uid: &str) -> Result<(), TearDownError> {
        self.tokens.forget(uid);
        self.claims.forget(uid);
        self.take_away_of_drivers(uid).await?;
        let directory = self.pod_dir(uid);
        let remove = move || -> io::Result<()> {
            unmount_all(&directory)?;
            for name in ["volumes", "volume-subpaths", "volumeDevices"] {
                tree::remove(&directory.join(name))?;
            }
            Ok(())
        };
        Ok(blocking(&TaskTracker::new(), remove).await?)
    }

    /// Drivers unmount what is theirs, when nothing shows a part of it any more.
    async fn take_away_of_drivers(&self, uid: &str) -> Result<(), TearDownError> {
        let parts = self.pod_dir(uid).join("volume-subpaths");
        blocking(&TaskTracker::new(), move || unmount_all(&parts)).await?;
        Ok(self.csi.tear_down(uid).await?)
    }

    /// Takes everything of a pod off the node.
    pub async fn tear_down(&self, uid: &str) -> Result<(), TearDownError> {
        self.claims.forget(uid);
        self.take_away_of_drivers(uid).await?;
        let directory = self.pod_dir(uid);
        let remove = move || -> io::Result<()> {
            unmount_all(&directory)?;
            tree::remove(&directory)
        };
        Ok(blocking(&TaskTracker::new(), remove).await?)
    }

    /// Pods that have a directory here.
    pub fn pods_on_disk(&self) -> io::Result<Vec<String>> {
        match fs::read_dir(self.root_dir.join("pods")) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(vec![]),
            entries => entries?
                .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
                .collect::<io::Result<_>>(),
        }
    }
}

/// A path of the node, which is what the volume says it is.
async fn host_path(path: &str, kind: &str, work: &TaskTracker) -> Result<PathBuf, Problem> {
    let path = PathBuf::from(path);
    if !kind.is_empty() {
        let (path, kind) = (path.clone(), kind.to_owned());
        blocking(work, move || host_path::prepare(&path, &kind)).await?;
    }
    Ok(path)
}

fn directory_at(path: PathBuf, read_only: bool) -> Mounted {
    Mounted { path, read_only, is_block: false }
}

/// Mounts a part of a volume, which is made where it is missing.
fn bind_part(volume: &Mounted, part: &Path, target: &Path) -> io::Result<()> {
    let opened = match beneath::open_beneath(&volume.path, part) {
        Err(error) if error.kind() == io::ErrorKind::NotFound && !volume.read_only => {
            make_as_open(&volume.path, part)?
        }
        opened => opened?,
    };
    mount::unmount(target)?;
    let is_directory = fs::metadata(format!("/proc/self/fd/{}", opened.as_raw_fd()))?.is_dir();
    if is_directory {
        fs::create_dir_all(target)?;
    } else {
        if let Some(parent) = target.parent() {
            fs::create_dir_all(parent)?;
        }
        fs::OpenOptions::new().create(true).append(true).open(target)?;
    }
    mount::bind_open(&opened, target)
}

/// Makes the directories of a path below a volume, as open as the volume itself: whoever may write there may write
/// here.
fn make_as_open(volume: &Path, part: &Path) -> io::Result<OwnedFd> {
    let mode = fs::metadata(volume)?.permissions().mode() & 0o7777;
    let mut done = PathBuf::new();
    for name in part.components() {
        done.push(name);
        match beneath::open_beneath(volume, &done) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let made = beneath::create_directories_beneath(volume, &done, mode)?;
                // what was asked for was cut by the umask
                let link = format!("/proc/self/fd/{}", made.as_raw_fd());
                fs::set_permissions(link, fs::Permissions::from_mode(mode))?;
            }
            opened => drop(opened?),
        }
    }
    beneath::open_beneath(volume, part)
}

fn unmount_all(directory: &Path) -> io::Result<()> {
    let mounts = mount::mounts_below(directory)?;
    for target in &mounts {
        mount::unmount(target)?;
    }
    // several may have been on top of each other
    if mounts.is_empty() || mount::mounts_below(directory)?.is_empty() {
        Ok(())
    } else {
        Err(io::Error::new(io::ErrorKind::ResourceBusy, "a volume is still mounted"))
    }
}

/// A directory that lives as long as its pod.
struct EmptyDir {
    path: PathBuf,
    in_memory: bool,
    memory_size: Option<u64>,
    group: Option<u32>,
}

impl EmptyDir {
    fn of(pod: &Pod, source: &EmptyDirVolumeSource, path: PathBuf) -> Self {
        Self {
            path,
            in_memory: source.medium.as_deref() == Some("Memory"),
            memory_size: memory_size(pod, source),
            group: fs_group(pod),
        }
    }

    fn make(&self) -> Result<(), Problem> {
        let path = &*self.path;
        let new = !path.exists();
        if new {
            fs::create_dir_all(path).map_err(io("making the volume's directory"))?;
        }
        if self.in_memory && !mount::has_own_file_system(path).map_err(io("looking at the volume"))? {
            mount::tmpfs(path, self.memory_size).map_err(io("mounting a memory file system"))?;
        } else if !new {
            return Ok(());
        }
        // a memory file system is open to all as it is, with the bit that keeps users from removing each other's files
        let mode = fs::metadata(path).map_err(io("looking at the volume"))?.permissions().mode();
        if mode & 0o777 != 0o777 {
            fs::set_permissions(path, fs::Permissions::from_mode(0o777))
                .map_err(io("opening the volume to all"))?;
        }
        if let Some(group) = self.group {
            ownership::give_to_group(path, group, false, ChangePolicy::Always)
                .map_err(io("giving the volume to its group"))?;
        }
        Ok(())
    }
}

/// Memory a volume may take: what it says, and no more than the pod may use.
fn memory_size(pod: &Pod, source: &EmptyDirVolumeSource) -> Option<u64> {
    let said =
        source.size_limit.as_ref().map(|limit| amount_of("memory", &limit.0)).filter(|limit| *limit > 0);
    let pod_limit = pod_limits(pod, None, true).memory_bytes;
    [said, pod_limit].into_iter().flatten().min().and_then(|limit| u64::try_from(limit).ok())
}

/// Tokens are for their pod's user alone; a group reads them where set.
fn token_file(pod: &Pod, text: String, default_mode: Option<i32>) -> File {
    let users: std::collections::BTreeSet<Option<i64>> = pod::containers(pod)
        .iter()
        .map(|each| {
            let own = each.container.security_context.as_ref().and_then(|context| context.run_as_user);
            own.or_else(|| pod::spec(pod).security_context.as_ref().and_then(|context| context.run_as_user))
        })
        .collect();
    let mut users = users.into_iter();
    let only_user = match (users.next(), users.next()) {
        (Some(Some(user)), None) => u32::try_from(user).ok(),
        _ => None,
    };
    let (mode, user) = match (fs_group(pod), only_user) {
        (Some(_), user) => (0o640, user),
        (None, Some(user)) => (0o600, Some(user)),
        (None, None) => (payload::mode(None, default_mode), None),
    };
    File { data: text.into_bytes(), mode, user }
}

fn fs_group(pod: &Pod) -> Option<u32> {
    pod::spec(pod).security_context.as_ref()?.fs_group.and_then(|group| u32::try_from(group).ok())
}

fn change_policy(pod: &Pod) -> ChangePolicy {
    let policy = pod::spec(pod)
        .security_context
        .as_ref()
        .and_then(|context| context.fs_group_change_policy.as_deref());
    if policy == Some("OnRootMismatch") { ChangePolicy::OnRootMismatch } else { ChangePolicy::Always }
}

/// Where the files of a volume are stored.
#[derive(Clone, Copy)]
enum StorageMedium<'a> {
    InMemory,
    /// Written on a thread of its own, among these.
    OnDisk(&'a TaskTracker),
}

/// A claim of the pod's namespace, with the name of the volume that it is bound to.
async fn bound_claim(
    client: &kube::Client,
    pod: &Pod,
    name: &str,
) -> Result<(PersistentVolumeClaim, String), Problem> {
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), pod::namespace(pod));
    let claim = claims.get(name).await?;
    let is_bound = claim.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Bound");
    let volume = claim.spec.as_ref().and_then(|spec| spec.volume_name.clone()).filter(|_| is_bound);
    let volume = volume.ok_or_else(|| Problem::Unbound(name.into()))?;
    Ok((claim, volume))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(security_context: serde_json::Value) -> Pod {
        serde_json::from_value(serde_json::json!({
            "metadata": {"name": "p"},
            "spec": {"containers": [{"name": "c"}], "securityContext": security_context},
        }))
        .expect("a pod")
    }

    #[test]
    fn a_token_belongs_to_the_pods_user_and_is_read_by_its_group() {
        let check = |context, mode, user| {
            let file = token_file(&pod(context), "token".into(), None);
            assert_eq!((file.mode, file.user), (mode, user));
        };
        check(serde_json::json!({}), 0o644, None);
        check(serde_json::json!({"runAsUser": 1000}), 0o600, Some(1000));
        check(serde_json::json!({"fsGroup": 10000}), 0o640, None);
        check(serde_json::json!({"runAsUser": 1000, "fsGroup": 10000}), 0o640, Some(1000));
    }

    #[test]
    fn users_of_a_volume_in_memory_cannot_remove_each_others_files() {
        let folder = tempfile::tempdir().expect("a directory can be made");
        let path = folder.path().join("volume");
        let source = EmptyDirVolumeSource { medium: Some("Memory".into()), ..Default::default() };
        if let Err(problem) =
            EmptyDir::of(&pod(serde_json::json!({"fsGroup": 123})), &source, path.clone()).make()
        {
            return ferry_skip::missing(&format!("the right to mount: {problem:?}"));
        }
        let mode = fs::metadata(&path).expect("it is there").permissions().mode() & 0o7777;
        mount::unmount(&path).expect("it was mounted");
        assert_eq!(mode, 0o3777);
    }

    #[test]
    fn directories_of_a_sub_path_are_as_open_as_their_volume() {
        let volume = tempfile::tempdir().expect("a directory can be made");
        let path = |name: &str| volume.path().join(name);
        fs::set_permissions(volume.path(), fs::Permissions::from_mode(0o2777)).expect("ours");
        fs::create_dir(path("old")).expect("a directory can be made");
        fs::set_permissions(path("old"), fs::Permissions::from_mode(0o700)).expect("ours");
        make_as_open(volume.path(), Path::new("old/new/deep")).expect("they can be made");
        let mode = |name: &str| fs::metadata(path(name)).expect("it is there").permissions().mode() & 0o7777;
        assert_eq!((mode("old"), mode("old/new"), mode("old/new/deep")), (0o700, 0o2777, 0o2777));
        std::os::unix::fs::symlink("/tmp", path("out")).expect("a link can be made");
        assert!(make_as_open(volume.path(), Path::new("out/new")).is_err());
    }

    #[tokio::test]
    async fn cleanup_behind_a_link_keeps_the_content_of_sub_paths() {
        let folder = tempfile::tempdir().expect("a directory can be made");
        let place = |name: &str| folder.path().join(name);
        for name in ["real", "users"] {
            fs::create_dir(place(name)).expect("a directory can be made");
        }
        fs::write(place("users").join("kept"), "").expect("a file can be written");
        std::os::unix::fs::symlink(place("real"), place("link")).expect("a link can be made");
        let objects = Objects::new(None, ferry_client::CancellationToken::new(), Arc::new(|_| {}));
        let local = LocalVolumes::new(&place("link"), "node", ferry_client::Recorder::silent());
        let tokens = Arc::new(Tokens::new(None));
        let csi = Csi::new(csi::Config {
            root_dir: &place("link"),
            node_name: "node",
            client: None,
            tokens: tokens.clone(),
            events: ferry_client::Recorder::silent(),
            node: tokio::sync::watch::channel(None).1,
            in_use: csi::in_use::InUse::default(),
        });
        let csi = Arc::new(csi.expect("nothing is there"));
        let volumes = Volumes::new(place("link"), None, Arc::new(objects), tokens, local, csi);
        let target = volumes.pod_dir("uid").join("volume-subpaths/data/c/0");
        fs::create_dir_all(&target).expect("a directory can be made");
        if let Err(error) = mount::bind(&place("users"), &target, false) {
            return ferry_skip::missing(&format!("the right to mount: {error}"));
        }
        let taken_down = volumes.tear_down("uid").await;
        let left = (place("users").join("kept").exists(), volumes.pod_dir("uid").exists());
        mount::unmount(&target).expect("one that is gone is gone");
        taken_down.expect("a pod's directory can be removed");
        assert_eq!(left, (true, false));
    }
}
