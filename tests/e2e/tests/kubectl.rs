//! The real kubectl against a real server, over kinds of every group. Passes over, with a note, where the
//! machine's kubectl is older than 1.32.

use std::io::Write;
use std::process::{Command, Stdio};
use std::time::Duration;

use ferry_testkit::TestServer;

struct Kubectl {
    kubeconfig: std::path::PathBuf,
    home: tempfile::TempDir,
}

impl Kubectl {
    fn new(server: &TestServer) -> Option<Kubectl> {
        let Ok(output) = Command::new("kubectl").args(["version", "--client", "-o", "json"]).output() else {
            ferry_skip::missing("kubectl");
            return None;
        };
        let version: serde_json::Value =
            serde_json::from_slice(&output.stdout).expect("kubectl tells its version");
        let minor =
            version["clientVersion"]["minor"].as_str().map(|text| text.trim_end_matches('+').parse::<u32>());
        let minor = minor.expect("a version").expect("a number");
        if minor < 32 {
            // Debian has no newer one
            ferry_skip::unsupported(&format!("kubectl 1.{minor} is too old, 1.32 would do"));
            return None;
        }
        Some(Kubectl { kubeconfig: server.kubeconfig(), home: tempfile::tempdir().expect("a directory") })
    }

    /// Runs in a thread of its own, since the server lives in this process.
    async fn run(&self, words: &[&str], input: &str) -> (bool, String) {
        let words: Vec<String> = words.iter().map(ToString::to_string).collect();
        let (kubeconfig, home, input) =
            (self.kubeconfig.clone(), self.home.path().to_path_buf(), input.to_string());
        tokio::task::spawn_blocking(move || {
            let mut child = Command::new("kubectl")
                .args(&words)
                .env("KUBECONFIG", kubeconfig)
                .env("HOME", home)
                .env("KUBE_EDITOR", "sed -i s/one/two/")
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .expect("kubectl starts");
            child.stdin.take().expect("piped").write_all(input.as_bytes()).expect("kubectl reads");
            let output = child.wait_with_output().expect("kubectl ends");
            let text = format!(
                "{}{}",
                String::from_utf8_lossy(&output.stdout),
                String::from_utf8_lossy(&output.stderr)
            );
            (output.status.success(), text)
        })
        .await
        .expect("the thread ends")
    }

    #[track_caller]
    fn expect(&self, line: &str, (success, text): (bool, String), expected: &str) {
        assert!(success && text.contains(expected), "kubectl {line}: expected {expected:?}, got {text}");
    }

    async fn ok(&self, line: &str, expected: &str) {
        self.with(line, "", expected).await;
    }

    async fn with(&self, line: &str, input: &str, expected: &str) {
        let words: Vec<&str> = line.split(' ').collect();
        let answer = self.run(&words, input).await;
        self.expect(line, answer, expected);
    }
}

const OBJECTS: &str = r#"
apiVersion: v1
kind: ConfigMap
metadata: {name: settings, labels: {tier: a}}
data: {value: one}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: c, image: "nginx:1.29"}]}
---
apiVersion: batch/v1
kind: CronJob
metadata: {name: nightly}
spec:
  schedule: "0 3 * * *"
  jobTemplate:
    spec: {template: {spec: {restartPolicy: Never, containers: [{name: c, image: "busybox:1"}]}}}
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: front}
spec: {defaultBackend: {service: {name: web, port: {number: 80}}}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: reader}
rules: [{apiGroups: [""], resources: [pods], verbs: [get]}]
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: budget}
spec: {minAvailable: 1, selector: {matchLabels: {app: web}}}
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: fast}
provisioner: example.com/fast
---
apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata: {name: high}
value: 1000
---
apiVersion: coordination.k8s.io/v1
kind: Lease
metadata: {name: leader}
spec: {holderIdentity: me}
---
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: scaler}
spec:
  maxReplicas: 3
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: web}
  metrics: [{type: Resource, resource: {name: cpu, target: {type: Utilization, averageUtilization: 80}}}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: bound}
spec: {policyName: none, validationActions: [Deny]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: slice}
addressType: IPv4
endpoints: [{addresses: ["192.0.2.1"]}]
---
apiVersion: flowcontrol.apiserver.k8s.io/v1
kind: FlowSchema
metadata: {name: flow}
spec: {priorityLevelConfiguration: {name: none}, matchingPrecedence: 9000}
---
apiVersion: node.k8s.io/v1
kind: RuntimeClass
metadata: {name: runtime}
handler: runc
---
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: device.example.com}
spec: {}
---
apiVersion: events.k8s.io/v1
kind: Event
metadata: {name: event}
eventTime: "2026-01-01T00:00:00.000000Z"
reportingController: example.com/tests
reportingInstance: one
action: Testing
reason: Tested
type: Normal
regarding: {apiVersion: v1, kind: ConfigMap, namespace: default, name: settings}
---
apiVersion: certificates.k8s.io/v1
kind: CertificateSigningRequest
metadata: {name: request}
spec: {request: REQUEST, signerName: example.com/signer, usages: [client auth]}
"#;

