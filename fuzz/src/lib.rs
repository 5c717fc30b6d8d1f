//! What libFuzzer calls: the function of one target of `ferry-fuzz-targets`.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::OnceLock;

use ferry_fuzz_targets::{Target, target};

struct Fuzzing {
    target: &'static Target,
    /// Holds the input that is being read, behind its length: an overflow of the stack kills the process before
    /// libFuzzer can save it.
    last: Option<File>,
}

static FUZZING: OnceLock<Fuzzing> = OnceLock::new();

/// Called once. `FERRY_FUZZ_SEEDS` names a directory that is to be filled with the target's seeds, `FERRY_FUZZ_LAST` the
/// file for the input that is being read.
pub fn begin(name: &str) {
    let target = target(name).unwrap_or_else(|| panic!("no target is called {name:?}"));
    if let Some(directory) = std::env::var_os("FERRY_FUZZ_SEEDS") {
        target.write_seeds(Path::new(&directory)).expect("the seeds are written");
    }
    let last = std::env::var_os("FERRY_FUZZ_LAST").map(|path| File::create(path).expect("a file"));
    assert!(FUZZING.set(Fuzzing { target, last }).is_ok(), "begun once");
}

pub fn run(data: &[u8]) {
    let Some(fuzzing) = FUZZING.get() else { return };
    if let Some(last) = &fuzzing.last {
        let length = (data.len() as u64).to_le_bytes();
        last.write_all_at(&length, 0).and_then(|()| last.write_all_at(data, 8)).expect("the input is kept");
    }
    (fuzzing.target.run)(data);
}
