//! Commands: load the run, decide, commit, and start over if another writer was first.

use std::{borrow::Cow, convert::Infallible, sync::Arc, time::Duration};

use wopr_core::{
    Asked, Child, Command, Decision, Entropy, HostBounds, Input, NodeId, Refusal, Resolve, Run, RunKey,
    RunStarted, StartRun, Timestamp, TooMuchWork, Work, decide, decide_fork, decide_within,
};
use wopr_store::{Cause, Guard, IdempotencyRecord, Summary};

use crate::{
    CommandError, Create, Done, Engine, Idempotency, SideRows, View,
    catalog::TenantCatalog,
    commit::Won,
    committing::{Change, Failed},
    decision_pool::BRIEF,
    descendants::Allowance,
    load_budget::{LoadPermit, Purpose},
    logs::work_failed,
    stats::Counters,
    uncertain_commit::UncertainCommits,
    view::{Open, Opened},
    whole_children::WholeChildren,
};

/// Attempts that lose against other writers before the answer is [`CommandError::Busy`].
pub(crate) const MAX_ATTEMPTS: u32 = 16;
/// Longest chain of children that an answer is forwarded through; the kernel allows no deeper one.
const MAX_FORWARDS: usize = 40;
/// How long a caller should wait after `Busy`.
pub(crate) const RETRY_AFTER_MS: u64 = 1_000;

/// A decision that can be committed.
pub(crate) struct Made {
    pub(crate) decision: Decision,
    /// The children that were decided with it.
    pub(crate) children: WholeChildren,
    /// Covers the children that it creates.
    pub(crate) allowance: Arc<Allowance>,
}

/// A decision, and what it lacked.
struct Tried {
    decision: Decision,
    children: WholeChildren,
    has_missed: bool,
}

impl Engine {
    /// Creates a run and executes it as far as possible, in one append.
    pub async fn create(&self, create: impl Into<Box<Create>>) -> Result<Done, CommandError> {
        let create = create.into();
        let once = create.side_rows.idempotency.clone();
        // Boxed, here and below: the future is kilobytes large and would be copied into every future around
        // it.
        match (Box::pin(self.create_once(create)).await, once) {
            // The workflow may have changed since the request took effect.
            (Err(error @ CommandError::Refused(_)), Some(once)) => self.replay_or(error, &once).await,
            (done, _) => done,
        }
    }

    async fn create_once(&self, create: Box<Create>) -> Result<Done, CommandError> {
        let Create {
            run,
            workflow: plan,
            mut start,
            side_rows,
        } = *create;
        plan.add_in_process(&mut start.configurable, self.shared.options.in_process.as_deref())?;
        let now = self.now();
        let key = RunKey::new(start.tenant.clone(), run);
        let principal = start.principal.clone();
        let summary = Summary {
            group: start.context.clone(),
            alias: plan.alias(&start.configurable)?.map(str::to_owned),
            ..Summary::new(plan.id().clone(), plan.version().clone(), principal, now)
        };
        let view = View {
            key,
            plan,
            run: Run::default(),
            summary,
            last_events: Vec::new(),
            continues: None,
            held: LoadPermit::default(),
        };
        let bounds = self.shared.options.bounds;
        let mut command = Command::Start(Box::new(StartRun {
            tenant: start.tenant,
            principal: start.principal,
            origin: start.origin,
            inputs: start.inputs,
            configurable: start.configurable,
            tags: start.tags,
            metadata: start.metadata,
            context: start.context,
            trace: start.trace,
            parent: None,
            bounds,
        }));
        let mut uncertain = UncertainCommits::default();
        for attempt in 0..MAX_ATTEMPTS {
            // Nobody else writes to this run, so there is no race to lose. But an uncertain append may turn
            // out to have committed, or not.
            let made = self
                .decide(&view, Cow::Owned(command), now, Guard::Create)
                .await?;
            let began = made.decision.run.started.clone();
            if let Some(done) = self
                .commit_new(&view, made, &mut uncertain, &side_rows, now)
                .await?
            {
                return Ok(done);
            }
            self.check_alias(&view).await?;
            self.back_off(attempt).await;
            command = start_again(began.as_deref(), bounds)?;
        }
        Err(CommandError::Busy {
            retry_after_ms: RETRY_AFTER_MS,
        })
    }

