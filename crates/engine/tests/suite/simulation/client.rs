//! Clients: they create runs, drive them to their end, insist on answers, and rely on what they are told.
//!
//! Each command carries a mark that appears in the log if it took effect. So a client can check at the end
//! that each acknowledged command is in the log exactly once, and that nothing it sent once happened twice.

use std::{sync::Arc, time::Duration};

use serde_json::{Map, Value, json};
use tokio::task::JoinSet;
use wopr_core::{
    Asked, Command, DrainPolicy, InterruptKind, Origin, Recorded, Resolve, RunId, RunKey, RunStatus, Seq,
    Timestamp, WorkflowId,
};
use wopr_engine::{CommandError, Create, Done, Engine, Idempotency, SideRows, Start, View};
use wopr_store::{IdempotencyKey, ReadError};

use super::{cluster::Cluster, documents, postman, workflows};
use crate::harness::{principal, tenant};

/// How long a client waits for a response before it asks again.
pub(super) const TIMEOUT: Duration = Duration::from_secs(3);
/// How often a client sends a command that gets no response, under one key.
const TRIES: u64 = 3;

/// One client, with one run.
#[derive(Debug, Clone)]
pub(crate) struct Client {
    pub(crate) cluster: Cluster,
    pub(crate) name: String,
}

/// A client's findings at the end.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) run: RunKey,
    /// The marks of its commands, each with whether it was acknowledged.
    pub(crate) sent: Vec<(String, bool)>,
    /// The log as it was streamed, if the client followed it.
    pub(crate) streamed: Option<Vec<Recorded>>,
    /// A fork of its run.
    pub(crate) fork: Option<RunKey>,
}

impl Client {
    pub(crate) async fn run(self) -> Report {
        let fate = Arc::clone(&self.cluster.fate);
        fate.linger(6_000).await;
        let workflow = self.choose();
        let run = self.create(workflow).await;
        let mut following = JoinSet::new();
        if fate.once_in(4) {
            following.spawn(self.clone().follow(run.clone()));
        }
        let sent = self.see_through(&run).await;
        let streamed = following
            .join_next()
            .await
            .map(|streamed| streamed.expect("a follower follows to the end"));
        let fork = match fate.once_in(3) {
            true => Some(self.fork(&run).await),
            false => None,
        };
        Report {
            run,
            sent,
            streamed,
            fork,
        }
    }

