//! Calls to models: one attempt through the gate, whoever provides the model.
//!
//! A [`Wire`] knows how one kind of provider spells requests and answers; everything else is the same for all: which
//! tenant may use which provider, the credential, limits, streaming, and the redaction of the credential where it
//! comes back. Of an answer that fails a run gets no more than a code, because its words are untrusted and may be secret;
//! the log has them.

mod answer;
mod anthropic;
mod gemini;
mod mock;
mod openai;
mod provider;
mod reason;
mod semantic_key;
mod stream;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Method, StatusCode, header};
use serde_json::{Value, json};
use wopr_core::{
    AnswerEnd, ModelCall, ModelReply, ModelUsage, Produced, RunKey, StepId, TenantId, TraceContext, micros,
};
use wopr_engine::{Estimate, Keep, Outcome, Progress, Report, Throttles};
use wopr_wire::a2a::model::Secret;

pub use mock::{BadScript, Mock, MockReply, StreamText};
pub use provider::{Kind, Price, Provider, ProviderKey};

use crate::{
    egress::{Gate, Request, Seam},
    http::{failed, failure, is_transient, retry_after},
    redact::Secrets,
    secret_header,
    secrets::NamedSecrets,
};

use answer::{Answer, BYTES_PER_TOKEN, Malformed};
use reason::{Broken, Reason};
use semantic_key::key_of;
use stream::streamed;

/// Lines about providers that did not answer, each minute.
static NOT_ANSWERED: Throttles = Throttles::new(30);

const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
/// Maximum size of an answer as its provider sends it, in bytes.
const MAX_ANSWER: usize = 4 << 20;
/// Maximum size of an answer's text, in bytes.
const MAX_TEXT: usize = 1 << 20;

/// How one kind of provider spells requests and answers.
trait Wire: Send + Sync {
    /// The path below the base URL, with its query.
    fn path(&self, model: &str, streams: bool) -> String;
    /// The header that carries the key.
    fn credential(&self, key: &str) -> (HeaderName, String);
    /// Further headers.
    fn headers(&self) -> &'static [(&'static str, &'static str)] {
        &[]
    }
    fn body(&self, model: &str, call: &ModelCall, streams: bool) -> Value;
    /// How a whole answer, or an event of a streamed one, says that the answer is not complete because the provider
    /// failed.
    fn broken<'d>(&self, document: &'d Value) -> Option<Broken<'d>>;
    /// Reads a whole answer.
    fn read(&self, document: Value, answer: &mut Answer) -> Result<(), Malformed>;
    /// Reads one event of a streamed answer.
    fn read_event(&self, document: Value, answer: &mut Answer) -> Result<(), Malformed>;
}

/// One attempt at a call.
pub(crate) struct Asked<'a> {
    pub(crate) run: &'a RunKey,
    pub(crate) step: &'a StepId,
    pub(crate) key: &'a str,
    pub(crate) trace: Option<TraceContext>,
    pub(crate) progress: &'a Progress,
    pub(crate) keep: &'a Keep,
}

/// The models that workflows may ask.
#[derive(Debug, Clone)]
pub struct Models {
    /// Each with the gate to it: what is open to the address in one provider's URL is not open to the others.
    providers: Arc<[(Provider, Gate)]>,
    /// Has the keys that tenants keep with the host.
    secrets: NamedSecrets,
    /// The scripted one of conformance mode.
    mock: Option<Mock>,
}

impl Models {
    #[must_use]
    pub fn new(gate: &Gate, providers: Vec<Provider>, secrets: NamedSecrets, mock: Option<Mock>) -> Self {
        let with_gate = |provider: Provider| {
            let gate = gate.to_configured(&provider.base_url);
            (provider, gate)
        };
        Self {
            providers: providers.into_iter().map(with_gate).collect(),
            secrets,
            mock,
        }
    }

    /// The scripted provider, in conformance mode.
    #[must_use]
    pub const fn mock(&self) -> Option<&Mock> {
        self.mock.as_ref()
    }

    fn provider(&self, name: &str) -> Option<&(Provider, Gate)> {
        self.providers.iter().find(|(provider, _)| provider.name == name)
    }

