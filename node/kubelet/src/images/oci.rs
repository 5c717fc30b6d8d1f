//! OCI images as blobs in memory: assembled from files, or read from an
//! archive that `docker save` or an OCI tool wrote.

use std::collections::BTreeMap;
use std::io::{self, Read};

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar";
const LAYER_GZIP: &str = "application/vnd.oci.image.layer.v1.tar+gzip";
/// An index may name indexes. Real ones name manifests, which name layers.
pub(super) const MAX_LEVELS: usize = 8;
/// Annotations that name an image inside an OCI layout.
const NAMES: [&str; 2] = ["io.containerd.image.name", "org.opencontainers.image.ref.name"];

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("reading the archive: {0}")]
    Read(#[from] io::Error),
    #[error("{file} is malformed: {source}")]
    Json { file: String, source: serde_json::Error },
    #[error("the archive has neither index.json nor manifest.json")]
    NoIndex,
    #[error("the archive lacks {0}")]
    Missing(String),
    #[error("the archive names no image; say which name it should have")]
    Unnamed,
    #[error("the content of {0} does not match its digest")]
    Digest(String),
    #[error("the indexes of the archive are nested more than {MAX_LEVELS} levels deep")]
    TooDeep,
}

/// One blob and what it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blob {
    pub media_type: String,
    pub digest: String,
    pub data: Vec<u8>,
    /// Digests of the blobs this one names.
    pub children: Vec<String>,
}

/// A complete image: its name, what the name points to, and all blobs,
/// children before parents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    pub name: String,
    pub target: Blob,
    pub blobs: Vec<Blob>,
}

/// A file that goes into an assembled image.
pub struct File<'a> {
    pub path: &'a str,
    pub mode: u32,
    pub data: &'a [u8],
}

/// What an assembled image runs.
#[derive(Default)]
pub struct Process<'a> {
    pub entrypoint: &'a [&'a str],
    pub command: &'a [&'a str],
    pub environment: &'a [&'a str],
    pub user: &'a str,
}

