//! The union, and what attackers try against it.

use std::{collections::BTreeMap, time::Duration};

use super::*;
use crate::pki::{PemPair, Pki, PkiConfig};
use rustls_pki_types::pem::PemObject;

struct Map(BTreeMap<&'static str, Vec<&'static str>>);

impl Headers for Map {
    fn values(&self, name: &str) -> Vec<&str> {
        let found = self.0.iter().find(|(header, _)| header.eq_ignore_ascii_case(name));
        found.map_or(Vec::new(), |(_, values)| values.clone())
    }

    fn names(&self) -> Vec<&str> {
        self.0.keys().copied().collect()
    }
}

fn chain(pair: &PemPair) -> Vec<CertificateDer<'static>> {
    CertificateDer::pem_slice_iter(pair.certificate.as_bytes()).collect::<Result<_, _>>().unwrap()
}

struct Cluster {
    _home: tempfile::TempDir,
    pki: Pki,
    authentication: Authentication,
}

fn cluster() -> Cluster {
    let home = tempfile::tempdir().unwrap();
    let pki = Pki::open_or_create(home.path(), PkiConfig::new("cluster.local", ["host"])).unwrap();
    let tokens = TokenFile::parse("s3cret,jane,u1,dev").unwrap();
    let members: Vec<Arc<dyn Authenticator>> = vec![
        Arc::new(RequestHeader::new(&pki.front_proxy_ca_bundle(), RequestHeaderConfig::default()).unwrap()),
        Arc::new(X509::new(&pki.ca_bundle()).unwrap()),
        Arc::new(Tokens::new(vec!["api".to_owned()], vec![Arc::new(tokens)])),
    ];
    let authentication = Authentication::new(members, Some(Anonymous::on_health_and_version()));
    Cluster { _home: home, pki, authentication }
}

struct Request<'a> {
    authorization: Option<&'a str>,
    certificates: Vec<CertificateDer<'static>>,
    headers: &'a [(&'static str, &'static str)],
    path: &'a str,
    now: SystemTime,
}

impl Default for Request<'_> {
    fn default() -> Self {
        Request {
            authorization: None,
            certificates: Vec::new(),
            headers: &[],
            path: "/api",
            now: SystemTime::now(),
        }
    }
}

async fn ask(cluster: &Cluster, request: Request<'_>) -> Result<User, String> {
    let mut headers = BTreeMap::<_, Vec<_>>::new();
    for (name, value) in request.headers {
        headers.entry(*name).or_default().push(*value);
    }
    let headers = Map(headers);
    let credentials = Credentials {
        authorization: request.authorization,
        websocket_bearer: None,
        client_certificates: &ClientCertificates::new(request.certificates),
        headers: &headers,
        path: request.path,
        peer: None,
        now: request.now,
    };
    let answer = cluster.authentication.authenticate(&credentials).await;
    answer.map(|identity| (*identity.user).clone()).map_err(|error| error.to_string())
}

#[tokio::test]
async fn the_first_that_recognises_the_caller_wins() {
    let cluster = cluster();
    let jane =
        ask(&cluster, Request { authorization: Some("Bearer s3cret"), ..Request::default() }).await.unwrap();
    assert_eq!(jane.groups, ["dev", "system:authenticated"]);
    let pair = cluster.pki.client_certificate("joe", &["ops"], SystemTime::now()).unwrap();
    let both =
        Request { authorization: Some("Bearer s3cret"), certificates: chain(&pair), ..Request::default() };
    let joe = ask(&cluster, both).await.unwrap();
    assert_eq!(
        (joe.name.as_str(), joe.groups.as_slice()),
        ("joe", &["ops".to_owned(), "system:authenticated".to_owned()][..])
    );
    assert!(joe.extra[crate::user::CREDENTIAL_ID][0].starts_with("X509SHA256="));
}

#[tokio::test]
async fn anonymous_reaches_health_and_version_and_nothing_else() {
    let cluster = cluster();
    for (path, admitted) in [
        ("/healthz", true),
        ("/readyz", true),
        ("/version", true),
        ("/api", false),
        ("/healthz/etcd", false),
        ("/metrics", false),
    ] {
        let answer = ask(&cluster, Request { path, ..Request::default() }).await;
        assert_eq!(answer.is_ok(), admitted, "{path}");
    }
    let user = ask(&cluster, Request { path: "/livez", ..Request::default() }).await.unwrap();
    assert_eq!(user, User::anonymous());
    assert_eq!(ask(&cluster, Request::default()).await.unwrap_err(), "no credentials provided");
}

