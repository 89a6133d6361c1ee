//! What a run asks, and where: at one of its own nodes, or at a node of a child, or of a child's child.
//!
//! A task shows every question that is open, those of children as the children have them now. A stream tells of
//! events, whose questions may have been answered since: they are looked up in the child's log, from its end backwards.

use serde_json::{Value, json};
use wopr_core::{Event, InterruptKind, Recorded, RunKey, Seq, StepId};
use wopr_engine::{Engine, View};
use wopr_store::ReadError;
use wopr_wire::a2a::model::{Message, Part, Role};

use super::{
    answer::{Asked, questions},
    projection::{Waiting, waiting},
};
use crate::{
    asked::{self, AskedAt, MAX_SHOWN, Open},
    auth::Caller,
    tokens::{Claims, Holder, Intent},
};

/// Events read at once while a question is looked for.
const PAGE: usize = 256;
/// Pages read before a question counts as lost: older ones are not open any more.
const MAX_PAGES: usize = 16;
/// Deepest chain of children a question is followed through; the kernel refuses deeper ones.
const MAX_DEPTH: usize = 40;

/// What a run asks.
#[derive(Debug, Clone)]
pub(super) struct Question {
    /// Where this run waits.
    pub(super) waiting: Waiting,
    /// Where it is asked; none if it is not asked there any more.
    pub(super) asked: Option<AskedAt>,
    /// The children on the way to it, each with how far its log was read.
    pub(super) way: Vec<(RunKey, Seq)>,
}

impl AskedAt {
    fn requested(key: &RunKey, recorded: &Recorded) -> Option<Self> {
        let Event::InterruptRequested {
            step,
            data,
            timeout_ms,
            ..
        } = &recorded.event
        else {
            return None;
        };
        Some(Self {
            key: key.clone(),
            step: step.clone(),
            data: data.clone(),
            at: recorded.at,
            deadline: timeout_ms.map(|ms| recorded.at.plus_millis(ms)),
        })
    }

    /// What a token for the question opens that a caller is shown.
    pub(super) fn claims(&self, caller: &Caller) -> Claims {
        Claims {
            key: self.key.clone(),
            node: self.step.node.clone(),
            ordinal: self.step.ordinal,
            intent: Intent::Resolve,
            holder: Holder::reader(caller, &self.data),
        }
    }
}

impl Question {
    /// The question, for reading an answer to it.
    pub(super) fn for_answer(&self) -> Asked<'_> {
        Asked {
            kind: self.waiting.kind,
            data: self.asked.as_ref().map_or(&Value::Null, |asked| &asked.data),
        }
    }

    /// `metadata.openwop.interrupt`. Its kind is OpenWOP's; the durable record has but two words (RFC 0100).
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

    /// What the agent says when it asks. The same question is always the same message.
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

/// What an event of this run asks, if it does.
pub(super) async fn asked_by(
    engine: &Engine,
    key: &RunKey,
    recorded: &Recorded,
) -> Result<Option<Question>, ReadError> {
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
            let (asked, way) = look_up(engine, key.sibling(child.clone()), id).await?;
            Ok(Some(Question { waiting, asked, way }))
        }
        _ => Ok(None),
    }
}

/// Every question a run waits for, the first asked first.
pub(super) async fn open(engine: &Engine, view: &View) -> Result<Vec<Question>, ReadError> {
    let mut questions = Vec::new();
    for open in view.run.interrupts(&view.plan) {
        if questions.len() >= MAX_SHOWN {
            break;
        }
        let asked = asked::at(engine, view, &open).await?;
        if asked.is_empty() {
            // The child has its answer, and the run has not heard of it.
            questions.push(Question {
                waiting: waiting(&open),
                asked: None,
                way: Vec::new(),
            });
        }
        questions.extend(asked.into_iter().map(Question::from));
    }
    questions.truncate(MAX_SHOWN);
    Ok(questions)
}

/// What a child asks now besides the question that its parent mirrors.
pub(super) async fn beside(
    engine: &Engine,
    view: &View,
    mirrored: &Waiting,
) -> Result<Vec<Question>, ReadError> {
    let mut open = view.run.interrupts(&view.plan);
    let Some(open) = open.find(|open| waiting(open) == *mirrored) else {
        return Ok(Vec::new());
    };
    let asked = asked::at(engine, view, &open).await?.into_iter();
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

/// What a run waits for, from its log.
pub(super) async fn in_log(engine: &Engine, key: &RunKey, waiting: &Waiting) -> Result<Question, ReadError> {
    let (asked, way) = match &waiting.child {
        None => {
            let (asked, _) = look_up(engine, key.clone(), &waiting.step.key()).await?;
            (asked, Vec::new())
        }
        Some((child, id)) => {
            let id = within(id, &waiting.step);
            look_up(engine, key.sibling(child.clone()), id).await?
        }
    };
    Ok(Question {
        waiting: waiting.clone(),
        asked,
        way,
    })
}

/// The id that a child's interrupt has there, of the id that its parent shows at an execution.
pub(super) fn within<'i>(id: &'i str, step: &StepId) -> &'i str {
    let inner = id.strip_prefix(step.key().as_str());
    inner.and_then(|inner| inner.strip_prefix('/')).unwrap_or(id)
}

/// Finds an interrupt in a run's log, or in that of the child it mirrors; and the runs that were read on the way, each
/// up to the event that tells of it.
async fn look_up(
    engine: &Engine,
    key: RunKey,
    id: &str,
) -> Result<(Option<AskedAt>, Vec<(RunKey, Seq)>), ReadError> {
    let (mut key, mut id, mut way) = (key, id, Vec::new());
    for _ in 0..MAX_DEPTH {
        match find(engine, &key, id).await? {
            Some((seq, Found::Here(asked))) => {
                way.push((key, seq.next()));
                return Ok((Some(asked), way));
            }
            Some((seq, Found::Child(child, step))) => {
                way.push((key, seq.next()));
                key = child;
                id = within(id, &step);
            }
            None => break,
        }
    }
    Ok((None, Vec::new()))
}

enum Found {
    Here(AskedAt),
    Child(RunKey, StepId),
}

async fn find(engine: &Engine, key: &RunKey, id: &str) -> Result<Option<(Seq, Found)>, ReadError> {
    let Some((_, head)) = engine.store().summary(key).await? else {
        return Ok(None);
    };
    let mut end = head;
    for _ in 0..MAX_PAGES {
        let Some(page) = engine.events_before(key, end, PAGE).await? else {
            return Ok(None);
        };
        for recorded in page.events.iter().rev() {
            match &recorded.event {
                Event::InterruptRequested { step, .. } if step.key() == id => {
                    let asked = AskedAt::requested(key, recorded);
                    return Ok(asked.map(|asked| (recorded.seq, Found::Here(asked))));
                }
                Event::NodeSuspended {
                    step,
                    interrupt,
                    child: Some(child),
                    ..
                } if interrupt == id => {
                    let found = Found::Child(key.sibling(child.clone()), step.clone());
                    return Ok(Some((recorded.seq, found)));
                }
                _ => {}
            }
        }
        match page.events.first() {
            Some(first) => end = first.seq,
            None => break,
        }
    }
    Ok(None)
}
