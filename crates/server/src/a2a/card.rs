//! The agent card: what a client of either version reads first.
//!
//! It is made from the workflows that messages are routed to and from the registry discovery shows, each time it is
//! asked for, so it names nothing that does not work. The public card shows what every client of this host shares:
//! the shared workflows and those of the default tenant. Without a version header it is one document both versions
//! read.

use std::collections::HashMap;

use axum::{body::Body, response::Response};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use parking_lot::Mutex;
use serde_json::Value;
use sha2::{Digest, Sha256};
use url::Url;
use wopr_core::{Object, Plan, TenantId, WorkflowId};
use wopr_wire::a2a::{
    error::A2aError,
    method::{VERSION_HEADER, Version},
    model::{AgentCapabilities, AgentCard, AgentExtension, AgentInterface, AgentSkill},
    v03,
};

use super::{
    Binding, EXTENSIONS, Extension, INPUT_MODES, OUTPUT_MODES,
    card_security::{self, Security},
    modes::Modes,
};
use crate::{Host, auth::hex, host::default_tenant};

/// How long a client may keep a card.
const CACHE_CONTROL: &str = "public, max-age=60";
/// How long a verifier may keep the keys: as long as they are safe to be missed after a change.
const KEYS_CACHE_CONTROL: &str = "public, max-age=600";
/// The tag of a skill whose workflow has none.
const TAG: &str = "workflow";
/// Characters of the card's hash in its `ETag`.
const ETAG_LEN: usize = 32;

/// Which form of the card is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Union,
    Pure(Version),
}

impl Form {
    fn of(headers: &HeaderMap) -> Result<Self, A2aError> {
        let named = headers.get(VERSION_HEADER).map(HeaderValue::to_str);
        match named {
            None => Ok(Self::Union),
            Some(Ok(text)) if text.trim().is_empty() => Ok(Self::Union),
            Some(Ok(text)) => Version::from_header(Some(text)).map(Self::Pure),
            Some(Err(_)) => Err(A2aError::version_not_supported("?")),
        }
    }
}

/// When each card of this host last changed, as far as this process knows. Holds one entry per card that exists.
#[derive(Debug, Default)]
pub(super) struct Freshness(Mutex<HashMap<Option<WorkflowId>, Known>>);

#[derive(Debug)]
struct Known {
    hash: String,
    since: jiff::Timestamp,
}

impl Freshness {
    /// The time since when a card has this hash.
    fn since(&self, card: Option<&WorkflowId>, hash: &str) -> jiff::Timestamp {
        let mut known = self.0.lock();
        let fresh = || Known {
            hash: hash.to_owned(),
            since: jiff::Timestamp::now(),
        };
        let entry = known.entry(card.cloned()).or_insert_with(fresh);
        if entry.hash != hash {
            *entry = fresh();
        }
        entry.since
    }
}

/// Which card, and for whom.
pub(super) struct Subject<'a> {
    /// Whose workflows.
    pub(super) tenant: &'a TenantId,
    /// The one workflow it is about, or all.
    pub(super) workflow: Option<&'a WorkflowId>,
    /// Whether the reader may start runs; without that there are no skills.
    pub(super) may_start: bool,
}

/// Answers a request for the keys that verify signed cards; without signatures there are none to publish.
pub(super) fn keys(host: &Host) -> Response {
    let Some(signer) = host.card_signer() else {
        return super::transport::nothing("cards of this host are not signed");
    };
    let mut response = Response::new(Body::from(signer.key_set()));
    set(&mut response, header::CONTENT_TYPE, "application/json");
    set(&mut response, header::CACHE_CONTROL, KEYS_CACHE_CONTROL);
    response
}

/// Answers a request for the card of the host, or of one workflow.
pub(super) fn respond(
    host: &Host,
    freshness: &Freshness,
    workflow: Option<&WorkflowId>,
    headers: &HeaderMap,
) -> Response {
    let form = match Form::of(headers) {
        Ok(form) => form,
        Err(error) => return super::transport::error_response(host, &error, Version::V1_0),
    };
    let subject = Subject {
        tenant: &default_tenant(),
        workflow,
        may_start: true,
    };
    let Some(card) = card(host, &subject) else {
        return super::transport::status_response(
            StatusCode::NOT_FOUND,
            "NOT_FOUND",
            "there is no such agent",
        );
    };
    let whole = Form::Pure(Version::V1_0);
    let (Ok(body), Ok(whole)) = (encode(host, &card, form), encode(host, &card, whole)) else {
        tracing::error!("agent card does not serialise");
        return super::transport::error_response(host, &A2aError::Internal, Version::V1_0);
    };
    let etag = format!("\"{}\"", hash(&body));
    let since = freshness.since(workflow, &hash(&whole));
    let is_known = headers
        .get_all(header::IF_NONE_MATCH)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(|tag| tag.trim().trim_start_matches("W/"))
        .any(|tag| tag == "*" || tag == etag);
    let mut response = if is_known {
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::NOT_MODIFIED;
        response
    } else {
        let mut response = Response::new(Body::from(body));
        set(&mut response, header::CONTENT_TYPE, "application/json");
        response
    };
    set(&mut response, header::ETAG, &etag);
    set(&mut response, header::CACHE_CONTROL, CACHE_CONTROL);
    set(&mut response, header::VARY, VERSION_HEADER);
    let modified = since.strftime("%a, %d %b %Y %H:%M:%S GMT").to_string();
    set(&mut response, header::LAST_MODIFIED, &modified);
    response
}

