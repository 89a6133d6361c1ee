//! The arguments of operations, as a client sends them. What an operation does not know, it refuses.

use serde_json::Value;
use wopr_core::{
    Object,
    awp::{ActivityMode, HostOutcome, ParallelSpan},
};
use wopr_wire::json::{DecodeError, Fields, Problem};

use super::{error::Error, tool::Tool};

/// The most bytes of a definition, an input or a payload, as JSON.
pub(super) const MAX_BYTES: usize = 2 << 20;
/// The most bytes of an id, a name or a reason.
const MAX_TEXT: usize = 512;
/// The most bytes of what a host says of a failure.
const MAX_ERROR: usize = 8 << 10;
/// The most bytes of the code of a failure.
const MAX_CODE: usize = 128;

/// Takes the arguments of one operation apart.
pub(super) struct Arguments {
    tool: Tool,
    fields: Fields,
}

impl Arguments {
    pub(super) fn of(tool: Tool, arguments: Object) -> Result<Self, Error> {
        let fields = Fields::of(Value::Object(arguments)).map_err(|error| refused(tool, &error))?;
        Ok(Self { tool, fields })
    }

    fn read<T>(&self, read: Result<T, DecodeError>) -> Result<T, Error> {
        read.map_err(|error| refused(self.tool, &error))
    }

    fn rule(&self, name: &str, rule: impl Into<String>) -> Error {
        let error = DecodeError::invalid(rule.into()).in_field(name);
        refused(self.tool, &error)
    }

    /// A name that may be absent, but not empty.
    pub(super) fn name(&mut self, name: &str) -> Result<Option<String>, Error> {
        let read = self.fields.optional::<String>(name);
        let text = self.read(read)?;
        if text
            .as_ref()
            .is_some_and(|text| text.is_empty() || text.len() > MAX_TEXT)
        {
            return Err(self.rule(name, format!("must have 1 to {MAX_TEXT} bytes")));
        }
        Ok(text)
    }

    pub(super) fn required_name(&mut self, name: &str) -> Result<String, Error> {
        self.name(name)?
            .ok_or_else(|| refused(self.tool, &DecodeError::missing().in_field(name)))
    }

    /// An object of bounded size; `None` where it is absent.
    pub(super) fn object(&mut self, name: &str) -> Result<Option<Object>, Error> {
        let Some(value) = self.fields.take(name) else {
            return Ok(None);
        };
        if let Some((rule, details)) = oversized(name, &value) {
            return Err(self.rule(name, rule).with(details));
        }
        match value {
            Value::Object(object) => Ok(Some(object)),
            _ => Err(refused(
                self.tool,
                &DecodeError::wrong_type("an object").in_field(name),
            )),
        }
    }

    pub(super) fn required_object(&mut self, name: &str) -> Result<Object, Error> {
        self.object(name)?
            .ok_or_else(|| refused(self.tool, &DecodeError::missing().in_field(name)))
    }

    /// A list, bounded by the request.
    pub(super) fn required_list(&mut self, name: &str) -> Result<Vec<Value>, Error> {
        match self.fields.take(name) {
            Some(Value::Array(items)) => Ok(items),
            Some(_) => Err(refused(
                self.tool,
                &DecodeError::wrong_type("an array").in_field(name),
            )),
            None => Err(refused(self.tool, &DecodeError::missing().in_field(name))),
        }
    }

    /// A list of at most so many objects, each of bounded size; empty where it is absent.
    pub(super) fn objects(&mut self, name: &str, most: usize) -> Result<Vec<Object>, Error> {
        let items = match self.fields.take(name) {
            None => return Ok(Vec::new()),
            Some(Value::Array(items)) if items.len() <= most => items,
            Some(Value::Array(_)) => return Err(self.rule(name, format!("must have at most {most} items"))),
            Some(_) => {
                return Err(refused(
                    self.tool,
                    &DecodeError::wrong_type("an array").in_field(name),
                ));
            }
        };
        let object = |item: Value| match item {
            item if json_bytes(&item) > MAX_BYTES => Err(self.rule(
                name,
                format!("must have items of at most {MAX_BYTES} bytes as JSON"),
            )),
            Value::Object(object) => Ok(object),
            _ => Err(self.rule(name, "must have objects as items")),
        };
        items.into_iter().map(object).collect()
    }

    /// A list of lists, bounded by the request; empty where it is absent.
    pub(super) fn lists(&mut self, name: &str) -> Result<Vec<Vec<Value>>, Error> {
        let Some(lists) = self.fields.take(name) else {
            return Ok(Vec::new());
        };
        let Value::Array(lists) = lists else {
            return Err(self.rule(name, "must be an array of arrays"));
        };
        let lists = lists.into_iter().map(|list| match list {
            Value::Array(items) => Some(items),
            _ => None,
        });
        let lists: Option<_> = lists.collect();
        lists.ok_or_else(|| self.rule(name, "must be an array of arrays"))
    }

    pub(super) fn flag(&mut self, name: &str) -> Result<bool, Error> {
        let read = self.fields.or_default(name);
        self.read(read)
    }

