//! What upstream publishes and serves, in a form of our own: a line of JSON for each item, compressed. `FERRY_REWRITE=1`
//! records it anew from the folder that `FERRY_FACTS` names.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use serde_json::Value;

/// The items of a file; first recorded by `record`, if that was asked for.
pub fn items(name: &str, record: impl FnOnce(&Path) -> Vec<Value>) -> Vec<Value> {
    let file = Path::new("tests/recorded").join(format!("{name}.jsonl.gz"));
    if std::env::var_os("FERRY_REWRITE").is_some() {
        let facts = std::env::var_os("FERRY_FACTS").expect("FERRY_FACTS names the folder to record from");
        write(&file, &record(&PathBuf::from(facts)));
    }
    let mut text = String::new();
    let bytes = std::fs::File::open(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    GzDecoder::new(bytes).read_to_string(&mut text).expect("gzip");
    text.lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect()
}

/// Under a name of its own until it is complete: tests that run beside it read the same file.
fn write(file: &Path, items: &[Value]) {
    let unfinished = file.with_extension(format!("{:?}.new", std::thread::current().id()));
    let mut encoder =
        GzEncoder::new(std::fs::File::create(&unfinished).expect("a file"), Compression::best());
    for item in items {
        writeln!(encoder, "{item}").expect("written");
    }
    encoder.finish().expect("written");
    std::fs::rename(unfinished, file).expect("renamed");
}

/// The files of a folder with this ending, without it, in order.
pub fn names(folder: &Path, ending: &str) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let name = |entry: std::io::Result<std::fs::DirEntry>| {
        entry.expect("an entry").file_name().to_str()?.strip_suffix(ending).map(Into::into)
    };
    let mut names: Vec<String> = entries.filter_map(name).collect();
    names.sort();
    names
}
