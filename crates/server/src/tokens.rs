//! Interrupt tokens (OpenWOP v1 section 13.7): the right to inspect or resolve one interrupt.
//!
//! Format: `base64url(payload) "." base64url(HMAC-SHA256(payload))`, both without padding; the MAC covers the
//! JSON bytes of the payload. A token is minted when it is shown, expires, never outlives its interrupt, and is
//! not stored: the interrupt's own state makes it single-use. Within a time slot the same token is minted
//! again, so that an unchanged run looks the same from every process and protocol.

use std::fmt;

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use subtle::ConstantTimeEq;
use wopr_app::{AskedAt, reads_artifacts};
use wopr_core::{NodeId, PrincipalId, RunId, RunKey, StepId, TenantId, Timestamp};
use wopr_wire::time;

use crate::{auth::Caller, config::Period, secrets::Subkey};

/// Number of time slots per token lifetime. A token lives at least the lifetime minus one slot.
const PARTS: u64 = 16;

/// Longer input is not decoded, as no valid token is longer.
const MAX_TOKEN: usize = 4_096;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Intent {
    /// Resolving and inspecting.
    Resolve,
    /// Only inspecting.
    Inspect,
}

/// The contents of a token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claims {
    pub key: RunKey,
    pub node: NodeId,
    /// The execution of the node.
    pub ordinal: u32,
    /// How many interrupts the execution opened before this one.
    pub number: u32,
    pub intent: Intent,
    /// The principal whose vote counts.
    pub holder: Holder,
}

/// The principal a token was issued for. Anyone who presents it votes as this principal; copies share one vote.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    pub principal: PrincipalId,
    /// The token was minted for this principal by name. Otherwise the principal read it with the run and may
    /// have passed it on, so the log does not record the principal as the one who resolved the interrupt.
    pub is_named: bool,
    /// The gate named one of the principal's roles or groups when the token was minted.
    pub is_member: bool,
    /// The token's page shows the contents of artifacts, as its holder may read them.
    pub reads_artifacts: bool,
}

impl Claims {
    /// The id of the interrupt in the run that asks.
    #[must_use]
    pub fn interrupt(&self) -> String {
        self.step().interrupt(self.number)
    }

    /// The execution that asks.
    #[must_use]
    pub fn step(&self) -> StepId {
        StepId {
            node: self.node.clone(),
            ordinal: self.ordinal,
        }
    }

    /// The claims of a token shown to a caller together with a question.
    pub(crate) fn of(asked: &AskedAt, caller: &Caller) -> Self {
        Self {
            key: asked.key.clone(),
            node: asked.step.node.clone(),
            ordinal: asked.step.ordinal,
            number: asked.number,
            intent: Intent::Resolve,
            holder: Holder::reader(caller, &asked.data),
        }
    }
}

impl Holder {
    /// The holder for a caller who reads the token together with its question.
    #[must_use]
    pub fn reader(caller: &Caller, question: &Value) -> Self {
        Self {
            principal: caller.principal.clone(),
            is_named: false,
            is_member: caller.membership.is_named_by(question),
            reads_artifacts: reads_artifacts(caller),
        }
    }
}

#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    pub text: String,
    pub expires_at: Timestamp,
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Token")
            .field("expires_at", &self.expires_at)
            .finish_non_exhaustive()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// Not a token of this host. Answered with 404, as for an interrupt that never existed.
    #[error("recognise the token")]
    Unknown,
    /// Answered with 410.
    #[error("accept an expired token")]
    Expired,
}

/// Mints and verifies tokens.
#[derive(Debug)]
pub struct Tokens {
    subkey: Subkey,
    ttl: Period,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Payload {
    run_id: RunId,
    node_id: NodeId,
    interrupt_id: String,
    expires_at: time::Timestamp,
    intent: Intent,
    kid: String,
    tenant: TenantId,
    sub: PrincipalId,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    named: bool,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    member: bool,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    artifacts: bool,
}

impl Tokens {
    #[must_use]
    pub fn new(subkey: Subkey, ttl: Period) -> Self {
        Self { subkey, ttl }
    }

