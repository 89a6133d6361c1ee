//! The HTML page of an interrupt, with the same tokens, rules and statuses as for JSON clients.
//!
//! A form must not come from another site. It is converted to the answer that a JSON client would send, and
//! resolved by the same command. The response redirects the browser back to the page (303), which shows the
//! outcome; reloading the page resubmits nothing.

use http::{HeaderValue, StatusCode, header};
use serde_json::Value;
use wopr_app::{Conversation, Error as AppError, REDACTED, Settled, View, VisibleRun, reference};
use wopr_core::{
    ApprovalAction, Asked, Event, InterruptKind, KernelEvent, NodeId, Open, Rules, RunStatus, Timestamp,
};

use super::{
    answer::Answer,
    call::Call,
    dispatch, interrupts,
    problem::{Problem, no_interrupt},
    render::{self, Mask},
};
use crate::{
    message::{Body, Response},
    page::{
        self,
        content::Artifact,
        conversation::Said,
        fields::{Form, FormError},
        gate::{Closed, Gate, Refused, refusal},
    },
    tokens::{Claims, Holder, Intent},
};

impl From<FormError> for Problem {
    fn from(error: FormError) -> Self {
        Self::invalid(error.to_string())
    }
}

/// Renders a problem as a page.
pub(super) fn problem(problem: Problem) -> Response {
    let Problem {
        status,
        envelope,
        headers,
    } = problem;
    let mut response = page::respond(status, refusal(status, &envelope.error, &envelope.message));
    response.headers_mut().extend(headers);
    response
}

/// Shows the interrupt of a token.
pub(super) async fn show(call: &Call) -> Answer {
    let (claims, expires_at) = open(call)?;
    let view = load(call, &claims).await?;
    match gate(call, &claims, expires_at, &view).await? {
        Some(gate) => Ok(page::respond(StatusCode::OK, gate.page(None))),
        None => closed(call, &claims, &view).await,
    }
}

/// Resolves the interrupt of a token with a form.
pub(super) async fn submit(call: &Call) -> Answer {
    let (claims, expires_at) = open(call)?;
    if claims.intent == Intent::Inspect {
        return Err(Problem::forbidden("the token is for looking only"));
    }
    if page::is_foreign(&call.headers, call.host.public_url()) {
        return Err(Problem::forbidden("the form was sent by another site"));
    }
    let is_page = page::prefers_html(&call.headers);
    // A JSON body with a form's media type is a mistake, e.g. of curl, which sends it by default.
    if !is_page && call.body.trim_ascii_start().first() == Some(&b'{') {
        return Err(dispatch::unsupported_media_type());
    }
    let form = Form::parse(&call.body)?;
    let view = load(call, &claims).await?;
    let Some(gate) = gate(call, &claims, expires_at, &view).await? else {
        if is_page {
            return closed(call, &claims, &view).await;
        }
        return Err(interrupts::closed(&call.host, &view, &claims.interrupt()).await);
    };
    let refused = match gate.answer(&form) {
        Ok(value) => match interrupts::answer_by_token(call, claims.clone(), value).await {
            Ok(_) if is_page => return Ok(see_other(call)),
            Ok(response) => return Ok(response),
            Err(problem) => problem,
        },
        Err(why) => Problem::invalid(why).with("field", "resumeValue"),
    };
    let is_correctable = matches!(
        refused.status,
        StatusCode::BAD_REQUEST
            | StatusCode::UNAUTHORIZED
            | StatusCode::FORBIDDEN
            | StatusCode::UNPROCESSABLE_ENTITY
    );
    if is_page && is_correctable {
        let why = refused.envelope.message.as_ref();
        let refusal = Refused { form: &form, why };
        let mut response = page::respond(refused.status, gate.page(Some(refusal)));
        response.headers_mut().extend(refused.headers);
        return Ok(response);
    }
    if is_page && matches!(refused.status, StatusCode::CONFLICT | StatusCode::GONE) {
        let view = load(call, &claims).await?;
        return closed(call, &claims, &view).await;
    }
    Err(refused)
}

