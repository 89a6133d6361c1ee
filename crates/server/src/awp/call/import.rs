//! Imports histories: an execution that another engine, or another host, has begun goes on here, with its sub-workflows.
//!
//! The histories are decided again before anything is written. Then the definitions are registered that the host does not
//! have, and one append creates the runs with their whole logs.

use std::{collections::HashMap, sync::Arc};

use serde_json::{Value, json};
use wopr_app::{AdoptedChild, Error as AppError, StartPermit};
use wopr_core::{
    ContentHash, DialectId, Imported, ImportedChild, NodeTypes, Object, Origin, Plan, Problems,
    awp::{self, GivenRows, Import, ImportError, RowError},
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
    /// A history of a sub-workflow is none.
    ChildRows(usize, RowError),
    /// The definition of this sub-workflow is not there.
    NoDefinition(String),
}

impl From<ImportError> for NoRun {
    fn from(error: ImportError) -> Self {
        Self::History(error)
    }
}

impl From<NoRun> for Error {
    fn from(error: NoRun) -> Self {
        match error {
            NoRun::Definition(problems) => Self::from(problems),
            NoRun::History(error) => refused(error),
            NoRun::ChildRows(index, error) => {
                let message = format!("child_rows[{index}]: {error}");
                Self::new(Code::Validation, message).with(row_details(&error))
            }
            NoRun::NoDefinition(execution) => {
                let message = format!(
                    "child_definitions does not have the definition of the sub-workflow \"{execution}\", as its rows name it"
                );
                Self::new(Code::Validation, message).with(json!({ "execution_id": execution }))
            }
        }
    }
}

/// The most definitions of sub-workflows in a request.
pub(in crate::awp) const MAX_CHILD_DEFINITIONS: usize = 100;

/// The histories of a request, as it brings them.
struct Histories {
    document: Value,
    rows: Vec<Value>,
    child_documents: Vec<Value>,
    child_rows: Vec<Vec<Value>>,
}

/// What the histories lead to.
struct Decided {
    imported: Imported,
    /// The definitions of its sub-workflows.
    child_documents: Vec<Value>,
}

impl Histories {
    /// Decides the histories again.
    fn decide(self, import: &Import) -> Result<Decided, NoRun> {
        let compile = |document: &Value| {
            let plan = Plan::compile(DialectId::Awp, document.clone(), NodeTypes::default());
            plan.map_err(NoRun::Definition)
        };
        let plan = compile(&self.document)?;
        let plans = self
            .child_documents
            .iter()
            .map(|document| Ok(Arc::new(compile(document)?)));
        let plans: Vec<Arc<Plan>> = plans.collect::<Result<_, NoRun>>()?;
        let given = GivenRows::read(self.rows).map_err(ImportError::from)?;
        let mut children = Vec::with_capacity(self.child_rows.len());
        let mut is_used = vec![false; plans.len()];
        for (index, rows) in self.child_rows.into_iter().enumerate() {
            let rows = GivenRows::read(rows).map_err(|error| NoRun::ChildRows(index, error))?;
            let of = plans
                .iter()
                .position(|plan| plan.awp().is_some_and(|plan| rows.are_of(plan)));
            let Some(of) = of else {
                return Err(NoRun::NoDefinition(rows.execution().to_owned()));
            };
            is_used[of] = true;
            children.push((Arc::clone(&plans[of]), rows));
        }
        let decided = import_awp(&plan, &given, &children, import);
        let documents = self.child_documents.into_iter().zip(is_used);
        Ok(Decided {
            imported: decided.expect("the plans are of this language")?,
            child_documents: documents
                .filter_map(|(document, is_used)| is_used.then_some(document))
                .collect(),
        })
    }
}