/// Puts together an image of one layer. The same input gives the same digest.
pub fn assemble(
    name: &str,
    files: &[File<'_>],
    links: &[(&str, &str)],
    process: &Process<'_>,
) -> Result<Image, Error> {
    let layer = layer(files, links)?;
    let diff_id = digest(&layer);
    let layer = Blob { media_type: LAYER.into(), digest: diff_id.clone(), data: layer, children: vec![] };
    let config = json!({
        "architecture": architecture(),
        "os": "linux",
        "config": {
            "Entrypoint": process.entrypoint,
            "Cmd": process.command,
            "Env": process.environment,
            "User": process.user,
        },
        "rootfs": {"type": "layers", "diff_ids": [diff_id]},
    });
    let config = blob(CONFIG, config.to_string().into_bytes(), vec![]);
    Ok(with_manifest(name, config, vec![layer]))
}

/// The name Go, and with it every image, gives this machine's architecture.
pub fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// Reads an OCI layout or a `docker save` archive. `name` is used where the
/// archive names nothing.
pub fn read_archive(archive: impl Read, name: Option<&str>) -> Result<Vec<Image>, Error> {
    let mut entries = BTreeMap::new();
    for entry in tar::Archive::new(archive).entries()? {
        let mut entry = entry?;
        if entry.header().entry_type().is_file() {
            let path = entry.path()?.to_string_lossy().trim_start_matches("./").to_string();
            let mut data = Vec::new();
            entry.read_to_end(&mut data)?;
            entries.insert(path, data);
        }
    }
    if let Some(index) = entries.get("index.json") {
        return read_layout(&parse("index.json", index)?, &entries, name);
    }
    let manifest = entries.get("manifest.json").ok_or(Error::NoIndex)?;
    read_docker(&parse("manifest.json", manifest)?, &entries, name)
}

fn read_layout(
    index: &Value,
    entries: &BTreeMap<String, Vec<u8>>,
    name: Option<&str>,
) -> Result<Vec<Image>, Error> {
    let mut images = Vec::new();
    for descriptor in index["manifests"].as_array().into_iter().flatten() {
        let named = NAMES.iter().find_map(|key| descriptor["annotations"][key].as_str());
        let name = canonical_name(named.or(name).ok_or(Error::Unnamed)?);
        let mut blobs = Vec::new();
        collect(descriptor, entries, &mut blobs, MAX_LEVELS)?;
        let target = blobs.last().cloned().ok_or(Error::NoIndex)?;
        images.push(Image { name, target, blobs });
    }
    Ok(images)
}

/// Follows descriptors from an index or manifest down to the layers, to each blob once. Blobs of other platforms may be
/// absent from the archive; a manifest may not. A blob is what its digest says: so none can lead back to itself.
fn collect(
    descriptor: &Value,
    entries: &BTreeMap<String, Vec<u8>>,
    blobs: &mut Vec<Blob>,
    levels: usize,
) -> Result<(), Error> {
    let named = descriptor["digest"].as_str().unwrap_or_default();
    if blobs.iter().any(|blob| blob.digest == named) {
        return Ok(());
    }
    let levels = levels.checked_sub(1).ok_or(Error::TooDeep)?;
    let media_type = descriptor["mediaType"].as_str().unwrap_or_default();
    let path = format!("blobs/{}", named.replacen(':', "/", 1));
    let data = entries.get(&path).ok_or_else(|| Error::Missing(path.clone()))?;
    if digest(data) != named {
        return Err(Error::Digest(path));
    }
    let mut children = Vec::new();
    if media_type.ends_with("+json") && !media_type.contains("config") || media_type.contains("manifest") {
        let document = parse(&path, data)?;
        let below = ["manifests", "layers"]
            .into_iter()
            .flat_map(|key| document[key].as_array().into_iter().flatten());
        for child in below.chain(document.get("config")) {
            match collect(child, entries, blobs, levels) {
                Ok(()) => children.push(child["digest"].as_str().unwrap_or_default().to_string()),
                Err(Error::Missing(_)) if document.get("manifests").is_some() => {}
                Err(error) => return Err(error),
            }
        }
    }
    blobs.push(Blob { media_type: media_type.into(), digest: named.into(), data: data.clone(), children });
    Ok(())
}

fn read_docker(
    manifest: &Value,
    entries: &BTreeMap<String, Vec<u8>>,
    name: Option<&str>,
) -> Result<Vec<Image>, Error> {
    let file = |path: &Value| {
        let path = path.as_str().unwrap_or_default();
        entries.get(path).cloned().ok_or_else(|| Error::Missing(path.to_string()))
    };
    let mut images = Vec::new();
    for item in manifest.as_array().into_iter().flatten() {
        let mut layers = Vec::new();
        for path in item["Layers"].as_array().into_iter().flatten() {
            let data = file(path)?;
            let media_type = if data.starts_with(&[0x1f, 0x8b]) { LAYER_GZIP } else { LAYER };
            layers.push(blob(media_type, data, vec![]));
        }
        let config = blob(CONFIG, file(&item["Config"])?, vec![]);
        let tags: Vec<&str> =
            item["RepoTags"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let names = if tags.is_empty() { vec![name.ok_or(Error::Unnamed)?] } else { tags };
        for name in names {
            images.push(with_manifest(name, config.clone(), layers.clone()));
        }
    }
    Ok(images)
}

fn with_manifest(name: &str, config: Blob, layers: Vec<Blob>) -> Image {
    let describe =
        |blob: &Blob| json!({"mediaType": blob.media_type, "digest": blob.digest, "size": blob.data.len()});
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": describe(&config),
        "layers": layers.iter().map(describe).collect::<Vec<_>>(),
    });
    let mut blobs = layers;
    blobs.push(config);
    let children = blobs.iter().map(|blob| blob.digest.clone()).collect();
    let target = blob(MANIFEST, manifest.to_string().into_bytes(), children);
    blobs.push(target.clone());
    Image { name: canonical_name(name), target, blobs }
}

