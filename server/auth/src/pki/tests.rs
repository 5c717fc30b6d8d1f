use std::os::unix::fs::PermissionsExt;

use super::*;
use crate::certificate::ClientTrust;

fn at(days: u64) -> SystemTime {
    // Any day will do, as long as certificates can be dated before it.
    SystemTime::UNIX_EPOCH + Duration::from_secs((20_000 + days) * 24 * 3600)
}

fn config() -> PkiConfig {
    PkiConfig::new("cluster.local", ["10.96.0.1", "192.0.2.7", "host"])
}

fn chain(pair: &PemPair) -> Vec<CertificateDer<'static>> {
    CertificateDer::pem_slice_iter(pair.certificate.as_bytes()).collect::<Result<_, _>>().unwrap()
}

fn serving_facts(pki: &Pki) -> CertificateFacts {
    read_certificate(&pki.serving().current().cert[0]).unwrap()
}

#[test]
fn a_first_start_makes_everything_private_and_a_second_changes_nothing() {
    let home = tempfile::tempdir().unwrap();
    let directory = home.path().join("pki");
    let first = Pki::open_or_create_at(&directory, config(), at(0)).unwrap();
    let read_all = || -> Vec<(PathBuf, Vec<u8>)> {
        let mut files: Vec<_> =
            fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().path()).collect();
        files.sort();
        files.into_iter().map(|path| (path.clone(), fs::read(path).unwrap())).collect()
    };
    let before = read_all();
    assert_eq!(before.len(), 12, "five pairs and the two halves of the service account key");
    for (path, _) in &before {
        assert_eq!(fs::metadata(path).unwrap().permissions().mode() & 0o777, 0o600, "{}", path.display());
    }
    assert_eq!(fs::metadata(&directory).unwrap().permissions().mode() & 0o777, 0o700);
    drop(first);
    Pki::open_or_create_at(&directory, config(), at(1)).unwrap();
    assert!(read_all() == before);
}

#[test]
fn pki_files_are_created_once_and_kept() {
    let home = tempfile::tempdir().unwrap();
    let names = || -> BTreeSet<String> {
        let entries = fs::read_dir(home.path()).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    };
    let (pki, new) = Pki::open(home.path(), config()).unwrap();
    assert_eq!(names(), BTreeSet::new());
    new.write().unwrap();
    assert_eq!(names().len(), 12);
    assert!(names().iter().all(|name| [".crt", ".key", ".pub"].iter().any(|end| name.ends_with(end))));
    let (again, new) = Pki::open(home.path(), config()).unwrap();
    assert_eq!(again.ca_pem(), pki.ca_pem());
    assert_eq!(again.service_account_key(), pki.service_account_key());
    fs::remove_dir_all(home.path()).unwrap();
    new.write().expect("nothing is new, so nothing is written");
}

#[test]
fn a_file_that_cannot_be_written_is_named() {
    let home = tempfile::tempdir().unwrap();
    let directory = home.path().join("pki");
    let (_, new) = Pki::open(&directory, config()).unwrap();
    fs::remove_dir(&directory).unwrap();
    let error = new.write().expect_err("there is no directory");
    assert!(matches!(error, PkiError::File { path, .. } if path == directory.join("ca.key")));
}

#[test]
fn a_client_certificate_verifies_and_names_user_and_groups() {
    let home = tempfile::tempdir().unwrap();
    let pki = Pki::open_or_create_at(home.path(), config(), at(0)).unwrap();
    let pair = pki.client_certificate("jane", &["dev", "ops"], at(0)).unwrap();
    let trust = ClientTrust::new(&pki.ca_bundle()).unwrap();
    let facts = trust.verify(&chain(&pair), at(1)).unwrap();
    assert_eq!(
        (facts.common_name.as_str(), facts.organizations.as_slice()),
        ("jane", &["dev".to_owned(), "ops".to_owned()][..])
    );
    assert!(trust.verify(&chain(&pair), at(366)).is_err(), "it has run out");
    let foreign = ClientTrust::new(&pki.front_proxy_ca_bundle()).unwrap();
    assert!(foreign.verify(&chain(&pair), at(1)).is_err(), "another authority's word does not count");
    assert!(matches!(
        pki.client_certificate("jane", &["a", "b", "c"], at(0)),
        Err(PkiError::TooManyGroups { .. })
    ));
}

