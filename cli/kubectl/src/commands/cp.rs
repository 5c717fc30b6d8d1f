//! `kubectl cp`: files to and from a container, as a tar stream through `tar` inside it.

use std::io::{Cursor, Write};
use std::path::{Component, Path, PathBuf};

use super::TROUBLESHOOT;
use crate::cli::Cli;
use crate::command::Command;
use crate::error::{Error, Result};
use crate::fields::Fields;
use crate::flags::Flag;
use crate::pods;
use crate::remote;
use crate::transport::Query;
use crate::transport::websocket::{ERROR, REMOTE_COMMAND, STDERR, STDIN, STDOUT};

pub const COMMAND: Command = Command {
    name: "cp",
    group: TROUBLESHOOT,
    short: "Copy files to and from containers",
    usage: "<file-spec-src> <file-spec-dest>",
    flags: &[&[
        Flag::text("container", "Container to copy to or from").short('c'),
        Flag::bool("no-preserve", "Leave ownership and permissions to the container"),
        Flag::int("retries", "Accepted for compatibility"),
    ]],
    run: Some(|cli| Box::pin(run(cli))),
    ..Command::NONE
};

/// `[[namespace/]pod:]path`
#[derive(Debug, PartialEq)]
struct Spec {
    namespace: String,
    pod: String,
    path: String,
}

impl Spec {
    fn parse(text: &str) -> Result<Self> {
        let invalid =
            || Error::message("filespec must match the canonical format: [[namespace/]pod:]file/path");
        let local = |path: &str| Spec { namespace: String::new(), pod: String::new(), path: path.to_owned() };
        let Some((place, path)) = text.split_once(':') else { return Ok(local(text)) };
        if place.is_empty() {
            return Err(invalid());
        }
        match place.split('/').collect::<Vec<_>>().as_slice() {
            [pod] => Ok(Spec { namespace: String::new(), pod: (*pod).to_owned(), path: path.to_owned() }),
            [namespace, pod] if !namespace.is_empty() && !pod.is_empty() => {
                Ok(Spec { namespace: (*namespace).to_owned(), pod: (*pod).to_owned(), path: path.to_owned() })
            }
            _ => Err(invalid()),
        }
    }

    fn is_remote(&self) -> bool {
        !self.pod.is_empty()
    }
}

async fn run(cli: &Cli) -> Result<()> {
    let words = &cli.args.positional;
    let [source, destination] = words.as_slice() else {
        return Err(Error::message("source and destination are required"));
    };
    let (source, destination) = (Spec::parse(source)?, Spec::parse(destination)?);
    match (source.is_remote(), destination.is_remote()) {
        (true, true) => Err(Error::message("one of src or dest must be a local file specification")),
        (false, false) => Err(Error::message("one of src or dest must be a remote file specification")),
        _ if source.path.is_empty() || destination.path.is_empty() => {
            Err(Error::message("filepath can not be empty"))
        }
        (true, false) => download(cli, &source, Path::new(&destination.path)).await,
        (false, true) => upload(cli, Path::new(&source.path), &destination).await,
    }
}

/// Runs a command in the container, feeds it `input`, gives back what it printed.
async fn execute(cli: &Cli, spec: &Spec, command: &[&str], input: Option<Vec<u8>>) -> Result<Vec<u8>> {
    let namespace = if spec.namespace.is_empty() { cli.namespace()?.name } else { spec.namespace.clone() };
    let client = cli.client()?;
    let pod = client.get_json(&format!("/api/v1/namespaces/{namespace}/pods/{}", spec.pod)).await?;
    let container = pods::container(&pod, cli.args.text("container"), false)?;
    let mut query = Query::new();
    command.iter().for_each(|word| query.push("command", word));
    let query = query
        .with("container", container)
        .with("stdin", if input.is_some() { "true" } else { "" })
        .with("stdout", "true")
        .with("stderr", "true");
    let path = format!("/api/v1/namespaces/{namespace}/pods/{}/exec{query}", pod.name());
    let mut channels = client.channels(&path, REMOTE_COMMAND).await?;
    if let Some(input) = input {
        for piece in input.chunks(32 * 1024) {
            channels.send(STDIN, piece).await?;
        }
        channels.close_channel(STDIN).await?;
    }
    let mut output = Vec::new();
    while let Some((channel, data)) = channels.next().await? {
        match channel {
            STDOUT => output.extend_from_slice(&data),
            STDERR => std::io::stderr().write_all(&data)?,
            ERROR => {
                remote::ended(&data)?;
                return Ok(output);
            }
            _ => {}
        }
    }
    Ok(output)
}