/// The name under which runtimes look an image up: with registry and tag.
pub fn canonical_name(name: &str) -> String {
    let first = name.split('/').next().unwrap_or_default();
    let has_registry = name.contains('/') && (first.contains(['.', ':']) || first == "localhost");
    let mut full = match (has_registry, name.contains('/')) {
        (true, _) => name.to_string(),
        (false, true) => format!("docker.io/{name}"),
        (false, false) => format!("docker.io/library/{name}"),
    };
    let last = full.rsplit('/').next().unwrap_or_default();
    if !last.contains([':', '@']) {
        full.push_str(":latest");
    }
    full
}

/// A full name in the parts by which a registry is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reference<'a> {
    pub registry: &'a str,
    pub repository: &'a str,
    /// A tag, or a digest where the name has one.
    pub version: &'a str,
}

impl Reference<'_> {
    /// Reads what [`canonical_name`] gives.
    pub fn of(name: &str) -> Option<Reference<'_>> {
        let (registry, rest) = name.split_once('/')?;
        let (path, version) = match rest.split_once('@') {
            Some((path, digest)) => (path, Some(digest)),
            None => (rest, None),
        };
        let tag = path.rfind(':').filter(|at| !path[*at..].contains('/'));
        let (repository, tag) = tag.map_or((path, None), |at| (&path[..at], Some(&path[at + 1..])));
        let version = version.or(tag)?;
        let is_whole = !repository.is_empty() && !version.is_empty();
        is_whole.then_some(Reference { registry, repository, version })
    }
}

