//! A model provider as the operator configured it. `Debug` hides its key.

use url::Url;
use wopr_core::{ModelUsage, TenantId};
use wopr_wire::a2a::model::Secret;

use super::{Wire, anthropic::Anthropic, gemini::Gemini, openai::OpenAi};

#[derive(Debug, Clone)]
pub struct Provider {
    /// The name by which workflows find it.
    pub name: String,
    pub kind: Kind,
    pub base_url: Url,
    pub key: ProviderKey,
    /// The model of calls that name none.
    pub model: Option<String>,
    /// The tenants that may use it; all where empty.
    pub tenants: Vec<TenantId>,
    pub price: Option<Price>,
}

/// The wire that a provider speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Chat completions, which many servers speak.
    OpenAi,
    Anthropic,
    Gemini,
}

/// How a provider recognizes this host.
#[derive(Debug, Clone)]
pub enum ProviderKey {
    None,
    Secret(Secret),
    /// The secret of this name, of which each tenant keeps its own value with the host.
    Stored(String),
    /// The operator names a key that does not exist; calls fail and say where it is missing.
    Missing {
        source: String,
    },
}

/// In US dollars for a million tokens.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Price {
    pub input: f64,
    pub output: f64,
}

impl Price {
    pub(super) fn of(self, usage: &ModelUsage) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "an estimate")]
        let cost = |tokens: u64, price: f64| tokens as f64 * price / 1e6;
        cost(usage.input_tokens, self.input) + cost(usage.output_tokens, self.output)
    }
}

impl Provider {
    pub(super) fn is_for(&self, tenant: &TenantId) -> bool {
        self.tenants.is_empty() || self.tenants.contains(tenant)
    }

    /// A path below the base URL.
    pub(super) fn at(&self, path: &str) -> Result<Url, url::ParseError> {
        let base = self.base_url.as_str().trim_end_matches('/');
        Url::parse(&format!("{base}/{path}"))
    }
}

impl Kind {
    pub(super) fn wire(self) -> &'static dyn Wire {
        match self {
            Self::OpenAi => &OpenAi,
            Self::Anthropic => &Anthropic,
            Self::Gemini => &Gemini,
        }
    }
}
