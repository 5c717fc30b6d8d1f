//! `logs/`: the node's own log files, below `/var/log`. No link and no `..` leads out of it.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use http::{Response, StatusCode};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use tokio_stream::StreamExt;
use tokio_util::io::ReaderStream;
use tokio_util::task::TaskTracker;

use super::{Body, respond, text};
use crate::blocking::blocking;
use ferry_linux::beneath;

const ROOT: &str = "/var/log";
/// Of a directory with more entries the first are shown.
const MOST_ENTRIES: usize = 10_000;

/// A file as it is, or a page that lists a directory.
pub(super) async fn serve(parts: &[&str]) -> Response<Body> {
    let path: PathBuf = parts.iter().filter(|part| !part.is_empty()).collect();
    match blocking(&TaskTracker::new(), move || find(Path::new(ROOT), &path)).await {
        Ok(Found::Directory(page)) => respond(StatusCode::OK, "text/html; charset=utf-8", page.into()),
        Ok(Found::File(file)) => {
            let bytes = ReaderStream::new(tokio::fs::File::from_std(file));
            let body = StreamBody::new(bytes.map(|chunk| chunk.map(Frame::data))).boxed();
            let mut response = Response::new(body);
            let kind = http::HeaderValue::from_static("text/plain; charset=utf-8");
            response.headers_mut().insert("content-type", kind);
            response
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            text(StatusCode::NOT_FOUND, "404 page not found")
        }
        Err(_) => text(StatusCode::FORBIDDEN, "403 Forbidden"),
    }
}

enum Found {
    Directory(String),
    File(File),
}

fn find(root: &Path, path: &Path) -> io::Result<Found> {
    let asked = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    let opened: OwnedFd = beneath::open_beneath(root, asked)?;
    let place = format!("/proc/self/fd/{}", opened.as_raw_fd());
    let kind = std::fs::metadata(&place)?.file_type();
    if kind.is_file() {
        return Ok(Found::File(File::open(&place)?));
    }
    // a pipe or a device would be waited for
    if !kind.is_dir() {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    let mut names = Vec::new();
    for entry in std::fs::read_dir(&place)?.take(MOST_ENTRIES) {
        let entry = entry?;
        let slash = if entry.file_type()?.is_dir() { "/" } else { "" };
        names.push(format!("{}{slash}", entry.file_name().to_string_lossy()));
    }
    names.sort();
    let lines: String = names
        .iter()
        .map(|name| {
            let shown =
                name.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&#34;");
            let link = percent_encoding::utf8_percent_encode(name, percent_encoding::NON_ALPHANUMERIC);
            format!("<a href=\"{}\">{shown}</a>\n", link.to_string().replace("%2F", "/").replace("%2E", "."))
        })
        .collect();
    Ok(Found::Directory(format!("<pre>\n{lines}</pre>\n")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_and_directories_are_shown_and_nothing_outside() {
        let folder = tempfile::tempdir().expect("a directory can be made");
        let root = folder.path().join("log");
        std::fs::create_dir_all(root.join("apt")).expect("a directory can be made");
        std::fs::write(root.join("a<b.log"), "text").expect("a file can be written");
        std::fs::write(folder.path().join("secret"), "").expect("a file can be written");
        std::os::unix::fs::symlink("../secret", root.join("out")).expect("a link can be made");
        let Ok(Found::Directory(page)) = find(&root, Path::new("")) else { panic!("no page") };
        assert!(page.contains("<a href=\"apt/\">apt/</a>\n"), "{page}");
        assert!(page.contains("<a href=\"a%3Cb.log\">a&lt;b.log</a>\n"), "{page}");
        assert!(matches!(find(&root, Path::new("a<b.log")), Ok(Found::File(_))));
        for outside in ["../secret", "out", "apt/../../secret", "/etc/passwd"] {
            assert!(find(&root, Path::new(outside)).is_err(), "{outside}");
        }
        assert!(
            find(&root, Path::new("missing")).is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
        );
    }
}
