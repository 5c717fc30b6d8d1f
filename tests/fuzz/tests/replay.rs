//! The kept inputs as plain tests: what fuzzing found once (`fuzz/found`), what it begins with (`fuzz/corpus`) and the
//! seeds, each read on a stack of 2 MB, as the server's threads have.

use std::path::{Path, PathBuf};

use ferry_fuzz_targets::{Target, targets};

/// The stack of a thread of the runtime.
const STACK: usize = 2 << 20;

/// The inputs of a target in one of the directories of `fuzz/`, in a fixed order.
fn kept(directory: &str, target: &Target) -> Vec<(PathBuf, Vec<u8>)> {
    let directory =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz").join(directory).join(target.name);
    if !directory.exists() {
        return Vec::new();
    }
    let entries =
        std::fs::read_dir(&directory).unwrap_or_else(|why| panic!("{}: {why}", directory.display()));
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    paths.sort();
    let read = |path: PathBuf| {
        let bytes = std::fs::read(&path).unwrap_or_else(|why| panic!("{}: {why}", path.display()));
        (path, bytes)
    };
    paths.into_iter().map(read).collect()
}

fn on_a_small_stack(name: &str, run: impl FnOnce() + Send + 'static) {
    let thread = std::thread::Builder::new().name(name.to_string()).stack_size(STACK);
    let ended = thread.spawn(run).expect("a thread").join();
    assert!(ended.is_ok(), "{name} panicked, see above");
}

#[test]
fn past_findings_pass() {
    for target in targets() {
        for (path, bytes) in kept("found", target) {
            on_a_small_stack(&path.display().to_string(), move || (target.run)(&bytes));
        }
    }
}

#[test]
fn seeds_and_corpora_are_read() {
    for target in targets() {
        let seeds = (target.seeds)();
        assert!(!seeds.is_empty(), "{} has no seeds", target.name);
        let inputs = seeds.into_iter().chain(kept("corpus", target).into_iter().map(|(_, bytes)| bytes));
        for bytes in inputs {
            on_a_small_stack(target.name, move || (target.run)(&bytes));
        }
    }
}

/// A corpus whose target is gone, or a program without one, would be fuzzed by nobody.
#[test]
fn every_target_has_its_program_and_every_corpus_its_target() {
    let fuzz = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz");
    let names = |directory: &str| {
        let entries = std::fs::read_dir(fuzz.join(directory)).into_iter().flatten();
        let mut names: Vec<String> = entries
            .map(|entry| {
                entry.expect("an entry").path().file_stem().expect("a name").to_string_lossy().into_owned()
            })
            .collect();
        names.sort();
        names
    };
    let mut targets: Vec<&str> = targets().map(|target| target.name).collect();
    targets.sort_unstable();
    assert_eq!(names("fuzz_targets"), targets);
    for directory in ["corpus", "found"] {
        for name in names(directory) {
            assert!(targets.contains(&name.as_str()), "fuzz/{directory}/{name} belongs to no target");
        }
    }
}
