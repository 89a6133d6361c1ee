//! Places in histories where readers have stopped, so that the next page does not begin at the first event.
//!
//! A place follows from the log, as the history does, so losing one costs time and nothing else: another replica, or a
//! cursor that nobody has used for long, begins at the first event again. What is kept is bounded for the whole host.

use std::collections::VecDeque;

use parking_lot::Mutex;
use wopr_core::{RunKey, awp::HistoryPosition};

/// The most places that are kept.
const MAX_KEPT: usize = 64;
/// The most of one run: readers of a run at different pages do not push each other out, nor do they take all places.
const MAX_OF_RUN: usize = 4;
/// The most units of work that copying all of them takes; about 16 MB.
const MAX_WEIGHT: u64 = 1_000_000;

#[derive(Debug, Default)]
pub(crate) struct Positions(Mutex<Kept>);

#[derive(Debug, Default)]
struct Kept {
    /// The latest last.
    places: VecDeque<(RunKey, HistoryPosition)>,
    weight: u64,
}

impl Positions {
    /// The last known place in a run's history before a row.
    pub(super) fn before(&self, run: &RunKey, row: u64) -> Option<HistoryPosition> {
        let kept = self.0.lock();
        let places = kept.places.iter();
        let before = places.filter(|(of, position)| of == run && position.n_rows() < row);
        before
            .map(|(_, position)| position)
            .max_by_key(|position| position.n_rows())
            .cloned()
    }

    pub(super) fn keep(&self, run: &RunKey, position: HistoryPosition) {
        let weight = position.weight();
        if weight > MAX_WEIGHT {
            return;
        }
        let mut kept = self.0.lock();
        let is_known =
            |(of, known): &(RunKey, HistoryPosition)| of == run && known.n_rows() == position.n_rows();
        if kept.places.iter().any(is_known) {
            return;
        }
        let of_run = kept.places.iter().enumerate().filter(|(_, (of, _))| of == run);
        let of_run: Vec<_> = of_run.map(|(index, _)| index).collect();
        if of_run.len() >= MAX_OF_RUN {
            kept.drop_at(of_run[0]);
        }
        while kept.places.len() >= MAX_KEPT || kept.weight + weight > MAX_WEIGHT {
            kept.drop_at(0);
        }
        kept.weight += weight;
        kept.places.push_back((run.clone(), position));
    }
}

impl Kept {
    fn drop_at(&mut self, index: usize) {
        if let Some((_, position)) = self.places.remove(index) {
            self.weight -= position.weight();
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use wopr_core::{AwpHistory, NodeTypes, Plan, awp::Wanted};
    use wopr_testkit::Script;

    use super::*;

    /// The places after each event of a run.
    fn places() -> (RunKey, Vec<HistoryPosition>) {
        let document = json!({
            "document": { "schema": "https://agent-workflow.dev/schemas/workflow-definition.json", "name": "n", "version": "1" },
            "state_schema": { "type": "object" },
            "nodes": [
                { "id": "start", "type": "start" },
                { "id": "set", "type": "set_state", "config": { "assignments": { "n": { "literal": 1 } } } },
                { "id": "end", "type": "end" },
            ],
            "edges": [
                { "source": "__start__", "target": "start" }, { "source": "start", "target": "set" },
                { "source": "set", "target": "end" },
            ],
        });
        let plan = Plan::admit(document, NodeTypes::default()).unwrap().into();
        let script = Script::of_plans([plan]).start(json!({}));
        let mut history = AwpHistory::new(script.plan(0), script.id(0), Wanted::Checkpoint).unwrap();
        let place = |event| {
            history.record(event);
            history.position()
        };
        let places: Vec<_> = script.events(0).iter().map(place).collect();
        let tenant = wopr_core::TenantId::parse("acme").unwrap();
        (RunKey::new(tenant, script.id(0).clone()), places)
    }

    #[test]
    fn a_reader_goes_on_at_the_last_place_before_its_row() {
        let (run, places) = places();
        let (first, last) = (&places[0], &places[places.len() - 2]);
        assert!(first.n_rows() < last.n_rows());
        let positions = Positions::default();
        assert_eq!(positions.before(&run, 100), None);
        positions.keep(&run, first.clone());
        positions.keep(&run, last.clone());
        assert_eq!(positions.before(&run, 1), None);
        assert_eq!(positions.before(&run, last.n_rows()), Some(first.clone()));
        assert_eq!(positions.before(&run, last.n_rows() + 1), Some(last.clone()));
        let other = RunKey::new(wopr_core::TenantId::parse("rival").unwrap(), run.run.clone());
        assert_eq!(positions.before(&other, 100), None, "another tenant");
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let (run, places) = places();
        let positions = Positions::default();
        for place in &places {
            positions.keep(&run, place.clone());
        }
        assert_eq!(positions.0.lock().places.len(), MAX_OF_RUN.min(places.len()));
        for n in 0..2 * MAX_KEPT {
            let tenant = wopr_core::TenantId::parse(&format!("t{n}")).unwrap();
            positions.keep(&RunKey::new(tenant, run.run.clone()), places[1].clone());
        }
        let kept = positions.0.lock();
        assert_eq!(kept.places.len(), MAX_KEPT);
        let weight: u64 = kept.places.iter().map(|(_, position)| position.weight()).sum();
        assert_eq!(kept.weight, weight);
    }
}
