#![no_main]

libfuzzer_sys::fuzz_target!(init: ferry_fuzz::begin("certificates"), |data: &[u8]| ferry_fuzz::run(data));