/// A certificate signing request is checked for being one.
fn objects() -> String {
    use base64::Engine;
    use base64::prelude::BASE64_STANDARD;
    let key = rcgen::KeyPair::generate().expect("a key");
    let request = rcgen::CertificateParams::new(vec!["test.example".to_string()])
        .and_then(|parameters| parameters.serialize_request(&key))
        .and_then(|request| request.pem())
        .expect("a request");
    OBJECTS.replace("REQUEST", &BASE64_STANDARD.encode(request))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kubectl_works_over_kinds_of_every_group() {
    let server = TestServer::start().await;
    let Some(kubectl) = Kubectl::new(&server) else { return };
    let objects = &objects();
    kubectl.with("apply -f -", objects, "deployment.apps/web created").await;
    kubectl.with("apply -f -", objects, "deployment.apps/web unchanged").await;
    kubectl
        .with("apply --server-side --force-conflicts -f -", objects, "deployment.apps/web serverside-applied")
        .await;
    let changed = objects.replace("replicas: 2", "replicas: 5");
    let (differs, text) = kubectl.run(&["diff", "-f", "-"], &changed).await;
    assert!(!differs && text.contains("+  replicas: 5"), "{text}");

    kubectl.ok("get deployments", "NAME").await;
    kubectl.ok("get deployment web -o wide", "nginx:1.29").await;
    kubectl.ok("get cm settings -o yaml", "value: one").await;
    kubectl.ok("get cm settings -o jsonpath={.data.value}", "one").await;
    kubectl.ok("get cm -A -o custom-columns=N:.metadata.name", "settings").await;
    kubectl.ok("get cm -l tier=a -o name", "configmap/settings").await;
    kubectl.ok("get roles,pdb,ingress,cronjobs,leases,sc,pc,hpa", "storageclass.storage.k8s.io/fast").await;
    kubectl
        .ok(
            "get horizontalpodautoscalers.v1.autoscaling scaler -o yaml",
            "targetCPUUtilizationPercentage: 80",
        )
        .await;
    kubectl.ok("get all", "deployment.apps/web").await;

    kubectl.ok("label cm settings tier=b --overwrite", "labeled").await;
    kubectl.ok("annotate cm settings note=x", "annotated").await;
    kubectl.ok("patch cm settings -p {\"data\":{\"more\":\"1\"}}", "patched").await;
    kubectl
        .ok("patch cm settings --type=json -p [{\"op\":\"remove\",\"path\":\"/data/more\"}]", "patched")
        .await;
    kubectl.ok("scale deployment web --replicas=4", "scaled").await;
    kubectl.ok("set image deployment/web c=nginx:1.30", "image updated").await;
    kubectl.ok("edit cm settings", "edited").await;
    kubectl.ok("get cm settings -o jsonpath={.data.value}", "two").await;
    let map = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: settings}\ndata: {value: three}\n";
    kubectl.with("replace -f -", map, "replaced").await;
    kubectl.ok("explain deployment.spec.strategy.rollingUpdate", "maxSurge").await;
    kubectl.ok("api-resources", "PodDisruptionBudget").await;
    kubectl.ok("api-versions", "apps/v1").await;
    kubectl.ok("auth whoami", "system:masters").await;
    kubectl.ok("auth can-i create pods", "yes").await;
    kubectl.ok("create serviceaccount robot", "created").await;
    kubectl.ok("create token robot", "ey").await;
    kubectl.ok("expose deployment web --port=80", "exposed").await;
    kubectl.ok("get svc web -o jsonpath={.spec.clusterIP}", "10.96.").await;
    kubectl.ok("get --raw /readyz", "ok").await;
    kubectl.ok("version", "Server Version: v1.36").await;

    let strict = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\ndatum: {}\n";
    let (success, text) = kubectl.run(&["create", "-f", "-"], strict).await;
    assert!(!success && text.contains("unknown field \"datum\""), "{text}");
    let others =
        "validatingadmissionpolicybindings,endpointslices,flowschemas,runtimeclasses,deviceclasses,csr";
    for (name, line) in [
        ("validatingadmissionpolicybinding.admissionregistration.k8s.io/bound", others),
        ("flowschema.flowcontrol.apiserver.k8s.io/flow", others),
        ("deviceclass.resource.k8s.io/device.example.com", others),
        ("certificatesigningrequest.certificates.k8s.io/request", others),
        ("Tested", "events"),
    ] {
        kubectl.ok(&format!("get {line}"), name).await;
    }
    kubectl.ok("certificate approve request", "approved").await;
    kubectl.ok("describe deployment web", "nginx:1.30").await;
    kubectl.with("delete -f -", objects, "deployment.apps \"web\" deleted").await;
    let (success, text) = kubectl.run(&["get", "cm", "settings"], "").await;
    assert!(
        !success && text.contains("Error from server (NotFound): configmaps \"settings\" not found"),
        "{text}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kubectl_tells_who_one_is_and_what_one_may() {
    let server = TestServer::start().await;
    let Some(kubectl) = Kubectl::new(&server) else { return };
    kubectl.ok("auth whoami -o jsonpath={.status.userInfo.username}", "kubernetes-admin").await;
    kubectl
        .ok("auth whoami --as=jane --as-group=dev -o jsonpath={.status.userInfo}", r#""username":"jane""#)
        .await;
    kubectl.ok("create role reader --verb=get,list --resource=pods,pods/log", "created").await;
    kubectl.ok("create rolebinding reader --role=reader --user=jane", "created").await;
    kubectl.ok("auth can-i list pods --as=jane", "yes").await;
    let (allowed, text) = kubectl.run(&["auth", "can-i", "delete", "pods", "--as=jane"], "").await;
    assert!(!allowed && text.starts_with("no"), "{text}");
    let (_, table) = kubectl.run(&["auth", "can-i", "--list", "--as=jane"], "").await;
    let row = |resource: &str| {
        let line = table.lines().find(|line| line.split_whitespace().next() == Some(resource));
        line.unwrap_or_else(|| panic!("no {resource} in {table}"))
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" ")
    };
    assert_eq!(row("Resources"), "Resources Non-Resource URLs Resource Names Verbs");
    assert_eq!(row("pods"), "pods [] [] [get list]");
    assert_eq!(row("pods/log"), "pods/log [] [] [get list]");
    assert_eq!(
        row("selfsubjectreviews.authentication.k8s.io"),
        "selfsubjectreviews.authentication.k8s.io [] [] [create]"
    );
    kubectl.ok("get pods --as=jane", "No resources found").await;
    let (allowed, text) = kubectl.run(&["get", "secrets", "--as=jane"], "").await;
    assert!(
        !allowed
            && text.contains(r#"Error from server (Forbidden): secrets is forbidden: User "jane" cannot list resource "secrets" in API group "" in the namespace "default""#),
        "{text}"
    );

    // A token of an account makes its holder that account, and a pod's certificate request is approved by hand.
    kubectl.ok("create serviceaccount robot", "created").await;
    let (made, token) = kubectl.run(&["create", "token", "robot", "--duration=20m"], "").await;
    assert!(made, "{token}");
    let header = format!("authorization: Bearer {}", token.trim());
    let review = r#"{"apiVersion":"authentication.k8s.io/v1","kind":"SelfSubjectReview"}"#;
    let line = "POST /apis/authentication.k8s.io/v1/selfsubjectreviews";
    let said = server.outside(None).ask(line, &[header], review).await.json();
    assert_eq!(said["status"]["userInfo"]["username"], "system:serviceaccount:default:robot", "{said}");
    let objects = objects();
    let request =
        objects.split("---").find(|object| object.contains("CertificateSigningRequest")).expect("one");
    kubectl.with("create -f -", request, "created").await;
    kubectl.ok("get csr request", "Pending").await;
    kubectl.ok("certificate approve request", "approved").await;
    kubectl.ok("get csr request", "Approved").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kubectl_watches() {
    use tokio::io::{AsyncBufReadExt, BufReader};
    let server = TestServer::start().await;
    let Some(kubectl) = Kubectl::new(&server) else { return };
    kubectl.ok("create configmap first", "created").await;
    let mut child = tokio::process::Command::new("kubectl")
        .args(["get", "cm", "-w", "--output-watch-events"])
        .env("KUBECONFIG", &kubectl.kubeconfig)
        .env("HOME", kubectl.home.path())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("kubectl starts");
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    let mut next = async || {
        let line = tokio::time::timeout(Duration::from_secs(60), lines.next_line());
        let line = line.await.expect("an event comes").expect("a line").expect("kubectl goes on");
        let words: Vec<&str> = line.split_whitespace().collect();
        words[..2].join(" ")
    };
    assert_eq!(next().await, "EVENT NAME");
    assert_eq!(next().await, "ADDED first");
    kubectl.ok("create configmap seen --from-literal=a=b", "created").await;
    kubectl.ok("label cm seen x=y", "labeled").await;
    kubectl.ok("delete cm seen", "deleted").await;
    for event in ["ADDED seen", "MODIFIED seen", "DELETED seen"] {
        assert_eq!(next().await, event);
    }
}
