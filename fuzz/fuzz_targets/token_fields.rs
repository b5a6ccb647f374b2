#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| tollkeeper_fuzz::token_fields(input));
