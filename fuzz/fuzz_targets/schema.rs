//! See `wopr_fuzz::schema`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| wopr_fuzz::schema(data));
