//! `--www`: the files of a directory.

use std::path::{Component, Path, PathBuf};

use bytes::Bytes;
use http::{Response, StatusCode, header};
use http_body_util::Full;

/// Answers a request for `path`, which is relative to the directory.
pub fn serve(directory: &Path, path: &str) -> Response<Full<Bytes>> {
    let Some(target) = below(directory, path) else {
        return text(StatusCode::NOT_FOUND, "404 page not found\n");
    };
    if path.ends_with("/index.html") || path == "index.html" {
        return moved("./");
    }
    if !target.is_dir() {
        if path.ends_with('/') {
            return moved(&format!("../{}", path.trim_end_matches('/').rsplit('/').next().unwrap_or("")));
        }
        return file(&target);
    }
    if !path.is_empty() && !path.ends_with('/') {
        return moved(&format!("{}/", path.rsplit('/').next().unwrap_or("")));
    }
    let index = target.join("index.html");
    if index.is_file() { file(&index) } else { listing(&target) }
}

/// The path inside the directory; nothing for one that leads out of it.
fn below(directory: &Path, path: &str) -> Option<PathBuf> {
    let decoded = decode(path)?;
    let inner = Path::new(decoded.trim_start_matches('/'));
    let stays = inner.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
    stays.then(|| directory.join(inner))
}

fn decode(path: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(path.len());
    let mut rest = path.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let digits = [rest.next()?, rest.next()?];
        bytes.push(u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?);
    }
    String::from_utf8(bytes).ok().filter(|path| !path.contains('\0'))
}

fn file(path: &Path) -> Response<Full<Bytes>> {
    match std::fs::read(path) {
        Ok(content) => answer(StatusCode::OK, content_type(path, &content), content),
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            text(StatusCode::FORBIDDEN, "403 Forbidden\n")
        }
        Err(_) => text(StatusCode::NOT_FOUND, "404 page not found\n"),
    }
}

fn listing(directory: &Path) -> Response<Full<Bytes>> {
    let Ok(entries) = std::fs::read_dir(directory) else {
        return text(StatusCode::INTERNAL_SERVER_ERROR, "Error reading directory\n");
    };
    let mut names: Vec<String> = entries
        .flatten()
        .map(|entry| {
            let name = entry.file_name().to_string_lossy().into_owned();
            if entry.path().is_dir() { name + "/" } else { name }
        })
        .collect();
    names.sort();
    let escape = |text: &str| {
        text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&#34;")
    };
    let lines: String =
        names.iter().map(|name| format!("<a href=\"{}\">{}</a>\n", escape(name), escape(name))).collect();
    let page = format!(
        "<!doctype html>\n<meta name=\"viewport\" content=\"width=device-width\">\n<pre>\n{lines}</pre>\n"
    );
    answer(StatusCode::OK, "text/html; charset=utf-8", page.into_bytes())
}

fn content_type(path: &Path, content: &[u8]) -> &'static str {
    match path.extension().and_then(|extension| extension.to_str()).unwrap_or("") {
        "html" | "htm" => "text/html; charset=utf-8",
        "css" => "text/css; charset=utf-8",
        "js" | "mjs" => "text/javascript; charset=utf-8",
        "json" => "application/json",
        "xml" => "text/xml; charset=utf-8",
        "svg" => "image/svg+xml",
        "png" => "image/png",
        "jpg" | "jpeg" => "image/jpeg",
        "gif" => "image/gif",
        "webp" => "image/webp",
        "pdf" => "application/pdf",
        "wasm" => "application/wasm",
        _ if std::str::from_utf8(content).is_ok() => "text/plain; charset=utf-8",
        _ => "application/octet-stream",
    }
}

fn moved(to: &str) -> Response<Full<Bytes>> {
    let mut response = text(StatusCode::MOVED_PERMANENTLY, "");
    response.headers_mut().remove(header::CONTENT_TYPE);
    if let Ok(value) = to.parse() {
        response.headers_mut().insert(header::LOCATION, value);
    }
    response
}

pub fn text(status: StatusCode, words: &str) -> Response<Full<Bytes>> {
    answer(status, "text/plain; charset=utf-8", words.as_bytes().to_vec())
}

fn answer(status: StatusCode, content_type: &'static str, content: Vec<u8>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(content.into()));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, header::HeaderValue::from_static(content_type));
    headers.insert("x-content-type-options", header::HeaderValue::from_static("nosniff"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_served_and_nothing_beside_them() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join("www");
        std::fs::create_dir_all(root.join("sub")).unwrap();
        std::fs::write(directory.path().join("secret"), "s").unwrap();
        std::fs::write(root.join("a.json"), "{}").unwrap();
        std::fs::write(root.join("sub/index.html"), "<p>").unwrap();
        let status = |path: &str| serve(&root, path).status().as_u16();
        assert_eq!((status(""), status("a.json"), status("sub/")), (200, 200, 200));
        assert_eq!((status("sub"), status("sub/index.html"), status("none")), (301, 301, 404));
        assert_eq!(
            (status("../secret"), status("%2e%2e/secret"), status("sub/../../secret")),
            (404, 404, 404)
        );
        assert_eq!(serve(&root, "a.json").headers()[header::CONTENT_TYPE], "application/json");
    }
}