    /// What a call may cost at most, by the price of its provider. A token has about four bytes.
    pub(crate) fn estimate(&self, tenant: &TenantId, call: &ModelCall) -> Estimate {
        let provider = self.provider(&call.provider).map(|(provider, _)| provider);
        let provider = provider.filter(|provider| provider.is_for(tenant));
        let usage = ModelUsage {
            input_tokens: call.size().div_ceil(BYTES_PER_TOKEN) as u64,
            output_tokens: call.max_tokens.unwrap_or(0),
            ..ModelUsage::default()
        };
        let price = provider.and_then(|provider| provider.price);
        Estimate {
            tokens: usage.total_tokens(),
            cost_micros: price.map_or(0, |price| micros(price.of(&usage))),
        }
    }

    pub(crate) async fn ask(&self, call: &ModelCall, asked: Asked<'_>) -> Report {
        if call.provider == Mock::NAME
            && let Some(mock) = &self.mock
        {
            return mock.answer(call, asked.step, asked.progress).await;
        }
        let tenant = &asked.run.tenant;
        let provider = self.provider(&call.provider);
        // A provider of other tenants looks like none.
        let Some((provider, gate)) = provider.filter(|(provider, _)| provider.is_for(tenant)) else {
            let message = format!("no model provider is named '{}'", call.provider);
            return failed("model_provider_unknown", message, false).into();
        };
        let Some(model) = call.model.as_ref().or(provider.model.as_ref()) else {
            let message = format!(
                "the node names no model, and the provider '{}' has no default",
                provider.name
            );
            return failed("model_unknown", message, false).into();
        };
        let (request, secrets) = match self.request(provider, model, call, &asked).await {
            Ok(built) => built,
            Err(outcome) => return outcome.into(),
        };
        let wire = provider.kind.wire();
        let began = Instant::now();
        let asking = Asking {
            provider: &provider.name,
            run: asked.run,
            step: asked.step,
            secrets: &secrets,
        };
        let ended = match call.streams {
            true => streamed(gate, wire, request, call, &asking, asked.progress).await,
            false => whole(gate, wire, request, &asking, asked.keep)
                .await
                .map(|answer| (answer, None)),
        };
        let (answer, rest) = match ended {
            Ok(ended) => ended,
            Err(outcome) => return outcome.into(),
        };
        let (outcome, end) = match answer.finish(provider, (model, call.size()), &secrets) {
            Ok(reply) => {
                let end = AnswerEnd::of(&reply);
                let usage = ModelUsage {
                    duration_ms: u64::try_from(began.elapsed().as_millis()).ok(),
                    ..reply.usage
                };
                let reply = ModelReply {
                    cache_key: key_of(call, model),
                    usage,
                    ..reply
                };
                (done(&reply), Some(Box::new(end)))
            }
            Err(Malformed) => (malformed(), None),
        };
        match rest {
            None => outcome.into(),
            Some(text) => Report::Produced {
                produced: vec![Produced::Chunk {
                    text: text.text,
                    starts: text.starts,
                    is_last: true,
                    end,
                }],
                cursor: Value::Null,
                then: Box::new(outcome.into()),
            },
        }
    }