    /// Mints a token. It expires at `deadline` if that is within the token lifetime, and otherwise at the end
    /// of the lifetime, or up to a sixteenth of it sooner.
    #[must_use]
    pub fn mint(&self, claims: &Claims, deadline: Option<Timestamp>, now: Timestamp) -> Token {
        let part = (self.ttl.as_millis() / PARTS).max(1);
        let latest = now.plus_millis(self.ttl.as_millis());
        let expires_at = match deadline {
            Some(deadline) if deadline <= latest => deadline,
            Some(_) | None => Timestamp::from_millis(latest.millis() - latest.millis() % part.cast_signed()),
        };
        let payload = Payload {
            run_id: claims.key.run.clone(),
            node_id: claims.node.clone(),
            interrupt_id: claims.interrupt(),
            expires_at: time::Timestamp::from_millis(expires_at.millis()),
            intent: claims.intent,
            kid: self.subkey.kid().to_owned(),
            tenant: claims.key.tenant.clone(),
            sub: claims.holder.principal.clone(),
            named: claims.holder.is_named,
            member: claims.holder.is_member,
            artifacts: claims.holder.reads_artifacts,
        };
        let payload = serde_json::to_vec(&payload).expect("a payload of texts serialises");
        let mac = self.subkey.sign(&payload);
        let mut text = URL_SAFE_NO_PAD.encode(&payload);
        text.push('.');
        URL_SAFE_NO_PAD.encode_string(mac, &mut text);
        Token { text, expires_at }
    }

    /// Verifies a token.
    ///
    /// # Errors
    /// [`TokenError::Expired`] is only returned for genuine tokens.
    pub fn open(&self, text: &str, now: Timestamp) -> Result<Claims, TokenError> {
        self.open_until(text, now).map(|(claims, _)| claims)
    }

