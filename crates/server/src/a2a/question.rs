//! Open interrupts of a run, including those of its descendants.
//!
//! A task shows every open interrupt; those of children are read from the children. A stream shows events,
//! whose interrupts may have been resolved since. Those are looked up in the child's log, from its end
//! backwards.

use serde_json::{Value, json};
use wopr_app::{App, AskedAt, Error as AppError, MAX_SHOWN, Open, View, Waiting, within};
use wopr_core::{Event, InterruptKind, Recorded, RunKey, Seq};
use wopr_wire::a2a::model::{Message, Part, Role};

use super::answer::{Asked, questions};

/// An open interrupt.
#[derive(Debug, Clone)]
pub(super) struct Question {
    /// The node at which this run waits.
    pub(super) waiting: Waiting,
    /// The node that requested the interrupt. `None` if it is no longer open there.
    pub(super) asked: Option<AskedAt>,
    /// The descendants between the run and that node, each with the position up to which its log was read.
    pub(super) way: Vec<(RunKey, Seq)>,
}

impl Question {
    /// The part of the interrupt that is needed to read an answer.
    pub(super) fn for_answer(&self) -> Asked<'_> {
        Asked {
            kind: self.waiting.kind,
            data: self.asked.as_ref().map_or(&Value::Null, |asked| &asked.data),
        }
    }

    /// Builds `metadata.openwop.interrupt`. Its kind is OpenWOP's; the durable record has only two kinds (RFC
    /// 0100).
    pub(super) fn metadata(&self) -> Value {
        let mut interrupt = json!({
            "kind": self.waiting.kind.as_str(),
            "interruptId": self.waiting.id(),
            "nodeId": self.waiting.step.node.as_str(),
        });
        if let Some(asked) = &self.asked {
            interrupt["data"] = asked.data.clone();
        }
        interrupt
    }

    /// Builds the agent's message. The same interrupt always has the same message id.
    pub(super) fn message(&self, run: &str, context: &str) -> Message {
        let mut parts = vec![Part::text(self.text())];
        if let Some(asked) = &self.asked {
            parts.push(Part::data(asked.data.clone()));
        }
        let mut message = Message::new(format!("{run}.{}", self.waiting.id()), Role::Agent, parts);
        message.task_id = Some(run.to_owned());
        message.context_id = Some(context.to_owned());
        message
    }

    fn text(&self) -> String {
        let data = self.asked.as_ref().map_or(&Value::Null, |asked| &asked.data);
        let text = |name: &str| data.get(name).and_then(Value::as_str);
        match self.waiting.kind {
            InterruptKind::Approval => {
                let lines = ["title", "prompt", "description"].into_iter().filter_map(text);
                join(lines).unwrap_or_else(|| "An approval is needed.".to_owned())
            }
            InterruptKind::Clarification => join(questions(data).iter().map(|question| question.text))
                .unwrap_or_else(|| "A clarification is needed.".to_owned()),
            InterruptKind::ExternalEvent => match text("eventType") {
                Some(event) => format!("Waiting for the event '{event}'."),
                None => "Waiting for an event.".to_owned(),
            },
            InterruptKind::Custom => join(["title", "prompt", "description"].into_iter().filter_map(text))
                .unwrap_or_else(|| "An answer is needed.".to_owned()),
        }
    }
}

fn join<'t>(lines: impl Iterator<Item = &'t str>) -> Option<String> {
    let lines: Vec<_> = lines.filter(|line| !line.trim().is_empty()).collect();
    (!lines.is_empty()).then(|| lines.join("\n"))
}

/// Returns the interrupt that an event of this run requested, if any.
pub(super) async fn asked_by(
    app: &App,
    key: &RunKey,
    recorded: &Recorded,
) -> Result<Option<Question>, AppError> {
    match &recorded.event {
        Event::InterruptRequested { step, kind, .. } => Ok(Some(Question {
            waiting: Waiting {
                step: step.clone(),
                kind: *kind,
                child: None,
            },
            asked: AskedAt::requested(key, recorded),
            way: Vec::new(),
        })),
        Event::NodeSuspended {
            step,
            interrupt,
            kind,
            child: Some(child),
        } => {
            let waiting = Waiting {
                step: step.clone(),
                kind: *kind,
                child: Some((child.clone(), interrupt.clone())),
            };
            let id = within(interrupt, step);
            let (asked, way) = app.look_up_question(key.sibling(child.clone()), id).await?;
            Ok(Some(Question { waiting, asked, way }))
        }
        _ => Ok(None),
    }
}

/// Lists the open interrupts of a run, oldest first.
pub(super) async fn open(app: &App, view: &View) -> Result<Vec<Question>, AppError> {
    let mut questions = Vec::new();
    for open in view.run.interrupts(&view.plan) {
        if questions.len() >= MAX_SHOWN {
            break;
        }
        let asked = app.questions_at(view, &open).await?;
        if asked.is_empty() {
            // The child has its answer, but the run has not received the child's message yet.
            questions.push(Question {
                waiting: Waiting::from(&open),
                asked: None,
                way: Vec::new(),
            });
        }
        questions.extend(asked.into_iter().map(Question::from));
    }
    questions.truncate(MAX_SHOWN);
    Ok(questions)
}

/// Lists the open interrupts of a child other than the one its parent mirrors.
pub(super) async fn beside(app: &App, view: &View, mirrored: &Waiting) -> Result<Vec<Question>, AppError> {
    let mut open = view.run.interrupts(&view.plan);
    let Some(open) = open.find(|open| Waiting::from(open) == *mirrored) else {
        return Ok(Vec::new());
    };
    let asked = app.questions_at(view, &open).await?.into_iter();
    Ok(asked
        .filter(|open| open.id != mirrored.id())
        .map(Question::from)
        .collect())
}

impl From<Open> for Question {
    fn from(open: Open) -> Self {
        let Open {
            id,
            kind,
            shown_at,
            child,
            asked,
            way,
        } = open;
        let waiting = Waiting {
            step: shown_at,
            kind,
            child: child.map(|child| (child, id)),
        };
        Self {
            waiting,
            asked: Some(asked),
            way,
        }
    }
}

/// Looks up an interrupt in the log.
pub(super) async fn in_log(app: &App, key: &RunKey, waiting: &Waiting) -> Result<Question, AppError> {
    let (asked, way) = match &waiting.child {
        None => {
            let (asked, _) = app.look_up_question(key.clone(), &waiting.step.key()).await?;
            (asked, Vec::new())
        }
        Some((child, id)) => {
            let id = within(id, &waiting.step);
            app.look_up_question(key.sibling(child.clone()), id).await?
        }
    };
    Ok(Question {
        waiting: waiting.clone(),
        asked,
        way,
    })
}
