//! See `wopr_fuzz::stored`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| wopr_fuzz::stored(data));
