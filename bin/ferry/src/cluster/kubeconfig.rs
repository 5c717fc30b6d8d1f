//! Adds the cluster's context to the user's kubeconfig, and leaves the rest unchanged.

use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use serde_json::{Value, json};

/// As kubectl finds it: the flag, then the first of `$KUBECONFIG`, then `~/.kube/config`.
pub fn path(flag: Option<PathBuf>) -> anyhow::Result<PathBuf> {
    if let Some(path) = flag {
        return Ok(path);
    }
    if let Some(listed) = std::env::var_os("KUBECONFIG")
        && let Some(first) = std::env::split_paths(&listed).find(|path| !path.as_os_str().is_empty())
    {
        return Ok(first);
    }
    let home = std::env::var_os("HOME").unwrap_or_else(|| "/root".into());
    Ok(Path::new(&home).join(".kube/config"))
}

/// Adds the context `name` with the credentials of `admin`, and makes it the current one.
pub fn add(file: &Path, name: &str, admin: &Path) -> anyhow::Result<()> {
    // The administrator's file is complete by itself.
    if std::path::absolute(file).ok() == std::path::absolute(admin).ok() {
        return Ok(());
    }
    let admin = read(admin)?.with_context(|| format!("{} is missing", admin.display()))?;
    let before = read(file)?;
    let merged = with_context(before, name, &admin)?;
    write(file, &merged)
}

/// Takes the context `name` out again, if it is there.
pub fn remove(file: &Path, name: &str) -> anyhow::Result<()> {
    let Some(mut config) = read(file)? else { return Ok(()) };
    for (list, _) in LISTS {
        if let Some(entries) = config[list].as_array_mut() {
            entries.retain(|entry| entry["name"] != name);
        }
    }
    if config["current-context"] == name {
        config["current-context"] = "".into();
    }
    write(file, &config)
}

/// The certificate that a file's user shows.
pub fn certificate(file: &Path) -> anyhow::Result<String> {
    use base64::Engine;
    let config = read(file)?.with_context(|| format!("{} is missing", file.display()))?;
    let data = config.pointer("/users/0/user/client-certificate-data").and_then(Value::as_str);
    let data = data.with_context(|| format!("{} has no certificate", file.display()))?;
    let pem = base64::engine::general_purpose::STANDARD.decode(data).context("the certificate")?;
    String::from_utf8(pem).context("the certificate")
}

/// Makes the cluster of a file that has one be reached at this server.
pub fn point_to(file: &Path, server: &str) -> anyhow::Result<()> {
    let mut config = read(file)?.with_context(|| format!("{} is missing", file.display()))?;
    let current = config
        .pointer_mut("/clusters/0/cluster/server")
        .with_context(|| format!("{} names no server", file.display()))?;
    if current == server {
        return Ok(());
    }
    *current = server.into();
    write(file, &config)
}

const LISTS: [(&str, &str); 3] = [("clusters", "cluster"), ("users", "user"), ("contexts", "context")];

fn with_context(before: Option<Value>, name: &str, admin: &Value) -> anyhow::Result<Value> {
    let mut config = before.unwrap_or_else(|| json!({"apiVersion": "v1", "kind": "Config"}));
    if !config.is_object() {
        bail!("not a kubeconfig");
    }
    for (list, key) in LISTS {
        let content = match key {
            "context" => json!({"cluster": name, "user": name}),
            _ => admin[list][0][key].clone(),
        };
        let entry = json!({"name": name, key: content});
        let entries = &mut config[list];
        if entries.is_null() {
            *entries = json!([]);
        }
        let entries = entries.as_array_mut().with_context(|| format!("{list:?} is no list"))?;
        match entries.iter_mut().find(|entry| entry["name"] == name) {
            Some(old) => *old = entry,
            None => entries.push(entry),
        }
    }
    config["current-context"] = name.into();
    Ok(config)
}

fn read(file: &Path) -> anyhow::Result<Option<Value>> {
    let text = match std::fs::read_to_string(file) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).with_context(|| format!("read {}", file.display())),
    };
    let documents = ferry_api::yaml::documents(&text)
        .map_err(|error| anyhow::anyhow!("{} is no YAML: {error}", file.display()))?;
    Ok(documents.into_iter().find(|document| !document.is_null()))
}

