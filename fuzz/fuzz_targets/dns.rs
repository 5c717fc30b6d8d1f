#![no_main]

libfuzzer_sys::fuzz_target!(init: ferry_fuzz::begin("dns"), |data: &[u8]| ferry_fuzz::run(data));
