//! `core.http.request`: its settings, and a body whose strings may be templates.

use serde_json::{Map, Value};
use wopr_kernel::SecretHeader;

use super::config::Config;
use crate::{
    expression::{ExpressionError, Template, is_template},
    schema::Allowance,
};

#[derive(Debug)]
pub(crate) struct HttpNode {
    /// In upper case.
    pub method: String,
    /// An input port `url` takes precedence.
    pub url: Option<Template>,
    pub headers: Vec<(String, Template)>,
    /// Headers with secrets of the host.
    pub secret_headers: Vec<SecretHeader>,
    /// JSON; an input port `body` takes precedence.
    pub body: Option<Body>,
    pub timeout_ms: u64,
}

/// A JSON value whose strings may be templates.
#[derive(Debug)]
pub(crate) enum Body {
    /// Contains no templates.
    Static(Value),
    Text(Template),
    Array(Vec<Body>),
    Object(Vec<(String, Body)>),
}

/// Default timeout of an HTTP attempt.
const HTTP_TIMEOUT_MS: u64 = 30_000;
/// Maximum timeout of an HTTP attempt, in milliseconds.
pub const HTTP_MAX_TIMEOUT_MS: u64 = 600_000;

impl HttpNode {
    pub(super) fn read(config: Config<'_>, allowance: &Allowance) -> Result<Self, String> {
        let method = config.text("method")?.unwrap_or("GET").to_ascii_uppercase();
        if !["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"].contains(&method.as_str()) {
            return Err(format!("config.method '{method}' is not offered by this host"));
        }
        let url = match config.text("url")? {
            None => None,
            Some(url) => Some(Template::compile(url, allowance).map_err(|e| format!("config.url: {e}"))?),
        };
        let mut secret_headers = Vec::new();
        let headers = match config.0.get("headers") {
            None => Vec::new(),
            Some(Value::Object(headers)) => headers
                .iter()
                .filter(|(name, value)| match secret_header(name, value) {
                    Some(header) => {
                        secret_headers.push(header);
                        false
                    }
                    None => true,
                })
                .map(|(name, value)| {
                    let value = value.as_str().ok_or_else(|| {
                        format!("config.headers.{name} is neither a string nor {{secret, prefix?}}")
                    })?;
                    Ok((
                        name.clone(),
                        Template::compile(value, allowance)
                            .map_err(|e| format!("config.headers.{name}: {e}"))?,
                    ))
                })
                .collect::<Result<Vec<_>, String>>()?,
            Some(_) => return Err("config.headers is not an object".to_owned()),
        };
        let timeout_ms = config.millis("timeoutMs")?.unwrap_or(HTTP_TIMEOUT_MS);
        if !(1..=HTTP_MAX_TIMEOUT_MS).contains(&timeout_ms) {
            return Err(format!(
                "config.timeoutMs is not within 1 to {HTTP_MAX_TIMEOUT_MS}"
            ));
        }
        Ok(Self {
            method,
            url,
            headers,
            secret_headers,
            body: match config.0.get("body") {
                None => None,
                Some(body) => Some(Body::read(body, allowance).map_err(|e| format!("config.body: {e}"))?),
            },
            timeout_ms,
        })
    }
}

/// A header that is written as `{"secret": NAME, "prefix"?: TEXT}`.
fn secret_header(name: &str, value: &Value) -> Option<SecretHeader> {
    let fields = value.as_object()?;
    let text = |field: &str| fields.get(field).and_then(Value::as_str);
    let is_known = fields
        .keys()
        .all(|field| ["secret", "prefix"].contains(&field.as_str()));
    let secret = text("secret").filter(|secret| !secret.is_empty())?;
    (is_known && fields.get("prefix").is_none_or(Value::is_string)).then(|| SecretHeader {
        name: name.to_owned(),
        secret: secret.to_owned(),
        prefix: text("prefix").unwrap_or_default().to_owned(),
    })
}

impl Body {
    pub(super) fn read(value: &Value, allowance: &Allowance) -> Result<Self, ExpressionError> {
        Ok(match value {
            Value::String(text) if is_template(text) => Self::Text(Template::compile(text, allowance)?),
            Value::Array(items) => Self::Array(
                items
                    .iter()
                    .map(|item| Self::read(item, allowance))
                    .collect::<Result<_, _>>()?,
            ),
            Value::Object(fields) => Self::Object(
                fields
                    .iter()
                    .map(|(name, field)| Ok((name.clone(), Self::read(field, allowance)?)))
                    .collect::<Result<_, ExpressionError>>()?,
            ),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Self::Static(value.clone()),
        })
    }

    /// The value with its strings rendered; fails with the first error of `render`.
    pub(crate) fn fill<E>(
        &self,
        render: &mut impl FnMut(&Template) -> Result<String, E>,
    ) -> Result<Value, E> {
        match self {
            Self::Static(value) => Ok(value.clone()),
            Self::Text(template) => render(template).map(Value::String),
            Self::Array(items) => {
                let items = items.iter().map(|item| item.fill(render));
                items.collect::<Result<_, _>>().map(Value::Array)
            }
            Self::Object(fields) => {
                let mut filled = Map::new();
                for (name, field) in fields {
                    filled.insert(name.clone(), field.fill(render)?);
                }
                Ok(Value::Object(filled))
            }
        }
    }
}