/// Whole or not at all: a broken kubeconfig would cost the user all their clusters. The file stays where its links lead,
/// its owner's and as readable as it was; a new one is for who asked, also by way of sudo, and for nobody else.
fn write(file: &Path, config: &Value) -> anyhow::Result<()> {
    write_as(file, &ferry_api::yaml::encode_value(config), sudo_user())
        .with_context(|| format!("write {}", file.display()))
}

/// Who called sudo.
fn sudo_user() -> Option<(u32, u32)> {
    let id = |name: &str| std::env::var(name).ok()?.parse().ok();
    Some((id("SUDO_UID")?, id("SUDO_GID")?))
}

fn write_as(file: &Path, text: &str, sudo_user: Option<(u32, u32)>) -> std::io::Result<()> {
    let file = follow_links(file)?;
    let directory = file.parent().unwrap_or(Path::new("."));
    // What is made in a user's own directory is the user's.
    let nearest = directory.ancestors().find(|path| path.exists()).unwrap_or(Path::new("."));
    let above = std::fs::metadata(nearest)?;
    let user = sudo_user.filter(|(user, _)| *user == above.uid());
    let missing = directory.ancestors().take_while(|path| *path != nearest).collect::<Vec<_>>();
    for path in missing.into_iter().rev() {
        std::fs::create_dir(path)?;
        if let Some((user, group)) = user {
            std::os::unix::fs::chown(path, Some(user), Some(group))?;
        }
    }
    let before = match std::fs::metadata(&file) {
        Ok(before) => Some(before),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
        Err(error) => return Err(error),
    };
    let owner = before.as_ref().map(|before| (before.uid(), before.gid())).or(user);
    let mode = before.map_or(0o600, |before| before.permissions().mode() & 0o777);
    let mut unfinished = tempfile::Builder::new().prefix(".config-").tempfile_in(directory)?;
    unfinished.write_all(text.as_bytes())?;
    let made = unfinished.as_file().metadata()?;
    if let Some((user, group)) = owner.filter(|owner| *owner != (made.uid(), made.gid())) {
        std::os::unix::fs::fchown(unfinished.as_file(), Some(user), Some(group))?;
    }
    unfinished.as_file().set_permissions(std::fs::Permissions::from_mode(mode))?;
    unfinished.as_file().sync_all()?;
    unfinished.persist(&file)?;
    Ok(())
}

/// The file that a path means, though it may not be there yet.
fn follow_links(file: &Path) -> std::io::Result<PathBuf> {
    let mut file = std::path::absolute(file)?;
    for _ in 0..MOST_LINKS {
        match std::fs::read_link(&file) {
            Ok(target) => file = file.parent().unwrap_or(Path::new("/")).join(target),
            // No link, or nothing at all.
            Err(_) => return Ok(file),
        }
    }
    Err(std::io::Error::other("too many links"))
}

/// As many as Linux follows.
const MOST_LINKS: usize = 40;

#[cfg(test)]
mod tests {
    use super::*;

    fn admin() -> Value {
        json!({
            "clusters": [{"name": "ferry", "cluster": {"server": "https://127.0.0.1:6443"}}],
            "users": [{"name": "kubernetes-admin", "user": {"client-key-data": "a2V5"}}],
        })
    }