async fn upload(cli: &Cli, source: &Path, destination: &Spec) -> Result<()> {
    if !source.exists() {
        return Err(Error::message(format!("{} doesn't exist in local filesystem", source.display())));
    }
    let target = destination.path.trim_end_matches('/');
    let target = if target.is_empty() { "/" } else { target };
    let is_directory = execute(cli, destination, &["test", "-d", target], None).await.is_ok();
    let (directory, name) = if is_directory {
        (
            target.to_owned(),
            source.file_name().map_or_else(|| "copy".to_owned(), |name| name.to_string_lossy().into_owned()),
        )
    } else {
        let path = Path::new(target);
        let parent = path.parent().map(|parent| parent.display().to_string()).unwrap_or_default();
        (
            parent,
            path.file_name().map_or_else(|| target.to_owned(), |name| name.to_string_lossy().into_owned()),
        )
    };
    let archive = pack(source, &name)?;
    let mut command = if cli.args.bool("no-preserve") {
        vec!["tar", "--no-same-permissions", "--no-same-owner", "-xmf", "-"]
    } else {
        vec!["tar", "-xmf", "-"]
    };
    if !directory.is_empty() {
        command.extend(["-C", directory.as_str()]);
    }
    execute(cli, destination, &command, Some(archive)).await?;
    Ok(())
}

fn pack(source: &Path, name: &str) -> Result<Vec<u8>> {
    let mut archive = tar::Builder::new(Vec::new());
    archive.follow_symlinks(false);
    if source.is_dir() {
        archive.append_dir_all(name, source)?;
    } else {
        archive.append_path_with_name(source, name)?;
    }
    Ok(archive.into_inner()?)
}

async fn download(cli: &Cli, source: &Spec, destination: &Path) -> Result<()> {
    let archive = execute(cli, source, &["tar", "cf", "-", &source.path], None).await?;
    let target = if destination.is_dir() {
        let name =
            Path::new(&source.path).file_name().ok_or_else(|| Error::message("the source has no name"))?;
        destination.join(name)
    } else {
        destination.to_owned()
    };
    unpack(&archive, source.path.trim_start_matches('/').trim_end_matches('/'), &target)
}

/// Unpacks what stands below `prefix`. Nothing leaves the target, whatever the archive says: the
/// container may not be trusted.
fn unpack(archive: &[u8], prefix: &str, target: &Path) -> Result<()> {
    let prefix = normalized(Path::new(prefix));
    let mut found = false;
    for entry in tar::Archive::new(Cursor::new(archive)).entries()? {
        let mut entry = entry?;
        let path = normalized(&entry.path()?);
        let Ok(inner) = path.strip_prefix(&prefix) else {
            eprintln!(
                "warning: file {:?} is outside target destination, skipping",
                path.display().to_string()
            );
            continue;
        };
        found = true;
        let place = if inner.as_os_str().is_empty() { target.to_owned() } else { target.join(inner) };
        match entry.header().entry_type() {
            tar::EntryType::Directory => std::fs::create_dir_all(&place)?,
            tar::EntryType::Regular | tar::EntryType::Continuous => {
                if let Some(parent) = place.parent() {
                    std::fs::create_dir_all(parent)?;
                }
                let mut file = std::fs::File::create(&place)?;
                std::io::copy(&mut entry, &mut file)?;
            }
            _ => eprintln!(
                "warning: skipping symlink: {:?} -> {:?}",
                place.display().to_string(),
                entry.link_name()?.map(|name| name.display().to_string()).unwrap_or_default()
            ),
        }
    }
    if found {
        Ok(())
    } else {
        Err(Error::message("nothing was copied: no such file or directory in the container"))
    }
}

/// Without `.`, `..` and a leading slash.
fn normalized(path: &Path) -> PathBuf {
    let mut clean = PathBuf::new();
    for component in path.components() {
        match component {
            Component::Normal(name) => clean.push(name),
            Component::ParentDir => {
                clean.pop();
            }
            _ => {}
        }
    }
    clean
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn specs_come_apart() {
        let spec = |namespace: &str, pod: &str, path: &str| Spec {
            namespace: namespace.to_owned(),
            pod: pod.to_owned(),
            path: path.to_owned(),
        };
        assert_eq!(Spec::parse("/tmp/x").unwrap(), spec("", "", "/tmp/x"));
        assert_eq!(Spec::parse("web:/tmp/x").unwrap(), spec("", "web", "/tmp/x"));
        assert_eq!(Spec::parse("ns/web:/tmp/x").unwrap(), spec("ns", "web", "/tmp/x"));
        assert!(Spec::parse(":/x").is_err());
        assert!(Spec::parse("a/b/c:/x").is_err());
    }

    #[test]
    fn an_archive_cannot_leave_its_target() {
        let source = tempfile::tempdir().unwrap();
        std::fs::create_dir(source.path().join("d")).unwrap();
        std::fs::write(source.path().join("d/f"), "content").unwrap();
        let archive = pack(source.path(), "data").unwrap();
        let target = tempfile::tempdir().unwrap();
        unpack(&archive, "data", &target.path().join("out")).unwrap();
        assert_eq!(std::fs::read_to_string(target.path().join("out/d/f")).unwrap(), "content");

        let mut evil = tar::Builder::new(Vec::new());
        let mut header = tar::Header::new_gnu();
        header.set_size(1);
        header.as_old_mut().name[..12].copy_from_slice(b"data/../../x");
        header.set_cksum();
        evil.append(&header, &b"x"[..]).unwrap();
        let evil = evil.into_inner().unwrap();
        assert!(unpack(&evil, "data", &target.path().join("inner")).is_err());
        assert!(!target.path().join("x").exists());
    }
}
