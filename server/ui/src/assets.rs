//! The page's files, in the binary.

use std::io::Write;
use std::sync::LazyLock;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use flate2::Compression;
use flate2::write::GzEncoder;
use sha2::{Digest, Sha256};

pub struct Asset {
    /// Below `/ui/`.
    pub path: &'static str,
    pub content_type: &'static str,
    pub bytes: &'static [u8],
    /// In quotes, as the header has it.
    pub etag: String,
    /// Nothing where it would not be smaller.
    pub gzip: Option<Vec<u8>>,
}

macro_rules! files {
    ($($path:literal)*) => { &[$(($path, include_bytes!(concat!("../assets/", $path)))),*] };
}

/// `index.html` stands for the directory.
const FILES: &[(&str, &[u8])] = files!(
    "index.html" "style.css" "icon.svg"
    "app.js" "actions.js" "api.js" "chart.js" "dom.js" "format.js" "history.js" "kinds.js" "list.js" "logs.js" "object.js"
    "overview.js" "pending.js" "rights.js" "search.js" "signin.js" "table.js" "topology.js" "trace.js" "waterfall.js"
    "yaml.js"
);

static ASSETS: LazyLock<Vec<Asset>> =
    LazyLock::new(|| FILES.iter().map(|(path, bytes)| asset(path, bytes)).collect());

pub fn all() -> &'static [Asset] {
    &ASSETS
}

/// The file of a path below `/ui/`; "" is the page itself.
pub fn find(path: &str) -> Option<&'static Asset> {
    let path = if path.is_empty() { "index.html" } else { path };
    ASSETS.iter().find(|asset| asset.path == path)
}

fn asset(path: &'static str, bytes: &'static [u8]) -> Asset {
    let content_type = match path.rsplit_once('.').map(|(_, extension)| extension) {
        Some("html") => "text/html; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("js") => "text/javascript; charset=utf-8",
        Some("svg") => "image/svg+xml",
        _ => "application/octet-stream",
    };
    let etag = format!("\"{}\"", URL_SAFE_NO_PAD.encode(&Sha256::digest(bytes)[..12]));
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    let gzip = encoder.write_all(bytes).and_then(|()| encoder.finish());
    let gzip = gzip.ok().filter(|gzip| gzip.len() < bytes.len());
    Asset { path, content_type, bytes, etag, gzip }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_is_served_and_what_is_named_is_there() {
        let mut on_disk: Vec<String> = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/assets"))
            .expect("the directory")
            .map(|entry| entry.expect("an entry").file_name().into_string().expect("a plain name"))
            .collect();
        on_disk.sort();
        let mut served: Vec<&str> = all().iter().map(|asset| asset.path).collect();
        served.sort_unstable();
        assert_eq!(served, on_disk);
        // Modules and styles are named relative to the file that uses them.
        for asset in all() {
            let text = std::str::from_utf8(asset.bytes).expect("text");
            let named = text.split(['"', '\'']).skip(1).step_by(2);
            for name in named.filter_map(|name| name.strip_prefix("./")) {
                assert!(find(name).is_some(), "{} names {name}", asset.path);
            }
        }
    }

    #[test]
    fn the_page_holds_no_inline_script_or_style_and_names_no_other_host() {
        let page = find("").expect("the page");
        let text = std::str::from_utf8(page.bytes).expect("text");
        for forbidden in ["<style", "style=", "onclick", "onload", "javascript:"] {
            assert!(!text.contains(forbidden), "{forbidden}");
        }
        for asset in all() {
            let text = std::str::from_utf8(asset.bytes).expect("text");
            for forbidden in ["innerHTML", "outerHTML", "insertAdjacentHTML", "eval(", "document.write"] {
                assert!(!text.contains(forbidden), "{}: {forbidden}", asset.path);
            }
            let hosts = text.match_indices("https://").chain(text.match_indices("http://"));
            for (at, _) in hosts {
                assert!(
                    text[at..].starts_with("http://www.w3.org/"),
                    "{}: {}",
                    asset.path,
                    &text[at..at + 30]
                );
            }
        }
    }

    #[test]
    fn all_of_it_is_small() {
        let wire: usize =
            all().iter().map(|asset| asset.gzip.as_ref().map_or(asset.bytes.len(), Vec::len)).sum();
        assert!(wire < 200 * 1024, "{wire} bytes");
        assert_eq!(find("index.html").map(|asset| asset.content_type), Some("text/html; charset=utf-8"));
        assert!(find("../Cargo.toml").is_none() && find("none").is_none());
    }
}