    #[test]
    fn other_contexts_stay_as_they_are() {
        let theirs = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "work", "preferences": {"colors": true},
            "clusters": [{"name": "work", "cluster": {"server": "https://work"}}],
            "users": [{"name": "me", "user": {"token": "t"}}],
            "contexts": [{"name": "work", "context": {"cluster": "work", "user": "me", "namespace": "n"}}],
        });
        let merged = with_context(Some(theirs.clone()), "ferry", &admin()).unwrap();
        assert_eq!(merged["current-context"], "ferry");
        for (list, _) in LISTS {
            assert_eq!(merged[list][0], theirs[list][0], "{list}");
            assert_eq!(merged[list][1]["name"], "ferry", "{list}");
        }
        assert_eq!(merged["preferences"], theirs["preferences"]);
        let again = with_context(Some(merged.clone()), "ferry", &admin()).unwrap();
        assert_eq!(again, merged);
    }

    #[test]
    fn an_added_context_can_be_removed() {
        let folder = tempfile::tempdir().unwrap();
        let (file, source) = (folder.path().join("sub/config"), folder.path().join("admin"));
        std::fs::write(&source, ferry_api::yaml::encode_value(&admin())).unwrap();
        add(&file, "ferry", &source).unwrap();
        assert_eq!(read(&file).unwrap().unwrap()["contexts"][0]["context"]["user"], "ferry");
        remove(&file, "ferry").unwrap();
        let left = read(&file).unwrap().unwrap();
        assert_eq!((&left["contexts"], &left["current-context"]), (&json!([]), &json!("")));
    }

    #[test]
    fn a_server_that_moved_is_followed() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("node.kubeconfig");
        std::fs::write(&file, ferry_api::yaml::encode_value(&admin())).unwrap();
        point_to(&file, "https://192.0.2.9:6443").unwrap();
        let now = read(&file).unwrap().unwrap();
        assert_eq!(now["clusters"][0]["cluster"]["server"], "https://192.0.2.9:6443");
        assert_eq!(now["users"], admin()["users"]);
        std::fs::write(&file, "{}").unwrap();
        point_to(&file, "https://192.0.2.9:6443").unwrap_err();
    }

    #[test]
    fn a_broken_file_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let (file, source) = (folder.path().join("config"), folder.path().join("admin"));
        std::fs::write(&source, ferry_api::yaml::encode_value(&admin())).unwrap();
        std::fs::write(&file, "a: [b").unwrap();
        add(&file, "ferry", &source).unwrap_err();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "a: [b");
    }

    #[test]
    fn a_link_is_followed_and_owner_and_mode_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let (link, real) = (folder.path().join("config"), folder.path().join("dotfiles/config"));
        std::fs::create_dir(folder.path().join("dotfiles")).unwrap();
        std::fs::write(&real, "{}").unwrap();
        std::fs::set_permissions(&real, std::fs::Permissions::from_mode(0o640)).unwrap();
        let is_root = std::fs::metadata(&real).unwrap().uid() == 0;
        if is_root {
            std::os::unix::fs::chown(&real, Some(1234), Some(2345)).unwrap();
        }
        let owner = |file: &Path| std::fs::metadata(file).map(|file| (file.uid(), file.gid())).unwrap();
        let before = owner(&real);
        std::os::unix::fs::symlink("dotfiles/config", &link).unwrap();
        write_as(&link, "{\"kind\": \"Config\"}", Some((1, 1))).unwrap();
        assert!(std::fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(std::fs::read_to_string(&real).unwrap(), "{\"kind\": \"Config\"}");
        assert_eq!(std::fs::metadata(&real).unwrap().permissions().mode() & 0o777, 0o640);
        assert_eq!(owner(&real), before);
        // A link to what is not there yet.
        std::fs::remove_file(&real).unwrap();
        write_as(&link, "{}", None).unwrap();
        assert_eq!(std::fs::metadata(&real).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(
            std::fs::read_dir(folder.path().join("dotfiles")).unwrap().count(),
            1,
            "nothing is left over"
        );
    }

    #[test]
    fn files_created_with_sudo_belong_to_the_user() {
        let folder = tempfile::tempdir().unwrap();
        let (home, elsewhere) = (folder.path().join("home"), folder.path().join("root"));
        std::fs::create_dir(&home).unwrap();
        std::fs::create_dir(&elsewhere).unwrap();
        let own = std::fs::metadata(&elsewhere).unwrap().uid();
        let user = if own == 0 { 1234 } else { own };
        if own == 0 {
            std::os::unix::fs::chown(&home, Some(user), Some(user)).unwrap();
        }
        let group = std::fs::metadata(&home).unwrap().gid();
        for (directory, expected) in [(&home, user), (&elsewhere, own)] {
            let file = directory.join(".kube/config");
            write_as(&file, "{}", Some((user, group))).unwrap();
            assert_eq!(std::fs::metadata(&file).unwrap().uid(), expected);
            assert_eq!(std::fs::metadata(file.parent().unwrap()).unwrap().uid(), expected);
        }
    }
}
