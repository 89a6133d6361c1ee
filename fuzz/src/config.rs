//! Configuration: the file, and settings as texts.

use wopr_server::{Config, Overrides, config::SETTINGS};

/// A file is a configuration or is refused by the line; shown again it has no secret and is still a file. A text is a
/// value of a setting or is refused by name.
///
/// # Panics
/// If a promise does not hold.
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
