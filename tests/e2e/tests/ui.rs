//! The page and signing in to it, over TLS as a browser does it: what a cookie is good for, and what it is not.

use std::process::Command;
use std::time::SystemTime;

use ferry_e2e::audited::AuditedServer;
use ferry_e2e::binary;
use ferry_testkit::TestServer;
use ferry_testkit::outside::{Outside, Said};
use serde_json::{Value, json};

const WHO: &str = "POST /apis/authentication.k8s.io/v1/selfsubjectreviews";
const WHO_BODY: &str = r#"{"apiVersion":"authentication.k8s.io/v1","kind":"SelfSubjectReview"}"#;
const SAME: &str = "sec-fetch-site: same-origin";

/// Somebody who shows a client certificate.
fn certified(server: &TestServer, name: &str, groups: &[&str]) -> Outside {
    let pair =
        server.running().pki.client_certificate(name, groups, SystemTime::now()).expect("a certificate");
    server.outside(Some((&pair.certificate, &pair.key)))
}

async fn link(caller: &Outside) -> String {
    let said = caller.ask("POST /ui/links", &["content-length: 0".into()], "").await;
    assert_eq!(said.code, 201, "{said:?}");
    said.json()["link"].as_str().expect("a link").to_owned()
}

/// What a signed-in page sends with each request.
struct Session {
    cookie: String,
    key: String,
}

impl Session {
    async fn begin(server: &TestServer, shown: &Value) -> Session {
        let said = server.outside(None).ask("POST /ui/sessions", &[SAME.into()], &shown.to_string()).await;
        assert_eq!(said.code, 201, "{said:?}");
        let cookie = said.header("set-cookie").expect("a cookie");
        let (cookie, rules) = cookie.split_once(';').expect("and its rules");
        assert!(cookie.starts_with("__Host-ferry-session="), "{cookie}");
        for rule in ["Path=/", "Secure", "HttpOnly", "SameSite=Strict", "Max-Age=43200"] {
            assert!(rules.contains(rule), "{rule}: {rules}");
        }
        assert!(!rules.contains("Domain"), "{rules}");
        assert_eq!(said.header("cache-control"), Some("no-store"));
        Session { cookie: cookie.to_owned(), key: said.json()["key"].as_str().expect("a key").to_owned() }
    }

    fn headers(&self) -> Vec<String> {
        vec![
            SAME.into(),
            format!("cookie: other=1; {}", self.cookie),
            format!("x-ferry-session-key: {}", self.key),
        ]
    }
}

async fn who(outside: &Outside, headers: &[String]) -> Said {
    outside.ask(WHO, headers, WHO_BODY).await
}

#[tokio::test]
async fn the_page_is_served_to_everybody_with_strict_headers() {
    let server = TestServer::start().await;
    let outside = server.outside(None);
    let page = outside.ask("GET /ui/", &[], "").await;
    assert_eq!(page.code, 200, "{page:?}");
    assert!(page.body.contains("./app.js"), "{page:?}");
    for path in ["/ui/", "/ui/app.js", "/ui/none", "/ui/%2e%2e/api"] {
        let said = outside.ask(&format!("GET {path}"), &[], "").await;
        assert_eq!(
            said.code,
            if path.contains("app") || path == "/ui/" { 200 } else { 404 },
            "{path}: {said:?}"
        );
        let policy = said.header("content-security-policy").expect("a policy");
        for rule in [
            "default-src 'none'",
            "script-src 'self'",
            "frame-ancestors 'none'",
            "form-action 'none'",
            "base-uri 'none'",
        ] {
            assert!(policy.contains(rule), "{path}: {policy}");
        }
        assert!(!policy.contains("unsafe"), "{policy}");
        assert_eq!(said.header("x-frame-options"), Some("DENY"));
        assert_eq!(said.header("x-content-type-options"), Some("nosniff"));
        assert_eq!(said.header("referrer-policy"), Some("no-referrer"));
    }
    let script = outside.ask("GET /ui/app.js", &[], "").await;
    assert_eq!(script.header("content-type"), Some("text/javascript; charset=utf-8"));
    let etag = script.header("etag").expect("an ETag");
    let again = outside.ask("GET /ui/app.js", &[format!("if-none-match: {etag}")], "").await;
    assert_eq!((again.code, again.body.as_str()), (304, ""));
    let small = outside.ask("GET /ui/app.js", &["accept-encoding: gzip".into()], "").await;
    assert_eq!(small.header("content-encoding"), Some("gzip"));
    let bare = outside.ask("GET /ui", &[], "").await;
    assert_eq!((bare.code, bare.header("location")), (308, Some("/ui/")));
    // Only the files are for everybody.
    assert_eq!(outside.ask("POST /ui/links", &["content-length: 0".into()], "").await.code, 401);
    assert_eq!(outside.ask("DELETE /ui/sessions", &[], "").await.code, 401);
    assert_eq!(outside.ask("PUT /ui/app.js", &["content-length: 0".into()], "").await.code, 401);
    assert_eq!(outside.ask("GET /uix", &[], "").await.code, 401);
}

