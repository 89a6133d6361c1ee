//! See `wopr_fuzz::sse`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| wopr_fuzz::sse(data));
