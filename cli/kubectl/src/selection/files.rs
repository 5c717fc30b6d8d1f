//! Manifests: files, directories, standard input, URLs.

use std::io::Read;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::error::{Error, Result};
use crate::fields::Fields;
use crate::kubeconfig::resolve::{ClientConfig, Credentials, Impersonate};
use crate::kustomization;
use crate::transport::{Client, Request};
use crate::yaml;

use super::pattern;

/// One object of a manifest and where it stood.
#[derive(Debug, Clone)]
pub struct Document {
    pub object: Value,
    pub source: String,
}

/// Every object of every path, lists taken apart. What cannot be decoded stands among them as an
/// error; a path that cannot be read ends it.
pub async fn read_documents(
    paths: &[String],
    recursive: bool,
    validating: bool,
) -> Result<Vec<Result<Document>>> {
    let _span = ferry_trace::span("kubectl.read_files");
    let mut documents = Vec::new();
    if paths.iter().filter(|path| *path == "-").count() > 1 {
        return Err(Error::message("standard input cannot be used for multiple arguments"));
    }
    for path in paths {
        if path == "-" {
            let mut text = String::new();
            std::io::stdin().read_to_string(&mut text)?;
            documents.extend(decode_each(&text, "STDIN", validating));
        } else if path.starts_with("http://") || path.starts_with("https://") {
            documents.extend(decode_each(&download(path).await?, path, validating));
        } else {
            for file in expand(path, recursive)? {
                let text = std::fs::read_to_string(&file).map_err(|error| {
                    Error::message(format!("error reading [{}]: {error}", file.display()))
                })?;
                documents.extend(decode_each(&text, &file.display().to_string(), validating));
            }
        }
    }
    Ok(documents)
}

/// The resources that a kustomization builds.
pub fn built_documents(directory: &str, validating: bool) -> Result<Vec<Result<Document>>> {
    let built = kustomization::build(directory, &Default::default())?;
    let mut documents = Vec::new();
    for resource in built.resources {
        flatten(resource, directory, validating, &mut documents);
    }
    Ok(documents)
}

/// The objects of one text, all of them or none.
pub fn decode(text: &str, source: &str) -> Result<Vec<Document>> {
    decode_each(text, source, false).into_iter().collect()
}

fn decode_each(text: &str, source: &str, validating: bool) -> Vec<Result<Document>> {
    let mut documents = Vec::new();
    for value in yaml::each_document(text) {
        match value {
            Ok(object) => flatten(object, source, validating, &mut documents),
            Err(error) => documents.push(Err(Error::message(format!("error parsing {source}: {error}")))),
        }
    }
    documents
}

fn flatten(object: Value, source: &str, validating: bool, documents: &mut Vec<Result<Document>>) {
    let unset: Vec<&str> = [("apiVersion", "apiVersion"), ("kind", "Kind")]
        .iter()
        .filter(|(field, _)| object.text(field).is_empty())
        .map(|(_, name)| *name)
        .collect();
    if let Some(last) = unset.last() {
        let reasons: Vec<String> = unset
            .iter()
            .map(|name| format!("{} not set", if *name == "Kind" { "kind" } else { name }))
            .collect();
        let reason =
            if reasons.len() == 1 { reasons[0].clone() } else { format!("[{}]", reasons.join(", ")) };
        return documents.push(Err(Error::message(if validating {
            format!("error validating {source:?}: error validating data: {reason}; if you choose to ignore these errors, turn validation off with --validate=false")
        } else {
            format!("unable to decode {source:?}: Object '{last}' is missing in '{}'", ferry_api::go_json::compact(&object))
        })));
    }
    if !object.is_list() {
        return documents.push(Ok(Document { object, source: source.to_owned() }));
    }
    if let Value::Object(mut map) = object
        && let Some(Value::Array(items)) = map.remove("items")
    {
        items.into_iter().for_each(|item| flatten(item, source, validating, documents));
    }
}

/// A path, or a pattern where nothing is called that, gives files.
fn expand(path: &str, recursive: bool) -> Result<Vec<PathBuf>> {
    if Path::new(path).exists() {
        return files_of(Path::new(path), recursive);
    }
    let found = pattern::matches(path).map_err(|pattern::Malformed| {
        Error::message(format!("pattern {path:?} is not valid: syntax error in pattern"))
    })?;
    if found.is_empty() {
        return Err(does_not_exist(path));
    }
    let mut files = Vec::new();
    for path in found {
        files.extend(files_of(&path, recursive)?);
    }
    Ok(files)
}

fn does_not_exist(path: &str) -> Error {
    Error::message(format!("the path {path:?} does not exist"))
}

/// A directory gives its manifests, sorted; `-R` goes deeper.
fn files_of(root: &Path, recursive: bool) -> Result<Vec<PathBuf>> {
    let path = root.display().to_string();
    let metadata = std::fs::metadata(root).map_err(|_| does_not_exist(&path))?;
    if !metadata.is_dir() {
        return Ok(vec![root.to_owned()]);
    }
    let mut files = Vec::new();
    walk(root, recursive, &mut files)?;
    if files.is_empty() {
        return Err(Error::message(format!(
            "error reading [{path}]: recognized file extensions are [.json .yaml .yml]"
        )));
    }
    Ok(files)
}