    /// Fails if another run has the name of a new one, which was not committed.
    pub(crate) async fn check_alias(&self, view: &View) -> Result<(), CommandError> {
        if let Some(alias) = &view.summary.alias
            && let Some(run) = self.run_of_alias(&view.key.tenant, alias).await?
            && run != view.key.run
        {
            return Err(CommandError::AliasTaken);
        }
        Ok(())
    }

    /// Commits the first decision of a new run. Returns `None` if it has to be decided again.
    pub(crate) async fn commit_new(
        &self,
        view: &View,
        made: Made,
        uncertain: &mut UncertainCommits,
        side_rows: &SideRows,
        now: Timestamp,
    ) -> Result<Option<Done>, CommandError> {
        let change = Change {
            view,
            n_tail_bytes: 0,
            n_run_bytes: 0,
            guard: Guard::Create,
            won: None,
            consumed: &[],
        };
        let Made {
            decision,
            children,
            allowance,
        } = made;
        let committed = self.commit(change, (decision, children), side_rows, now).await;
        allowance.conclude(&committed);
        let done = self.conclude(committed, uncertain, side_rows).await?;
        if let Some(Done::Fresh(_)) = &done {
            Counters::add(&self.shared.counters.runs_created, 1);
        }
        Ok(done)
    }

    /// Concludes an attempt to commit. Returns `None` if the command has to be decided again.
    pub(crate) async fn conclude(
        &self,
        committed: Result<View, Failed>,
        uncertain: &mut UncertainCommits,
        side_rows: &SideRows,
    ) -> Result<Option<Done>, CommandError> {
        let otherwise = match committed {
            Ok(view) => return Ok(Some(Done::Fresh(view))),
            Err(Failed::InDoubt(commit)) => {
                uncertain.add(*commit);
                return Ok(None);
            }
            Err(Failed::Conflict) => Ok(None),
            Err(Failed::Replayed(record)) => replay(record, side_rows.idempotency.as_ref()).map(Some),
            Err(Failed::Error(error)) => Err(error),
        };
        // An apparent conflict may be the effect of this command's own earlier attempt.
        match self.settle(uncertain).await? {
            Some(view) => Ok(Some(Done::Fresh(view))),
            None => otherwise,
        }
    }

    /// Sends a command to a run.
    ///
    /// An answer to an interrupt that the run mirrors from a child is forwarded to that child.
    pub async fn command(
        &self,
        key: &RunKey,
        command: Command,
        side_rows: SideRows,
    ) -> Result<Done, CommandError> {
        self.command_from(key, None, command, side_rows).await
    }

    /// Sends a command to a run that is already loaded. It is loaded again only if another writer was first.
    pub async fn command_opened(
        &self,
        opened: Opened,
        command: Command,
        side_rows: SideRows,
    ) -> Result<Done, CommandError> {
        let key = opened.view().key.clone();
        self.command_from(&key, Some(opened.0), command, side_rows).await
    }

    async fn command_from(
        &self,
        key: &RunKey,
        opened: Option<Open>,
        command: Command,
        side_rows: SideRows,
    ) -> Result<Done, CommandError> {
        // The record is looked up by the append, and here only if there is none: most requests are no repeats.
        let once = side_rows.idempotency.clone();
        let done = match command {
            Command::Resolve(resolve) => Box::pin(self.resolve(key, opened, resolve, side_rows)).await,
            command => Box::pin(self.command_fenced(key, opened, &command, side_rows, None)).await,
        };
        match (done, once) {
            // The request may have taken effect before, which is why the run refuses it now.
            (Err(error @ CommandError::Refused(_)), Some(once)) => self.replay_or(error, &once).await,
            (done, _) => done,
        }
    }

