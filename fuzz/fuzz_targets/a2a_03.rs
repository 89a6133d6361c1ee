//! See `wopr_fuzz::a2a_03`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| wopr_fuzz::a2a_03(data));
