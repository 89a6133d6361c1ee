//! See `wopr_fuzz::openwop`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| wopr_fuzz::openwop(data));
