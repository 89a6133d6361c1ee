//! What must hold when both hosts are back: see the list in the parent module.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{Arc, atomic::AtomicUsize},
    time::{Duration, Instant},
};

use tokio::time;

use super::client::{Kind, Line, Story, resume};

/// How long all calls may take to end when nobody is killed any more. An agent that was away is told a cancel or an
/// answer again after as long as it was not told.
const LIMIT: Duration = Duration::from_secs(120);
const PAUSE: Duration = Duration::from_millis(200);

/// The status of each run of a host.
type Statuses = BTreeMap<String, String>;

/// Both hosts, and what is known of their runs.
struct Hosts {
    caller: Line,
    callee: Line,
    runs: Statuses,
    tasks: Statuses,
    /// The tasks that began with a text.
    by_tag: BTreeMap<String, Vec<String>>,
}

/// Waits until all calls and their tasks have ended as they should, and returns what is wrong.
pub(super) async fn check(caller: SocketAddr, callee: SocketAddr, stories: &[Story]) -> Vec<String> {
    let lost = Arc::new(AtomicUsize::new(0));
    let mut hosts = Hosts {
        caller: Line::new(caller, Arc::clone(&lost)),
        callee: Line::new(callee, lost),
        runs: Statuses::new(),
        tasks: Statuses::new(),
        by_tag: BTreeMap::new(),
    };
    let since = Instant::now();
    loop {
        hosts.read().await;
        let mut broken: Vec<String> = stories.iter().filter_map(|story| hosts.judge(story)).collect();
        if broken.is_empty() || since.elapsed() > LIMIT {
            for story in stories {
                broken.extend(hosts.judge_answers(story).await);
            }
            let strays = hosts.by_tag.iter().filter(|(tag, _)| {
                let mut stories = stories.iter();
                !stories.any(|story| story.tag == **tag)
            });
            broken.extend(strays.map(|(tag, ids)| format!("{ids:?} of {tag:?}: nobody asked for it")));
            return broken;
        }
        // sleep: the pace of asking
        time::sleep(PAUSE).await;
    }
}

impl Hosts {
    /// Reads all runs, and lets those go on that were held because they were active at three kills.
    async fn read(&mut self) {
        self.runs = all(&self.caller).await;
        self.tasks = all(&self.callee).await;
        for (line, runs) in [(&self.caller, &self.runs), (&self.callee, &self.tasks)] {
            let held = runs.iter();
            for (id, _) in held.filter(|(_, status)| ["paused", "cancelling"].contains(&status.as_str())) {
                resume(line, id).await;
            }
        }
        let known: Vec<String> = self.by_tag.values().flatten().cloned().collect();
        for id in self.tasks.keys().filter(|id| !known.contains(id)) {
            let (_, task) = self.callee.get(&format!("/v1/runs/{id}")).await;
            let tag = task["inputs"]["prompt"].as_str().unwrap_or_default().to_owned();
            self.by_tag.entry(tag).or_default().push(id.clone());
        }
    }

    fn tasks_of(&self, story: &Story) -> &[String] {
        self.by_tag.get(&story.tag).map_or(&[], Vec::as_slice)
    }

    /// What is wrong with a call and its task, if anything is.
    fn judge(&self, story: &Story) -> Option<String> {
        let wrong = |what: String| Some(format!("{story:?}: {what}"));
        let (wanted, may_have_none) = match story.kind {
            Kind::Short | Kind::Order(_) => ("completed", false),
            Kind::Cancelled => ("cancelled", false),
            Kind::CancelledEarly => ("cancelled", true),
        };
        let ended = self.runs.get(&story.run).map_or("gone", String::as_str);
        if ended != wanted {
            return wrong(format!("the run is {ended}, not {wanted}"));
        }
        let task = match self.tasks_of(story) {
            [task] => task,
            [] if may_have_none => return None,
            tasks => return wrong(format!("{} tasks: {tasks:?}", tasks.len())),
        };
        let ended = &self.tasks[task];
        if ended != wanted {
            return wrong(format!("its task {task} is {ended}, not {wanted}"));
        }
        None
    }

    /// What is wrong with the answers that a task got.
    async fn judge_answers(&self, story: &Story) -> Option<String> {
        let (Kind::Order(answers), [task]) = (&story.kind, self.tasks_of(story)) else {
            return None;
        };
        let (_, log) = self
            .callee
            .get(&format!("/v1/runs/{task}/events/poll?timeout=1"))
            .await;
        let events = log["events"].as_array().into_iter().flatten();
        let resolved: Vec<String> = events
            .filter(|event| event["type"] == "interrupt.resolved")
            .map(|event| event["payload"].to_string())
            .collect();
        let are_equal = resolved.len() == answers.len()
            && resolved
                .iter()
                .zip(answers)
                .all(|(got, told)| got.contains(told.as_str()));
        match are_equal {
            true => None,
            false => Some(format!(
                "{story:?}: its task {task} was answered {resolved:?}: {log}"
            )),
        }
    }
}

async fn all(line: &Line) -> Statuses {
    let mut found = Statuses::new();
    let mut after = String::new();
    loop {
        let (status, page) = line.get(&format!("/v1/runs?limit=100{after}")).await;
        assert_eq!(status, 200, "{page}");
        for run in page["runs"].as_array().unwrap() {
            let text = |name: &str| run[name].as_str().unwrap().to_owned();
            found.insert(text("runId"), text("status"));
        }
        match page["nextCursor"].as_str() {
            Some(cursor) if !cursor.is_empty() => after = format!("&cursor={cursor}"),
            Some(_) | None => return found,
        }
    }
}