#[test]
fn certificates_renew_before_they_end_and_the_resolver_follows() {
    let home = tempfile::tempdir().unwrap();
    let pki = Pki::open_or_create_at(home.path(), config(), at(0)).unwrap();
    let resolver = pki.serving();
    let first = resolver.current();
    assert_eq!(pki.renew(config().names, at(100)).unwrap(), []);
    assert!(Arc::ptr_eq(&first, &resolver.current()));
    let renewed = pki.renew(config().names, at(300)).unwrap();
    assert_eq!(renewed, [Renewed::Serving, Renewed::KubeletClient, Renewed::FrontProxyClient]);
    assert_ne!(first.cert, resolver.current().cert);
    assert!(serving_facts(&pki).not_after > at(600));
}

#[test]
fn a_new_address_makes_a_new_serving_certificate_and_nothing_else() {
    let home = tempfile::tempdir().unwrap();
    let pki = Pki::open_or_create_at(home.path(), config(), at(0)).unwrap();
    let moved = PkiConfig::new("cluster.local", ["10.96.0.1", "198.51.100.9"]).names;
    assert_eq!(pki.renew(moved.clone(), at(1)).unwrap(), [Renewed::Serving]);
    assert_eq!(serving_facts(&pki).subject_alternative_names, moved);
    assert_eq!(pki.renew(moved, at(1)).unwrap(), []);
}

#[test]
fn an_authority_renews_with_its_key_so_that_old_certificates_still_verify() {
    let home = tempfile::tempdir().unwrap();
    let pki = Pki::open_or_create_at(home.path(), config(), at(0)).unwrap();
    let old_ca = pki.ca_bundle();
    let near_the_end = at(3400);
    let pair = pki.client_certificate("jane", &[], near_the_end).unwrap();
    let renewed = pki.renew(config().names, near_the_end).unwrap();
    assert!(renewed.contains(&Renewed::Ca) && renewed.contains(&Renewed::FrontProxyCa));
    assert_eq!(pki.ca_bundle().len(), 2);
    ClientTrust::new(&pki.ca_bundle()[..1]).unwrap().verify(&chain(&pair), at(3401)).unwrap();
    let fresh = pki.client_certificate("jane", &[], near_the_end).unwrap();
    ClientTrust::new(&old_ca).unwrap().verify(&chain(&fresh), at(3401)).unwrap();
    assert_eq!(
        Pki::open_or_create_at(home.path(), config(), near_the_end).unwrap().ca_bundle(),
        pki.ca_bundle()
    );
}

#[test]
fn a_lost_or_broken_authority_is_an_error_and_not_replaced() {
    let home = tempfile::tempdir().unwrap();
    drop(Pki::open_or_create_at(home.path(), config(), at(0)).unwrap());
    let certificate = fs::read(home.path().join("ca.crt")).unwrap();
    fs::write(home.path().join("ca.crt"), "nonsense").unwrap();
    assert!(matches!(Pki::open_or_create_at(home.path(), config(), at(0)), Err(PkiError::Malformed { .. })));
    fs::write(home.path().join("ca.crt"), certificate).unwrap();
    fs::remove_file(home.path().join("ca.key")).unwrap();
    assert!(matches!(Pki::open_or_create_at(home.path(), config(), at(0)), Err(PkiError::File { .. })));
    assert!(!home.path().join("ca.key").exists());
}

#[test]
fn the_admin_kubeconfig_is_one_that_clients_load() {
    let home = tempfile::tempdir().unwrap();
    let pki = Pki::open_or_create(home.path(), config()).unwrap();
    let kubeconfig = pki.admin_kubeconfig("https://127.0.0.1:6443").unwrap();
    let loaded = kube::config::Kubeconfig::from_yaml(&kubeconfig).unwrap();
    assert_eq!(loaded.current_context.as_deref(), Some("ferry"));
    let cluster = loaded.clusters[0].cluster.as_ref().unwrap();
    assert_eq!(cluster.server.as_deref(), Some("https://127.0.0.1:6443"));
    let user = loaded.auth_infos[0].auth_info.as_ref().unwrap();
    use base64::{Engine, engine::general_purpose::STANDARD};
    let pem = STANDARD.decode(user.client_certificate_data.as_ref().unwrap()).unwrap();
    let facts = read_certificate(&CertificateDer::from_pem_slice(&pem).unwrap()).unwrap();
    assert_eq!(facts.organizations, [MASTERS]);
    let key = kubeconfig.lines().find_map(|line| line.trim().strip_prefix("client-key-data: ")).unwrap();
    let key = STANDARD.decode(key).unwrap();
    assert!(key.starts_with(b"-----BEGIN EC PRIVATE KEY-----"), "{}", String::from_utf8_lossy(&key));
    let key = PrivateKeyDer::from_pem_slice(&key).unwrap();
    rustls::crypto::ring::sign::any_supported_type(&key).expect("a key that signs");
}
