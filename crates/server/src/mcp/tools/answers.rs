//! The tool that answers questions of runs.

use futures_util::{FutureExt as _, future::BoxFuture};
use serde_json::{Value, json};
use wopr_app::{NodeAnswer, NodeAnswerError, SideRows, View};
use wopr_wire::json::{Fields, Object};

use super::{
    Ask, Failure, Hints, Outcome, Tool, runs,
    schema::{self, arguments},
};
use crate::{
    auth::Scope,
    openwop::{Problem, interrupts::late, problem::no_run},
};

/// What answers look like, by the kind of the question.
macro_rules! shapes {
    () => {
        "approval: {\"action\": \"accept\"}, {\"action\": \"reject\", \"feedback\": \"why\"} or another of data.actions; \
         clarification: {\"answers\": {\"ID\": \"text\"}} with the ids of data.questions; \
         conversation: {\"operation\": \"exchange\", \"content\": \"text\"}, or to end it \
         {\"operation\": \"close\", \"outcome\": …} with what data.outcomeSchema asks for, if it is there; \
         external-event: an object that matches the event's correlation; custom: any JSON"
    };
}
pub(super) const SHAPES: &str = shapes!();

pub(super) const TOOLS: &[Tool] = &[Tool {
    name: "wopr_answer",
    title: "Answer a question of a run",
    description: concat!(
        "Answer a question that a run waits for (run.interrupts of wopr_get_run), then wait until the run ends or needs another \
         answer. The value depends on the kind of the question. ",
        shapes!(),
        ". A resumeSchema of the question says exactly what it takes. Ask the person in charge before you approve anything on \
         their behalf.",
    ),
    hints: Hints::Adds { repeats: false },
    input: || {
        arguments(
            json!({
                "runId": schema::run_id(),
                "nodeId": { "type": "string", "minLength": 1, "description": "The nodeId of the question" },
                "interruptId": {
                    "type": "string", "minLength": 1,
                    "description": "The interruptId of the question; needed if the node asks several",
                },
                "value": { "description": "The answer, as the kind of the question wants it" },
                "waitMs": schema::wait_ms(),
            }),
            &["runId", "nodeId", "value"],
        )
    },
    output: schema::run,
    call: answer,
}];

fn answer(ask: Ask, arguments: Object) -> BoxFuture<'static, Outcome> {
    async move {
        let mut fields = Fields::of(Value::Object(arguments))?;
        let run = fields.required_text("runId")?;
        let node = fields.required_text("nodeId")?;
        let interrupt = fields.optional("interruptId")?;
        // An answer may be null.
        let value = fields
            .take("value")
            .ok_or_else(|| Problem::field("value", "is required"))?;
        let wait = runs::wait(&ask, &mut fields)?;
        fields.refuse_unknown()?;
        let run = ask
            .app()
            .find_run(&ask.caller, &run, Scope::ApprovalsRespond)
            .await?;
        let before = ask.app().head(&run).await?.ok_or_else(no_run)?;
        let answer = NodeAnswer {
            node,
            interrupt,
            value,
        };
        let answering = ask
            .app()
            .answer_at_node(&ask.caller, &run, answer, SideRows::default());
        answering.await.map_err(refused)?;
        // If a child was answered, the run shows the question until it hears from the child.
        let is_fresh = move |view: &View| view.run.head > before;
        runs::followed(&ask, &run, wait, is_fresh).await
    }
    .boxed()
}

fn refused(error: NodeAnswerError) -> Failure {
    let mut problem = match error {
        NodeAnswerError::Failed(error) => late(error).into(),
        NodeAnswerError::NotTheVoter(_) | NodeAnswerError::Ambiguous(_) | NodeAnswerError::Changed(_) => {
            Problem::from(error)
        }
    };
    // The answer is an argument of another name here than over REST.
    let field = problem
        .envelope
        .details
        .as_mut()
        .and_then(|details| details.get_mut("field"));
    if let Some(field) = field
        && *field == "resumeValue"
    {
        *field = "value".into();
    }
    problem.into()
}
