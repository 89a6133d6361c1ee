//! The end of a world's life: every run expires and is removed, by whole trees or not at all.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use wopr_core::RunKey;
use wopr_store::{Log, Retention};

use super::{cluster::Cluster, store::Server};

/// Retention period of runs: longer than any world lives before it ages.
pub(crate) const KEPT_FOR: Duration = Duration::from_secs(24 * 3_600);
/// Looks at the store while processes still fail and die.
const CRUEL_LOOKS: u64 = 60;
/// Looks after which nothing may be left.
const LOOKS: u64 = 600;
/// Maximum time between two looks.
const PAUSE_MS: u64 = 2_000;

/// Lets a day pass in which only retention is active.
pub(crate) async fn age(cluster: &Cluster) {
    let fate = Arc::clone(&cluster.fate);
    let families = families(&cluster.server);
    fate.tell(|| "a day passes".to_owned());
    fate.skip(KEPT_FOR);
    fate.set_cruel(true);
    for look in 0..LOOKS {
        if look == CRUEL_LOOKS {
            fate.set_cruel(false);
            cluster.mend();
        }
        let mut n_left = 0;
        for family in &families {
            let n_seen = seen(&cluster.server, family).await;
            if n_seen != 0 && n_seen != family.len() {
                return fate.breaks(format!(
                    "{n_seen} of a tree of {} runs are left: {family:?}",
                    family.len()
                ));
            }
            n_left += n_seen;
        }
        let store = &cluster.server.store;
        let is_swept = store.next_tenant(None).await.expect("reads").is_none();
        if n_left == 0 && is_swept && store.begun_removals(1).await.expect("reads").is_empty() {
            return fate.set_cruel(false);
        }
        fate.linger(PAUSE_MS).await;
    }
    fate.breaks("what has had its time stays");
}

/// The runs of each tree.
fn families(server: &Server) -> Vec<Vec<RunKey>> {
    let mut families: BTreeMap<RunKey, Vec<RunKey>> = BTreeMap::new();
    for key in server.witness.keys() {
        let mut root = key.clone();
        while let Some(parent) = server.witness.parent(&root) {
            root = parent;
        }
        families.entry(root).or_default().push(key);
    }
    families.into_values().collect()
}

async fn seen(server: &Server, family: &[RunKey]) -> usize {
    let mut n_seen = 0;
    for key in family {
        let summary = server.store.summary(key).await.expect("reads");
        n_seen += usize::from(summary.is_some());
    }
    n_seen
}