#[tokio::test]
async fn a_link_signs_in_once_as_whoever_asked_for_it() {
    let server = TestServer::start().await;
    let alice = certified(&server, "alice", &["devs"]);
    let token = link(&alice).await;
    let session = Session::begin(&server, &json!({ "link": token })).await;
    let nobody = server.outside(None);
    let again = nobody.ask("POST /ui/sessions", &[SAME.into()], &json!({ "link": token }).to_string()).await;
    assert_eq!(again.code, 401, "{again:?}");

    let by_certificate = who(&alice, &[]).await.json();
    let by_session = who(&nobody, &session.headers()).await.json();
    assert_eq!(by_session["status"], by_certificate["status"], "name, groups and extra are the caller's");
    assert_eq!(by_session["status"]["userInfo"]["username"], "alice");

    // What she may not do, her page may not do.
    let pods = nobody.ask("GET /api/v1/pods", &session.headers(), "").await;
    assert_eq!(pods.code, 403, "{pods:?}");
    assert!(pods.body.contains("alice"), "{pods:?}");

    // Out is out, also for who kept the cookie and the key.
    let out = nobody.ask("DELETE /ui/sessions", &session.headers(), "").await;
    assert_eq!(out.code, 200, "{out:?}");
    assert!(out.header("set-cookie").expect("a cookie").contains("Max-Age=0"));
    assert_eq!(who(&nobody, &session.headers()).await.code, 401);
}

#[tokio::test]
async fn a_cookie_without_key_or_from_another_origin_is_unauthenticated() {
    let server = TestServer::start().await;
    let admin = certified(&server, "admin", &["system:masters"]);
    let session = Session::begin(&server, &json!({ "link": link(&admin).await })).await;
    let other = Session::begin(&server, &json!({ "link": link(&admin).await })).await;
    let nobody = server.outside(None);
    let (cookie, key) =
        (format!("cookie: {}", session.cookie), format!("x-ferry-session-key: {}", session.key));
    assert_eq!(who(&nobody, &[SAME.into(), cookie.clone(), key.clone()]).await.code, 201);

    let host = server.running().address;
    let refused: &[(&str, Vec<String>)] = &[
        ("the cookie alone", vec![SAME.into(), cookie.clone()]),
        ("the key alone", vec![SAME.into(), key.clone()]),
        (
            "another session's key",
            vec![SAME.into(), cookie.clone(), format!("x-ferry-session-key: {}", other.key)],
        ),
        ("an empty key", vec![SAME.into(), cookie.clone(), "x-ferry-session-key: ".into()]),
        ("two cookies", vec![SAME.into(), cookie.clone(), format!("cookie: {}", other.cookie), key.clone()]),
        ("no word of where it comes from", vec![cookie.clone(), key.clone()]),
        ("another site", vec!["sec-fetch-site: cross-site".into(), cookie.clone(), key.clone()]),
        ("another port of the host", vec!["sec-fetch-site: same-site".into(), cookie.clone(), key.clone()]),
        (
            "another origin",
            vec![SAME.into(), "origin: https://evil.example".into(), cookie.clone(), key.clone()],
        ),
        (
            "an origin without TLS",
            vec![SAME.into(), format!("origin: http://{host}"), cookie.clone(), key.clone()],
        ),
        ("no origin", vec![SAME.into(), "origin: null".into(), cookie.clone(), key.clone()]),
        ("an upgrade", vec![SAME.into(), "upgrade: websocket".into(), cookie.clone(), key.clone()]),
    ];
    for (what, headers) in refused {
        let said = who(&nobody, headers).await;
        assert_eq!(said.code, 401, "{what}: {said:?}");
        let said = nobody.ask("GET /api/v1/secrets", headers, "").await;
        assert_eq!(said.code, 401, "{what}: {said:?}");
    }
    let own = vec![SAME.into(), format!("origin: https://{host}"), cookie, key];
    assert_eq!(who(&nobody, &own).await.code, 201);
}

