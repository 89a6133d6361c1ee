//! Starts runs.

use std::sync::Arc;

use wopr_core::{IMPORTED, Object, Origin, Plan, Refusal, RunId, TraceContext, WorkflowId};
use wopr_engine::{Create, Done, SideRows, Start};

use crate::{App, Caller, Error, Forbidden, Scope};

/// Maximum number of tags of a run.
const MAX_TAGS: usize = 100;
/// Maximum length of a tag in characters.
const MAX_TAG: usize = 256;

/// The permission to start runs. Starting one takes several steps, such as choosing a workflow; the permit
/// says that the scope was checked before the first of them.
#[derive(Debug, Clone, Copy)]
pub struct StartPermit<'c>(&'c Caller);

impl<'c> StartPermit<'c> {
    pub(crate) const fn caller(self) -> &'c Caller {
        self.0
    }
}

impl Caller {
    /// Requires that the caller may start runs.
    pub const fn permit_start(&self) -> Result<StartPermit<'_>, Forbidden> {
        match self.require(Scope::RunsCreate) {
            Ok(()) => Ok(StartPermit(self)),
            Err(forbidden) => Err(forbidden),
        }
    }
}

/// A run to start, as read from a request.
#[derive(Debug)]
pub struct NewRun {
    /// From [`App::new_run_id`].
    pub run: RunId,
    pub origin: Origin,
    pub inputs: Object,
    /// Overrides for this run.
    pub configurable: Object,
    pub tags: Vec<String>,
    pub metadata: Object,
    /// The group of runs it belongs to, if the protocol has such groups.
    pub context: Option<String>,
    /// W3C trace context of the request.
    pub trace: Option<TraceContext>,
    pub side_rows: SideRows,
}

impl NewRun {
    /// A run without inputs and all else that is optional.
    #[must_use]
    pub fn new(run: RunId, origin: Origin) -> Self {
        Self {
            run,
            origin,
            inputs: Object::new(),
            configurable: Object::new(),
            tags: Vec::new(),
            metadata: Object::new(),
            context: None,
            trace: None,
            side_rows: SideRows::default(),
        }
    }
}

impl App {
    /// Starts a run of the workflow with this id. A request that took effect before is replayed, even if the
    /// workflow is gone by now.
    pub async fn start_run(
        &self,
        permit: StartPermit<'_>,
        workflow: &WorkflowId,
        new: NewRun,
    ) -> Result<Done, Error> {
        let tenant = &permit.caller().tenant;
        let found = self.engine.find_workflow(tenant, workflow).await?;
        match found.filter(|plan| plan.is_active()) {
            Some(plan) => self.start_run_of(permit, plan, new).await,
            None => match &new.side_rows.idempotency {
                Some(once) => self.replay(once).await?.ok_or(Error::NoWorkflow),
                None => Err(Error::NoWorkflow),
            },
        }
    }

    /// Starts a run of a workflow that is already looked up.
    pub async fn start_run_of(
        &self,
        permit: StartPermit<'_>,
        workflow: Arc<Plan>,
        new: NewRun,
    ) -> Result<Done, Error> {
        let NewRun {
            run,
            origin,
            inputs,
            configurable,
            tags,
            metadata,
            context,
            trace,
            side_rows,
        } = new;
        check_tags(&tags)?;
        check_metadata(&metadata)?;
        let caller = permit.caller();
        let start = Start {
            tenant: caller.tenant.clone(),
            principal: caller.principal.clone(),
            origin,
            inputs,
            configurable,
            tags,
            metadata,
            context,
            trace,
        };
        let create = Box::new(Create {
            run,
            workflow,
            start,
            side_rows,
        });
        Ok(self.engine.create(create).await?)
    }
}

/// Refuses metadata that the host alone writes: callers read in it that the log of a run was decided elsewhere.
pub(crate) fn check_metadata(metadata: &Object) -> Result<(), Refusal> {
    match metadata.contains_key(IMPORTED) {
        false => Ok(()),
        true => Err(invalid(
            "metadata",
            format!("{IMPORTED} is only set by an import"),
        )),
    }
}

/// Refuses tags that are too many or too long.
pub(crate) fn check_tags(tags: &[String]) -> Result<(), Refusal> {
    if tags.len() > MAX_TAGS {
        return Err(invalid("tags", format!("must have at most {MAX_TAGS} elements")));
    }
    match tags
        .iter()
        .any(|tag| tag.is_empty() || tag.chars().nth(MAX_TAG).is_some())
    {
        false => Ok(()),
        true => Err(invalid(
            "tags",
            format!("must have 1 to {MAX_TAG} characters each"),
        )),
    }
}

pub(crate) fn invalid(field: &str, rule: String) -> Refusal {
    Refusal::InvalidInput {
        field: field.to_owned(),
        rule,
    }
}
