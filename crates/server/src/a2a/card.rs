//! The agent card, the first document that a client of either version reads.
//!
//! The card is built from the registered workflows and the capabilities in the discovery registry, and
//! rebuilt when a workflow changes. The public card lists the operator's workflows and those that a caller of
//! the default tenant registered with `metadata.public: true`. All other workflows appear only on the
//! extended card of their tenant. Without a version header, the card is one document that clients of both
//! versions can read, unless `a2a.card_version` says otherwise.

use std::collections::HashMap;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri, header};
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
    card_security::{self, Security},
    ingress::card_version,
    modes::Modes,
    supported::{Binding, EXTENSIONS, Extension, INPUT_MODES, OUTPUT_MODES},
};
use crate::{
    Host,
    brief::{Brief, label},
    config::{CardVersion, default_tenant},
    hex,
    message::{Body, Response},
};

/// How long a client may cache a public card.
const CACHE_CONTROL: &str = "public, max-age=60";
/// An extended card must be revalidated, because its reader may lose a scope at any time.
const OWN_CACHE_CONTROL: &str = "private, no-cache";
/// Date formats in headers. We send the first and accept all (RFC 9110, section 5.6.7).
const DATES: [&str; 3] = [
    "%a, %d %b %Y %H:%M:%S GMT",
    "%A, %d-%b-%y %H:%M:%S GMT",
    "%a %b %e %H:%M:%S %Y",
];
/// How long a verifier may cache the keys. A new key may stay unknown to it that long.
const KEYS_CACHE_CONTROL: &str = "public, max-age=600";
/// The tag of a skill whose workflow has none.
const TAG: &str = "workflow";
/// Number of characters of the card's hash in its `ETag`.
const ETAG_LEN: usize = 32;

/// Maximum number of encoded cards to cache. Each form of a card is one entry; cards of one workflow are
/// small.
const MAX_MADE: usize = 256;
/// Maximum number of cards whose last change is remembered.
const MAX_KNOWN: usize = 4_096;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Form {
    /// One document for clients of either version.
    Union,
    /// For clients of one version.
    Pure(Version),
    /// For 0.3 clients over HTTP+JSON.
    OldHttp,
}

impl Form {
    /// Selects the form by the version that the client asks for, or by the configuration. A client that asks for an
    /// unsupported version gets the configured form, which lists the supported versions.
    fn of(host: &Host, asked: Option<Version>) -> Self {
        asked.map_or_else(
            || match host.config().a2a.card_version {
                CardVersion::Union => Self::Union,
                CardVersion::V1_0 => Self::Pure(Version::V1_0),
                CardVersion::V0_3 => Self::Pure(Version::V0_3),
            },
            Self::Pure,
        )
    }
}

/// Cache of the cards last sent, with the time each one last changed as observed by this process.
#[derive(Debug, Default)]
pub(super) struct Cards {
    /// One entry per card, up to [`MAX_KNOWN`].
    known: Mutex<HashMap<Option<WorkflowId>, Known>>,
    made: Mutex<HashMap<(Option<WorkflowId>, Form), Made>>,
}

#[derive(Debug)]
struct Known {
    hash: String,
    since: jiff::Timestamp,
}

/// An encoded card. Workflows are the only part of its content that can change while the host runs.
#[derive(Debug, Clone)]
struct Made {
    /// The workflows generation that it was built from.
    generation: u64,
    body: Bytes,
    etag: String,
    since: jiff::Timestamp,
}

impl Cards {
    /// Returns the card in a form, or `None` if the workflow has no card.
    fn get(
        &self,
        host: &Host,
        workflow: Option<&WorkflowId>,
        form: Form,
    ) -> Result<Option<Made>, serde_json::Error> {
        // Read the generation before the workflows, so that a change in between is noticed by the next
        // request.
        let generation = host.app().workflows_generation();
        let place = (workflow.cloned(), form);
        if let Some(made) = self.made.lock().get(&place)
            && made.generation == generation
        {
            return Ok(Some(made.clone()));
        }
        let subject = Subject {
            readers: Readers::Everybody,
            workflow,
            may_start: true,
        };
        let Some(card) = card(host, &subject) else {
            return Ok(None);
        };
        let body = encode(host, &card, form)?;
        let whole = encode(host, &card, Form::Pure(Version::V1_0))?;
        let since = self.since(workflow, &hash(&whole));
        let made = Made {
            generation,
            etag: format!("\"{}\"", hash(&body)),
            since,
            body: Bytes::from(body),
        };
        let mut all = self.made.lock();
        if all.len() >= MAX_MADE {
            all.clear();
        }
        all.insert(place, made.clone());
        Ok(Some(made))
    }

