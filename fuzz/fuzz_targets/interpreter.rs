//! See `wopr_fuzz::interpreter`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| wopr_fuzz::interpreter(data));
