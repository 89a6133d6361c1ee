//! See `wopr_fuzz::peer`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| wopr_fuzz::peer(data));
