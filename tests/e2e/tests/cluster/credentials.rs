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

fn runs(cluster: &Cluster, pod: &str, image: &str, spec: &str) {
    let overrides = format!(r#"{{"spec":{{{spec}}}}}"#);
    let image = format!("--image={image}");
    let words = ["run", pod, &image, "--image-pull-policy=Always", "--overrides", &overrides];
    cluster.kubectl(&[&words[..], &["--command", "--", "sleep", "3600"]].concat());
}
