//! See `wopr_fuzz::http`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| wopr_fuzz::http(data));
