//! The certificates of a node, which end long before the node does: they are made anew when two thirds of their life
//! are over, while containers go on.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use ferry_client::CancellationToken;

use super::join::Identity;
use super::node::{Keys, KubeletPart};

/// Between two looks, and between two attempts when one failed.
const ROUND: Duration = Duration::from_secs(3600);

/// Whether the certificate in this file is to be replaced. One that is not there yet is not.
pub fn is_due(certificate: &Path) -> bool {
    let pem = std::fs::read_to_string(certificate);
    pem.is_ok_and(|pem| ferry_auth::pki::is_pem_due(&pem, SystemTime::now()))
}

/// Returns when a certificate of a node that has joined is due: its parts have to start again with another one.
pub async fn due(directory: PathBuf) {
    loop {
        tokio::time::sleep(ROUND).await;
        if Identity::below(&directory, &[]).is_due() || is_due(&Keys::below(&directory).certificate) {
            return tracing::info!("the node's certificates are due");
        }
    }
}

/// Keeps the certificate of a kubelet fresh that has the authority at hand.
pub async fn keep_fresh(
    keys: Keys,
    make: impl Fn() -> anyhow::Result<Keys>,
    kubelet: KubeletPart,
    shutdown: CancellationToken,
) {
    loop {
        tokio::select! {
            () = tokio::time::sleep(ROUND) => {}
            () = shutdown.cancelled() => return,
        }
        if !is_due(&keys.certificate) {
            continue;
        }
        match make() {
            Ok(_) => kubelet.restart(),
            Err(error) => {
                tracing::error!(error = format!("{error:#}"), "the kubelet's certificate is not renewed")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_is_due_when_most_of_its_life_is_over() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("kubelet.crt");
        assert!(!is_due(&file), "there is none yet");
        let config = ferry_auth::pki::PkiConfig::new("cluster.local", ["host"]);
        let pki = ferry_auth::pki::Pki::open_or_create(directory.path().join("pki"), config).unwrap();
        let day = Duration::from_secs(24 * 3600);
        for (age, expected) in
            [(Duration::ZERO, false), (200 * day, false), (300 * day, true), (400 * day, true)]
        {
            let made = SystemTime::now() - age;
            let pair = pki.serving_certificate("node", &[], &["host".to_owned()].into(), made).unwrap();
            std::fs::write(&file, pair.certificate).unwrap();
            assert_eq!(is_due(&file), expected, "{age:?}");
        }
    }
}
