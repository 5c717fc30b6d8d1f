//! Modes and owners of the files below the data directory, and the certificates among them.

use std::path::Path;
use std::time::Duration;

use super::Item;
use crate::cluster::security::Finding;
use crate::cluster::security::facts::{Facts, FileFact};

/// A running server renews a certificate after two thirds of its life; one that ends within a week was not renewed.
const RENEWAL_OVERDUE: Duration = Duration::from_secs(7 * 86_400);

pub(super) fn permissions(files: &[FileFact]) -> Vec<Finding> {
    let wider_than = |allowed: u32, select: fn(&FileFact) -> bool| -> Vec<String> {
        let wide = files.iter().filter(|file| select(file) && file.mode & 0o777 & !allowed != 0);
        wide.map(|file| format!("{} is {:o}", file.path.display(), file.mode)).collect()
    };
    let not_roots = |select: fn(&FileFact) -> bool| -> Vec<String> {
        let others = files.iter().filter(|file| select(file) && (file.user, file.group) != (0, 0));
        others.map(|file| format!("{} is of {}:{}", file.path.display(), file.user, file.group)).collect()
    };
    vec![
        Item("1.1.11", "only the owner can access the store", "chmod -R go= DATA_DIR/store")
            .must_find_none(wider_than(0o700, is_store), "700 and 600"),
        Item("1.1.12", "root owns the store", "chown -R root:root DATA_DIR/store")
            .must_find_none(not_roots(is_store), "root:root"),
        Item(
            "1.1.13",
            "only the owner can access administrators' kubeconfigs and tokens",
            "chmod 600 DATA_DIR/*.kubeconfig DATA_DIR/server-token",
        )
        .must_find_none(wider_than(0o600, is_admin_credential), "600"),
        Item(
            "1.1.14",
            "root owns administrators' kubeconfigs and tokens",
            "chown root:root DATA_DIR/*.kubeconfig DATA_DIR/server-token",
        )
        .must_find_none(not_roots(is_admin_credential), "root:root"),
        Item("1.1.19", "root owns keys and certificates", "chown -R root:root DATA_DIR/pki")
            .must_find_none(not_roots(is_in_pki), "root:root"),
        Item("1.1.20", "only the owner can write certificates", "chmod go-w DATA_DIR/pki/*.crt")
            .must_find_none(wider_than(0o644, is_certificate), "644 or less"),
        Item("1.1.21", "only the owner can access keys", "chmod 600 DATA_DIR/pki/*.key")
            .must_find_none(wider_than(0o600, is_key), "600"),
        Item("F.1", "only the owner can write the data directory", "chmod go-w DATA_DIR")
            .must_find_none(wider_than(0o755, |file| file.is_directory), "755 or less"),
    ]
}

fn is_store(file: &FileFact) -> bool {
    let is_inside = file.path.parent().is_some_and(|parent| parent.ends_with("store"));
    is_inside || (file.is_directory && file.path.ends_with("store"))
}

fn is_in_pki(file: &FileFact) -> bool {
    file.path.ends_with("pki") || file.path.parent().is_some_and(|parent| parent.ends_with("pki"))
}

fn is_admin_credential(file: &FileFact) -> bool {
    extension(file) == "kubeconfig" || file.path.ends_with("server-token")
}

fn is_key(file: &FileFact) -> bool {
    !file.is_directory && extension(file) == "key"
}

fn is_certificate(file: &FileFact) -> bool {
    !file.is_directory && is_in_pki(file) && matches!(extension(file), "crt" | "pem" | "pub")
}

fn extension(file: &FileFact) -> &str {
    file.path.extension().and_then(|it| it.to_str()).unwrap_or("")
}

pub(super) fn certificates(facts: &Facts) -> Finding {
    let ends_within = |limit: Duration| -> Vec<String> {
        let ending = facts.certificates.iter().filter(|(_, end)| *end <= facts.now + limit);
        ending.map(|(path, _)| file_name(path)).collect()
    };
    let item = Item(
        "F.2",
        "certificates are valid",
        "a running server renews its certificates; its log says why it did not",
    );
    let expired = ends_within(Duration::ZERO);
    if !expired.is_empty() {
        return item.must_find_none(expired, "");
    }
    let fine = format!("{} certificates, none ends within a week", facts.certificates.len());
    item.should_find_none(ends_within(RENEWAL_OVERDUE), fine)
}

fn file_name(path: &Path) -> String {
    path.file_name().map_or_else(|| path.display().to_string(), |name| name.to_string_lossy().into_owned())
}
