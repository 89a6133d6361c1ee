//! The composition root of wopr, and its protocol faces.
//!
//! [`Config`] describes a host, [`Host::open`] builds it, and [`serve`] answers requests until shutdown. A face
//! parses requests into commands and renders events and views; it holds no run state. What the faces share
//! lives here: authentication ([`auth`]), tokens, the master key and telemetry.

pub mod a2a;
mod activity_tokens;
mod admission;
mod answers;
pub mod auth;
pub mod awp;
mod body;
mod brief;
mod budgets;
mod callbacks;
mod connection;
mod cors;
mod credential_id;
mod faces;
mod host;
mod known_secrets;
pub mod mcp;
mod message;
mod models;
pub mod openwop;
mod page;
mod paging;
mod path;
mod peer_files;
mod peers;
mod probes;
mod secrets;
mod serve;
mod stored_secrets;
pub mod telemetry;
pub mod tls;
mod tokens;
mod tools;
mod waiting;

pub use budgets::shown_budgets;
pub use config::{Config, ConfigError, Overrides};
pub use faces::Faces;
pub use host::{Embedding, Host, Rejected, StartError};
pub use message::{Body, BoxError, Request, Response};
pub use secrets::{Secrets, SecretsError, Subkey, key_beside};
pub use serve::{Bound, Listeners, ServeError, bind, serve};
pub use stored_secrets::{SecretCipher, SecretError, check_secret};
pub use telemetry::StoreStats;
pub use tokens::{Claims, Holder, Intent, Token, TokenError, Tokens};
pub use tools::tool_servers;
pub use wopr_app::MAX_SECRETS;
pub use wopr_config as config;
use wopr_core::hex;
