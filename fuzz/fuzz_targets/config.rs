//! See `wopr_fuzz::config`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| wopr_fuzz::config(data));
