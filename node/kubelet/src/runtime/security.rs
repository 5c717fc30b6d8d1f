//! Security contexts, as the runtime is told them.

use std::path::Path;

use k8s_openapi::api::core::v1::{
    AppArmorProfile, Capabilities, Container, Pod, SELinuxOptions, SeccompProfile, SecurityContext,
};

use crate::cri;
use crate::cri::security_profile::ProfileType;
use crate::pod::{self, ContainerOf};

/// Parts of `/proc` and `/sys` that show or change the host.
const MASKED_PATHS: [&str; 12] = [
    "/proc/asound",
    "/proc/acpi",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/proc/interrupts",
    "/sys/firmware",
    "/sys/devices/virtual/powercap",
];
const READ_ONLY_PATHS: [&str; 5] = ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("container's runAsUser breaks non-root policy (pod: \"{pod}\", container: {container})")]
    RunAsRoot { pod: String, container: String },
    #[error("container has runAsNonRoot and image will run as root (pod: \"{pod}\", container: {container})")]
    ImageRunsAsRoot { pod: String, container: String },
    #[error(
        "container has runAsNonRoot and image has non-numeric user ({user}), cannot verify user is non-root (pod: \"{pod}\", container: {container})"
    )]
    UserUnknown { user: String, pod: String, container: String },
}

/// The user an image says it runs as.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImageUser {
    pub uid: Option<i64>,
    pub name: String,
}

pub fn namespaces(pod: &Pod) -> cri::NamespaceOption {
    let spec = pod::spec(pod);
    let pid = if spec.host_pid == Some(true) {
        cri::NamespaceMode::Node
    } else if spec.share_process_namespace == Some(true) {
        cri::NamespaceMode::Pod
    } else {
        cri::NamespaceMode::Container
    };
    let of_node =
        |is: Option<bool>| if is == Some(true) { cri::NamespaceMode::Node } else { cri::NamespaceMode::Pod };
    cri::NamespaceOption {
        network: of_node(spec.host_network) as i32,
        pid: pid as i32,
        ipc: of_node(spec.host_ipc) as i32,
        target_id: String::new(),
        userns_options: None,
    }
}

pub fn sandbox(pod: &Pod, root_dir: &Path, seccomp_default: bool) -> cri::LinuxSandboxSecurityContext {
    let context = pod::spec(pod).security_context.as_ref();
    let privileged = pod::containers(pod).iter().any(|each| is_privileged(&each.container));
    let profile = context.and_then(|context| context.seccomp_profile.as_ref());
    cri::LinuxSandboxSecurityContext {
        namespace_options: Some(namespaces(pod)),
        run_as_user: context.and_then(|context| context.run_as_user).map(number),
        run_as_group: context.and_then(|context| context.run_as_group).map(number),
        supplemental_groups: supplemental_groups(pod),
        privileged,
        // a sandbox of a confined pod is confined too
        seccomp: Some(match profile {
            Some(_) => seccomp(profile, root_dir, seccomp_default),
            None => security_profile(ProfileType::RuntimeDefault, String::new()),
        }),
        apparmor: apparmor(context.and_then(|context| context.app_armor_profile.as_ref())),
        ..Default::default()
    }
}