    /// Returns the time at which the card first had this hash.
    fn since(&self, card: Option<&WorkflowId>, hash: &str) -> jiff::Timestamp {
        let mut known = self.known.lock();
        let fresh = || Known {
            hash: hash.to_owned(),
            since: jiff::Timestamp::now(),
        };
        // Cards of removed workflows are among them. The others count as changed now, which costs their readers one
        // more answer.
        if known.len() >= MAX_KNOWN && !known.contains_key(&card.cloned()) {
            known.clear();
        }
        let entry = known.entry(card.cloned()).or_insert_with(fresh);
        if entry.hash != hash {
            // HTTP dates have no fractions of a second, so a second change within one second gets the next
            // second.
            let later = entry.since.as_second() + 1;
            let later = jiff::Timestamp::from_second(later).unwrap_or(entry.since);
            *entry = fresh();
            entry.since = entry.since.max(later);
        }
        entry.since
    }
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Readers<'a> {
    Everybody,
    /// Any caller of the tenant.
    Tenant(&'a TenantId),
}

pub(super) struct Subject<'a> {
    pub(super) readers: Readers<'a>,
    /// The only workflow on the card, or `None` for all.
    pub(super) workflow: Option<&'a WorkflowId>,
    /// If `false`, the card lists no skills.
    pub(super) may_start: bool,
}

pub(super) fn keys(host: &Host) -> Response {
    let Some(signer) = host.card_signer() else {
        return super::transport::nothing("cards of this host are not signed");
    };
    let mut response = Response::new(Body::from(signer.key_set()));
    set(&mut response, header::CONTENT_TYPE, "application/json");
    set(&mut response, header::CACHE_CONTROL, KEYS_CACHE_CONTROL);
    response
}

pub(super) fn respond(
    host: &Host,
    cards: &Cards,
    workflow: Option<&WorkflowId>,
    uri: &Uri,
    headers: &HeaderMap,
) -> Response {
    let Made {
        body, etag, since, ..
    } = match cards.get(host, workflow, Form::of(host, card_version(uri, headers))) {
        Ok(Some(made)) => made,
        Ok(None) => {
            return super::transport::status_response(
                StatusCode::NOT_FOUND,
                "NOT_FOUND",
                "there is no such agent",
            );
        }
        Err(error) => {
            tracing::error!(%error, "agent card does not serialise");
            return super::transport::error_response(host, &A2aError::Internal, Version::V1_0);
        }
    };
    let is_known = is_known(headers, &etag).unwrap_or_else(|| is_as_old(headers, since));
    let mut response = unless(is_known, body);
    set(&mut response, header::ETAG, &etag);
    set(&mut response, header::CACHE_CONTROL, CACHE_CONTROL);
    set(&mut response, header::VARY, VERSION_HEADER);
    let modified = since.strftime(DATES[0]).to_string();
    set(&mut response, header::LAST_MODIFIED, &modified);
    response
}

/// Answers with a card that only this caller may see (A2A 1.0 section 13.3).
pub(super) fn of_caller(headers: &HeaderMap, body: Vec<u8>) -> Response {
    let etag = format!("\"{}\"", hash(&body));
    let is_known = is_known(headers, &etag).unwrap_or(false);
    let mut response = unless(is_known, Bytes::from(body));
    set(&mut response, header::ETAG, &etag);
    set(&mut response, header::CACHE_CONTROL, OWN_CACHE_CONTROL);
    set(&mut response, header::VARY, "Authorization, A2A-Version");
    response
}

/// Responds with the card, or with 304 if the client already has it.
fn unless(is_known: bool, body: Bytes) -> Response {
    if is_known {
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::NOT_MODIFIED;
        return response;
    }
    let mut response = Response::new(Body::from(body));
    set(&mut response, header::CONTENT_TYPE, "application/json");
    response
}

