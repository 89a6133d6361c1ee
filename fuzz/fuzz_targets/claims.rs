//! See `wopr_fuzz::claims`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| wopr_fuzz::claims(data));
