//! The libFuzzer binary: fuzzes the target that `WOPR_FUZZ_TARGET` names.

#![no_main]

use std::sync::LazyLock;

use wopr_fuzz::{Target, chosen};

static TARGET: LazyLock<Target> = LazyLock::new(chosen);

libfuzzer_sys::fuzz_target!(|data: &[u8]| (TARGET.run)(data));
