//! Imports histories: an execution that another engine, or another host, has begun goes on here.
//!
//! The history is decided again before anything is written. Then the definition is registered, if the host does not have
//! it, and one append creates the run with its whole log.

use serde_json::{Value, json};
use wopr_app::Error as AppError;
use wopr_core::{
    DialectId, NodeTypes, Origin, Plan, Problems,
    awp::{self, GivenRows, Import, ImportError},
    import_awp,
};

use super::{Surface, configurable, duplicate};
use crate::{
    auth::Scope,
    awp::{
        arguments::Arguments,
        definition,
        error::{Code, Error},
        execution::find,
        render, stable,
        tool::Tool,
    },
};

/// The reason why an import failed.
enum NoRun {
    Definition(Problems),
    History(ImportError),
}

impl From<ImportError> for NoRun {
    fn from(error: ImportError) -> Self {
        Self::History(error)
    }
}

impl Surface<'_> {
    pub(super) async fn import(&self, mut arguments: Arguments) -> Result<Value, Error> {
        let permit = self.caller.permit_start()?;
        let name = arguments.name("execution_id")?;
        let document = arguments.required_object("definition")?;
        let rows = arguments.required_list("rows")?;
        let input = arguments.object("input")?;
        let mode = arguments.mode()?;
        let configurable = configurable(&mut arguments)?;
        arguments.end()?;
        if configurable.contains_key(awp::PARALLEL_ACTIVITIES) {
            let message =
                "an import decides one branch after the other: leave out configurable.parallelActivities";
            return Err(Error::invalid(Tool::Start, message));
        }
        self.permit_rows(&rows)?;
        if let Some(view) = self.replayed().await? {
            return self.shown(view).await;
        }
        let document = definition::trusted(self.host, document)?;
        definition::recognize(&document)?;
        let app = self.host.app();
        let beginning = app.new_beginning();
        let (tenant, principal) = permit.owner();
        let run = beginning.run.clone();
        let import = Import {
            run: beginning.run,
            now: beginning.now,
            entropy: beginning.entropy,
            tenant,
            principal,
            origin: Origin::new(self.origin),
            trace: self.traceparent.clone(),
            bounds: beginning.bounds,
            name,
            input,
            configurable,
            mode,
        };
        let of = document.clone();
        // Heavy however small: a few rows may stand for much work.
        let deciding = app.compute(self.caller, usize::MAX, move || {
            let plan = Plan::compile(DialectId::Awp, of, NodeTypes::default()).map_err(NoRun::Definition)?;
            let given = GivenRows::read(rows).map_err(ImportError::from)?;
            let decided = import_awp(&plan, &given, &import);
            Ok(decided.expect("the plan is of this language")?)
        });
        let decision = deciding.await?.map_err(|error| match error {
            NoRun::Definition(problems) => Error::from(problems),
            NoRun::History(error) => refused(error),
        })?;
        let started = decision
            .run
            .started
            .clone()
            .expect("a history begins with a start");
        let name = started.configurable.get("executionId").and_then(Value::as_str);
        if let Some(name) = name {
            // Another run may take the name before the append, which then says so.
            match find(self.host, self.caller, name, Scope::RunsCreate).await {
                Ok(_) => return self.taken(name).await,
                Err(error) if error.code == Code::ExecutionNotFound => {}
                Err(error) => return Err(error),
            }
        }
        let (inputs, configurable) = (&started.inputs, &started.configurable);
        let plan = match definition::known(self.host, permit, &document).await? {
            Some(plan) => plan,
            None => {
                let given = (inputs, configurable);
                definition::admit(self.host, self.caller, permit, document, given).await?
            }
        };
        let adopting = app.adopt_run(permit, (run, plan), decision, self.side_rows());
        let view = match (adopting.await, name) {
            (Ok(done), _) => self.done(done).await?,
            (Err(AppError::AliasTaken), Some(name)) => return self.taken(name).await,
            (Err(error), _) => return Err(error.into()),
        };
        self.shown(view).await
    }

    /// Checks that the caller may give an execution what the rows say that it was given.
    fn permit_rows(&self, rows: &[Value]) -> Result<(), Error> {
        for row in rows {
            match row["name"].as_str() {
                Some("ResumeInterrupt" | "DeliverSignal") => self.caller.require(Scope::ApprovalsRespond)?,
                Some("ActivityCompleted" | "ActivityFailed") => self.caller.require(Scope::ActivitiesWork)?,
                Some("CancelExecution") => self.caller.require(Scope::RunsCancel)?,
                Some(_) | None => {}
            }
        }
        Ok(())
    }

    /// The name is taken: by the execution that this request has created before, or by another one.
    async fn taken(&self, name: &str) -> Result<Value, Error> {
        match self.replayed().await? {
            Some(view) => self.shown(view).await,
            None => Err(duplicate(name)),
        }
    }

    /// The status of an execution.
    async fn shown(&self, view: wopr_app::View) -> Result<Value, Error> {
        let standing = stable::look(self.host.app(), view).await?.0;
        Ok(render::status(&standing, self.caller))
    }
}

fn refused(error: ImportError) -> Error {
    let message = error.to_string();
    match error {
        ImportError::Row(error) => Error::new(Code::Validation, message)
            .with(json!({ "row": error.row, "seq": error.row, "reason": error.reason })),
        ImportError::Whole(reason) => Error::new(Code::Validation, message).with(json!({ "reason": reason })),
        ImportError::Differs {
            index: _,
            seq: _,
            expected,
            actual,
        } => Error::new(Code::NondeterminismDetected, message)
            .with(json!({ "context": { "expected": expected, "actual": actual } })),
        ImportError::Refused(refusal) => refusal.into(),
    }
}
