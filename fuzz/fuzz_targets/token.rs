//! See `wopr_fuzz::token`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| wopr_fuzz::token(data));