/// Compares `If-None-Match` with a tag. `None` if the header is missing.
fn is_known(headers: &HeaderMap, etag: &str) -> Option<bool> {
    let tags = headers.get_all(header::IF_NONE_MATCH);
    tags.iter().next()?;
    let tags = tags.iter().filter_map(|value| value.to_str().ok());
    let mut tags = tags
        .flat_map(|value| value.split(','))
        .map(|tag| tag.trim().trim_start_matches("W/"));
    Some(tags.any(|tag| tag == "*" || tag == etag))
}

/// Returns `true` if the card has not changed since `If-Modified-Since`. Ignores a value that is not a date.
fn is_as_old(headers: &HeaderMap, since: jiff::Timestamp) -> bool {
    let value = headers.get(header::IF_MODIFIED_SINCE);
    let read = value.and_then(|value| value.to_str().ok()).and_then(http_date);
    read.is_some_and(|read| since.as_second() <= read.as_second())
}

fn http_date(text: &str) -> Option<jiff::Timestamp> {
    let read = |form: &&str| jiff::civil::DateTime::strptime(*form, text.trim()).ok();
    let date = DATES.iter().find_map(read)?;
    date.to_zoned(jiff::tz::TimeZone::UTC)
        .ok()
        .map(|date| date.timestamp())
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

/// Builds an unsigned card in the form in which it is sent.
fn document(card: &AgentCard, form: Form) -> Result<Value, serde_json::Error> {
    let old = || v03::AgentCard::from(card.clone());
    match form {
        Form::Union => v03::union_card(card, &old()),
        Form::Pure(Version::V1_0) => serde_json::to_value(card),
        Form::Pure(Version::V0_3) => serde_json::to_value(old()),
        Form::OldHttp => v03::http_card(card),
    }
}

/// Encodes a card for 0.3 over HTTP+JSON, with the signatures of that form.
pub(super) fn old_http(host: &Host, mut card: AgentCard) -> Result<Vec<u8>, serde_json::Error> {
    card.signatures.clear();
    encode(host, &card, Form::OldHttp)
}

/// Signs a card in the form of one version.
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

/// Builds the card of the host, or of one workflow. `None` if the workflow is not a skill.
pub(super) fn card(host: &Host, subject: &Subject<'_>) -> Option<AgentCard> {
    let workflow = subject.workflow;
    let plans = match subject.readers {
        Readers::Everybody => host.app().public_workflows(&default_tenant()),
        Readers::Tenant(tenant) => host.app().workflows(tenant),
    };
    let mut plans: Vec<_> = plans
        .iter()
        .filter(|plan| plan.is_public() && workflow.is_none_or(|wanted| plan.id() == wanted))
        .collect();
    plans.sort_by(|a, b| a.id().cmp(b.id()));
    let brief = Brief::among(plans.len());
    let (name, description, base) = match (workflow, plans.first()) {
        (Some(_), None) => return None,
        (Some(id), Some(plan)) => {
            let skill = skill(plan, brief);
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
    // A gRPC address has no path, so a single workflow cannot have one.
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
        skills: plans.iter().map(|plan| skill(plan, brief)).collect(),
        signatures: Vec::new(),
    })
}

/// Converts an origin to the `host:port` that gRPC clients expect.
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

/// Describes an extension. We require none.
fn extension(extension: &Extension) -> AgentExtension {
    AgentExtension {
        uri: extension.uri.to_owned(),
        description: Some(extension.about.to_owned()),
        required: false,
        params: Object::new(),
    }
}

/// Describes a workflow as a skill.
fn skill(plan: &Plan, brief: Brief) -> AgentSkill {
    let texts = |name: &str| -> Vec<String> {
        let list = plan.metadata(name).and_then(Value::as_array);
        brief.labels(list.into_iter().flatten().filter_map(Value::as_str))
    };
    let mut tags = texts("tags");
    if tags.is_empty() {
        tags.push(TAG.to_owned());
    }
    let (input_modes, output_modes) = Modes::of(plan).told();
    let description = plan.description().filter(|text| !text.is_empty());
    AgentSkill {
        id: plan.id().to_string(),
        description: brief
            .description(description.unwrap_or_else(|| plan.name()))
            .into_owned(),
        name: label(plan.name()).into_owned(),
        tags,
        examples: texts("examples"),
        input_modes,
        output_modes,
        ..AgentSkill::default()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;
    use crate::{
        Config,
        auth::Scopes,
        config::{CardAlgorithm, Key, Secret, StoreUrl},
    };

    async fn host() -> Arc<Host> {
        let mut config = Config {
            store: StoreUrl::Memory,
            ..Config::default()
        };
        config.a2a.card_signing = vec![CardAlgorithm::EdDsa, CardAlgorithm::Es256];
        config.auth.keys = vec![Key {
            id: "k".to_owned(),
            secret: Some(Secret::new("0123456789abcdef")),
            secret_sha256: None,
            tenant: default_tenant(),
            principal: None,
            scopes: Scopes::ALL,
            roles: Vec::new(),
            groups: Vec::new(),
        }];
        Host::open(config).await.expect("opens")
    }

    fn workflow(id: &str) -> Value {
        json!({
            "id": id, "name": id, "version": "1", "edges": [], "triggers": [], "variables": [], "metadata": {},
            "settings": {}, "nodes": [{"id": "n", "typeId": "core.noop", "name": "n",
                "position": {"x": 0, "y": 0}, "config": {}, "inputs": {}}],
        })
    }

    #[tokio::test]
    async fn card_is_cached_until_a_workflow_changes() {
        let host = host().await;
        host.app().register_for_all(workflow("one")).await.expect("valid");
        let cards = Cards::default();
        let made = |name: Option<&str>, form| {
            let id = name.map(|name| WorkflowId::parse(name).expect("an id"));
            let made = cards.get(&host, id.as_ref(), form).expect("serialises");
            made.map(|made| made.body)
        };
        let union = made(None, Form::Union).expect("a card");
        let pure = made(None, Form::Pure(Version::V1_0)).expect("a card");
        assert_ne!(union, pure);
        // The cache must return the same bytes, not merely equal ones.
        let again = made(None, Form::Union).expect("a card");
        assert_eq!(again.as_ptr(), union.as_ptr());
        assert_eq!(made(Some("two"), Form::Union), None);
        host.app().register_for_all(workflow("two")).await.expect("valid");
        assert!(made(Some("two"), Form::Union).is_some());
        let changed = made(None, Form::Union).expect("a card");
        assert_ne!(changed, union);
        assert_eq!(
            made(None, Form::Union).expect("a card").as_ptr(),
            changed.as_ptr()
        );
    }

    #[tokio::test]
    async fn card_cache_is_bounded() {
        let host = host().await;
        let cards = Cards::default();
        for n in 0..MAX_MADE + 10 {
            let id = format!("w{n}");
            host.app().register_for_all(workflow(&id)).await.expect("valid");
            let id = WorkflowId::parse(&id).expect("an id");
            let made = cards.get(&host, Some(&id), Form::Union).expect("serialises");
            assert!(made.is_some() && cards.made.lock().len() <= MAX_MADE);
        }
    }

    #[test]
    fn remembered_changes_of_cards_are_bounded() {
        let cards = Cards::default();
        for n in 0..MAX_KNOWN + 10 {
            let id = WorkflowId::parse(&format!("w{n}")).expect("an id");
            cards.since(Some(&id), "a");
        }
        assert_eq!(cards.known.lock().len(), 10);
    }

    #[test]
    fn parses_all_http_date_formats() {
        let wanted = jiff::Timestamp::from_second(784_111_777).unwrap();
        for text in [
            "Sun, 06 Nov 1994 08:49:37 GMT",
            "Sunday, 06-Nov-94 08:49:37 GMT",
            "Sun Nov  6 08:49:37 1994",
        ] {
            assert_eq!(http_date(text), Some(wanted), "{text}");
        }
        assert_eq!(
            wanted.strftime(DATES[0]).to_string(),
            "Sun, 06 Nov 1994 08:49:37 GMT"
        );
        for text in [
            "",
            "yesterday",
            "1994-11-06T08:49:37Z",
            "Sun, 06 Nov 1994 08:49:37 +0100",
        ] {
            assert_eq!(http_date(text), None, "{text}");
        }
    }

    #[test]
    fn two_changes_within_a_second_get_two_dates() {
        let cards = Cards::default();
        let dates: Vec<_> = ["a", "a", "b", "c", "c"]
            .map(|hash| cards.since(None, hash).as_second())
            .to_vec();
        assert_eq!(dates[0], dates[1]);
        assert!(dates[1] < dates[2] && dates[2] < dates[3]);
        assert_eq!(dates[3], dates[4]);
    }
}
