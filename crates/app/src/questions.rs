//! The open questions of a run: its own, and those of its children at the run that asks.
//!
//! A parent's log mirrors only one question of a child at a time, and with a delay. Open questions are
//! therefore read from the children themselves. All protocol faces show, name and count questions by this
//! list.

use serde_json::Value;
use wopr_core::{
    Asked, Event, InterruptKind, KernelEvent, OpenInterrupt, Recorded, RunId, RunKey, Seq, StepId, Timestamp,
    Turn, json_size,
};
use wopr_engine::{Engine, View};
use wopr_store::ReadError;

use crate::{
    App, Conversation, Error, Mask, VisibleRun, Waiting, conversation::MAX_SHOWN_BYTES, read_run::mask_of,
};

/// Deepest chain of children that is followed; the kernel allows no deeper one.
const MAX_DEPTH: usize = 40;

/// Events read at once when looking up a question in a log.
const PAGE: usize = 256;
/// Maximum pages read when looking up a question. An older question is not open any more.
const MAX_PAGES: usize = 16;

/// Maximum questions shown at one node of a run. Others appear when these are answered.
pub const MAX_SHOWN: usize = 100;

/// A question, at the run that asks it.
#[derive(Debug, Clone)]
pub struct AskedAt {
    /// The run that asks.
    pub key: RunKey,
    /// The execution that asks.
    pub step: StepId,
    pub kind: InterruptKind,
    /// How many interrupts the execution opened before this one.
    pub number: u32,
    /// The content of the question, as it was asked and without what is hidden from every reader.
    pub data: Value,
    /// What was said since, if the question is for a turn of an open conversation.
    pub conversation: Option<Conversation>,
    /// When the question was asked.
    pub at: Timestamp,
    /// When the question times out.
    pub deadline: Option<Timestamp>,
}

impl AskedAt {
    /// When the question became what it is: when it was asked, or when the last turn was taken.
    #[must_use]
    pub fn since(&self) -> Timestamp {
        let turn = self.conversation.as_ref().and_then(Conversation::last_turn_at);
        turn.map_or(self.at, |turn| turn.max(self.at))
    }

    /// The interrupt's id in the run that asks.
    #[must_use]
    pub fn id(&self) -> String {
        self.step.interrupt(self.number)
    }

    /// The content of the question as it is now. A conversation has its latest turns, as this reader sees them.
    #[must_use]
    pub fn current_data(&self, reads_artifacts: bool) -> Value {
        let mut data = self.data.clone();
        if let Some(conversation) = &self.conversation {
            conversation.complete(&mut data, reads_artifacts);
        }
        data
    }

    /// What the kind does not say: `auth` if an agent asks for credentials.
    #[must_use]
    pub fn subkind(&self) -> Option<&str> {
        let metadata = self.data.get("metadata")?;
        metadata.get("subkind")?.as_str()
    }

    fn here(view: &View, open: &OpenInterrupt<'_>) -> Option<Self> {
        let Asked::Here(asked) = open.asked else {
            return None;
        };
        Some(Self {
            key: view.key.clone(),
            step: open.step(),
            kind: open.kind(),
            number: asked.number,
            data: Mask::of(&view.plan).question(open.node, &asked.data).into_owned(),
            conversation: Conversation::of(view, open),
            at: asked.requested_at,
            deadline: asked.deadline,
        })
    }

    fn requested(key: &RunKey, recorded: &Recorded, mask: &Mask) -> Option<Self> {
        let KernelEvent::InterruptRequested {
            step,
            kind,
            data,
            timeout_ms,
            number,
            ..
        } = recorded.event.kernel()?
        else {
            return None;
        };
        Some(Self {
            key: key.clone(),
            step: step.clone(),
            kind: *kind,
            number: *number,
            data: mask.question(&step.node, data).into_owned(),
            conversation: None,
            at: recorded.at,
            deadline: timeout_ms.map(|ms| recorded.at.plus_millis(ms)),
        })
    }
}

/// A question, as shown at a node of a run.
#[derive(Debug, Clone)]
pub struct Question {
    /// The node at which the run waits, and the id of the question.
    pub waiting: Waiting,
    /// The execution that asks. `None` if the question is no longer open there: the child has its answer, but
    /// the run has not received the child's message yet.
    pub asked: Option<AskedAt>,
    /// The children on the way to the question, each with the position up to which its log was read.
    pub way: Vec<(RunKey, Seq)>,
}

impl Question {
    /// The run's own question at an open interrupt; `None` if a child asks.
    #[must_use]
    pub fn here(view: &View, open: &OpenInterrupt<'_>) -> Option<Self> {
        let asked = AskedAt::here(view, open)?;
        Some(Self {
            waiting: Waiting::from(open),
            asked: Some(asked),
            way: Vec::new(),
        })
    }
}