fn walk(directory: &Path, recursive: bool, files: &mut Vec<PathBuf>) -> Result<()> {
    let mut entries: Vec<PathBuf> =
        std::fs::read_dir(directory)?.map(|entry| Ok(entry?.path())).collect::<std::io::Result<_>>()?;
    entries.sort();
    for entry in entries {
        if entry.is_dir() {
            if recursive {
                walk(&entry, recursive, files)?;
            }
        } else if entry
            .extension()
            .and_then(|extension| extension.to_str())
            .is_some_and(|extension| ["json", "yaml", "yml"].contains(&extension))
        {
            files.push(entry);
        }
    }
    Ok(())
}

async fn download(url: &str) -> Result<String> {
    let authority = url.find("://").map_or(0, |position| position + 3);
    let path_start = url[authority..].find('/').map_or(url.len(), |slash| authority + slash);
    let config = ClientConfig {
        server: url[..path_start].to_owned(),
        certificate_authority: Vec::new(),
        insecure: false,
        server_name: String::new(),
        client_certificate: Vec::new(),
        client_key: Vec::new(),
        credentials: Credentials::None,
        impersonate: Impersonate::default(),
        timeout: None,
        proxy: String::new(),
    };
    let client = Client::new(config, 0, "kubectl")?;
    let path = if path_start == url.len() { "/" } else { &url[path_start..] };
    let response = client.send(Request::get(path).accept("*/*")).await?;
    let status = response.status;
    let body = client.read(response).await?;
    if !status.is_success() {
        return Err(Error::message(format!(
            "unable to read URL {url:?}, server reported {status}, status code={}",
            status.as_u16()
        )));
    }
    String::from_utf8(body.to_vec()).map_err(|_| Error::message(format!("{url} does not hold text")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_taken_apart() {
        let text = "apiVersion: v1\nkind: List\nitems:\n- apiVersion: v1\n  kind: Pod\n  metadata: {name: a}\n- apiVersion: v1\n  kind: Pod\n  metadata: {name: b}\n";
        let names: Vec<String> =
            decode(text, "x").unwrap().iter().map(|document| document.object.name().to_owned()).collect();
        assert_eq!(names, ["a", "b"]);
    }

    #[test]
    fn an_object_without_a_kind_is_refused() {
        let error = decode("apiVersion: v1\n", "file.yaml").unwrap_err().to_string();
        assert_eq!(
            error,
            "unable to decode \"file.yaml\": Object 'Kind' is missing in '{\"apiVersion\":\"v1\"}'"
        );
    }

    #[test]
    fn a_directory_gives_its_manifests_in_order() {
        let directory = tempfile::tempdir().unwrap();
        for name in ["b.yaml", "a.json", "c.txt"] {
            std::fs::write(directory.path().join(name), "").unwrap();
        }
        std::fs::create_dir(directory.path().join("d")).unwrap();
        std::fs::write(directory.path().join("d/e.yml"), "").unwrap();
        let names = |recursive: bool| -> Vec<String> {
            let files = expand(directory.path().to_str().unwrap(), recursive).unwrap();
            files.iter().map(|file| file.file_name().unwrap().to_string_lossy().into_owned()).collect()
        };
        assert_eq!(names(false), ["a.json", "b.yaml"]);
        assert_eq!(names(true), ["a.json", "b.yaml", "e.yml"]);
    }
    #[test]
    fn a_pattern_gives_what_it_matches_and_a_file_of_that_very_name_comes_first() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(directory.path().join("one/sub")).unwrap();
        std::fs::create_dir(directory.path().join("two")).unwrap();
        for name in ["one/b.yaml", "one/a.txt", "one/sub/c.yaml", "two/b.yaml"] {
            std::fs::write(directory.path().join(name), "").unwrap();
        }
        let check = |pattern: &str, expected: &[&str]| {
            let files = expand(&directory.path().join(pattern).display().to_string(), false).unwrap();
            let expected: Vec<PathBuf> = expected.iter().map(|name| directory.path().join(name)).collect();
            assert_eq!(files, expected, "{pattern}");
        };
        check("*/b.yaml", &["one/b.yaml", "two/b.yaml"]);
        check("one/a.*", &["one/a.txt"]);
        check("one/*", &["one/a.txt", "one/b.yaml", "one/sub/c.yaml"]);
        check("t[a-w]o", &["two/b.yaml"]);
        std::fs::write(directory.path().join("one/[b].yaml"), "").unwrap();
        check("one/[b].yaml", &["one/[b].yaml"]);

        let refused = |path: &str| expand(path, false).unwrap_err().to_string();
        assert_eq!(refused("no-such-*.yaml"), "the path \"no-such-*.yaml\" does not exist");
        assert_eq!(refused("no-such-[a"), "pattern \"no-such-[a\" is not valid: syntax error in pattern");
    }
}