    /// Verifies a token and returns its expiry, too.
    ///
    /// # Errors
    /// Those of [`Tokens::open`].
    pub fn open_until(&self, text: &str, now: Timestamp) -> Result<(Claims, Timestamp), TokenError> {
        if text.len() > MAX_TOKEN {
            return Err(TokenError::Unknown);
        }
        let unknown = |_| TokenError::Unknown;
        let (payload, mac) = text.split_once('.').ok_or(TokenError::Unknown)?;
        let payload = URL_SAFE_NO_PAD.decode(payload).map_err(unknown)?;
        let mac = URL_SAFE_NO_PAD.decode(mac).map_err(unknown)?;
        if !bool::from(self.subkey.sign(&payload).ct_eq(mac.as_slice())) {
            return Err(TokenError::Unknown);
        }
        let payload: Payload = serde_json::from_slice(&payload).map_err(|_| TokenError::Unknown)?;
        if payload.kid != self.subkey.kid() {
            return Err(TokenError::Unknown);
        }
        let interrupt = StepId::parse_interrupt(&payload.node_id, &payload.interrupt_id);
        let (ordinal, number) = interrupt.ok_or(TokenError::Unknown)?;
        if payload.expires_at.as_millis() <= now.millis() {
            return Err(TokenError::Expired);
        }
        let claims = Claims {
            key: RunKey::new(payload.tenant, payload.run_id),
            node: payload.node_id,
            ordinal,
            number,
            intent: payload.intent,
            holder: Holder {
                principal: payload.sub,
                is_named: payload.named,
                is_member: payload.member,
                reads_artifacts: payload.artifacts,
            },
        };
        Ok((claims, Timestamp::from_millis(payload.expires_at.as_millis())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        config::{self, Secret, StoreUrl},
        secrets::Secrets,
    };

    fn tokens(seed: u8) -> Tokens {
        let config = config::Secrets {
            named: Vec::new(),
            replace_key: false,
            master_key: Some(Secret::new(
                base64::engine::general_purpose::STANDARD.encode([seed; 32]),
            )),
            key_file: None,
        };
        let secrets = Secrets::open(&config, &StoreUrl::Memory).unwrap();
        Tokens::new(secrets.subkey("interrupt-token"), Period::from_secs(60))
    }

    fn claims() -> Claims {
        Claims {
            key: RunKey::new(
                TenantId::parse("acme").unwrap(),
                RunId::parse("run_0123456789abcdef").unwrap(),
            ),
            node: NodeId::parse("a:gate").unwrap(),
            ordinal: 2,
            number: 0,
            intent: Intent::Resolve,
            holder: Holder {
                principal: PrincipalId::parse("ada").unwrap(),
                is_named: true,
                is_member: true,
                reads_artifacts: true,
            },
        }
    }

    const NOW: Timestamp = Timestamp::from_millis(1_000_000);

    #[test]
    fn token_round_trips_its_claims() {
        let tokens = tokens(1);
        let token = tokens.mint(&claims(), None, NOW);
        assert_eq!(tokens.open(&token.text, NOW), Ok(claims()));
        let (first, last) = (NOW.plus_millis(60_000 - 60_000 / PARTS), NOW.plus_millis(60_000));
        assert!((first..=last).contains(&token.expires_at), "{token:?}");
        let payload = URL_SAFE_NO_PAD
            .decode(token.text.split_once('.').unwrap().0)
            .unwrap();
        let payload: Value = serde_json::from_slice(&payload).unwrap();
        assert_eq!(payload["interruptId"], "a:gate:2");
        assert_eq!(payload["intent"], "resolve");
        assert!(
            !format!("{token:?}").contains(&token.text),
            "a token is not logged"
        );
    }

    #[test]
    fn tokens_are_identical_within_a_time_slot() {
        let tokens = tokens(1);
        let minted: Vec<_> = (0..60_000)
            .step_by(100)
            .map(|later| tokens.mint(&claims(), None, NOW.plus_millis(later)))
            .collect();
        let n_different = minted.chunk_by(|one, next| one == next).count() as u64;
        assert!((PARTS..=PARTS + 1).contains(&n_different), "{n_different}");
    }

    #[test]
    fn expired_token_is_rejected() {
        let tokens = tokens(1);
        let token = tokens.mint(&claims(), Some(NOW.plus_millis(5)), NOW);
        assert_eq!(token.expires_at, NOW.plus_millis(5));
        assert_eq!(
            tokens.open(&token.text, NOW.plus_millis(5)),
            Err(TokenError::Expired)
        );
        assert!(tokens.open(&token.text, NOW.plus_millis(4)).is_ok());
    }

    #[test]
    fn expiry_is_the_deadline_within_the_token_lifetime() {
        let tokens = tokens(1);
        for left in [1, 59_000, 60_000] {
            let deadline = NOW.plus_millis(left);
            let token = tokens.mint(&claims(), Some(deadline), NOW);
            assert_eq!(token.expires_at, deadline);
        }
        let token = tokens.mint(&claims(), Some(NOW.plus_millis(600_000)), NOW);
        assert!(token.expires_at <= NOW.plus_millis(60_000), "{token:?}");
    }

    #[test]
    fn forged_tokens_are_rejected_as_unknown() {
        let tokens = tokens(1);
        let token = tokens.mint(&claims(), None, NOW).text;
        let (payload, mac) = token.split_once('.').unwrap();
        let other = self::tokens(2).mint(&claims(), None, NOW).text;
        let mut tampered = URL_SAFE_NO_PAD.decode(payload).unwrap();
        tampered[10] ^= 1;
        for text in [
            String::new(),
            ".".to_owned(),
            "!!!not-a-valid-token!!!".to_owned(),
            "tok_abcdef".to_owned(),
            format!("{payload}."),
            format!("{payload}.{}", &mac[..20]),
            format!("{payload}.{mac}A"),
            format!("{payload}={mac}"),
            format!("{}.{mac}", URL_SAFE_NO_PAD.encode(&tampered)),
            format!("{token}.{mac}"),
            other,
            "x".repeat(100_000),
        ] {
            assert_eq!(tokens.open(&text, NOW), Err(TokenError::Unknown), "{text}");
        }
    }
}
