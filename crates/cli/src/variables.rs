//! The environment variables that wopr reads, used to find misspelled ones.

use std::env;

use wopr_server::config::SETTINGS;

/// Variables that wopr reads in addition to its settings.
const OTHER_VARIABLES: [&str; 9] = [
    "WOPR_A2A_PEER_TOKEN",
    "WOPR_CACERT",
    "WOPR_CLIENT_CERT",
    "WOPR_CLIENT_KEY",
    "WOPR_CONFIG",
    "WOPR_MODEL_KEY",
    "WOPR_PUSH_CREDENTIALS",
    "WOPR_PUSH_TOKEN",
    "WOPR_SERVER",
];
/// Prefixes of the variables that only tests read.
const OF_TESTS: [&str; 4] = ["WOPR_TEST_", "WOPR_INTEROP_", "WOPR_SIM_", "WOPR_CRASH_"];

/// Lists the `WOPR_` variables that nothing reads; most likely they are misspelled.
pub(crate) fn unknown() -> Vec<String> {
    let mut unknown: Vec<_> = env::vars_os()
        .map(|(name, _)| name.to_string_lossy().into_owned())
        .filter(|name| {
            name.starts_with("WOPR_")
                && !OTHER_VARIABLES.contains(&name.as_str())
                && !OF_TESTS.iter().any(|prefix| name.starts_with(prefix))
                && !SETTINGS.iter().any(|setting| setting.variable == name)
        })
        .collect();
    unknown.sort_unstable();
    unknown
}
