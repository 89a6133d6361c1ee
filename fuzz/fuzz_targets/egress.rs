//! See `wopr_fuzz::egress`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| wopr_fuzz::egress(data));
