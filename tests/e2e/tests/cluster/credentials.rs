//! A registry that wants to know who pulls: secrets of the pod, secrets of its service account, wrong ones, none.

use crate::cluster::Cluster;
use crate::host::ferry;
use crate::images::{Access, PASSWORD, Registry, USER};

#[test]
fn images_are_pulled_with_the_credentials_of_pod_and_service_account() {
    let Some(binary) = ferry() else { return };
    let cluster = Cluster::new(binary, &[]);
    let directory = cluster.directory.path().join("private");
    let private = Registry::start(&directory, &cluster.root, Access::Guarded);
    private.trust_in(&cluster.registry.config_dir, &private.address);
    cluster.up();
    let image = format!("{}/library/nginx", private.address);

    let secret = |name: &str, password: &str| {
        let words = ["create", "secret", "docker-registry", name];
        let server = format!("--docker-server={}", private.address);
        let user = format!("--docker-username={USER}");
        let password = format!("--docker-password={password}");
        cluster.kubectl(&[&words[..], &[&server, &user, &password]].concat());
    };
    secret("right", PASSWORD);
    secret("wrong", "not-the-password");

    runs(&cluster, "of-pod", &image, r#""imagePullSecrets":[{"name":"right"}]"#);
    cluster.ready_pod("of-pod");

    // The image is on the node by now; the policy Always asks the registry all the same.
    cluster.kubectl(&["create", "serviceaccount", "puller"]);
    let patch = r#"{"imagePullSecrets":[{"name":"right"}]}"#;
    cluster.kubectl(&["patch", "serviceaccount", "puller", "-p", patch]);
    runs(&cluster, "of-account", &image, r#""serviceAccountName":"puller""#);
    cluster.ready_pod("of-account");

    only_who_could_pull_it_uses_an_image(&cluster, &image);
    for (pod, spec) in
        [("wrong", r#""imagePullSecrets":[{"name":"wrong"}]"#), ("none", r#""restartPolicy":"Always""#)]
    {
        runs(&cluster, pod, &image, spec);
        // What the registry said, in the runtime's own words.
        let path = "jsonpath={.status.containerStatuses[0].state.waiting.reason} \
                    {.status.containerStatuses[0].state.waiting.message}";
        let said = cluster.until("the pull fails", || {
            let answer = cluster.kubectl(&["get", "pod", pod, "-o", path]);
            answer.contains(&image).then_some(answer)
        });
        assert!(said.starts_with("ErrImagePull ") || said.starts_with("ImagePullBackOff "), "{said}");
        cluster.until("the failure is an event", || {
            let field = format!("involvedObject.name={pod},reason=Failed");
            let events = ["get", "events", "--field-selector", &field, "-o", "jsonpath={.items[*].message}"];
            let events = cluster.kubectl(&events);
            let told = events.contains("Failed to pull image")
                && (events.contains("401 Unauthorized") || events.contains("authorization failed"));
            told.then_some(())
        });
    }
}

/// The image is on the node; who shows no credentials is asked for them all the same, and after a restart too.
fn only_who_could_pull_it_uses_an_image(cluster: &Cluster, image: &str) {
    let waits = |pod: &str, policy: &str, spec: &str, reason: &str| {
        let container =
            format!(r#""image":"{image}","imagePullPolicy":"{policy}","command":["sleep","3600"]"#);
        cluster.create_pod(pod, &container, spec);
        cluster.until(&format!("{pod} is not let in"), || {
            let shown = cluster.field(pod, ".status.containerStatuses[0].state.waiting.reason");
            shown.contains(reason).then_some(())
        });
        cluster.kubectl(&["delete", "pod", pod, "--force", "--grace-period=0"]);
    };
    waits("uninvited", "IfNotPresent", "", "ImagePull");
    waits("unseen", "Never", "", "ErrImageNeverPull");
    let records = cluster.data_dir().join("kubelet/image_manager/pulled");
    assert!(std::fs::read_dir(records).unwrap().count() >= 1);
    let invited = format!(r#""image":"{image}","imagePullPolicy":"Never","command":["sleep","3600"]"#);
    cluster.create_pod("invited", &invited, r#","imagePullSecrets":[{"name":"right"}]"#);
    cluster.ready_pod("invited");
}

fn runs(cluster: &Cluster, pod: &str, image: &str, spec: &str) {
    let overrides = format!(r#"{{"spec":{{{spec}}}}}"#);
    let image = format!("--image={image}");
    let words = ["run", pod, &image, "--image-pull-policy=Always", "--overrides", &overrides];
    cluster.kubectl(&[&words[..], &["--command", "--", "sleep", "3600"]].concat());
}