pub fn container(
    pod: &Pod,
    each: &ContainerOf<'_>,
    image_user: &ImageUser,
    target_id: Option<String>,
    root_dir: &Path,
    seccomp_default: bool,
) -> Result<cri::LinuxContainerSecurityContext, Error> {
    let of_pod = pod::spec(pod).security_context.as_ref();
    let empty = SecurityContext::default();
    let own = each.container.security_context.as_ref().unwrap_or(&empty);
    let user = own.run_as_user.or(of_pod.and_then(|context| context.run_as_user));
    let group = own.run_as_group.or(of_pod.and_then(|context| context.run_as_group));
    let non_root = own.run_as_non_root.or(of_pod.and_then(|context| context.run_as_non_root));
    if non_root == Some(true) {
        verify_non_root(pod, &each.container, user, image_user)?;
    }
    let privileged = own.privileged == Some(true);
    let unmasked = own.proc_mount.as_deref() == Some("Unmasked");
    let paths = |paths: &[&str]| {
        if privileged || unmasked { vec![] } else { paths.iter().map(ToString::to_string).collect() }
    };
    let profile =
        own.seccomp_profile.as_ref().or(of_pod.and_then(|context| context.seccomp_profile.as_ref()));
    let apparmor_profile =
        own.app_armor_profile.as_ref().or(of_pod.and_then(|context| context.app_armor_profile.as_ref()));
    Ok(cri::LinuxContainerSecurityContext {
        capabilities: own.capabilities.as_ref().map(capabilities),
        privileged,
        namespace_options: Some(container_namespaces(pod, target_id)),
        selinux_options: own
            .se_linux_options
            .as_ref()
            .or(of_pod.and_then(|context| context.se_linux_options.as_ref()))
            .map(selinux),
        run_as_user: user.or(image_user.uid.filter(|_| image_user.name.is_empty())).map(number),
        // a group without a user is no identity the runtime takes
        run_as_group: group.map(number),
        run_as_username: if user.is_none() { image_user.name.clone() } else { String::new() },
        readonly_rootfs: own.read_only_root_filesystem == Some(true),
        supplemental_groups: supplemental_groups(pod),
        supplemental_groups_policy: match of_pod
            .and_then(|context| context.supplemental_groups_policy.as_deref())
        {
            Some("Strict") => cri::SupplementalGroupsPolicy::Strict as i32,
            _ => cri::SupplementalGroupsPolicy::Merge as i32,
        },
        no_new_privs: own.allow_privilege_escalation == Some(false),
        masked_paths: paths(&MASKED_PATHS),
        readonly_paths: paths(&READ_ONLY_PATHS),
        seccomp: Some(if privileged {
            security_profile(ProfileType::Unconfined, String::new())
        } else {
            seccomp(profile, root_dir, seccomp_default)
        }),
        apparmor: apparmor(apparmor_profile),
        apparmor_profile: String::new(),
        seccomp_profile_path: String::new(),
    })
}

/// The namespaces of a container, which may share the processes of another one.
fn container_namespaces(pod: &Pod, target_id: Option<String>) -> cri::NamespaceOption {
    let options = namespaces(pod);
    match target_id {
        Some(target_id) => {
            cri::NamespaceOption { pid: cri::NamespaceMode::Target as i32, target_id, ..options }
        }
        None => options,
    }
}

fn capabilities(capabilities: &Capabilities) -> cri::Capability {
    cri::Capability {
        add_capabilities: capabilities.add.clone().unwrap_or_default(),
        drop_capabilities: capabilities.drop.clone().unwrap_or_default(),
        add_ambient_capabilities: vec![],
    }
}

fn selinux(options: &SELinuxOptions) -> cri::SeLinuxOption {
    cri::SeLinuxOption {
        user: options.user.clone().unwrap_or_default(),
        role: options.role.clone().unwrap_or_default(),
        r#type: options.type_.clone().unwrap_or_default(),
        level: options.level.clone().unwrap_or_default(),
    }
}

pub fn is_privileged(container: &Container) -> bool {
    container.security_context.as_ref().is_some_and(|context| context.privileged == Some(true))
}

fn verify_non_root(
    pod: &Pod,
    container: &Container,
    user: Option<i64>,
    image: &ImageUser,
) -> Result<(), Error> {
    let (pod, container) =
        (format!("{}_{}({})", pod::name(pod), pod::namespace(pod), pod::uid(pod)), container.name.clone());
    match (user, image.uid, image.name.as_str()) {
        (Some(0), ..) => Err(Error::RunAsRoot { pod, container }),
        (Some(_), ..) => Ok(()),
        (None, Some(0), _) => Err(Error::ImageRunsAsRoot { pod, container }),
        (None, None, "") => Err(Error::ImageRunsAsRoot { pod, container }),
        (None, None, user) => Err(Error::UserUnknown { user: user.into(), pod, container }),
        (None, Some(_), _) => Ok(()),
    }
}

fn supplemental_groups(pod: &Pod) -> Vec<i64> {
    let context = pod::spec(pod).security_context.as_ref();
    let mut groups = context.and_then(|context| context.supplemental_groups.clone()).unwrap_or_default();
    groups.extend(context.and_then(|context| context.fs_group));
    groups
}