/// Whether this names content rather than a tag.
pub fn is_digest(text: &str) -> bool {
    let hex = text.strip_prefix("sha256:");
    hex.is_some_and(|hex| hex.len() == 64 && hex.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

fn layer(files: &[File<'_>], links: &[(&str, &str)]) -> io::Result<Vec<u8>> {
    let mut tar = tar::Builder::new(Vec::new());
    let mut directories = std::collections::BTreeSet::new();
    for path in files.iter().map(|file| file.path).chain(links.iter().map(|(path, _)| *path)) {
        let parents: Vec<&str> =
            path.match_indices('/').map(|(end, _)| &path[..end]).filter(|dir| !dir.is_empty()).collect();
        directories.extend(parents);
    }
    for directory in directories {
        let mut header = header(tar::EntryType::Directory, 0o755, 0);
        tar.append_data(&mut header, format!("{directory}/"), io::empty())?;
    }
    for file in files {
        let mut header = header(tar::EntryType::Regular, file.mode, file.data.len() as u64);
        tar.append_data(&mut header, file.path, file.data)?;
    }
    for (path, target) in links {
        let mut header = header(tar::EntryType::Symlink, 0o777, 0);
        tar.append_link(&mut header, path, target)?;
    }
    tar.into_inner()
}

/// No owner and no time, so that digests depend on content alone.
fn header(kind: tar::EntryType, mode: u32, size: u64) -> tar::Header {
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_size(size);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header
}

fn blob(media_type: &str, data: Vec<u8>, children: Vec<String>) -> Blob {
    Blob { media_type: media_type.into(), digest: digest(&data), data, children }
}

pub fn digest(data: &[u8]) -> String {
    let hash = Sha256::digest(data);
    let hex: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{hex}")
}

fn parse(file: &str, data: &[u8]) -> Result<Value, Error> {
    serde_json::from_slice(data).map_err(|source| Error::Json { file: file.into(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_completed_as_runtimes_look_them_up() {
        for (short, full) in [
            ("nginx", "docker.io/library/nginx:latest"),
            ("team/app:1", "docker.io/team/app:1"),
            ("localhost/app", "localhost/app:latest"),
            ("registry.k8s.io/pause:3.6", "registry.k8s.io/pause:3.6"),
            ("host:5000/a/b", "host:5000/a/b:latest"),
            ("a@sha256:12", "docker.io/library/a@sha256:12"),
        ] {
            assert_eq!(canonical_name(short), full);
        }
    }

    #[test]
    fn a_full_name_is_taken_apart() {
        let digest = format!("sha256:{}", "0".repeat(64));
        let both = format!("host:5000/a/b:1@{digest}");
        for (name, parts) in [
            ("docker.io/library/nginx:latest", Some(("docker.io", "library/nginx", "latest"))),
            ("host:5000/a/b:1", Some(("host:5000", "a/b", "1"))),
            (&both, Some(("host:5000", "a/b", digest.as_str()))),
            ("docker.io/nginx", None),
            ("nginx:latest", None),
            ("docker.io/:1", None),
        ] {
            let found = Reference::of(name);
            let found = found.map(|found| (found.registry, found.repository, found.version));
            assert_eq!(found, parts, "{name}");
        }
        assert!(is_digest(&digest) && !is_digest("latest") && !is_digest("sha256:00"));
    }

    #[test]
    fn the_same_files_give_the_same_image() {
        let make = || {
            let files = [File { path: "bin/tool", mode: 0o755, data: b"#!" }];
            let process = Process { entrypoint: &["/bin/tool"], ..Process::default() };
            assemble("tool", &files, &[("bin/link", "tool")], &process).expect("an image can be assembled")
        };
        let image = make();
        assert_eq!(image, make());
        assert_eq!(image.blobs.len(), 3);
        assert_eq!(image.target.children.len(), 2);
    }

    #[test]
    fn a_docker_archive_is_read_with_its_tags() {
        let mut tar = tar::Builder::new(Vec::new());
        for (path, data) in [
            ("manifest.json", r#"[{"Config":"c.json","RepoTags":["a:1","b:2"],"Layers":["l/layer.tar"]}]"#),
            ("c.json", r#"{"rootfs":{}}"#),
            ("l/layer.tar", "layer"),
        ] {
            let mut header = header(tar::EntryType::Regular, 0o644, data.len() as u64);
            tar.append_data(&mut header, path, data.as_bytes()).expect("memory takes it");
        }
        let archive = tar.into_inner().expect("memory takes it");
        let images = read_archive(archive.as_slice(), None).expect("the archive is complete");
        let names: Vec<&str> = images.iter().map(|image| image.name.as_str()).collect();
        assert_eq!(names, ["docker.io/library/a:1", "docker.io/library/b:2"]);
        assert!(matches!(read_archive([0u8; 1024].as_slice(), None), Err(Error::NoIndex)));
    }

    fn archive(files: &[(String, Vec<u8>)]) -> Vec<u8> {
        let mut tar = tar::Builder::new(Vec::new());
        for (path, data) in files {
            let mut header = header(tar::EntryType::Regular, 0o644, data.len() as u64);
            tar.append_data(&mut header, path, data.as_slice()).expect("memory takes it");
        }
        tar.into_inner().expect("memory takes it")
    }

    fn index(named: &[&str]) -> Vec<u8> {
        let manifests: Vec<Value> = named
            .iter()
            .map(|digest| json!({"mediaType": "application/vnd.oci.image.index.v1+json", "digest": digest}))
            .collect();
        json!({"manifests": manifests}).to_string().into_bytes()
    }

    #[test]
    fn a_blob_that_is_not_what_its_name_says_is_refused() {
        // It names itself: reading it would never end.
        let itself = format!("sha256:{}", "0".repeat(64));
        let path = format!("blobs/{}", itself.replacen(':', "/", 1));
        let files = [("index.json".to_string(), index(&[&itself])), (path.clone(), index(&[&itself]))];
        let read = read_archive(archive(&files).as_slice(), Some("a"));
        assert!(matches!(&read, Err(Error::Digest(refused)) if *refused == path), "{read:?}");
    }

    #[test]
    fn indexes_that_name_one_twice_are_read_once_and_not_for_ever_deeper() {
        // Each names the one before it many times: read along every way there would be 50 to the power of the levels.
        let towers = |levels: usize| {
            let mut files = Vec::new();
            let mut below = index(&[]);
            for _ in 0..levels {
                let named = digest(&below);
                files.push((format!("blobs/{}", named.replacen(':', "/", 1)), below));
                below = index(&[named.as_str(); 50]);
            }
            files.push(("index.json".to_string(), below));
            read_archive(archive(&files).as_slice(), Some("a"))
        };
        let images = towers(MAX_LEVELS).expect("as deep as it may be");
        assert!(images.iter().all(|image| image.blobs.len() == MAX_LEVELS), "{}", images.len());
        assert!(matches!(towers(MAX_LEVELS + 1), Err(Error::TooDeep)));
    }
}