#[tokio::test]
async fn cross_site_sign_in_is_refused() {
    let server = TestServer::start().await;
    let admin = certified(&server, "admin", &["system:masters"]);
    let token = link(&admin).await;
    let (nobody, shown) = (server.outside(None), json!({ "link": token }).to_string());
    for headers in [
        vec![],
        vec!["sec-fetch-site: cross-site".to_owned()],
        vec![SAME.into(), "origin: https://evil.example".into()],
    ] {
        let said = nobody.ask("POST /ui/sessions", &headers, &shown).await;
        assert_eq!(said.code, 403, "{headers:?}: {said:?}");
        assert!(said.header("set-cookie").is_none(), "{said:?}");
    }
    for body in ["", "{}", "[]", r#"{"link": 1}"#, r#"{"link": "x", "token": "y"}"#] {
        let said = nobody.ask("POST /ui/sessions", &[SAME.into()], body).await;
        assert_eq!(said.code, 400, "{body}: {said:?}");
    }
    for wrong in [json!({ "link": "guessed" }), json!({ "token": "guessed" }), json!({ "token": "" })] {
        let said = nobody.ask("POST /ui/sessions", &[SAME.into()], &wrong.to_string()).await;
        assert_eq!(said.code, 401, "{wrong}: {said:?}");
    }
    // The refusals before have not used it up.
    Session::begin(&server, &json!({ "link": token })).await;
}

#[tokio::test]
async fn cross_site_requests_with_a_client_certificate_are_refused() {
    let server = TestServer::start().await;
    let admin = certified(&server, "admin", &["system:masters"]);
    let maps = "POST /api/v1/namespaces/default/configmaps";
    let map = json!({ "metadata": { "name": "forged" } }).to_string();
    for site in ["cross-site", "same-site"] {
        let headers = [format!("sec-fetch-site: {site}"), "sec-fetch-mode: no-cors".into()];
        assert_eq!(admin.ask(maps, &headers, &map).await.code, 401, "{site}");
        assert_eq!(admin.ask("GET /api/v1/secrets", &headers, "").await.code, 401, "{site}");
    }
    let followed: Vec<String> =
        ["sec-fetch-site: cross-site", "sec-fetch-mode: navigate", "sec-fetch-dest: document"]
            .map(String::from)
            .into();
    assert_eq!(admin.ask("GET /api/v1/namespaces", &followed, "").await.code, 200);
    // The page itself, with a certificate and without a session.
    assert_eq!(who(&admin, &[SAME.into()]).await.json()["status"]["userInfo"]["username"], "admin");
    // Programs say nothing of sites.
    assert_eq!(admin.ask(maps, &[], &map).await.code, 201);
}

