//! The callbacks of calls to agents: where an agent pushes the updates of a task to, and what proves that it may.
//!
//! The address names one call of an attempt of a step; the token is the MAC of that name. Both are derived whenever they are
//! needed, so nothing is stored, and they are good for as long as the call waits, across restarts and from every
//! process with the same master key. A push only has the task looked at, so a token that leaks can do no more.

use std::sync::Arc;

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use http::HeaderMap;
use subtle::ConstantTimeEq;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use wopr_connect::Callback;
use wopr_core::{NodeId, RunId, RunKey, StepId, TenantId};
use wopr_wire::a2a::model::Secret;

use crate::secrets::Subkey;

/// The path of the callbacks, below the public URL.
pub(crate) const PATH: &str = "/v1/host/wopr/calls/";
/// The headers in which agents send the token: the name of 0.3, and the unprefixed name of 1.0.
const TOKEN: [&str; 2] = ["x-a2a-notification-token", "a2a-notification-token"];
/// Longer names are not decoded, as no valid one is longer.
const MAX_NAME: usize = 2_048;
/// Separates the parts of a name. No part has a control character.
const SEPARATOR: char = '\0';
/// The most pushes that are handled at once, because each costs the store a write.
const MAX_PUSHES: usize = 64;

/// Makes callbacks and recognizes pushes.
#[derive(Debug, Clone)]
pub(crate) struct Callbacks {
    subkey: Subkey,
    public_url: String,
    pushes: Arc<Semaphore>,
}

impl Callbacks {
    pub(crate) fn new(subkey: Subkey, public_url: String) -> Self {
        Self {
            subkey,
            public_url,
            pushes: Arc::new(Semaphore::new(MAX_PUSHES)),
        }
    }

    /// Recognizes the call that a push is for; `None` if the address and the token are not of this host.
    pub(crate) fn open(&self, name: &str, headers: &HeaderMap) -> Option<(RunKey, StepId, (u32, u32))> {
        if name.len() > MAX_NAME {
            return None;
        }
        let token = TOKEN.iter().find_map(|header| headers.get(*header))?;
        let token = URL_SAFE_NO_PAD.decode(token.as_bytes()).ok()?;
        if !bool::from(self.subkey.sign(name.as_bytes()).ct_eq(token.as_slice())) {
            return None;
        }
        let text = String::from_utf8(URL_SAFE_NO_PAD.decode(name).ok()?).ok()?;
        let mut parts = text.split(SEPARATOR);
        let mut next = || parts.next();
        let (tenant, run, node) = (next()?, next()?, next()?);
        let mut number = || next()?.parse().ok();
        let (ordinal, attempt, call) = (number()?, number()?, number()?);
        let run = RunKey::new(TenantId::parse(tenant).ok()?, RunId::parse(run).ok()?);
        let step = StepId {
            node: NodeId::parse(node).ok()?,
            ordinal,
        };
        Some((run, step, (attempt, call)))
    }

    /// Admits a push; `None` if there are too many at once.
    pub(crate) fn admit(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.pushes).try_acquire_owned().ok()
    }
}

impl wopr_connect::Callbacks for Callbacks {
    fn callback(&self, run: &RunKey, step: &StepId, (attempt, number): (u32, u32)) -> Callback {
        let numbers = [step.ordinal, attempt, number].map(|number| number.to_string());
        let parts = [
            run.tenant.as_str(),
            run.run.as_str(),
            step.node.as_str(),
            &numbers[0],
            &numbers[1],
            &numbers[2],
        ];
        let name = URL_SAFE_NO_PAD.encode(parts.join("\0"));
        let token = URL_SAFE_NO_PAD.encode(self.subkey.sign(name.as_bytes()));
        Callback {
            url: format!("{}{PATH}{name}", self.public_url),
            token: Secret::new(token).expect("base64 has no control characters"),
        }
    }
}

#[cfg(test)]
mod tests {
    use wopr_connect::Callbacks as _;

    use super::*;
    use crate::{
        config::{self, StoreUrl},
        secrets::Secrets,
    };

    fn with_new_key() -> Callbacks {
        let config = config::Secrets {
            named: Vec::new(),
            replace_key: false,
            master_key: None,
            key_file: None,
        };
        let secrets = Secrets::open(&config, &StoreUrl::Memory).unwrap();
        Callbacks::new(secrets.subkey("call-push"), "https://x.example/base".to_owned())
    }

    fn headers(name: &'static str, token: &str) -> HeaderMap {
        HeaderMap::from_iter([(name.parse().unwrap(), token.parse().unwrap())])
    }

    #[test]
    fn push_is_recognized_by_its_token() {
        let callbacks = with_new_key();
        let run = RunKey::new(
            TenantId::parse("acme").unwrap(),
            RunId::parse("run_0123456789abcdef").unwrap(),
        );
        let step = StepId {
            node: NodeId::parse("a:node").unwrap(),
            ordinal: 2,
        };
        let Callback { url, token } = callbacks.callback(&run, &step, (1, 3));
        let name = url
            .strip_prefix("https://x.example/base/v1/host/wopr/calls/")
            .unwrap();
        for header in TOKEN {
            let opened = callbacks.open(name, &headers(header, token.expose()));
            assert_eq!(opened, Some((run.clone(), step.clone(), (1, 3))), "{header}");
        }
        let other = callbacks.callback(&run, &step, (1, 2)).token;
        let foreign = with_new_key().callback(&run, &step, (1, 3)).token;
        for wrong in [other.expose(), foreign.expose(), "", "x"] {
            assert_eq!(callbacks.open(name, &headers(TOKEN[0], wrong)), None, "{wrong}");
        }
        assert_eq!(callbacks.open(name, &HeaderMap::new()), None);
        let long = "x".repeat(MAX_NAME + 1);
        assert_eq!(callbacks.open(&long, &headers(TOKEN[0], token.expose())), None);
    }

    #[test]
    fn pushes_at_once_are_bounded() {
        let callbacks = with_new_key();
        let admitted: Vec<_> = (0..=MAX_PUSHES).map_while(|_| callbacks.admit()).collect();
        assert_eq!(admitted.len(), MAX_PUSHES);
    }
}
