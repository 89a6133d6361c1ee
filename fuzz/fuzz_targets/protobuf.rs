//! See `wopr_fuzz::protobuf`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| wopr_fuzz::protobuf(data));
