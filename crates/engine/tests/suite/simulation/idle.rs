//! What an engine asks of its store while nothing happens: nothing that grows with what is parked there.

use std::{collections::BTreeMap, time::Duration};

use wopr_engine::Options;
use wopr_testkit::Workflow;

use super::mines::Calm;

const HOUR: Duration = Duration::from_secs(3_600);

impl Calm {
    /// Lets time pass and says how often each thing was read meanwhile.
    async fn reads_in(&self, time: Duration) -> BTreeMap<&'static str, u64> {
        let before = self.server.n_reads();
        tokio::time::sleep(time).await; // sleep: virtual time
        let mut reads = self.server.n_reads();
        for (what, n) in before {
            *reads.entry(what).or_default() -= n;
        }
        reads
    }
}

#[tokio::test(start_paused = true)]
async fn parked_runs_are_not_looked_through_for_what_has_had_its_time() {
    const PARKED: usize = 2_000;
    let calm = Calm::with(
        None,
        Options {
            retention: Some(HOUR / 2),
            ..Options::default()
        },
    )
    .await;
    calm.register(Workflow::new("gate").gate("gate")).await;
    for _ in 0..PARKED {
        calm.create("gate").await;
    }
    // The first look at them all, and one afresh each hour.
    tokio::time::sleep(HOUR).await; // sleep: virtual time
    let reads = calm.reads_in(24 * HOUR).await["roots"];
    let (looks, pages) = (24 * 60, PARKED as u64 / 256);
    assert!(
        (looks..=looks + 25 * (pages + 1)).contains(&reads),
        "{reads} pages in {looks} looks"
    );
    calm.end().await;
}