    pub(crate) async fn replay_or(
        &self,
        error: CommandError,
        once: &Idempotency,
    ) -> Result<Done, CommandError> {
        match self.shared.store.idempotency(&once.key, self.now()).await? {
            Some(record) => replay(record, Some(once)),
            None => Err(error),
        }
    }

    /// Forwards an answer to the run that asks. Loads each run on the way once.
    async fn resolve(
        &self,
        key: &RunKey,
        opened: Option<Open>,
        resolve: Resolve,
        side_rows: SideRows,
    ) -> Result<Done, CommandError> {
        let mut resolve = resolve;
        let mut ancestors = Vec::new();
        let mut target = match opened {
            Some(open) => open,
            None => self.open_existing(key).await?,
        };
        while ancestors.len() < MAX_FORWARDS {
            let view = &target.view;
            // The children that a replay shows are its source's.
            if view.run.is_replay() || view.run.is_catching_up() {
                break;
            }
            if let Some(id) = &resolve.interrupt {
                // The id names the children that lead to the question, whatever they ask now.
                let Some((via, rest)) = child_on_path(&view.run, id) else {
                    break;
                };
                if via.step.node != resolve.node {
                    return Err(Refusal::NoInterrupt.into());
                }
                let (parent, child) = (view.key.clone(), view.key.sibling(via.run.clone()));
                // Nothing large is held while another run waits for room.
                drop(target);
                target = self.open_existing(&child).await?;
                // A branch also knows the children that its source created, which answer to that.
                let of = target.view.summary.parent.as_ref().map(|(run, _)| run);
                if of != Some(&parent.run) {
                    return Err(Refusal::NoInterrupt.into());
                }
                ancestors.push(parent);
                resolve.node = match child_on_path(&target.view.run, &rest) {
                    Some((via, _)) => via.step.node.clone(),
                    None => node_of(&target.view, &rest).ok_or(Refusal::NoInterrupt)?,
                };
                resolve.interrupt = Some(rest);
            } else {
                let mut open = view.run.interrupts(&view.plan);
                let open = open.find(|open| *open.node == resolve.node);
                let Some((ordinal, Asked::Child(_, _, id))) = open.map(|open| (open.ordinal, open.asked))
                else {
                    break;
                };
                if resolve.ordinal.is_some_and(|wanted| wanted != ordinal) {
                    return Err(Refusal::NoInterrupt.into());
                }
                // The answer is for the question this run shows; the child may ask another one by now.
                resolve.interrupt = Some(id.to_owned());
                resolve.ordinal = None;
            }
        }
        let asking = target.view.key.clone();
        let command = Command::Resolve(resolve);
        let done = self
            .command_fenced(&asking, Some(target), &command, side_rows, None)
            .await?;
        if ancestors.is_empty() {
            return Ok(done);
        }
        // Update the ancestors that mirror the question now, so that the caller sees the effect. The answer
        // stands even if this fails; the inbox loop will then catch up.
        for ancestor in ancestors.iter().rev() {
            if let Err(error) = self.hear(ancestor).await {
                work_failed("answer not heard yet", ancestor, &error);
            }
        }
        Ok(Done::Fresh(self.view(key).await?.ok_or(CommandError::NotFound)?))
    }

    async fn open_existing(&self, key: &RunKey) -> Result<Open, CommandError> {
        let open = self.open(key, Purpose::Command).await?;
        open.ok_or(CommandError::NotFound)
    }

