//! One event of every kind that agents cause, for tests of what is stored and shown.

use serde_json::json;
use wopr_core::{
    StepId, Timestamp,
    openwop::{
        Act, AgentEvent, CallError, CallStatus, Change, ConversationEvent, Event, Invocation, Outcome, Role,
        Target, Transport, Turn, Verbosity, Verdict,
    },
};

/// Every act of an agent, with all fields set.
#[must_use]
pub fn agent_events(step: &StepId) -> Vec<Event> {
    let acts = [
        Act::Invoked(Invocation {
            model_class: Some("reasoning".to_owned()),
            model: Some("large".to_owned()),
            provider: Some("default".to_owned()),
            version: Some("1.2.0".to_owned()),
            n_tools: Some(2),
            has_memory: Some(true),
        }),
        Act::ReasoningDelta {
            delta: "First, ".to_owned(),
            sequence: 3,
            verbosity: Some(Verbosity::Full),
        },
        Act::Reasoned {
            reasoning: "First, look.".to_owned(),
            verbosity: Some(Verbosity::Summary),
            tokens: Some(12),
        },
        Act::ToolCalled {
            call: "gate:1:0".to_owned(),
            tool: "search:web".to_owned(),
            inputs: Some(json!({ "q": "wopr" })),
            args_hash: Some("0f".repeat(32)),
            principal: Some("ada@example".to_owned()),
            transport: Some(Transport::Mcp),
        },
        Act::ToolReturned {
            call: "gate:1:0".to_owned(),
            tool: "search:web".to_owned(),
            status: CallStatus::RateLimited,
            outcome: Some(json!(["hit"])),
            error: Some(CallError {
                code: "rate_limited".to_owned(),
                message: "later".to_owned(),
                details: Some(json!({ "after": 3 })),
            }),
            duration_ms: Some(5),
        },
        Act::HandedOff {
            to: "acme.writer".to_owned(),
            reason: Some("it writes".to_owned()),
            context: Some(json!({ "topic": "spring" })),
        },
        Act::Decided {
            decision: json!({ "next": "done" }),
            confidence: Some(0.5),
            reasoning: Some("enough is known".to_owned()),
        },
        Act::Verified {
            target: Target::Id("gate:1:0".to_owned()),
            verdict: Verdict::Revise,
            criteria: vec!["complete".to_owned()],
            confidence: Some(0.75),
        },
        Act::Finished {
            outcome: Outcome::HandedOff,
            confidence: Some(0.5),
            is_valid: Some(true),
        },
    ];
    let turn = |index, role, from: &str| Turn {
        index,
        message: format!("m{index}"),
        from: from.to_owned(),
        role,
        content: json!({ "text": "hello" }),
        at: Timestamp::from_millis(1_700_000_000_003),
    };
    let conversation = [
        (turn(0, Role::System, "acme.reader"), Change::Opened),
        (turn(1, Role::Agent, "acme.reader"), Change::Exchanged),
        (
            turn(2, Role::User, "ada"),
            Change::Closed {
                outcome: Some(json!({ "agreed": true })),
                reason: Some("done".to_owned()),
            },
        ),
    ];
    let conversation = conversation.into_iter().map(|(turn, change)| {
        Event::Conversation(Box::new(ConversationEvent {
            step: step.clone(),
            turn,
            change,
        }))
    });
    let event = |act| AgentEvent {
        step: step.clone(),
        attempt: 1,
        agent: "acme.reader".to_owned(),
        act,
    };
    acts.into_iter()
        .map(|act| Event::Agent(Box::new(event(act))))
        .chain(conversation)
        .collect()
}
