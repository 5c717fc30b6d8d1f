#![no_main]

libfuzzer_sys::fuzz_target!(init: ferry_fuzz::begin("http"), |data: &[u8]| ferry_fuzz::run(data));
