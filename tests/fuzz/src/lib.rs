//! Fuzz targets: one function for each parser of external input. A function takes any bytes and returns; a panic, an
//! overflow of a 2 MB stack, an endless loop or the use of a gigabyte of memory is a defect. Where an invariant holds (for
//! example, written data is read back unchanged), the function asserts it.
//!
//! `fuzz/` runs the targets under libFuzzer, `tests/replay.rs` runs the kept inputs as ordinary tests. Each target also
//! generates [`seeds`](Target::seeds) from Ferry's own tables, so that few inputs have to be kept.
//!
//! Start reading at [`targets`].

mod bodies;
mod cel;
mod full_value;
mod patches;
mod samples;
mod schema;
mod selectors;
#[cfg(feature = "servers")]
mod servers;

use std::path::Path;

pub struct Target {
    pub name: &'static str,
    pub run: fn(&[u8]),
    pub seeds: fn() -> Vec<Vec<u8>>,
}

/// The targets of base, which each test run fuzzes for a moment.
const BASE: &[Target] = &[
    Target { name: "protobuf", run: bodies::protobuf, seeds: bodies::protobuf_seeds },
    Target { name: "json", run: bodies::json, seeds: bodies::json_seeds },
    Target { name: "yaml", run: bodies::yaml, seeds: bodies::yaml_seeds },
    Target { name: "patches", run: patches::run, seeds: patches::seeds },
    Target { name: "selectors", run: selectors::run, seeds: selectors::seeds },
    Target { name: "cel", run: cel::run, seeds: cel::seeds },
    Target { name: "schema", run: schema::run, seeds: schema::seeds },
];

#[cfg(feature = "servers")]
use servers::TARGETS as SERVERS;
#[cfg(not(feature = "servers"))]
const SERVERS: &[Target] = &[];

/// All targets; a program in `fuzz/fuzz_targets` and corpora have their names.
pub fn targets() -> impl Iterator<Item = &'static Target> {
    BASE.iter().chain(SERVERS)
}

pub fn target(name: &str) -> Option<&'static Target> {
    targets().find(|target| target.name == name)
}

impl Target {
    /// Writes the seeds into a directory, for a fuzzer to begin with.
    pub fn write_seeds(&self, directory: &Path) -> std::io::Result<()> {
        std::fs::create_dir_all(directory)?;
        for (index, seed) in (self.seeds)().into_iter().enumerate() {
            std::fs::write(directory.join(format!("seed-{index:03}")), seed)?;
        }
        Ok(())
    }
}

/// Where one part of an input ends and the next begins.
const PART: &str = "\n---\n";

/// The parts of a textual input; `None` where it is no text.
fn parts(data: &[u8]) -> Option<std::str::Split<'_, &'static str>> {
    Some(std::str::from_utf8(data).ok()?.split(PART))
}