impl App {
    /// The open questions of a child other than the one that its parent mirrors.
    pub async fn questions_beside(&self, view: &View, mirrored: &Waiting) -> Result<Vec<Question>, Error> {
        let mut open = view.run.interrupts(&view.plan);
        let Some(open) = open.find(|open| Waiting::from(open) == *mirrored) else {
            return Ok(Vec::new());
        };
        let mut beside = questions_in_children(&self.engine, view, &open).await?;
        beside.retain(|question| question.waiting.id() != mirrored.id());
        Ok(beside)
    }

    /// The question that an event of a run asks, if any.
    pub async fn question_asked_by(
        &self,
        run: &VisibleRun,
        recorded: &Recorded,
    ) -> Result<Option<Question>, Error> {
        let Some(waiting) = recorded.event.kernel().and_then(Waiting::opened_by) else {
            return Ok(None);
        };
        if waiting.child.is_some() {
            return self.look_up_question(run, waiting).await.map(Some);
        }
        let Some(mask) = mask_of(&self.engine, run, recorded, true).await? else {
            return Ok(None);
        };
        Ok(Some(Question {
            asked: AskedAt::requested(run, recorded, &mask),
            waiting,
            way: Vec::new(),
        }))
    }

    /// Looks up a question in the log of a run, or in those of its children. It need not be open any more.
    pub async fn look_up_question(&self, run: &VisibleRun, waiting: Waiting) -> Result<Question, Error> {
        let (asked, way) = match &waiting.child {
            None => {
                let (asked, _) = look_up(&self.engine, RunKey::clone(run), &waiting.id()).await?;
                (asked, Vec::new())
            }
            Some((child, id)) => {
                let id = within(id, &waiting.step);
                look_up(&self.engine, run.sibling(child.clone()), id).await?
            }
        };
        let mut question = Question { waiting, asked, way };
        if question.waiting.kind == InterruptKind::Conversation
            && let Some(asked) = &mut question.asked
        {
            asked.conversation = self.conversation_at(asked).await?;
        }
        Ok(question)
    }

    /// A question for a turn of a conversation as it was after an event of the run: with the turns up to it, whatever was
    /// said since.
    pub async fn question_after_turn(
        &self,
        run: &VisibleRun,
        waiting: Waiting,
        recorded: &Recorded,
    ) -> Result<Question, Error> {
        let (mut asked, _) = look_up(&self.engine, RunKey::clone(run), &waiting.id()).await?;
        if let Some(asked) = &mut asked {
            asked.conversation = self.conversation_after(asked, recorded.seq).await?;
        }
        Ok(Question {
            waiting,
            asked,
            way: Vec::new(),
        })
    }

    /// Reads a conversation back from an event to its beginning.
    async fn conversation_after(&self, asked: &AskedAt, last: Seq) -> Result<Option<Conversation>, Error> {
        let Some(view) = self.engine.view(&asked.key).await? else {
            return Ok(None);
        };
        let (mut turns, mut n_bytes) = (Vec::new(), 0);
        let (mut is_whole, mut is_untrusted) = (false, false);
        let mut end = last.next();
        for _ in 0..MAX_PAGES {
            let Some(page) = self.engine.events_before(&asked.key, end, PAGE).await? else {
                return Ok(None);
            };
            for recorded in page.events.iter().rev() {
                let Some(said) = said_at(&recorded.event, &asked.step) else {
                    continue;
                };
                is_untrusted |= recorded.is_untrusted;
                if n_bytes <= MAX_SHOWN_BYTES {
                    n_bytes += json_size(&said.content);
                    turns.push(said.clone());
                }
                is_whole = said.index == 0;
                if is_whole {
                    break;
                }
            }
            match page.events.first() {
                Some(first) if !is_whole => end = first.seq,
                Some(_) | None => break,
            }
        }
        turns.reverse();
        let (plan, node) = (view.plan, asked.step.node.clone());
        // Turns that were not read may have been said by anybody.
        Ok(Some(Conversation::at_turn(
            plan,
            node,
            &turns,
            is_untrusted || !is_whole,
        )))
    }

    /// The conversation that a question is a turn of, if it is still open.
    async fn conversation_at(&self, asked: &AskedAt) -> Result<Option<Conversation>, Error> {
        let Some(view) = self.engine.view(&asked.key).await? else {
            return Ok(None);
        };
        let mut open = view.run.interrupts(&view.plan);
        let open = open.find(|open| open.id() == asked.id());
        Ok(open.and_then(|open| Conversation::of(&view, &open)))
    }