    fn choose(&self) -> &'static str {
        let kinds = || workflows::KINDS.into_iter().chain(documents::KINDS);
        let total: u64 = kinds().map(|(_, weight)| weight).sum();
        let mut at = self.cluster.fate.below(total + 1);
        for (kind, weight) in kinds() {
            if at < weight {
                return kind;
            }
            at -= weight;
        }
        workflows::LATE
    }

    /// Creates the run, usually several times under one key, sometimes at two processes at once.
    async fn create(&self, workflow: &str) -> RunKey {
        let fate = &self.cluster.fate;
        let mut configurable = json!({});
        if fate.once_in(12) {
            configurable["runTimeoutMs"] = (1 + fate.below(4_000)).into();
        }
        if documents::is_document(workflow) && fate.once_in(2) {
            configurable["activityExecutionMode"] = "in_process".into();
        }
        if documents::is_document(workflow) && fate.once_in(2) {
            configurable["parallelActivities"] = true.into();
        }
        let mut known: Option<RunId> = None;
        for n_answers in 0..=fate.below(3) {
            let run = loop {
                let one = self.try_create(workflow, &configurable);
                let told = if fate.once_in(4) {
                    let (one, two) = tokio::join!(one, self.try_create(workflow, &configurable));
                    if let (Some(one), Some(two)) = (&one, &two)
                        && one != two
                    {
                        fate.breaks(format!("{}: one key made {one} and {two}", self.name));
                    }
                    one.or(two)
                } else {
                    one.await
                };
                match told {
                    Some(run) => break run,
                    None => fate.linger(200).await,
                }
            };
            if known.as_ref().is_some_and(|known| *known != run) {
                fate.breaks(format!(
                    "{}: answer {n_answers} to one key names another run",
                    self.name
                ));
            }
            known = Some(run);
        }
        RunKey::new(tenant(), known.expect("the loop ends with an answer"))
    }

    async fn try_create(&self, workflow: &str, configurable: &Value) -> Option<RunId> {
        let (number, engine) = self.cluster.any().await;
        let run = engine.new_run_id();
        let push = self.cluster.fate.once_in(3).then(|| postman::receiver(&run));
        let id = WorkflowId::parse(workflow).expect("valid");
        let found = tokio::time::timeout(TIMEOUT, engine.find_workflow(&tenant(), &id)).await;
        // It was registered before this client began, so only a failing store hides it.
        let Ok(Ok(Some(plan))) = found else { return None };
        let create = Create {
            run,
            workflow: plan,
            start: Start {
                tenant: tenant(),
                principal: principal(),
                origin: Origin::new("rest"),
                inputs: Map::new(),
                configurable: configurable.as_object().cloned().unwrap_or_default(),
                tags: vec![self.name.clone()],
                metadata: Map::new(),
                context: None,
                trace: None,
            },
            side_rows: SideRows {
                push,
                ..once(&self.name, workflow)
            },
        };
        let answer = tokio::time::timeout(TIMEOUT, engine.create(create)).await;
        let told = |what: &str| {
            self.cluster
                .fate
                .tell(|| format!("{} creates {workflow} at p{number}: {what}", self.name));
        };
        match answer {
            Ok(Ok(Done::Fresh(view))) => {
                told(view.key.run.as_str());
                self.cluster.server.witness.shown(&view);
                Some(view.key.run)
            }
            Ok(Ok(Done::Replayed(record))) => {
                told("again");
                self.check_replay(&record);
                record.run
            }
            Ok(Err(error)) => {
                told(&error.to_string());
                self.check_error(&error);
                None
            }
            Err(_) => {
                told("no answer");
                None
            }
        }
    }

    /// Watches the run and sends it commands until it has ended.
    pub(super) async fn see_through(&self, key: &RunKey) -> Vec<(String, bool)> {
        let fate = &self.cluster.fate;
        let mut sent = Vec::new();
        let mut seen = Seq(0);
        loop {
            let view = self.view(key).await;
            if view.run.head < seen {
                fate.breaks(format!(
                    "{key}: {seen} events were acknowledged, {} are shown",
                    view.run.head
                ));
            }
            seen = view.run.head;
            if view.run.status.is_terminal() {
                return sent;
            }
            let n_rivals = if fate.once_in(4) { 2 } else { 1 };
            let mut rivals = JoinSet::new();
            for _ in 0..n_rivals {
                let mark = format!("{} says {}", self.name, sent.len());
                if let Some(command) = self.command(&view, &mark) {
                    sent.push((mark.clone(), false));
                    rivals.spawn(self.clone().send(key.clone(), command, mark));
                }
            }
            for (mark, head) in rivals.join_all().await {
                if let Some(head) = head {
                    seen = seen.max(head);
                    let entry = sent.iter_mut().find(|(of, _)| *of == mark);
                    entry.expect("it was sent").1 = true;
                }
            }
            fate.linger(800).await;
        }
    }

    fn command(&self, view: &View, mark: &str) -> Option<Command> {
        let fate = &self.cluster.fate;
        let reason = Some(mark.to_owned());
        // A fork takes what its source got, and nothing else.
        if view.run.is_catching_up() {
            return None;
        }
        if fate.once_in(25) {
            let by = Some(principal());
            return Some(Command::Cancel { reason, by });
        }
        if fate.once_in(20) {
            let drain = match fate.cuts_calls && fate.once_in(2) {
                true => DrainPolicy::Immediate,
                false => DrainPolicy::DrainCurrentNode,
            };
            return Some(Command::Pause { reason, drain });
        }
        if view.run.status == RunStatus::Paused {
            return fate.once_in(2).then_some(Command::Resume { reason });
        }
        let open: Vec<_> = view.run.interrupts(&view.plan).collect();
        if open.is_empty() {
            return None;
        }
        let open = fate.one_of(&open);
        let action = if fate.once_in(4) { "reject" } else { "accept" };
        let is_here = matches!(open.asked, Asked::Here(_));
        // Bound to its question, an answer reaches no later one.
        let interrupt = match open.asked {
            Asked::Here(asked) if fate.once_in(2) => Some(open.step().interrupt(asked.number)),
            Asked::Here(_) | Asked::Child(..) => None,
        };
        Some(Command::Resolve(Resolve {
            node: open.node.clone(),
            ordinal: (is_here && fate.once_in(2)).then_some(open.ordinal),
            value: value_of(open.kind(), action, mark),
            by: principal(),
            voter: Some(format!("voter-{}", fate.below(4))),
            interrupt,
            authority: wopr_core::Authority::default(),
            is_untrusted: false,
        }))
    }

    /// Sends a command, with a key or only once. Returns the head at which it was acknowledged.
    async fn send(self, key: RunKey, command: Command, mark: String) -> (String, Option<Seq>) {
        let fate = &self.cluster.fate;
        let has_key = fate.once_in(2);
        for _ in 0..=if has_key { fate.below(TRIES) } else { 0 } {
            let (number, engine) = self.cluster.any().await;
            let side_rows = if has_key {
                once(&mark, &mark)
            } else {
                SideRows::default()
            };
            let told = tokio::time::timeout(TIMEOUT, engine.command(&key, command.clone(), side_rows)).await;
            let what = |what: &str| fate.tell(|| format!("{mark} at p{number}, of {key}: {what}"));
            match told {
                Ok(Ok(Done::Fresh(view))) => {
                    what("done");
                    self.cluster.server.witness.shown(&view);
                    self.check_done(&command, &view, &mark);
                    let head = if view.key == key { view.run.head } else { Seq(0) };
                    return (mark, Some(head));
                }
                Ok(Ok(Done::Replayed(record))) => {
                    what("done before");
                    self.check_replay(&record);
                    return (mark, Some(Seq(0)));
                }
                Ok(Err(error)) => {
                    what(&error.to_string());
                    self.check_error(&error);
                    if matches!(error, CommandError::NotFound | CommandError::KeyReused) {
                        fate.breaks(format!("{key}: {error}"));
                    }
                    if matches!(error, CommandError::Refused(_)) {
                        break;
                    }
                }
                Err(_) => what("no answer"),
            }
        }
        (mark, None)
    }

    /// Checks that an acknowledged command is in the log.
    fn check_done(&self, command: &Command, view: &View, mark: &str) {
        let is_there = self.cluster.server.witness.n_marked(mark) > 0;
        let is_fine = match command {
            // A second cancel adds nothing.
            Command::Cancel { .. } => is_there || view.run.status == RunStatus::Cancelling,
            Command::Pause { .. }
            | Command::Resume { .. }
            | Command::Resolve(_)
            | Command::SetVariables(_) => is_there,
            Command::Start(_)
            | Command::Fork(_)
            | Command::Timer(_)
            | Command::Accepted { .. }
            | Command::Progressed { .. }
            | Command::Produced { .. }
            | Command::Effect { .. }
            | Command::EffectCancelled { .. }
            | Command::EffectGivenUp { .. }
            | Command::Interrupted { .. }
            | Command::RunMessages(_) => false,
        };
        if !is_fine {
            let what = format!("'{mark}' was acknowledged and is not in the log of {}", view.key);
            self.cluster.fate.breaks(what);
        }
    }

    pub(super) fn check_replay(&self, record: &wopr_store::IdempotencyRecord) {
        if self.cluster.server.witness.record(&record.key).as_ref() != Some(record) {
            let what = format!("{}: a repeated request is answered unlike the first", self.name);
            self.cluster.fate.breaks(what);
        }
    }

    pub(super) fn check_error(&self, error: &CommandError) {
        match error {
            CommandError::Internal(why) => self.cluster.fate.breaks(format!("{}: {why}", self.name)),
            CommandError::NotFound
            | CommandError::Refused(_)
            | CommandError::KeyReused
            | CommandError::AliasTaken
            | CommandError::TooManyReceivers { .. }
            | CommandError::Busy { .. }
            | CommandError::Unavailable(_) => {}
        }
    }

    pub(super) async fn view(&self, key: &RunKey) -> View {
        let fate = &self.cluster.fate;
        loop {
            let (_, engine) = self.cluster.any().await;
            match tokio::time::timeout(TIMEOUT, engine.view(key)).await {
                Ok(Ok(Some(view))) => {
                    self.cluster.server.witness.shown(&view);
                    return view;
                }
                Ok(Ok(None)) => fate.breaks(format!("{key}: an acknowledged run is gone")),
                Ok(Err(ReadError::Corrupt(why))) => fate.breaks(format!("{key}: {why}")),
                Ok(Err(ReadError::Unavailable(_))) | Err(_) => {}
            }
            fate.linger(200).await;
        }
    }

    /// Streams the log from start to end, from changing processes.
    async fn follow(self, key: RunKey) -> Vec<Recorded> {
        let fate = Arc::clone(&self.cluster.fate);
        let mut log: Vec<Recorded> = Vec::new();
        loop {
            let (_, engine) = self.cluster.any().await;
            // A connection lasts for a few pages.
            for _ in 0..=fate.below(6) {
                if self.read_page(&engine, &key, &mut log).await.is_none() {
                    break;
                }
                if log.last().is_some_and(|last| last.event.terminal().is_some()) {
                    return log;
                }
            }
        }
    }

    /// Waits for new events and reads a page of them; `None` if the process does not answer.
    async fn read_page(&self, engine: &Engine, key: &RunKey, log: &mut Vec<Recorded>) -> Option<()> {
        let fate = &self.cluster.fate;
        let mut tail = engine.tail(key);
        let from = Seq(0).plus(log.len());
        let limit = 1 + usize::try_from(fate.below(20)).expect("small");
        let page = tokio::time::timeout(TIMEOUT, engine.events(key, from, limit)).await;
        let page = page.ok()?.ok()?;
        let Some(page) = page else {
            fate.breaks(format!("{key}: the run of a stream is gone"));
            return None;
        };
        if page.events.is_empty() {
            tokio::time::timeout(TIMEOUT, tail.changed()).await.ok()?;
        }
        log.extend(page.events);
        Some(())
    }
}

pub(super) fn once(key: &str, digest: &str) -> SideRows {
    SideRows {
        idempotency: Some(Idempotency {
            key: IdempotencyKey {
                tenant: tenant(),
                principal: principal(),
                scope: "simulated".into(),
                key: key.to_owned(),
            },
            digest: digest.to_owned(),
            expires_at: Timestamp::from_millis(i64::MAX / 2),
            respond: Arc::new(|view: &View| format!("{} {}", view.key.run, view.run.head).into_bytes()),
        }),
        ..SideRows::default()
    }
}

/// An answer to a question of this kind that contains the mark.
fn value_of(kind: InterruptKind, action: &str, mark: &str) -> Value {
    match kind {
        InterruptKind::Clarification => json!({ "answers": [{ "id": "colour", "answer": mark }] }),
        InterruptKind::Approval | InterruptKind::ExternalEvent | InterruptKind::Custom => {
            json!({ "action": action, "feedback": mark })
        }
        InterruptKind::LowConfidence => match action {
            "reject" => json!({ "rejected": true, "voter": mark }),
            _ => json!({ "ratified": true, "voter": mark }),
        },
        InterruptKind::Conversation => json!({ "operation": "close", "content": mark }),
    }
}