impl Surface<'_> {
    pub(super) async fn import(&self, mut arguments: Arguments) -> Result<Value, Error> {
        let permit = self.caller.permit_start()?;
        let name = arguments.name("execution_id")?;
        let document = arguments.required_object("definition")?;
        let rows = arguments.required_list("rows")?;
        let child_documents = arguments.objects("child_definitions", MAX_CHILD_DEFINITIONS)?;
        let child_rows = arguments.lists("child_rows")?;
        let input = arguments.object("input")?;
        let mode = arguments.mode()?;
        let is_parallel = arguments.optional_flag("parallel_activities")?;
        let mut configurable = configurable(&mut arguments)?;
        arguments.end()?;
        if configurable.contains_key(awp::PARALLEL_ACTIVITIES) {
            let message = "configurable.parallelActivities has an argument of its own, parallel_activities";
            return Err(Error::invalid(Tool::Start, message));
        }
        if let Some(is_parallel) = is_parallel {
            configurable.insert(awp::PARALLEL_ACTIVITIES.to_owned(), is_parallel.into());
        }
        child_rows
            .iter()
            .chain([&rows])
            .try_for_each(|rows| self.permit_rows(rows))?;
        if let Some(view) = self.replayed().await? {
            return self.shown(view).await;
        }
        let trusted = |document: Object| {
            let document = definition::trusted(self.host, document)?;
            definition::recognize(&document)?;
            Ok(document)
        };
        let document = trusted(document)?;
        let child_documents = child_documents.into_iter().map(trusted);
        let histories = Histories {
            document: document.clone(),
            rows,
            child_documents: child_documents.collect::<Result<_, Error>>()?,
            child_rows,
        };
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
            trace: self.trace.clone(),
            bounds: beginning.bounds,
            name,
            input,
            configurable,
            mode,
            in_process: beginning.in_process,
        };
        // Heavy however small: a few rows may stand for much work.
        let deciding = app.compute(self.caller, usize::MAX, move || histories.decide(&import));
        let Decided {
            imported: Imported { decision, children },
            child_documents,
        } = deciding.await?.map_err(Error::from)?;
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
        let plans = self.child_plans(permit, child_documents, &document);
        let (plan, plans) = Box::pin(plans).await?;
        let plan = match plan {
            Some(plan) => plan,
            None => {
                let given = (&started.inputs, &started.configurable);
                definition::admit(self.host, self.caller, permit, document, given).await?
            }
        };
        let adopted = children.into_iter().map(|ImportedChild { child, decision }| {
            let workflow = plans.get(&child.version).cloned();
            Some(AdoptedChild {
                workflow: workflow?,
                child,
                decision,
            })
        });
        let adopted: Option<Vec<_>> = adopted.collect();
        let adopted = adopted.expect("a child starts with the version of a definition that came with it");
        let adopting = app.adopt_run(permit, (run, plan), (decision, adopted), self.side_rows());
        let view = match (adopting.await, name) {
            (Ok(done), _) => self.done(done).await?,
            (Err(AppError::AliasTaken), Some(name)) => return self.taken(name).await,
            (Err(error), _) => return Err(error.into()),
        };
        self.shown(view).await
    }

    /// The plan of the execution, if the host has it, and those of its sub-workflows by their versions. Sub-workflows that
    /// the host does not have are registered, once it is sure that none replaces a workflow. They stay if the import fails.
    async fn child_plans(
        &self,
        permit: StartPermit<'_>,
        documents: Vec<Value>,
        parent: &Value,
    ) -> Result<(Option<Arc<Plan>>, HashMap<ContentHash, Arc<Plan>>), Error> {
        let plan = definition::known(self.host, permit, parent).await?;
        let mut plans = HashMap::with_capacity(documents.len());
        let mut unknown = Vec::new();
        for document in documents {
            match definition::known(self.host, permit, &document).await? {
                Some(plan) => drop(plans.insert(plan.version().clone(), plan)),
                None => unknown.push(document),
            }
        }
        for document in unknown {
            let registered = self
                .host
                .app()
                .register_workflow(self.caller, document)
                .await?
                .plan;
            plans.insert(registered.version().clone(), registered);
        }
        Ok((plan, plans))
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
        ImportError::Row(error) => Error::new(Code::Validation, message).with(row_details(&error)),
        ImportError::Whole(reason) => Error::new(Code::Validation, message).with(json!({ "reason": reason })),
        ImportError::Differs {
            index: _,
            seq: _,
            expected,
            actual,
        } => Error::new(Code::NondeterminismDetected, message)
            .with(json!({ "context": { "expected": expected, "actual": actual } })),
        ImportError::Refused(refusal) => refusal.into(),
        ImportError::Child { execution, error } => {
            let mut error = refused(*error);
            error.message = message;
            let details = error.details.get_or_insert_with(|| json!({}));
            details["execution_id"] = execution.into();
            error
        }
    }
}

fn row_details(error: &RowError) -> Value {
    json!({ "row": error.row, "seq": error.row, "reason": error.reason })
}
