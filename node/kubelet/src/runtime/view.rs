//! A pod as the runtime has it: sandboxes and containers, newest first.

use std::borrow::Cow;
use std::path::PathBuf;

use jiff::Timestamp;

use super::labels;
use crate::cri;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    Created,
    Running,
    Exited,
    Unknown,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct PodRuntime {
    pub sandboxes: Vec<Sandbox>,
    pub containers: Vec<Container>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Sandbox {
    pub id: String,
    pub attempt: u32,
    pub ready: bool,
    pub host_network: bool,
    pub created_at: Timestamp,
    /// The pod's addresses, the first family first. Empty on the host network.
    pub ips: Vec<String>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Container {
    pub id: String,
    pub name: String,
    pub sandbox: String,
    pub restart_count: u32,
    pub hash: String,
    pub state: State,
    pub created_at: Timestamp,
    pub started_at: Option<Timestamp>,
    pub finished_at: Option<Timestamp>,
    pub exit_code: i32,
    pub reason: String,
    pub message: String,
    pub image: String,
    pub image_id: String,
    pub log_path: PathBuf,
    /// The file on the node into which the container writes its last words.
    pub termination_message_file: Option<PathBuf>,
    pub termination_message_policy: String,
}

impl PodRuntime {
    /// The sandbox that counts, ready or not.
    pub fn sandbox(&self) -> Option<&Sandbox> {
        self.sandboxes.first()
    }

    /// The newest container of a name.
    pub fn container(&self, name: &str) -> Option<&Container> {
        self.containers.iter().find(|container| container.name == name)
    }

    /// The newest container of a name within the current sandbox.
    pub fn current_container(&self, name: &str) -> Option<&Container> {
        let sandbox = &self.sandbox()?.id;
        self.containers.iter().find(|container| container.name == name && &container.sandbox == sandbox)
    }

    pub fn running(&self) -> impl Iterator<Item = &Container> {
        self.containers.iter().filter(|container| container.state == State::Running)
    }

    pub fn is_anything_alive(&self) -> bool {
        self.running().next().is_some() || self.sandboxes.iter().any(|sandbox| sandbox.ready)
    }
}

pub fn sandbox(status: &cri::PodSandboxStatus) -> Sandbox {
    let options = status
        .linux
        .as_ref()
        .and_then(|linux| linux.namespaces.as_ref())
        .and_then(|namespaces| namespaces.options.as_ref());
    let host_network = options.is_some_and(|options| options.network == cri::NamespaceMode::Node as i32);
    let mut ips = Vec::new();
    if let Some(network) = status.network.as_ref().filter(|_| !host_network) {
        ips.push(network.ip.clone());
        ips.extend(network.additional_ips.iter().map(|address| address.ip.clone()));
        ips.retain(|ip| !ip.is_empty());
    }
    Sandbox {
        id: status.id.clone(),
        attempt: status.metadata.as_ref().map_or(0, |metadata| metadata.attempt),
        ready: status.state == cri::PodSandboxState::SandboxReady as i32,
        host_network,
        created_at: time(status.created_at).unwrap_or(Timestamp::UNIX_EPOCH),
        ips,
    }
}

pub fn container(status: &cri::ContainerStatus, sandbox: &str) -> Container {
    let status = &*without_interrupted_start(status);
    let annotation = |key: &str| status.annotations.get(key).cloned().unwrap_or_default();
    let message_path = annotation(labels::TERMINATION_MESSAGE_PATH);
    let attempt = status.metadata.as_ref().map_or(0, |metadata| metadata.attempt);
    Container {
        id: status.id.clone(),
        name: status.labels.get(labels::CONTAINER_NAME).cloned().unwrap_or_default(),
        sandbox: sandbox.to_string(),
        restart_count: annotation(labels::RESTART_COUNT).parse().unwrap_or(attempt),
        hash: annotation(labels::CONTAINER_HASH),
        state: state(status.state),
        created_at: time(status.created_at).unwrap_or(Timestamp::UNIX_EPOCH),
        started_at: time(status.started_at),
        finished_at: time(status.finished_at),
        exit_code: status.exit_code,
        reason: status.reason.clone(),
        message: status.message.clone(),
        image: status.image.as_ref().map_or_else(String::new, |image| {
            if image.user_specified_image.is_empty() {
                image.image.clone()
            } else {
                image.user_specified_image.clone()
            }
        }),
        image_id: status.image_ref.clone(),
        log_path: PathBuf::from(&status.log_path),
        termination_message_file: status
            .mounts
            .iter()
            .find(|mount| mount.container_path == message_path)
            .map(|mount| PathBuf::from(&mount.host_path)),
        termination_message_policy: annotation(labels::TERMINATION_MESSAGE_POLICY),
    }
}

/// What containerd says of a start that it gave up: its call of the shim was canceled, or the shim was killed as it began.
const INTERRUPTED: &[&str] =
    &["context canceled", "code = Canceled", "failed to start shim: start failed: : signal: killed"];

/// The runtime gives up a start when whoever asked for it is gone, as a kubelet is that was killed. The container has not
/// run, and nothing is wrong with it, though containerd says that it has exited: it counts as created.
fn without_interrupted_start(status: &cri::ContainerStatus) -> Cow<'_, cri::ContainerStatus> {
    let is_canceled = INTERRUPTED.iter().any(|words| status.message.contains(words));
    let is_interrupted = status.state == cri::ContainerState::ContainerExited as i32
        && status.started_at == 0
        && status.reason == "StartError"
        && is_canceled;
    if !is_interrupted {
        return Cow::Borrowed(status);
    }
    let mut status = status.clone();
    status.state = cri::ContainerState::ContainerCreated as i32;
    (status.exit_code, status.finished_at) = (0, 0);
    (status.reason, status.message) = (String::new(), String::new());
    Cow::Owned(status)
}

pub fn state(state: i32) -> State {
    match cri::ContainerState::try_from(state) {
        Ok(cri::ContainerState::ContainerCreated) => State::Created,
        Ok(cri::ContainerState::ContainerRunning) => State::Running,
        Ok(cri::ContainerState::ContainerExited) => State::Exited,
        Ok(cri::ContainerState::ContainerUnknown) | Err(_) => State::Unknown,
    }
}

/// The runtime counts nanoseconds; zero means never.
fn time(nanoseconds: i64) -> Option<Timestamp> {
    if nanoseconds <= 0 { None } else { Timestamp::from_nanosecond(nanoseconds.into()).ok() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_start_that_was_interrupted_has_not_been() {
        let check = |started_at: i64, message: &str, expected: State| {
            let status = cri::ContainerStatus {
                id: "c".into(),
                state: cri::ContainerState::ContainerExited as i32,
                created_at: 1,
                started_at,
                finished_at: 2,
                exit_code: 128,
                reason: "StartError".into(),
                message: message.into(),
                ..Default::default()
            };
            let seen = container(&status, "s");
            assert_eq!(seen.state, expected, "{message}");
            assert_eq!(seen.finished_at.is_none(), expected == State::Created, "{message}");
        };
        check(
            0,
            "failed to create containerd task: failed to create shim task: context canceled: unknown",
            State::Created,
        );
        check(0, "failed to start containerd task \"a\": context canceled: unknown", State::Created);
        check(
            0,
            "failed to create containerd task: failed to start shim: start failed: : signal: killed: unknown",
            State::Created,
        );
        check(0, "runc did not terminate successfully: signal: killed: unknown", State::Exited);
        check(0, "exec: \"nothing\": executable file not found in $PATH: unknown", State::Exited);
        check(0, "failed to create shim task: context deadline exceeded: unknown", State::Exited);
        check(1, "context canceled", State::Exited);
    }
}
