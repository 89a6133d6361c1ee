//! See `wopr_fuzz::cursor`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| wopr_fuzz::cursor(data));
