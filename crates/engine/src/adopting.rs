//! Runs whose log was decided elsewhere: they are created with all of it, and with the runs below them, by one append, or
//! not at all.
//!
//! What the log says has happened is not done again. What is left of its work begins once the append is durable, like
//! that of any other decision.

use std::sync::Arc;

use wopr_core::{Decision, Entropy, HostBounds, InProcess, Plan, Refusal, Run, RunId, RunKey, Timestamp};
use wopr_store::Summary;

use crate::{
    AdoptedChild, CommandError, Done, Engine, SideRows, View,
    commanding::{MAX_ATTEMPTS, Made, RETRY_AFTER_MS},
    descendants::Allowance,
    load_budget::LoadPermit,
    uncertain_commit::UncertainCommits,
    whole_children::WholeChildren,
};

/// What the decisions of a run that is adopted may depend on.
#[derive(Debug, Clone)]
pub struct Beginning {
    pub run: RunId,
    pub now: Timestamp,
    pub entropy: Entropy,
    pub bounds: HostBounds,
    /// The models, tools and fixed outputs with which the host does activities in process.
    pub in_process: Option<Arc<InProcess>>,
}

/// A run to create with a log of its own.
#[derive(Debug)]
pub struct Adopt {
    /// That of the [`Beginning`].
    pub run: RunId,
    pub workflow: Arc<Plan>,
    /// The whole log, and the work that is left. It starts no children.
    pub decision: Decision,
    /// The runs below it, parents first.
    pub children: Vec<AdoptedChild>,
    /// Rows committed together with the log.
    pub side_rows: SideRows,
}

impl Engine {
    /// What a run that is to be adopted is decided with.
    #[must_use]
    pub fn new_beginning(&self) -> Beginning {
        Beginning {
            run: self.new_run_id(),
            now: self.now(),
            entropy: Entropy(self.shared.entropy_source.roll()),
            bounds: self.shared.options.bounds,
            in_process: self.shared.options.in_process.clone(),
        }
    }

    /// Creates a run with its log.
    ///
    /// # Errors
    /// Another run has its name, there are more runs than a tree may have, or the decision starts nothing or starts children.
    pub async fn adopt(&self, adopt: Adopt) -> Result<Done, CommandError> {
        let Adopt {
            run,
            workflow: plan,
            decision,
            children,
            side_rows,
        } = adopt;
        let started = decision.run.started.clone().ok_or(Refusal::WrongState)?;
        if !decision.work.children.is_empty() || started.parent.is_some() {
            return Err(Refusal::WrongState.into());
        }
        let most = self.shared.options.max_descendants;
        if children.len() as u64 > most {
            return Err(Refusal::InvalidInput {
                field: "children".to_owned(),
                rule: format!(
                    "must be at most {most}, as many as a tree of runs may have (limits.max_descendants)"
                ),
            }
            .into());
        }
        let now = self.now();
        let began = decision.run.started_at.unwrap_or(now);
        let key = RunKey::new(started.tenant.clone(), run);
        let summary = Summary {
            group: started.context.clone(),
            alias: plan.alias(&started.configurable)?.map(str::to_owned),
            ..Summary::new(
                plan.id().clone(),
                plan.version().clone(),
                started.principal.clone(),
                began,
            )
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
        let mut uncertain = UncertainCommits::default();
        for attempt in 0..MAX_ATTEMPTS {
            let allowance = Arc::new(Allowance::new(self, &view.key, true));
            let made = Made {
                decision: decision.clone(),
                children: WholeChildren::of_adopted(children.clone()),
                allowance,
            };
            let committed = self.commit_new(&view, made, &mut uncertain, &side_rows, now);
            if let Some(done) = Box::pin(committed).await? {
                return Ok(done);
            }
            self.check_alias(&view).await?;
            self.back_off(attempt).await;
        }
        Err(CommandError::Busy {
            retry_after_ms: RETRY_AFTER_MS,
        })
    }
}
