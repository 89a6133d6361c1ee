//! `wopr a2a verify-card`: verifies the signatures of a card.
//!
//! A signature is only as trustworthy as its key. Keys come from `--keys`, or else from the URL named in the
//! card, but only if that URL has the same origin as the card. Any other URL is chosen by the card's author,
//! so the user has to decide to trust it.

use std::fs;

use anyhow::{Context as _, Result};
use clap::Args;
use serde_json::{Value, json};
use url::Url;
use wopr_connect::a2a::is_same_place;
use wopr_wire::{
    a2a::card_signature::{self, Checked, Reading},
    jws::{JwkSet, JwsError},
};

use crate::{
    agent,
    args::{Format, Remote},
    client::{self, Trust, parse_url},
    exit::{Exit, Failure},
    output::{self, Paint},
};

/// The card, and the keys to trust.
#[derive(Debug, Args)]
pub(super) struct Verify {
    /// The agent, instead of --server
    #[arg(value_name = "URL")]
    agent: Option<String>,
    /// The keys to trust: a file or URL of a JWK set [default: the URL in the card, if it has the card's
    /// origin]
    #[arg(long, value_name = "FILE|URL")]
    keys: Option<String>,
    #[command(flatten)]
    remote: Remote,
    #[command(flatten)]
    format: Format,
}

impl Verify {
    pub(super) async fn run(self) -> Result<Exit> {
        let address = self.agent.as_deref().unwrap_or(&self.remote.server);
        let trust = self.remote.authorities.read()?;
        let (url, card) = agent::card(address, self.remote.key.as_deref(), &trust).await?;
        // Without keys nothing is verified, but the signatures are listed.
        let unchecked = check(&card, &JwkSet::default())?;
        if unchecked.is_empty() {
            return Err(Failure::new(Exit::Failed, format!("the card of {address} is not signed")).into());
        }
        let keys = match &self.keys {
            Some(place) => read_keys(place, &trust).await?,
            None => fetch_keys(&said_place(&url, &unchecked)?, &trust).await?,
        };
        let checked = check(&card, &keys)?;
        let is_vouched_for = checked.iter().any(|checked| checked.outcome.is_ok());
        if self.format.json {
            let signatures: Vec<_> = checked.iter().map(as_json).collect();
            output::json(&json!({ "verified": is_vouched_for, "signatures": signatures }))?;
        } else {
            for checked in &checked {
                output::line(as_text(checked))?;
            }
        }
        if is_vouched_for {
            return Ok(Exit::Ok);
        }
        Err(Failure::new(
            Exit::Failed,
            format!("no signature of the card of {address} holds"),
        )
        .into())
    }
}

fn check(card: &Value, keys: &JwkSet) -> Result<Vec<Checked>> {
    card_signature::verify(card, keys)
        .map_err(|error| Failure::new(Exit::Failed, format!("cannot {error} of the card")).into())
}

/// Returns the key URL that the signatures name, if it has the card's origin.
fn said_place(card: &Url, signatures: &[Checked]) -> Result<Url> {
    let said = signatures
        .iter()
        .find_map(|checked| checked.header.as_ref()?.jku.clone());
    let Some(said) = said else {
        let failure = Failure::new(Exit::Failed, "the signatures do not say where their keys are");
        return Err(failure.hint("name the keys you trust with --keys").into());
    };
    let elsewhere = || {
        Failure::new(
            Exit::Failed,
            format!("the card says its keys are at {said}, which is not where the card is"),
        )
        .hint("if you trust that place, name it with --keys")
    };
    let url = parse_url(&said).map_err(|_| elsewhere())?;
    if is_same_place(card, &url) {
        Ok(url)
    } else {
        Err(elsewhere().into())
    }
}

async fn read_keys(place: &str, trust: &Trust) -> Result<JwkSet> {
    if let Ok(url) = parse_url(place) {
        return fetch_keys(&url, trust).await;
    }
    let bytes = fs::read(place).map_err(|error| {
        Failure::new(
            Exit::of_reading(&error),
            format!("cannot read the keys in {place}: {error}"),
        )
    })?;
    parse_keys(place, &bytes)
}

async fn fetch_keys(url: &Url, trust: &Trust) -> Result<JwkSet> {
    let (status, body) = client::fetch(url, trust).await?;
    if !status.is_success() {
        return Err(Failure::new(client::exit_of(status), format!("no keys at {url}: {status}")).into());
    }
    parse_keys(url.as_str(), &body)
}

fn parse_keys(place: &str, bytes: &[u8]) -> Result<JwkSet> {
    let keys = JwkSet::parse(bytes).with_context(|| format!("read the keys at {place}"))?;
    if keys.is_empty() {
        return Err(Failure::new(Exit::Failed, format!("no key at {place} can verify anything")).into());
    }
    Ok(keys)
}

fn as_json(checked: &Checked) -> Value {
    let header = checked.header.as_ref();
    let mut told = json!({
        "algorithm": header.map(|header| header.algorithm.name()),
        "kid": header.and_then(|header| header.kid.as_deref()),
    });
    match checked.outcome {
        Ok(reading) => told["covers"] = json!(name(reading)),
        Err(error) => told["error"] = json!(error.to_string()),
    }
    told
}

fn as_text(checked: &Checked) -> String {
    let paint = Paint::stdout();
    let what = match &checked.header {
        None => "a signature".to_owned(),
        Some(header) => {
            let kid = header.kid.as_deref().unwrap_or("without a name");
            format!("{} by the key {}", header.algorithm, output::plain(kid))
        }
    };
    match checked.outcome {
        Ok(reading) => format!("{} {what}: {}", paint.green("holds"), meaning(reading)),
        Err(JwsError::Signature) => format!(
            "{} {what}: of another card, or by another key",
            paint.red("fails")
        ),
        Err(JwsError::KeyType) => format!(
            "{} {what}: the key is not among those trusted",
            paint.red("fails")
        ),
        Err(error) => format!("{} {what}: cannot {error}", paint.red("fails")),
    }
}

const fn name(reading: Reading) -> &'static str {
    match reading {
        Reading::Document => "document",
        Reading::Model => "model",
        Reading::Sdk => "sdk",
    }
}

const fn meaning(reading: Reading) -> &'static str {
    match reading {
        Reading::Document => "covers the whole card",
        Reading::Model => "covers what A2A 1.0 reads of the card",
        Reading::Sdk => "covers what A2A 1.0 reads of the card, without empty members",
    }
}