    pub(crate) async fn command_fenced(
        &self,
        key: &RunKey,
        opened: Option<Open>,
        command: &Command,
        side_rows: SideRows,
        won: Option<Won>,
    ) -> Result<Done, CommandError> {
        let mut opened = opened;
        let _lock = match self.shared.locks.try_hold(key) {
            Some(lock) => lock,
            None => {
                // The run is about to change, and nothing large may be held while waiting.
                opened = None;
                self.shared.locks.hold(key).await
            }
        };
        let (mut heard, mut uncertain) = (UncertainCommits::default(), UncertainCommits::default());
        for attempt in 0..MAX_ATTEMPTS {
            // A run loaded before the lock was taken may be outdated. The append then conflicts, as it does
            // if another process was first, and the run is loaded again.
            let at_hand = match &won {
                // Most outcomes come soon after the decision that asked for them.
                Some(_) if attempt == 0 && opened.is_none() => self.open_at_hand(key).await?,
                Some(_) | None => None,
            };
            let open = match opened.take().or(at_hand) {
                Some(open) => open,
                None => self.open_existing(key).await?,
            };
            // After the load: an uncertain append that is not in the log now was not in it at the load
            // either, so nothing is decided on top of this command's own effect.
            self.settle(&mut heard).await?;
            if let Some(view) = self.settle(&mut uncertain).await? {
                return Ok(Done::Fresh(view));
            }
            if !open.inbox.is_empty() {
                // Messages from other runs come first. A lost race here counts as a lost attempt.
                Box::pin(self.consume_inbox(open, &mut heard)).await?;
                continue;
            }
            // Another call of the step may be under way by now.
            let is_other = |won: &Won| {
                let (step, number) = &won.call;
                open.view
                    .run
                    .n_calls(&**open.view.plan, step)
                    .is_some_and(|n| n != *number)
            };
            if won.as_ref().is_some_and(is_other) {
                return Err(CommandError::Refused(Refusal::Stale));
            }
            let now = self.now();
            let guard = Guard::At(open.view.run.head);
            let Made {
                decision,
                children,
                allowance,
            } = self
                .decide(&open.view, Cow::Borrowed(command), now, guard)
                .await?;
            let change = Change {
                view: &open.view,
                n_tail_bytes: open.n_tail_bytes,
                n_run_bytes: open.n_run_bytes,
                guard,
                won: won.as_ref(),
                consumed: &[],
            };
            let committed = self.commit(change, (decision, children), &side_rows, now).await;
            allowance.conclude(&committed);
            match self.conclude(committed, &mut uncertain, &side_rows).await? {
                Some(done) => return Ok(done),
                None => self.back_off(attempt).await,
            }
        }
        Err(CommandError::Busy {
            retry_after_ms: RETRY_AFTER_MS,
        })
    }

    /// Consumes a run's inbox, under its lock.
    pub(crate) async fn hear(&self, key: &RunKey) -> Result<(), CommandError> {
        let _lock = self.shared.locks.hold(key).await;
        let mut uncertain = UncertainCommits::default();
        for attempt in 0..MAX_ATTEMPTS {
            let open = self.open(key, Purpose::Command).await?;
            self.settle(&mut uncertain).await?;
            match open {
                Some(open) if !open.inbox.is_empty() => {
                    if self.consume_inbox(open, &mut uncertain).await? {
                        return Ok(());
                    }
                    self.back_off(attempt).await;
                }
                Some(_) | None => return Ok(()),
            }
        }
        Err(CommandError::Busy {
            retry_after_ms: RETRY_AFTER_MS,
        })
    }