fn seccomp(profile: Option<&SeccompProfile>, root_dir: &Path, default: bool) -> cri::SecurityProfile {
    match profile.map(|profile| (profile.type_.as_str(), profile.localhost_profile.as_deref())) {
        Some(("RuntimeDefault", _)) => security_profile(ProfileType::RuntimeDefault, String::new()),
        Some(("Localhost", Some(file))) => {
            let path = root_dir.join("seccomp").join(file);
            security_profile(ProfileType::Localhost, path.to_string_lossy().into_owned())
        }
        None if default => security_profile(ProfileType::RuntimeDefault, String::new()),
        _ => security_profile(ProfileType::Unconfined, String::new()),
    }
}

fn apparmor(profile: Option<&AppArmorProfile>) -> Option<cri::SecurityProfile> {
    let profile = profile?;
    Some(match (profile.type_.as_str(), profile.localhost_profile.as_deref()) {
        ("Localhost", Some(name)) => security_profile(ProfileType::Localhost, name.into()),
        ("Unconfined", _) => security_profile(ProfileType::Unconfined, String::new()),
        _ => security_profile(ProfileType::RuntimeDefault, String::new()),
    })
}

fn security_profile(kind: ProfileType, localhost_ref: String) -> cri::SecurityProfile {
    cri::SecurityProfile { profile_type: kind as i32, localhost_ref }
}

fn number(value: i64) -> cri::Int64Value {
    cri::Int64Value { value }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn context(
        of_pod: serde_json::Value,
        own: serde_json::Value,
        image: ImageUser,
    ) -> Result<cri::LinuxContainerSecurityContext, Error> {
        let pod: Pod = serde_json::from_value(json!({
            "spec": {"securityContext": of_pod, "containers": [{"name": "c", "securityContext": own}]}
        }))
        .expect("the pod is well formed");
        container(&pod, &pod::containers(&pod)[0], &image, None, Path::new("/root"), false)
    }

    #[test]
    fn a_containers_own_context_comes_before_the_pods() {
        let of_pod = json!({"runAsUser": 1, "runAsGroup": 2, "fsGroup": 3, "supplementalGroups": [4]});
        let own = json!({"runAsUser": 9, "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true});
        let context = context(of_pod, own, ImageUser::default()).expect("nothing forbids it");
        assert_eq!(context.run_as_user, Some(number(9)));
        assert_eq!(context.run_as_group, Some(number(2)));
        assert_eq!(context.supplemental_groups, [4, 3]);
        assert!(context.no_new_privs && context.readonly_rootfs);
        assert!(!context.masked_paths.is_empty());
    }

    #[test]
    fn privileged_containers_see_everything() {
        let context = context(json!({}), json!({"privileged": true}), ImageUser::default())
            .expect("nothing forbids it");
        assert!(context.privileged && context.masked_paths.is_empty());
        assert_eq!(context.seccomp.map(|profile| profile.profile_type), Some(ProfileType::Unconfined as i32));
    }

    #[test]
    fn non_root_is_verified_before_the_start() {
        let verdict = |user: Option<i64>, image: ImageUser| {
            context(json!({"runAsNonRoot": true}), json!({"runAsUser": user}), image).map(|_| ())
        };
        let image = |uid: Option<i64>, name: &str| ImageUser { uid, name: name.into() };
        assert!(verdict(Some(1000), image(None, "")).is_ok());
        assert!(verdict(None, image(Some(1000), "")).is_ok());
        assert!(matches!(verdict(Some(0), image(None, "")), Err(Error::RunAsRoot { .. })));
        assert!(matches!(verdict(None, image(Some(0), "")), Err(Error::ImageRunsAsRoot { .. })));
        assert!(matches!(verdict(None, image(None, "")), Err(Error::ImageRunsAsRoot { .. })));
        assert!(matches!(verdict(None, image(None, "nginx")), Err(Error::UserUnknown { .. })));
    }

    #[test]
    fn seccomp_profiles_are_named_for_the_runtime() {
        let profile = |own: serde_json::Value| {
            let context =
                context(json!({}), json!({"seccompProfile": own}), ImageUser::default()).expect("allowed");
            context.seccomp.map(|profile| (profile.profile_type, profile.localhost_ref))
        };
        assert_eq!(profile(json!({"type": "RuntimeDefault"})), Some((0, String::new())));
        assert_eq!(profile(json!({"type": "Unconfined"})), Some((1, String::new())));
        assert_eq!(
            profile(json!({"type": "Localhost", "localhostProfile": "a.json"})),
            Some((2, "/root/seccomp/a.json".into()))
        );
    }
}