#[tokio::test]
async fn a_session_ends_with_its_token() {
    let server = TestServer::start().await;
    let accounts = "/api/v1/namespaces/default/serviceaccounts";
    server.post(accounts, &json!({ "metadata": { "name": "robot" } })).await.expect(201);
    let request = json!({ "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {} });
    let token = server.post(&format!("{accounts}/robot/token"), &request).await.expect(201);
    let session = Session::begin(&server, &json!({ "token": token["status"]["token"] })).await;
    let nobody = server.outside(None);
    let known = who(&nobody, &session.headers()).await.json();
    assert_eq!(known["status"]["userInfo"]["username"], "system:serviceaccount:default:robot");
    server.delete(&format!("{accounts}/robot")).await.expect(200);
    let give_up = tokio::time::Instant::now() + std::time::Duration::from_secs(30);
    while who(&nobody, &session.headers()).await.code != 401 {
        assert!(tokio::time::Instant::now() < give_up, "the session goes on without the account");
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn sign_in_links_need_own_credentials() {
    let server = TestServer::start().await;
    let admin = certified(&server, "admin", &["system:masters"]);
    let nothing = "content-length: 0".to_owned();
    let as_alice = [nothing.clone(), "impersonate-user: alice".into()];
    assert_eq!(
        admin.ask("POST /ui/links", &as_alice, "").await.code,
        403,
        "it would sign in as the administrator"
    );
    let session = Session::begin(&server, &json!({ "link": link(&admin).await })).await;
    let mut within = session.headers();
    within.push(nothing);
    assert_eq!(
        server.outside(None).ask("POST /ui/links", &within, "").await.code,
        403,
        "a session begets no session"
    );
}

#[tokio::test]
async fn the_audit_log_holds_no_secret_of_a_sign_in() {
    let audited = AuditedServer::start("RequestResponse", |_| {}).await;
    let server = &audited.server;
    let admin = certified(server, "admin", &["system:masters"]);
    let token = link(&admin).await;
    let session = Session::begin(server, &json!({ "link": token })).await;
    let mut headers = session.headers();
    headers.push("audit-id: within".into());
    assert_eq!(who(&server.outside(None), &headers).await.code, 201);
    let line = audited.line("within").await;
    assert_eq!(line["user"]["username"], "admin", "what is done in a session is its user's");
    let sign_in = audited.line_where("signing in", |line| line["requestURI"] == "/ui/sessions").await;
    assert_eq!(sign_in["responseStatus"]["code"], 201);
    let text = audited.lines().iter().map(ToString::to_string).collect::<String>();
    let secret = session.cookie.split_once('=').expect("name=value").1;
    for secret in [token.as_str(), secret, session.key.as_str()] {
        assert!(!text.contains(secret), "the audit log holds {secret}");
    }
}

#[tokio::test]
async fn the_command_prints_a_link_that_works() {
    let Some(binary) = binary::ferry() else { return };
    let server = TestServer::start().await;
    let kubeconfig = server.kubeconfig();
    let output = tokio::task::spawn_blocking(move || {
        Command::new(binary)
            .args(["ui", "--no-open", "--kubeconfig"])
            .arg(kubeconfig)
            .output()
            .expect("ferry runs")
    })
    .await
    .expect("it ends");
    assert!(output.status.success(), "{output:?}");
    let printed = String::from_utf8(output.stdout).expect("text");
    let (page, token) = printed.trim().split_once("#link=").expect("a link");
    assert_eq!(page, format!("{}/ui/", server.url()));
    let session = Session::begin(&server, &json!({ "link": token })).await;
    assert_eq!(who(&server.outside(None), &session.headers()).await.code, 201);
}

/// What the page draws is what `ferry trace` prints.
#[tokio::test]
async fn the_trace_is_told_as_a_story() {
    let server = TestServer::start().await;
    let map = json!({ "metadata": { "name": "told" } });
    server.post("/api/v1/namespaces/default/configmaps", &map).await.expect(201);
    let answer = server.get("/ferry/v1/trace?object=configmap/told&story=chapters").await.expect(200);
    let steps = answer["story"]["steps"].as_array().expect("steps");
    let commit =
        steps.iter().find(|step| step["label"] == "commit configmaps/default/told").expect("a commit");
    assert_eq!(commit["chapter"], "Storage and watch");
    let record =
        answer["records"].as_array().expect("records").iter().find(|one| one["span"] == commit["span"]);
    assert_eq!(commit["writes"][0][0], record.expect("the same span")["committed"]);
    assert!(answer["story"]["critical"].as_u64().is_some_and(|nanoseconds| nanoseconds > 0), "{answer}");
    let all = server.get("/ferry/v1/trace?object=configmap/told&story=steps").await.expect(200);
    assert!(all["story"]["steps"].as_array().expect("steps").len() >= steps.len());
    server.get("/ferry/v1/trace?last=true&story=none").await.expect(400);
}