    /// Decides on as many inbox rows as one decision can take. Returns `false` if it has to be repeated.
    async fn consume_inbox(
        &self,
        open: Open,
        uncertain: &mut UncertainCommits,
    ) -> Result<bool, CommandError> {
        let Open {
            view,
            inbox,
            is_inbox_cut,
            n_tail_bytes,
            n_run_bytes,
        } = open;
        let now = self.now();
        let guard = Guard::At(view.run.head);
        let (decision, children, allowance) = if view.run.status.is_terminal() && view.run.started.is_some() {
            // Nothing can follow the end; the rows only have to be removed. A run that ended before it
            // started still answers its start.
            (unchanged(&view), WholeChildren::default(), None)
        } else {
            let mut messages = Vec::with_capacity(inbox.len());
            for row in &inbox {
                let message = serde_json::from_slice(&row.body);
                messages.push(message.map_err(|error| {
                    CommandError::Internal(Cause::about(format!("inbox of {}: {error}", view.key), error))
                })?);
            }
            let command = Command::RunMessages(messages);
            let made = self.decide(&view, Cow::Borrowed(&command), now, guard).await?;
            (made.decision, made.children, Some(made.allowance))
        };
        let consumed: Vec<_> = inbox
            .iter()
            .take(decision.heard)
            .map(|row| (row.source.clone(), row.source_seq))
            .collect();
        let is_rest = is_inbox_cut || consumed.len() < inbox.len();
        let change = Change {
            view: &view,
            n_tail_bytes,
            n_run_bytes,
            guard,
            won: None,
            consumed: &consumed,
        };
        let committed = self
            .commit(change, (decision, children), &SideRows::default(), now)
            .await;
        if let Some(allowance) = allowance {
            allowance.conclude(&committed);
        }
        match committed {
            Ok(_) => {
                if is_rest {
                    // In turn with other runs that have messages.
                    self.shared.inboxes.tell(view.key);
                }
                Ok(true)
            }
            Err(Failed::Conflict) => Ok(false),
            Err(Failed::InDoubt(commit)) => {
                uncertain.add(*commit);
                Ok(false)
            }
            Err(Failed::Replayed(_)) => Err(CommandError::Internal(
                "a batch without key was a duplicate".into(),
            )),
            Err(Failed::Error(error)) => Err(error),
        }
    }

    /// Decides, and repeats the decision where a workflow became known or descendants were granted only after it was made.
    /// An owned command is one that starts a run: it is recreated from the event that records it, instead of being cloned
    /// up front.
    pub(crate) async fn decide(
        &self,
        view: &View,
        command: Cow<'_, Command>,
        now: Timestamp,
        guard: Guard,
    ) -> Result<Made, CommandError> {
        let allowance = Arc::new(Allowance::new(self, &view.key, guard == Guard::Create));
        let mut command = command;
        for _ in 0..MAX_ATTEMPTS {
            let borrowed = match command {
                Cow::Borrowed(command) => Some(command),
                Cow::Owned(_) => None,
            };
            let Tried {
                decision,
                children,
                has_missed,
            } = self.try_to_decide(view, command, now, &allowance).await?;
            let is_early = has_missed && Box::pin(self.catch_up()).await?
                || allowance.is_short() && Box::pin(allowance.grow()).await?;
            if !is_early {
                return Ok(Made {
                    decision,
                    children,
                    allowance,
                });
            }
            command = match borrowed {
                Some(command) => Cow::Borrowed(command),
                None => {
                    let bounds = self.shared.options.bounds;
                    Cow::Owned(start_again(decision.run.started.as_deref(), bounds)?)
                }
            };
        }
        Err(CommandError::Busy {
            retry_after_ms: RETRY_AFTER_MS,
        })
    }

    /// Decides in place if that is little work, otherwise in turn with other tenants. Clones a borrowed
    /// command only once.
    async fn try_to_decide(
        &self,
        view: &View,
        command: Cow<'_, Command>,
        now: Timestamp,
        allowance: &Arc<Allowance>,
    ) -> Result<Tried, CommandError> {
        let View { key, plan, run, .. } = view;
        let n_bytes = view.held.n_bytes() + command.size();
        let entropy = Entropy(self.shared.entropy_source.roll());
        let source = Box::pin(self.source_of(key, run, &command)).await?;
        let mut left = Some(command);
        let here = match source {
            // To catch up is never brief.
            Some(_) => None,
            None => {
                let begin = || {
                    let (engine, of, plan) = (self.clone(), key.clone(), Arc::clone(plan));
                    let allowance = Arc::clone(allowance);
                    let run = run.clone();
                    let command = match left.take() {
                        // Not cloned, as it is large and most of them are brief: it is given back if it is not.
                        Some(Cow::Owned(start @ Command::Start(_))) => Some(start),
                        other => {
                            left = other;
                            left.as_deref().cloned()
                        }
                    };
                    move || {
                        let command = command.ok_or(TooMuchWork { start: None })?;
                        engine.make(&of, &allowance, now, entropy, |input| {
                            decide_within(BRIEF, run, &plan, command, input)
                        })
                    }
                };
                self.think_briefly(&key.tenant, n_bytes, begin).await?
            }
        };
        let made = match here {
            Some(Ok(made)) => made,
            given_back => {
                let start = given_back.and_then(|made| made.err()?.start);
                let start = start.map(|start| Cow::Owned(Command::Start(start)));
                let command = start.or(left).map(Cow::into_owned);
                let command =
                    command.ok_or_else(|| CommandError::Internal("a start was not given back".into()))?;
                let (engine, of) = (self.clone(), key.clone());
                let (plan, run, allowance) = (Arc::clone(plan), run.clone(), Arc::clone(allowance));
                let work = move || {
                    engine.make(&of, &allowance, now, entropy, |input| {
                        Ok::<_, Infallible>(match &source {
                            Some(source) => decide_fork(run, &plan, command, input, source),
                            None => decide(run, &plan, command, input),
                        })
                    })
                };
                let Ok(made) = Box::pin(self.think_elsewhere(&key.tenant, work)).await?;
                made
            }
        };
        Ok(made?)
    }

