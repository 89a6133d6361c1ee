//! `wopr a2a list`: lists the tasks of an agent, by page or all of them.

use anyhow::Result;
use clap::{Args, ValueEnum};
use serde_json::json;
use wopr_wire::a2a::model::{ListTasksRequest, Task, TaskState};

use super::place::Place;
use crate::{
    agent::Agent,
    exit::{Exit, Failure},
    output::{self, age, state, whole},
    render,
};

/// Maximum number of tasks to list, because a misbehaving agent may never stop returning pages.
const MOST: usize = 100_000;

/// Selects tasks.
#[derive(Debug, Args)]
pub(super) struct List {
    /// The agent, instead of --server
    #[arg(value_name = "URL")]
    agent: Option<String>,
    /// Only tasks of this context
    #[arg(long, value_name = "ID")]
    context: Option<String>,
    /// Only tasks in this state
    #[arg(long, value_enum)]
    status: Option<Status>,
    /// Maximum number of tasks on a page, 1 to 100
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    page_size: Option<u32>,
    /// Continue after the page that returned this token
    #[arg(long, value_name = "TOKEN")]
    page_token: Option<String>,
    /// Fetch all remaining pages
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    place: Place,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Status {
    Submitted,
    Working,
    InputRequired,
    AuthRequired,
    Completed,
    Failed,
    Canceled,
    Rejected,
}

impl Status {
    const fn state(self) -> TaskState {
        match self {
            Self::Submitted => TaskState::Submitted,
            Self::Working => TaskState::Working,
            Self::InputRequired => TaskState::InputRequired,
            Self::AuthRequired => TaskState::AuthRequired,
            Self::Completed => TaskState::Completed,
            Self::Failed => TaskState::Failed,
            Self::Canceled => TaskState::Canceled,
            Self::Rejected => TaskState::Rejected,
        }
    }
}

struct Listed {
    tasks: Vec<Task>,
    next_page_token: String,
    total_size: u64,
}

impl List {
    pub(super) async fn run(self) -> Result<Exit> {
        let request = ListTasksRequest {
            context_id: self.context,
            status: self.status.map(Status::state),
            page_size: self.page_size,
            page_token: self.page_token,
            ..ListTasksRequest::default()
        };
        let place = self.place.at(self.agent);
        let agent = place.agent().await?;
        let Listed {
            tasks,
            next_page_token,
            total_size,
        } = read(&agent, request, self.all).await?;
        if place.format.json {
            output::json(&json!({
                "tasks": tasks,
                "nextPageToken": next_page_token,
                "totalSize": total_size,
            }))?;
            return Ok(Exit::Ok);
        }
        let rows: Vec<_> = tasks.iter().map(row).collect();
        output::table(
            &[whole("TASK"), state("STATE"), age("CHANGED"), whole("CONTEXT")],
            &rows,
        )?;
        if !next_page_token.is_empty() {
            output::note(format!(
                "there are more: --page-token {}, or --all",
                output::plain(&next_page_token)
            ))?;
        }
        Ok(Exit::Ok)
    }
}

fn row(task: &Task) -> Vec<String> {
    let changed = task.status.timestamp.as_ref();
    vec![
        task.id.clone(),
        render::task_state(task.status.state),
        changed.map(ToString::to_string).unwrap_or_default(),
        task.context_id.clone(),
    ]
}

async fn read(agent: &Agent, mut request: ListTasksRequest, is_all: bool) -> Result<Listed> {
    let mut tasks = Vec::new();
    loop {
        let asked = request.page_token.clone();
        let page = agent.list(request.clone()).await?;
        tasks.extend(page.tasks);
        let next = page.next_page_token;
        if next.is_empty() || !is_all || tasks.len() >= MOST {
            return Ok(Listed {
                tasks,
                next_page_token: next,
                total_size: page.total_size,
            });
        }
        if Some(&next) == asked.as_ref() {
            return Err(Failure::new(Exit::Failed, "the agent lists the same page again and again").into());
        }
        request.page_token = Some(next);
    }
}
