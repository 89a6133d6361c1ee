//! See `wopr_fuzz::signed`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| wopr_fuzz::signed(data));