    /// Makes a decision with an allowance for new children. If `decide` gives up, the allowance is as it was.
    fn make<G>(
        &self,
        key: &RunKey,
        allowance: &Allowance,
        now: Timestamp,
        entropy: Entropy,
        decide: impl FnOnce(&Input<'_>) -> Result<Result<Decision, Refusal>, G>,
    ) -> Result<Result<Tried, Refusal>, G> {
        allowance.begin();
        let catalog = TenantCatalog::new(&self.shared.catalog, &key.tenant, allowance);
        let input = Input {
            now,
            entropy,
            run: &key.run,
            catalog: &catalog,
        };
        let decided = decide(&input)?;
        let has_missed = catalog.has_missed();
        let children = catalog.into_children();
        Ok(decided.map(|decision| Tried {
            decision,
            children,
            has_missed,
        }))
    }

    /// Waits a random time, up to a limit that doubles with each lost attempt.
    pub(crate) async fn back_off(&self, attempt: u32) {
        let most = 1_u64 << attempt.min(6);
        let [byte] = self.shared.entropy_source.roll::<1>();
        tokio::time::sleep(Duration::from_millis(u64::from(byte) % (most + 1))).await;
    }
}

/// The child that an interrupt id leads through first, and the interrupt's id in that child.
fn child_on_path<'r>(run: &'r Run, id: &str) -> Option<(&'r Child, String)> {
    // An execution of a branch that began again has two children with one path: that of the source and, later, its own.
    let mut children = run.children.iter().rev();
    children.find_map(|child| {
        let rest = id.strip_prefix(child.path().as_str())?.strip_prefix('/')?;
        Some((child, rest.to_owned()))
    })
}

/// The node that an interrupt id names: `node:ordinal`, or `node:ordinal:number`.
fn node_of(view: &View, id: &str) -> Option<NodeId> {
    let (node, _) = id.rsplit_once(':')?;
    let known = |node: &str| {
        NodeId::parse(node)
            .ok()
            .filter(|node| view.plan.position(node).is_some())
    };
    known(node).or_else(|| known(node.rsplit_once(':')?.0))
}

/// The command that starts a run whose start is recorded.
fn start_again(began: Option<&RunStarted>, bounds: HostBounds) -> Result<Command, CommandError> {
    let began = began.ok_or_else(|| CommandError::Internal("a start without its event".into()))?;
    Ok(Command::Start(Box::new(StartRun::again(began, bounds))))
}

fn replay(record: IdempotencyRecord, once: Option<&Idempotency>) -> Result<Done, CommandError> {
    match once {
        Some(once) if once.digest == record.digest => Ok(Done::Replayed(record)),
        Some(_) | None => Err(CommandError::KeyReused),
    }
}

fn unchanged(view: &View) -> Decision {
    Decision {
        run: view.run.clone(),
        events: Vec::new(),
        work: Work::default(),
        heard: usize::MAX,
    }
}
