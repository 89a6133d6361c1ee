//! Configuration: files, and settings given as text.

use wopr_server::{Config, Overrides, config::SETTINGS};

/// A file is parsed, or rejected with a line number. Printed again, it contains no secrets and can still be
/// parsed. A text is a valid value of a setting, or is rejected with the setting's name.
///
/// # Panics
/// If a property does not hold.
pub fn config(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    if let Ok(config) = toml::from_str::<Config>(text) {
        let shown = config.to_toml_redacted().unwrap();
        toml::from_str::<toml::Table>(&shown).unwrap();
        for key in &config.auth.keys {
            if let Some(secret) = key.secret.as_ref().filter(|secret| secret.expose().len() > 16) {
                assert!(!shown.contains(secret.expose()), "a secret is shown");
            }
        }
        let _ = config.public_url();
    }
    for setting in SETTINGS {
        let overrides = Overrides::default().with(setting.key, Some(text));
        if let Err(error) = Config::load(None, &|_| None, overrides) {
            assert!(!error.to_string().is_empty());
        }
    }
}
