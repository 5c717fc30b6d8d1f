//! Renewal of a node's certificates after two thirds of their lifetime. Containers keep running meanwhile.

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
            return tracing::info!("the node's certificates have to be renewed");
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
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    const DAY: Duration = Duration::from_secs(24 * 3600);

    /// Writes a kubelet's certificate that was made so long ago, good for a year.
    fn write_certificate(directory: &Path, age: Duration) -> Keys {
        let config = ferry_auth::pki::PkiConfig::new("cluster.local", ["host"]);
        let pki = ferry_auth::pki::Pki::open_or_create(directory.join("authority"), config).unwrap();
        let made = SystemTime::now() - age;
        let pair = pki.serving_certificate("node", &[], &["host".to_owned()].into(), made).unwrap();
        let keys = Keys::below(directory);
        std::fs::write(&keys.certificate, pair.certificate).unwrap();
        keys
    }

    #[test]
    fn a_certificate_is_due_when_most_of_its_life_is_over() {
        let directory = tempfile::tempdir().unwrap();
        let file = Keys::below(directory.path()).certificate;
        assert!(!is_due(&file), "there is none yet");
        for (age, expected) in
            [(Duration::ZERO, false), (200 * DAY, false), (300 * DAY, true), (400 * DAY, true)]
        {
            write_certificate(directory.path(), age);
            assert_eq!(is_due(&file), expected, "{age:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_that_has_joined_looks_every_hour_and_sees_when_it_is_due() {
        let directory = tempfile::tempdir().unwrap();
        write_certificate(directory.path(), DAY);
        let looking = due(directory.path().to_owned());
        tokio::pin!(looking);
        let quiet = tokio::time::timeout(10 * ROUND, &mut looking).await;
        assert!(quiet.is_err(), "a fresh certificate is left alone");
        write_certificate(directory.path(), 300 * DAY);
        tokio::time::timeout(ROUND, &mut looking).await.expect("seen at the next look");
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_makes_its_kubelets_certificate_anew_within_the_hour() {
        let directory = tempfile::tempdir().unwrap();
        let keys = write_certificate(directory.path(), 300 * DAY);
        let (made, kubelet, shutdown) =
            (std::sync::Arc::new(AtomicUsize::new(0)), KubeletPart::default(), CancellationToken::new());
        let running = kubelet.running();
        let make = {
            let (made, directory) = (made.clone(), directory.path().to_owned());
            // The first attempt fails, and is made again an hour later.
            move || match made.fetch_add(1, Ordering::SeqCst) {
                0 => anyhow::bail!("no room on the disk"),
                _ => Ok(write_certificate(&directory, Duration::ZERO)),
            }
        };
        let keeping = tokio::spawn(keep_fresh(keys.clone(), make, kubelet, shutdown.clone()));
        tokio::time::timeout(2 * ROUND + DAY / 24, running.cancelled())
            .await
            .expect("the kubelet starts again");
        assert!(!is_due(&keys.certificate));
        tokio::time::sleep(10 * ROUND).await;
        assert_eq!(made.load(Ordering::SeqCst), 2, "a fresh one is left alone");
        shutdown.cancel();
        keeping.await.unwrap();
    }
}
