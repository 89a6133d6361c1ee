//! Answers requests, whichever transport they came by. Nothing is kept between two requests.

use serde_json::{Value, json};
use wopr_core::{MAX_NESTING, too_deep};

use super::{
    ask::Ask,
    message::{Error, Request},
    prompts, resources, tools,
    version::{self, Caching, Era, dress},
};

/// The method that calls a tool.
const CALL: &str = "tools/call";

/// What a model is told about this server as a whole.
const INSTRUCTIONS: &str = "\
wopr runs durable workflows. Start one with wopr_start_run, follow it with wopr_watch_run until it ends or waits for an \
answer, and answer with wopr_answer. A call never waits longer than the host allows: a result whose status is pending or \
running says that the run goes on, and its member next says how to look again. Runs survive restarts, so a lost connection \
loses nothing.";

/// What the transport allows a server to do by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Channel {
    /// It can tell the client that the list of tools has changed.
    pub(super) tells_changes: bool,
}

/// Only workflows that are tools change the list, and clients without a handshake get no notifications that they did not
/// ask for.
fn capabilities(ask: &Ask, channel: Channel, era: Era) -> Value {
    let tells_changes =
        channel.tells_changes && ask.host.config().mcp.workflow_tools && era == Era::WithOpening;
    json!({ "tools": { "listChanged": tells_changes }, "resources": {}, "prompts": {} })
}

fn info() -> Value {
    json!({ "name": "wopr", "title": "wopr", "version": env!("CARGO_PKG_VERSION") })
}

/// Answers one request.
///
/// # Cancel safety
/// A dropped call no longer waits; what it has started goes on.
pub(super) async fn answer(ask: Ask, request: Request, channel: Channel) -> Result<Value, Error> {
    let Request {
        id: _,
        method,
        params,
    } = request;
    // The arguments of a tool are its own to check.
    let mut others = params
        .iter()
        .filter(|(name, _)| method != CALL || *name != tools::ARGUMENTS);
    if others.any(|(_, value)| too_deep(value)) {
        return Err(Error::invalid(format!(
            "params nest more than {MAX_NESTING} levels deep"
        )));
    }
    let era = version::era(&method, &params)?;
    let has_opening = era == Era::WithOpening;
    let (caching, result) = match method.as_str() {
        "initialize" if has_opening => {
            let agreed = version::agreed(&params);
            let result = json!({
                "protocolVersion": agreed,
                "capabilities": capabilities(&ask, channel, era),
                "serverInfo": info(),
                "instructions": INSTRUCTIONS,
            });
            (Caching::Never, result)
        }
        "ping" if has_opening => (Caching::Never, json!({})),
        "server/discover" => {
            let discovered = version::discovered(&capabilities(&ask, channel, era), &info(), INSTRUCTIONS);
            (Caching::Stale, discovered)
        }
        "tools/list" => (Caching::Stale, tools::list(&ask, &params)?),
        CALL => (Caching::Never, tools::call(ask, params).await?),
        "resources/list" => {
            only_page(&params)?;
            (Caching::Stale, resources::list(&ask).await?)
        }
        "resources/templates/list" => {
            only_page(&params)?;
            (Caching::Stale, resources::templates())
        }
        "resources/read" => (Caching::Stale, resources::read(&ask, era, &params).await?),
        "prompts/list" => {
            only_page(&params)?;
            (Caching::Stale, prompts::list())
        }
        "prompts/get" => (Caching::Never, prompts::get(&params)?),
        _ => return Err(Error::no_method(&method)),
    };
    Ok(dress(era, caching, result))
}

/// Refuses a cursor for a list that has one page.
fn only_page(params: &wopr_wire::json::Object) -> Result<(), Error> {
    match params.get("cursor") {
        None | Some(Value::Null) => Ok(()),
        Some(_) => Err(Error::invalid("cursor is none of this list")),
    }
}