/// Redirects to the page. The reference is relative, so it also works behind a proxy that adds a path prefix.
fn see_other(call: &Call) -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SEE_OTHER;
    let headers = response.headers_mut();
    if let Ok(token) = HeaderValue::from_str(call.param(0)) {
        headers.insert(header::LOCATION, token);
    }
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    response
}

fn open(call: &Call) -> Result<(Claims, Timestamp), Problem> {
    let now = call.host.app().now();
    Ok(call.host.tokens().open_until(call.param(0), now)?)
}

async fn load(call: &Call, claims: &Claims) -> Result<View, Problem> {
    let run = VisibleRun::by_token(claims.key.clone());
    let view = call.host.app().view(&run).await?;
    view.ok_or_else(no_interrupt)
}

/// The open interrupt for the page; `None` if it is closed.
async fn gate<'v>(
    call: &Call,
    claims: &'v Claims,
    expires_at: Timestamp,
    view: &'v View,
) -> Result<Option<Gate<'v>>, Problem> {
    let Some((open, talk)) = asked(view, claims) else {
        return Ok(None);
    };
    let data = Mask::of(&view.plan).question(&claims.node, &open.data);
    let named = data.get("artifactId").and_then(Value::as_str);
    // A gate without an artifact has its own node id there.
    let named = named.filter(|id| *id != claims.node.as_str());
    let artifact = match (data.get("artifactData"), named) {
        (Some(content), _) if !content.is_null() => Some(given(content, &data)),
        (_, Some(id)) => artifact(call, view, &claims.holder, id).await?,
        (_, None) => None,
    };
    let only_shown = if needs_credential(view, claims, open.kind) {
        Some("This link only shows the question: its approvers answer with a credential of their own.")
    } else {
        (claims.intent == Intent::Inspect).then_some("This link only shows the question.")
    };
    Ok(Some(Gate {
        workflow: view.plan.name(),
        node: claims.node.as_str(),
        kind: open.kind,
        data,
        is_untrusted: open.is_untrusted || talk.as_ref().is_some_and(Conversation::is_untrusted),
        artifact,
        requested_at: Some(render::time(open.requested_at)),
        expires_at: render::time(expires_at),
        now: render::time(call.host.app().now()),
        votes: open.votes.iter().map(|vote| vote.action).collect(),
        own_vote: open
            .votes
            .iter()
            .find(|vote| vote.voter == *claims.holder.principal.as_str())
            .map(|vote| vote.action),
        exchanges: exchanges(view, &claims.node),
        conversation: talk.map(|talk| said(&talk, &claims.holder)).unwrap_or_default(),
        only_shown,
        holder: claims.holder.is_named.then_some(claims.holder.principal.as_str()),
    }))
}

/// Returns `true` if this interrupt takes answers only from callers with a credential.
fn needs_credential(view: &View, claims: &Claims, kind: InterruptKind) -> bool {
    let position = view.plan.position(&claims.node);
    let rules = position.and_then(|position| view.plan.rules(position, kind));
    matches!(rules, Some(Rules::Approval(rules)) if rules.auth_required)
}

/// The open interrupt that the token's claims name, with its conversation if it is a turn of one.
fn asked<'v>(view: &'v View, claims: &Claims) -> Option<(&'v Open, Option<Conversation>)> {
    let open = view
        .run
        .interrupts(&view.plan)
        .find(|open| open.id() == claims.interrupt())?;
    match open.asked {
        Asked::Here(asked) if view.run.status != RunStatus::Cancelling => {
            Some((asked, Conversation::of(view, &open)))
        }
        Asked::Here(_) | Asked::Child(..) => None,
    }
}

/// An artifact whose content is in the interrupt's data.
fn given(content: &Value, data: &Value) -> Artifact {
    let text = |name: &str| data.get(name).and_then(Value::as_str).unwrap_or("").to_owned();
    Artifact {
        id: text("artifactId"),
        name: "Content".to_owned(),
        artifact_type: text("artifactType"),
        content: content.clone(),
        is_redacted: content == REDACTED,
        is_untrusted: false,
    }
}