    /// The questions at an open interrupt: the run's own, or those of its child and further descendants.
    pub(crate) async fn questions_at(
        &self,
        view: &View,
        open: &OpenInterrupt<'_>,
    ) -> Result<Vec<Question>, Error> {
        if let Some(own) = Question::here(view, open) {
            return Ok(vec![own]);
        }
        let mut questions = questions_in_children(&self.engine, view, open).await?;
        if questions.is_empty() {
            questions.push(Question {
                waiting: Waiting::from(open),
                asked: None,
                way: Vec::new(),
            });
        }
        Ok(questions)
    }
}

/// The questions of the child that an open interrupt mirrors, and of further descendants.
async fn questions_in_children(
    engine: &Engine,
    view: &View,
    open: &OpenInterrupt<'_>,
) -> Result<Vec<Question>, ReadError> {
    let child = match open.asked {
        Asked::Here(_) => return Ok(Vec::new()),
        Asked::Child(child, _, _) => child,
    };
    let shown_at = open.step();
    let mut found = Vec::new();
    let mut left = vec![(
        view.key.sibling(child.clone()),
        path_to(view, child, &shown_at),
        Vec::new(),
    )];
    while let Some((key, path, mut way)) = left.pop() {
        if way.len() >= MAX_DEPTH || found.len() >= MAX_SHOWN {
            continue;
        }
        let Some(view) = engine.view(&key).await? else {
            continue;
        };
        way.push((key, view.run.head));
        let n_before = left.len();
        for inner in view.run.interrupts(&view.plan) {
            if let Asked::Child(next, _, _) = inner.asked {
                let path = format!("{path}{}", path_to(&view, next, &inner.step()));
                left.push((view.key.sibling(next.clone()), path, way.clone()));
            } else if let Some(asked) = AskedAt::here(&view, &inner) {
                found.push(Question {
                    waiting: Waiting {
                        step: shown_at.clone(),
                        kind: inner.kind(),
                        number: 0,
                        child: Some((child.clone(), format!("{path}{}", asked.id()))),
                    },
                    asked: Some(asked),
                    way: way.clone(),
                });
            }
        }
        // Look at the first question asked first.
        left[n_before..].reverse();
    }
    Ok(found)
}

/// What the ids of a child's interrupts begin with in its parent.
fn path_to(view: &View, child: &RunId, step: &StepId) -> String {
    let path = view.run.path_to(child).unwrap_or_else(|| step.key());
    format!("{path}/")
}

/// Converts the interrupt id that a parent shows at an execution to the id in the child: what follows the path
/// `step:0/`, or `step:0.2/` in a set.
pub(crate) fn within<'i>(id: &'i str, step: &StepId) -> &'i str {
    let inner = id.strip_prefix(step.key().as_str());
    let inner = inner.and_then(|inner| inner.split_once('/'));
    match inner {
        Some((index, inner)) if index.is_empty() || index.starts_with('.') => inner,
        Some(_) | None => id,
    }
}

/// Finds an interrupt in a run's log, or in that of the child it mirrors. Also returns the runs that were
/// read on the way, each with the position after the event found.
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

/// The child and the step that waits for it, if the event shows the child's question under this id.
pub(crate) fn mirrored<'e>(event: &'e KernelEvent, id: &str) -> Option<(&'e RunId, &'e StepId)> {
    let KernelEvent::NodeSuspended {
        step,
        interrupt,
        child: Some(child),
        ..
    } = event
    else {
        return None;
    };
    (interrupt == id).then_some((child, step))
}

/// What an event says in the conversation of an execution.
fn said_at<'e>(event: &'e Event, step: &StepId) -> Option<&'e Turn> {
    match event {
        Event::Kernel(_) => None,
        Event::Dialect(event) => {
            let said = event.conversation().filter(|said| said.step == *step);
            said.map(|said| &said.turn)
        }
    }
}

async fn find(engine: &Engine, key: &RunKey, id: &str) -> Result<Option<(Seq, Found)>, ReadError> {
    let Some((_, head)) = engine.summary(key).await? else {
        return Ok(None);
    };
    let mut end = head;
    for _ in 0..MAX_PAGES {
        let Some(page) = engine.events_before(key, end, PAGE).await? else {
            return Ok(None);
        };
        for recorded in page.events.iter().rev() {
            let Event::Kernel(event) = &recorded.event else {
                continue;
            };
            if let KernelEvent::InterruptRequested { step, number, .. } = event
                && step.interrupt(*number) == id
            {
                let mask = mask_of(engine, key, recorded, true).await?;
                let asked = mask.and_then(|mask| AskedAt::requested(key, recorded, &mask));
                return Ok(asked.map(|asked| (recorded.seq, Found::Here(asked))));
            }
            if let Some((child, step)) = mirrored(event, id) {
                let found = Found::Child(key.sibling(child.clone()), step.clone());
                return Ok(Some((recorded.seq, found)));
            }
        }
        match page.events.first() {
            Some(first) => end = first.seq,
            None => break,
        }
    }
    Ok(None)
}
