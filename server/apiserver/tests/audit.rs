//! What the audit log says about requests that were refused, changed something, or acted as another.

use std::path::Path;
use std::sync::Arc;

use ferry_apiserver::filters::{Connection, handle};
use ferry_apiserver::run::{AuditConfig, Config, start};
use ferry_auth::audit::LogFileConfig;
use http_body_util::{BodyExt, Full};
use serde_json::Value;

const POLICY: &str = "
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: None
  nonResourceURLs: [/healthz]
- level: Metadata
  resources: [{group: '', resources: [secrets]}]
- level: RequestResponse
";

async fn ask(api: &Arc<ferry_apiserver::Api>, request: http::request::Builder, body: &str) -> u16 {
    let request = request.header("authorization", "Bearer token").header("content-type", "application/json");
    let request = request.body(Full::new(bytes::Bytes::from(body.to_owned()))).unwrap();
    let response = handle(api.clone(), Connection::default(), request).await;
    let code = response.status().as_u16();
    response.into_body().collect().await.unwrap();
    code
}

fn lines(log: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(log).unwrap();
    let events = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    // The server's own start is in the log too.
    events.filter(|event| event["user"]["username"] != "system:apiserver").collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_log_says_who_asked_for_what_and_what_became_of_it() {
    let home = tempfile::tempdir().unwrap();
    let (policy, users) = (home.path().join("policy.yaml"), home.path().join("users.csv"));
    let log = home.path().join("audit.log");
    std::fs::write(&policy, POLICY).unwrap();
    std::fs::write(&users, "token,jane,1\nmaster-token,root,2,system:masters\n").unwrap();
    let mut config = Config::new(home.path());
    config.bind = ([127, 0, 0, 1], 0).into();
    config.token_auth_file = Some(users);
    config.audit =
        AuditConfig { policy_file: Some(policy), log: Some(LogFileConfig::new(&log)), webhook: None };
    let store =
        ferry_store::Embedded::open(ferry_store::embedded::Config::new(home.path().join("store"))).unwrap();
    let server = start(config, Arc::new(store)).await.unwrap();

    let api = &server.api;
    assert_eq!(ask(api, http::Request::get("/healthz"), "").await, 200);
    assert_eq!(ask(api, http::Request::get("/api/v1/secrets").header("audit-id", "mine"), "").await, 403);
    let review = r#"{"apiVersion":"authorization.k8s.io/v1","kind":"SelfSubjectAccessReview","spec":{"nonResourceAttributes":{"verb":"get","path":"/x"}}}"#;
    let path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    assert_eq!(ask(api, http::Request::post(path), review).await, 201);
    let masters = http::Request::get("/api/v1/pods").header("impersonate-user", "root");
    assert_eq!(ask(api, masters.header("impersonate-group", "system:masters"), "").await, 403);
    server.stop().await;

    let events = lines(&log);
    let said: Vec<(&str, u64, &str)> = events
        .iter()
        .map(|event| {
            let annotations = &event["annotations"]["authorization.k8s.io/decision"];
            (
                event["verb"].as_str().unwrap(),
                event["responseStatus"]["code"].as_u64().unwrap(),
                annotations.as_str().unwrap_or(""),
            )
        })
        .collect();
    assert_eq!(said, [("list", 403, "forbid"), ("create", 201, "allow"), ("list", 403, "")], "{events:#?}");
    assert_eq!(events[0]["auditID"], "mine");
    assert_eq!(events[0]["user"]["username"], "jane");
    assert_eq!(events[0]["responseStatus"]["reason"], "Forbidden");
    assert!(events[0].get("responseObject").is_none(), "secrets are kept out of the log");
    assert_eq!(events[1]["requestObject"]["kind"], "SelfSubjectAccessReview");
    assert_eq!(events[1]["responseObject"]["status"]["allowed"], false);
    assert!(events[2].get("impersonatedUser").is_none(), "nobody became a master");
}