fn set(response: &mut Response, name: HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        response.headers_mut().insert(name, value);
    }
}

fn hash(bytes: &[u8]) -> String {
    let mut hash = hex(&Sha256::digest(bytes));
    hash.truncate(ETAG_LEN);
    hash
}

fn encode(host: &Host, card: &AgentCard, form: Form) -> Result<Vec<u8>, serde_json::Error> {
    let mut document = document(card, form)?;
    let signatures = host.card_signer().map(|signer| signer.sign(&document));
    if let (Some(members), Some(signatures)) = (document.as_object_mut(), signatures) {
        members.insert("signatures".to_owned(), serde_json::to_value(signatures)?);
    }
    serde_json::to_vec(&document)
}

/// A card without signatures, in the form it will be sent in.
fn document(card: &AgentCard, form: Form) -> Result<Value, serde_json::Error> {
    let old = || v03::AgentCard::from(card.clone());
    match form {
        Form::Union => v03::union_card(card, &old()),
        Form::Pure(Version::V1_0) => serde_json::to_value(card),
        Form::Pure(Version::V0_3) => serde_json::to_value(old()),
    }
}

/// A card with the signatures of the form one version gives it.
pub(super) fn signed(
    host: &Host,
    mut card: AgentCard,
    version: Version,
) -> Result<AgentCard, serde_json::Error> {
    if let Some(signer) = host.card_signer() {
        card.signatures = signer.sign(&document(&card, Form::Pure(version))?);
    }
    Ok(card)
}

/// The card of the host, or of one workflow; none if that is no skill.
pub(super) fn card(host: &Host, subject: &Subject<'_>) -> Option<AgentCard> {
    let workflow = subject.workflow;
    let plans = host.engine().workflows(subject.tenant);
    let mut plans: Vec<_> = plans
        .iter()
        .filter(|plan| plan.definition.is_public() && workflow.is_none_or(|wanted| plan.id() == wanted))
        .collect();
    plans.sort_by(|a, b| a.id().cmp(b.id()));
    let (name, description, base) = match (workflow, plans.first()) {
        (Some(_), None) => return None,
        (Some(id), Some(plan)) => {
            let skill = skill(plan);
            (
                skill.name,
                skill.description,
                format!("{}/a2a/w/{id}", host.public_url()),
            )
        }
        (None, _) => (
            "wopr".to_owned(),
            "Durable workflows: every task survives the process that runs it.".to_owned(),
            format!("{}/a2a", host.public_url()),
        ),
    };
    let capabilities = host.discovery().capabilities();
    let served = capabilities.a2a_interfaces.iter();
    // An address of gRPC has no path, so a workflow has none of its own.
    let served = served.filter(|(binding, _)| workflow.is_none() || *binding != Binding::Grpc);
    let interfaces = served.map(|(binding, version)| AgentInterface {
        url: match binding {
            Binding::JsonRpc | Binding::HttpJson => base.clone(),
            Binding::Grpc => authority(host.public_url()),
        },
        protocol_binding: binding.as_str().to_owned(),
        protocol_version: version.to_string(),
        tenant: None,
    });
    let Security {
        schemes,
        requirements,
    } = card_security::of(host);
    if !subject.may_start {
        plans.clear();
    }
    Some(AgentCard {
        name,
        description,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        supported_interfaces: interfaces.collect(),
        provider: None,
        documentation_url: None,
        icon_url: None,
        capabilities: AgentCapabilities {
            streaming: Some(capabilities.a2a_streaming),
            push_notifications: Some(capabilities.a2a_push),
            extensions: EXTENSIONS.iter().map(extension).collect(),
            extended_agent_card: Some(capabilities.a2a_extended_card),
        },
        security_schemes: schemes,
        security_requirements: requirements,
        default_input_modes: INPUT_MODES.map(str::to_owned).to_vec(),
        default_output_modes: OUTPUT_MODES.map(str::to_owned).to_vec(),
        skills: plans.into_iter().map(|plan| skill(plan)).collect(),
        signatures: Vec::new(),
    })
}

/// Host and port of an origin, as clients of gRPC are told an address.
fn authority(origin: &str) -> String {
    let Ok(url) = Url::parse(origin) else {
        return origin.to_owned();
    };
    let host = url.host_str().unwrap_or_default();
    match url.port_or_known_default() {
        Some(port) => format!("{host}:{port}"),
        None => host.to_owned(),
    }
}

/// An extension; none is required.
fn extension(extension: &Extension) -> AgentExtension {
    AgentExtension {
        uri: extension.uri.to_owned(),
        description: Some(extension.about.to_owned()),
        required: false,
        params: Object::new(),
    }
}

/// A workflow as a skill.
fn skill(plan: &Plan) -> AgentSkill {
    let definition = &plan.definition;
    let texts = |name: &str| -> Vec<String> {
        let list = definition.metadata.get(name).and_then(Value::as_array);
        let list = list.into_iter().flatten().filter_map(Value::as_str);
        list.map(str::to_owned).collect()
    };
    let mut tags = texts("tags");
    if tags.is_empty() {
        tags.push(TAG.to_owned());
    }
    let (input_modes, output_modes) = Modes::of(plan).told();
    let name = definition.name.clone();
    let description = (definition.description.clone()).filter(|text| !text.is_empty());
    AgentSkill {
        id: plan.id().to_string(),
        description: description.unwrap_or_else(|| name.clone()),
        name,
        tags,
        examples: texts("examples"),
        input_modes,
        output_modes,
        ..AgentSkill::default()
    }
}