/// An artifact of the run, with its content trust. If the token's holder may not read artifacts, a reference
/// replaces the content.
async fn artifact(call: &Call, view: &View, holder: &Holder, id: &str) -> Result<Option<Artifact>, AppError> {
    let Some(known) = view.run.artifact(id) else {
        return Ok(None);
    };
    let mask = Mask::of(&view.plan);
    let mut found = None;
    let run = VisibleRun::from(view);
    // The node's completion, right after its artifact, records the origin of the content. Read the events one
    // by one: a page may end with a large artifact.
    for seq in [known.seq, known.seq.next()] {
        let page = call.host.app().events(&run, seq, 1).await?;
        let Some(recorded) = page.and_then(|page| page.events.into_iter().next()) else {
            break;
        };
        let is_marked = recorded.is_untrusted;
        let Event::Kernel(event) = recorded.event else {
            continue;
        };
        match (event, &mut found) {
            (
                KernelEvent::ArtifactCreated {
                    step,
                    artifact,
                    artifact_type,
                    name,
                    content,
                },
                None,
            ) => {
                let shown = if holder.reads_artifacts {
                    mask.content(&step.node, &content)
                } else {
                    reference(&step.node)
                };
                let is_redacted = !holder.reads_artifacts || shown != content;
                let is_untrusted = is_marked || is_untrusted(content.get("contentTrust"));
                let name = if name.is_empty() { artifact.clone() } else { name };
                let made = Artifact {
                    id: artifact,
                    name,
                    artifact_type,
                    content: shown,
                    is_redacted,
                    is_untrusted,
                };
                found = Some((step, made));
            }
            (
                KernelEvent::NodeCompleted {
                    step: done, outputs, ..
                },
                Some((step, artifact)),
            ) if done == *step => {
                artifact.is_untrusted |= is_marked || is_untrusted(outputs.get("contentTrust"));
            }
            _ => {}
        }
    }
    Ok(found.map(|(_, artifact)| artifact))
}

fn is_untrusted(trust: Option<&Value>) -> bool {
    trust.and_then(Value::as_str) == Some("untrusted")
}

/// Questions that approvers asked at a gate, unless the workflow marks them as sensitive.
fn exchanges(view: &View, node: &NodeId) -> Vec<String> {
    if Mask::of(&view.plan).hides_answers(node) {
        return Vec::new();
    }
    let asked = view.run.variables().get(&format!("_askExchanges:{node}"));
    let asked = asked.and_then(Value::as_array).into_iter().flatten();
    asked
        .filter_map(|exchange| exchange.get("question")?.as_str())
        .map(str::to_owned)
        .collect()
}

/// The turns that the page lists. It shows the gate's own turn as its prompt.
fn said(conversation: &Conversation, holder: &Holder) -> page::conversation::Conversation {
    let turns = conversation.turns(holder.reads_artifacts);
    let said = turns.filter(|turn| turn.index > 0).map(|turn| Said {
        index: turn.index,
        from: turn.from,
        content: turn.content,
    });
    page::conversation::Conversation {
        said: said.collect(),
        next: conversation.n_turns() as u64,
    }
}

/// The page of an interrupt that is no longer open, with the status that JSON clients get.
async fn closed(call: &Call, claims: &Claims, view: &View) -> Answer {
    let status = interrupts::closed_status(view);
    let settled = call.host.app().settled(&view.into(), &claims.interrupt()).await?;
    let closed = match settled {
        Settled::Answered { action, at } => {
            Closed::Answered(action.map(ApprovalAction::as_str), render::time(at))
        }
        Settled::TimedOut => Closed::TimedOut,
        Settled::Withdrawn => Closed::Withdrawn,
        Settled::RunEnded(status) => Closed::Ended(status.as_str()),
        Settled::Closed => Closed::Otherwise,
    };
    let page = closed.page(view.plan.name(), claims.node.as_str());
    Ok(page::respond(status, page))
}
