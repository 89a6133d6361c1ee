//! See `wopr_fuzz::definition`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| wopr_fuzz::definition(data));
