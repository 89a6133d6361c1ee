//! The hook that switches capabilities off and on again.

use futures_util::{FutureExt as _, future::BoxFuture};
use http::StatusCode;
use serde_json::{Value, json};
use wopr_wire::json::{Decode, DecodeError, Fields};

use crate::{
    auth::Scope,
    openwop::{
        answer::{Answer, json_response},
        call::Call,
        capability::Switch,
        problem::Problem,
    },
};

/// The name with which the suite finds out whether the hook exists.
const PROBE: &str = "__probe__";

/// The body of `POST /v1/host/sample/test/capability-toggle`.
#[derive(Debug)]
struct Toggle {
    name: Option<String>,
    value: Value,
    reset: bool,
}

impl Decode for Toggle {
    fn decode(value: Value) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(value)?;
        let toggle = Self {
            name: fields.optional("name")?,
            value: fields.or_default("value")?,
            reset: fields.or_default("reset")?,
        };
        fields.refuse_unknown()?;
        Ok(toggle)
    }
}

/// `POST /v1/host/sample/test/capability-toggle`
pub(in super::super) fn toggle_capability(call: Call) -> BoxFuture<'static, Answer> {
    async move {
        call.caller().require(Scope::WorkflowsWrite)?;
        let Toggle { name, value, reset } = call.decode()?;
        let discovery = call.host.discovery();
        let overlay = match (name.as_deref(), reset) {
            (None, true) if value.is_null() => discovery.reset(),
            (None, true) => return Err(Problem::field("value", "must not be set beside reset")),
            (Some(PROBE), false) => discovery.overlay(),
            (Some(name), false) => {
                let switch = Switch::parse(name).ok_or_else(|| {
                    let known = Switch::ALL.map(Switch::name).join(", ");
                    Problem::field("name", &format!("must be one of {known}"))
                })?;
                let value = match value {
                    Value::Null => None,
                    Value::Bool(value) => Some(value),
                    Value::Number(_) | Value::String(_) | Value::Array(_) | Value::Object(_) => {
                        return Err(Problem::field("value", "must be true, false or null"));
                    }
                };
                discovery.switch(switch, value)
            }
            (None, false) => return Err(Problem::field("name", "is required, unless reset is true")),
            (Some(_), true) => return Err(Problem::field("reset", "must not be true beside a name")),
        };
        json_response(StatusCode::OK, &json!({ "overlay": overlay }))
    }
    .boxed()
}
