//! See `wopr_fuzz::expression`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| wopr_fuzz::expression(data));
