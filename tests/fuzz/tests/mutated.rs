//! Random changes of the seeds, guided by nothing: what can be had without the instrumented build. By hand only, as a run is
//! never the same as another:
//!
//! `FERRY_FUZZ_SECONDS=60 FERRY_FUZZ_TARGET=yaml cargo test -p ferry-fuzz-targets --test mutated -- --ignored --nocapture`
//!
//! Without a target it takes them all, `FERRY_FUZZ_SECONDS` each.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::panic::catch_unwind;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

use ferry_fuzz_targets::{Target, targets};

/// The stack of a thread of the runtime.
const STACK: usize = 2 << 20;
const LONGEST: usize = 1 << 16;
/// One input that takes longer is a finding.
const SLOW: Duration = Duration::from_secs(60);

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit.max(1) as u64) as usize
    }
}

/// An input with a few changes: bytes flipped, set, taken out, repeated, or taken from another input.
fn mutated(random: &mut Random, inputs: &[Vec<u8>]) -> Vec<u8> {
    const TELLING: [u8; 16] = *b"\x00\x01\x7f\x80\xff\"\\{}[]:,-0\n";
    let mut bytes = inputs[random.below(inputs.len())].clone();
    for _ in 0..=random.below(8) {
        let at = random.below(bytes.len() + 1);
        let until = (at + 1 + random.below(64)).min(bytes.len());
        match random.below(7) {
            0 if at < bytes.len() => bytes[at] ^= 1 << random.below(8),
            1 if at < bytes.len() => bytes[at] = TELLING[random.below(TELLING.len())],
            2 if at < until => drop(bytes.drain(at..until)),
            3 => bytes.insert(at, TELLING[random.below(TELLING.len())]),
            4 if at < until => {
                let repeated = bytes[at..until].repeat(1 + random.below(64));
                bytes.splice(at..at, repeated);
            }
            5 => bytes.truncate(at),
            _ => {
                let other = &inputs[random.below(inputs.len())];
                let from = random.below(other.len());
                let piece = other[from..].iter().take(1 + random.below(256)).copied();
                bytes.splice(at..at, piece);
            }
        }
    }
    bytes.truncate(LONGEST);
    bytes
}

/// Runs one target for a time; the inputs that broke it.
fn fuzz(target: &'static Target, time: Duration, seed: u64) -> Vec<PathBuf> {
    let directory = std::env::temp_dir().join(format!("ferry-mutated-{}", std::process::id()));
    std::fs::create_dir_all(&directory).expect("a directory");
    // What overflows the stack ends the process: then this file holds it, behind its length.
    let last = File::create(directory.join(format!("{}-last", target.name))).expect("a file");
    let (inputs, mut random, began) = ((target.seeds)(), Random(seed), Instant::now());
    let (mut count, mut found) = (0_u64, Vec::new());
    while began.elapsed() < time && found.len() < 10 {
        let bytes = mutated(&mut random, &inputs);
        last.write_all_at(&(bytes.len() as u64).to_le_bytes(), 0).expect("written");
        last.write_all_at(&bytes, 8).expect("written");
        let started = Instant::now();
        let ended = catch_unwind(|| (target.run)(&bytes));
        count += 1;
        if ended.is_err() || started.elapsed() > SLOW {
            let path = directory.join(format!("{}-{count}", target.name));
            std::fs::write(&path, &bytes).expect("written");
            found.push(path);
        }
    }
    println!("{:<13} {count:>9} inputs, seed {seed}, {} found", target.name, found.len());
    found
}

#[test]
#[ignore = "by hand: it takes as long as it is told"]
fn changed_seeds_are_read() {
    let word = |name: &str| std::env::var(name).ok();
    let number = |name: &str| word(name).map(|text| text.parse::<u64>().expect("a number"));
    let time = Duration::from_secs(number("FERRY_FUZZ_SECONDS").unwrap_or(10));
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("a clock").as_nanos() as u64;
    let seed = number("FERRY_FUZZ_SEED").unwrap_or(now);
    let chosen = word("FERRY_FUZZ_TARGET");
    let mut found = Vec::new();
    for target in targets().filter(|target| chosen.as_deref().is_none_or(|name| name == target.name)) {
        let thread = std::thread::Builder::new().name(target.name.into()).stack_size(STACK);
        let run = thread.spawn(move || fuzz(target, time, seed)).expect("a thread");
        found.extend(run.join().expect("findings are caught"));
    }
    assert!(found.is_empty(), "{found:#?}");
}
