//! The models that workflows may ask.

use serde::{Deserialize, Serialize};
use url::Url;
use wopr_core::TenantId;

use super::name_problem;

/// The provider that a workflow asks if it names none.
pub const DEFAULT_MODEL: &str = "default";
/// The environment variable with the key of that provider, if it names no secret.
pub const DEFAULT_MODEL_KEY: &str = "WOPR_MODEL_KEY";

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelProvider {
    /// The name by which workflows find it.
    pub name: String,
    #[serde(default)]
    pub kind: ModelKind,
    /// What its kind stands for where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base_url: Option<Url>,
    /// The name of the secret that is its key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
    /// The model of nodes that name none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The tenants that may use it; all where empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tenants: Vec<TenantId>,
    /// What tokens cost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub price: Option<ModelPrice>,
}

/// The wire that a provider speaks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ModelKind {
    /// Chat completions, which many servers speak.
    #[default]
    OpenAi,
    Anthropic,
    Gemini,
    /// A local server with the same wire as `openai`.
    Ollama,
}

impl ModelKind {
    /// The provider's own address.
    #[must_use]
    pub const fn base_url(self) -> &'static str {
        match self {
            Self::OpenAi => "https://api.openai.com/v1",
            Self::Anthropic => "https://api.anthropic.com",
            Self::Gemini => "https://generativelanguage.googleapis.com",
            Self::Ollama => "http://127.0.0.1:11434/v1",
        }
    }

    /// The kind of the provider at an address: the one whose own address it is, else the first.
    #[must_use]
    pub fn of(url: &Url) -> Self {
        match url.host_str() {
            Some("api.anthropic.com") => Self::Anthropic,
            Some("generativelanguage.googleapis.com") => Self::Gemini,
            Some(_) | None => Self::OpenAi,
        }
    }
}

/// In US dollars for a million tokens.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelPrice {
    pub input: f64,
    pub output: f64,
}

impl ModelProvider {
    /// A provider without a key, of the kind that its address shows.
    #[must_use]
    pub fn new(name: &str, base_url: Url) -> Self {
        Self {
            name: name.to_owned(),
            kind: ModelKind::of(&base_url),
            base_url: Some(base_url),
            secret: None,
            model: None,
            tenants: Vec::new(),
            price: None,
        }
    }

    /// The first member that is wrong, and its rule.
    pub(crate) fn problem(&self) -> Option<(&'static str, &'static str)> {
        if let Some(rule) = name_problem(&self.name) {
            return Some(("name", rule));
        }
        if self.name == "mock" {
            return Some((
                "name",
                "must be another one: mock is the scripted model of conformance mode",
            ));
        }
        if let Some(url) = &self.base_url
            && (!matches!(url.scheme(), "http" | "https")
                || url.query().is_some()
                || url.fragment().is_some())
        {
            return Some(("base_url", "must be http or https, without query and fragment"));
        }
        if self.model.as_ref().is_some_and(String::is_empty) {
            return Some(("model", "must not be empty"));
        }
        let is_price = |price: f64| price.is_finite() && (0.0..=1e6).contains(&price);
        if self
            .price
            .is_some_and(|price| !is_price(price.input) || !is_price(price.output))
        {
            return Some(("price", "must be two numbers of at least 0"));
        }
        None
    }
}
