//! The target that `FERRY_FUZZ_TARGET` names.
#![no_main]

libfuzzer_sys::fuzz_target!(
    init: ferry_fuzz::begin(&std::env::var("FERRY_FUZZ_TARGET").unwrap_or_default()),
    |data: &[u8]| ferry_fuzz::run(data)
);