    /// An optional flag; `None` if absent.
    pub(super) fn optional_flag(&mut self, name: &str) -> Result<Option<bool>, Error> {
        let read = self.fields.optional(name);
        self.read(read)
    }

    pub(super) fn number(&mut self, name: &str) -> Result<Option<u64>, Error> {
        match self.fields.take(name) {
            None => Ok(None),
            Some(value) => value
                .as_u64()
                .map(Some)
                .ok_or_else(|| self.rule(name, "must be a whole number")),
        }
    }

    pub(super) fn mode(&mut self) -> Result<Option<ActivityMode>, Error> {
        const NAME: &str = "activity_execution_mode";
        let read = self.fields.optional::<String>(NAME);
        match self.read(read)? {
            None => Ok(None),
            Some(word) => ActivityMode::parse(&word)
                .map(Some)
                .ok_or_else(|| self.rule(NAME, "must be in_process or host_mediated")),
        }
    }

    pub(super) fn span(&mut self) -> Result<Option<ParallelSpan>, Error> {
        const NAME: &str = "parallel_span";
        let Some(value) = self.fields.take(NAME) else {
            return Ok(None);
        };
        let read = read_span(value).map_err(|error| error.in_field(NAME));
        self.read(read).map(Some)
    }

    pub(super) fn outcome(&mut self) -> Result<HostOutcome, Error> {
        const NAME: &str = "outcome";
        let read = match self.fields.take(NAME) {
            None => Err(DecodeError::missing()),
            Some(value) => read_outcome(value),
        };
        self.read(read.map_err(|error| error.in_field(NAME)))
    }

    /// Refuses what the operation does not know.
    pub(super) fn end(self) -> Result<(), Error> {
        let tool = self.tool;
        self.fields
            .refuse_unknown()
            .map_err(|error| refused(tool, &error))
    }
}

fn read_span(value: Value) -> Result<ParallelSpan, DecodeError> {
    let mut fields = Fields::of(value)?;
    let span = ParallelSpan {
        parallel_node_id: fields.required("parallel_node_id")?,
        join_target_id: fields.required("join_target_id")?,
        branch_name: fields.required("branch_name")?,
        branch_entry_node_id: fields.required("branch_entry_node_id")?,
    };
    fields.refuse_unknown()?;
    Ok(span)
}

fn read_outcome(value: Value) -> Result<HostOutcome, DecodeError> {
    let bounded = |name: &str, text: Option<String>, most: usize| match text {
        Some(text) if text.len() > most => {
            Err(DecodeError::invalid(format!("must have at most {most} bytes")).in_field(name))
        }
        text => Ok(text),
    };
    let mut fields = Fields::of(value)?;
    let outcome = if fields.required("ok")? {
        let result = match fields.take("result") {
            None => Value::Object(Object::new()),
            Some(result @ Value::Object(_)) => result,
            Some(_) => return Err(DecodeError::wrong_type("an object").in_field("result")),
        };
        if json_bytes(&result) > MAX_BYTES {
            return Err(
                DecodeError::invalid(format!("must have at most {MAX_BYTES} bytes")).in_field("result"),
            );
        }
        let correlation = fields.optional("delegate_correlation_id")?;
        let task = fields.optional("external_task_id")?;
        HostOutcome::Completed {
            result,
            delegate_correlation_id: bounded("delegate_correlation_id", correlation, 2 * MAX_TEXT)?,
            external_task_id: bounded("external_task_id", task, MAX_TEXT)?,
        }
    } else {
        let error: String = fields.required("error")?;
        if error.is_empty() {
            return Err(DecodeError::invalid("must not be empty").in_field("error"));
        }
        let code = fields.optional("code")?;
        HostOutcome::Failed {
            error: bounded("error", Some(error), MAX_ERROR)?.unwrap_or_default(),
            code: bounded("code", code, MAX_CODE)?,
        }
    };
    fields.refuse_unknown()?;
    Ok(outcome)
}

fn refused(tool: Tool, error: &DecodeError) -> Error {
    let rule = match error.problem() {
        Problem::Missing => "is required".to_owned(),
        problem => problem.to_string(),
    };
    let path = error.path();
    let message = match path.is_empty() {
        true => rule,
        false => format!("{path} {rule}"),
    };
    Error::invalid(tool, message).with(serde_json::json!({ "field": path }))
}

/// Returns the rule that a value breaks if it is too large, and the details of the error.
pub(super) fn oversized(name: &str, value: &Value) -> Option<(String, Value)> {
    let bytes = json_bytes(value);
    let details = serde_json::json!({ "label": name, "bytes": bytes, "maxBytes": MAX_BYTES });
    (bytes > MAX_BYTES).then(|| (format!("must have at most {MAX_BYTES} bytes as JSON"), details))
}

/// The length of a value as JSON.
fn json_bytes(value: &Value) -> usize {
    struct Counter(usize);

    impl std::io::Write for Counter {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    let mut counter = Counter(0);
    serde_json::to_writer(&mut counter, value).expect("a value is written to a counter");
    counter.0
}