    /// The request, and what must not come back.
    async fn request(
        &self,
        provider: &Provider,
        model: &str,
        call: &ModelCall,
        asked: &Asked<'_>,
    ) -> Result<(Request, Secrets), Outcome> {
        let wire = provider.kind.wire();
        let mut secrets = Secrets::default();
        let Ok(url) = provider.at(&wire.path(model, call.streams)) else {
            return Err(failed(
                "model_unknown",
                format!("'{model}' cannot be part of an address"),
                false,
            ));
        };
        let mut request = Request::new(Method::POST, url);
        if let Some(key) = self.key(provider, &asked.run.tenant).await? {
            secrets.add(key.expose());
            let (name, value) = wire.credential(key.expose());
            let Ok(value) = secret_header(&value) else {
                return Err(missing(provider, "a text that a header can carry"));
            };
            request.headers.insert(name, value);
        }
        for (name, value) in wire.headers() {
            request
                .headers
                .insert(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        request
            .headers
            .insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Ok(key) = HeaderValue::from_str(asked.key) {
            request.headers.insert(IDEMPOTENCY_KEY, key);
        }
        let body = wire.body(model, call, call.streams);
        request.body = Bytes::from(body.to_string());
        request.timeout = Some(Duration::from_millis(call.timeout_ms));
        request.max_response = Some(MAX_ANSWER);
        request.expects_json = true;
        request.tenant = Some(asked.run.tenant.clone());
        request.trace.clone_from(&asked.trace);
        Ok((request, secrets))
    }

    /// The key that a tenant asks a provider with.
    async fn key(&self, provider: &Provider, tenant: &TenantId) -> Result<Option<Secret>, Outcome> {
        match &provider.key {
            ProviderKey::None => Ok(None),
            ProviderKey::Secret(secret) => Ok(Some(secret.clone())),
            ProviderKey::Stored(name) => match self.secrets.stored(tenant, name).await {
                Ok(secret) => Ok(Some(secret)),
                Err(refusal) if refusal.is_transient() => {
                    Err(failed("credential_missing", refusal.to_string(), true))
                }
                Err(refusal) => Err(missing(provider, &refusal.to_string())),
            },
            ProviderKey::Missing { source } => Err(missing(provider, source)),
        }
    }
}

/// Asks for an answer in one piece.
async fn whole(
    gate: &Gate,
    wire: &dyn Wire,
    request: Request,
    asking: &Asking<'_>,
    keep: &Keep,
) -> Result<Answer, Outcome> {
    let place = request.url.clone();
    let response = match gate.request(Seam::Model, request).await {
        Ok(response) => response,
        Err(error) => return Err(failure(&error, &place)),
    };
    keep.until_recorded(response.share.clone());
    if !response.status.is_success() {
        return Err(asking.refused(response.status, &response.headers, &response.body));
    }
    asking.read(wire, &response.body)
}

/// A request to a provider: who made it, and what must not show in what it is told.
struct Asking<'a> {
    provider: &'a str,
    run: &'a RunKey,
    step: &'a StepId,
    secrets: &'a Secrets,
}

impl Asking<'_> {
    /// Reads an answer that came as a whole.
    fn read(&self, wire: &dyn Wire, body: &[u8]) -> Result<Answer, Outcome> {
        let document = serde_json::from_slice(body).map_err(|_| malformed())?;
        self.check(wire, &document)?;
        let mut answer = Answer::default();
        wire.read(document, &mut answer)
            .map_err(|Malformed| malformed())?;
        Ok(answer)
    }

    /// Refuses a document, or an event of a stream, that says that something went wrong.
    fn check(&self, wire: &dyn Wire, document: &Value) -> Result<(), Outcome> {
        let reason = match wire.broken(document) {
            _ if reason::is_error(document) => Reason::of(document, self.secrets),
            Some(broken) => Reason::of_end(&broken, self.secrets),
            None => return Ok(()),
        };
        self.log(None, &reason);
        let message = format!(
            "the model provider ended its answer with an error{}",
            reason.in_parentheses()
        );
        Err(failed("model_call_failed", message, true))
    }

    /// The failure of an answer that is none.
    fn refused(&self, status: StatusCode, headers: &http::HeaderMap, body: &[u8]) -> Outcome {
        let reason = Reason::of_body(&body[..body.len().min(reason::MAX_ERROR)], self.secrets);
        self.log(Some(status), &reason);
        refused(status, headers, &reason)
    }

    fn log(&self, status: Option<StatusCode>, reason: &Reason) {
        let Some(left_out) = NOT_ANSWERED.admit(&self.run.tenant, Instant::now()) else {
            return;
        };
        tracing::warn!(
            run = %self.run,
            step = %self.step.key(),
            provider = self.provider,
            status = status.map(|status| status.as_u16()),
            reason = reason.words.as_deref(),
            left_out,
            "a model provider did not answer"
        );
    }
}

fn refused(status: StatusCode, headers: &http::HeaderMap, reason: &Reason) -> Outcome {
    let message = format!(
        "the model provider answered {}{}",
        status.as_u16(),
        reason.in_parentheses()
    );
    match is_transient(status) {
        true => Outcome::Failed {
            code: "model_call_failed".to_owned(),
            message,
            retryable: true,
            retry_after: retry_after(headers, std::time::SystemTime::now()),
            may_go_on: false,
            is_timeout: false,
        },
        false => failed("model_call_rejected", message, false),
    }
}

fn missing(provider: &Provider, source: &str) -> Outcome {
    let message = format!(
        "the key of the model provider '{}' is missing: {source}",
        provider.name
    );
    failed("credential_missing", message, false)
}

fn malformed() -> Outcome {
    let message = "the model provider sent an answer that this host cannot read".to_owned();
    failed("model_call_failed", message, true)
}

fn too_large() -> Outcome {
    let message = format!("the answer of the model is larger than {MAX_TEXT} bytes");
    failed("response_too_large", message, false)
}

fn done(reply: &ModelReply) -> Outcome {
    if reply.text.len() > MAX_TEXT {
        return too_large();
    }
    Outcome::Done(json!(reply))
}