#[tokio::test]
async fn wrong_credentials_are_never_taken_for_none() {
    let cluster = cluster();
    let wrong = Request { authorization: Some("Bearer wrong"), path: "/healthz", ..Request::default() };
    assert_eq!(ask(&cluster, wrong).await.unwrap_err(), "invalid bearer token");
    let stranger = self::cluster();
    let pair = stranger.pki.client_certificate("root", &["system:masters"], SystemTime::now()).unwrap();
    let foreign = Request { certificates: chain(&pair), path: "/healthz", ..Request::default() };
    let error = ask(&cluster, foreign).await.unwrap_err();
    assert!(error.starts_with("verifying certificate SN=") && error.contains("failed: "), "{error}");
    for not_bearer in ["Bearer", "Bearer ", "Basic eDp5", "s3cret", ""] {
        let request = Request { authorization: Some(not_bearer), path: "/healthz", ..Request::default() };
        assert_eq!(ask(&cluster, request).await.unwrap().name, "system:anonymous", "{not_bearer:?}");
    }
}

#[tokio::test]
async fn a_certificate_counts_while_it_is_valid_and_made_for_clients() {
    let cluster = cluster();
    let pair = cluster.pki.client_certificate("joe", &[], SystemTime::now()).unwrap();
    let later = SystemTime::now() + Duration::from_secs(400 * 24 * 3600);
    assert!(ask(&cluster, Request { certificates: chain(&pair), ..Request::default() }).await.is_ok());
    assert!(
        ask(&cluster, Request { certificates: chain(&pair), now: later, ..Request::default() })
            .await
            .is_err()
    );
    let serving =
        cluster.pki.serving_certificate("joe", &[], &["host".to_owned()].into(), SystemTime::now()).unwrap();
    assert!(ask(&cluster, Request { certificates: chain(&serving), ..Request::default() }).await.is_err());
    let nonsense = vec![CertificateDer::from(vec![0x30, 0x03, 0x02, 0x01])];
    assert!(ask(&cluster, Request { certificates: nonsense, ..Request::default() }).await.is_err());
}

const SPOOFED: &[(&str, &str)] = &[
    ("X-Remote-User", "root"),
    ("X-Remote-Group", "system:masters"),
    ("X-Remote-Group", "dev"),
    ("x-remote-extra-example.com%2fteam", "blue"),
    ("X-Remote-Uid", "u7"),
];

#[tokio::test]
async fn only_the_front_proxy_may_speak_for_others() {
    let cluster = cluster();
    let proxy = chain(&cluster.pki.front_proxy_client());
    let vouched =
        ask(&cluster, Request { certificates: proxy, headers: SPOOFED, ..Request::default() }).await.unwrap();
    assert_eq!((vouched.name.as_str(), vouched.uid.as_str()), ("root", "u7"));
    assert_eq!(vouched.groups, ["system:masters", "dev", "system:authenticated"]);
    assert_eq!(vouched.extra["example.com/team"], ["blue"]);

    assert!(
        ask(&cluster, Request { headers: SPOOFED, ..Request::default() }).await.is_err(),
        "no certificate"
    );
    let joe = cluster.pki.client_certificate("joe", &[], SystemTime::now()).unwrap();
    let user = ask(&cluster, Request { certificates: chain(&joe), headers: SPOOFED, ..Request::default() })
        .await
        .unwrap();
    assert_eq!(user.name, "joe", "a user's certificate is no proxy's: the headers do not count");
    let named = cluster.pki.client_certificate("front-proxy-client", &[], SystemTime::now()).unwrap();
    let user = ask(&cluster, Request { certificates: chain(&named), headers: SPOOFED, ..Request::default() })
        .await
        .unwrap();
    assert_eq!(
        user.name, "front-proxy-client",
        "the name alone, signed by the wrong authority, is not enough"
    );
    let token = Request { authorization: Some("Bearer s3cret"), headers: SPOOFED, ..Request::default() };
    assert_eq!(ask(&cluster, token).await.unwrap().name, "jane");
}

#[tokio::test]
async fn a_new_authority_of_the_front_proxy_counts_at_once() {
    let (old, new) = (cluster(), cluster());
    let believer =
        RequestHeader::new(&old.pki.front_proxy_ca_bundle(), RequestHeaderConfig::default()).unwrap();
    let knows = |cluster: &Cluster| {
        let headers = Map(BTreeMap::from([("X-Remote-User", vec!["root"])]));
        let certificates = ClientCertificates::new(chain(&cluster.pki.front_proxy_client()));
        let credentials = Credentials {
            authorization: None,
            websocket_bearer: None,
            client_certificates: &certificates,
            headers: &headers,
            path: "/api",
            peer: None,
            now: SystemTime::now(),
        };
        match believer.authenticate(&credentials) {
            crate::MaybeReady::Now(answer) => answer.is_ok(),
            crate::MaybeReady::Later(_) => panic!("certificates are checked at once"),
        }
    };
    assert!(knows(&old) && !knows(&new));
    believer.set_authorities(&new.pki.front_proxy_ca_bundle()).unwrap();
    assert!(knows(&new) && !knows(&old), "what was remembered of the old one counts no more");
}

#[test]
fn extra_keys_decode_or_stay() {
    for (written, expected) in
        [("a%2Fb", "a/b"), ("Scopes", "scopes"), ("a%2", "a%2"), ("a%zz", "a%zz"), ("%ff", "%ff"), ("%", "%")]
    {
        assert_eq!(unescape_key(written), expected);
    }
}
