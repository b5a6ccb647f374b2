//! The Redis servers of rows that need several: where their counters are, and when a failed master is replaced.

use super::{
    Setup,
    load::{MODES, SPARED},
};
use crate::support::{cluster::ClusterSetup, prelude::*, sentinels::Sentinels};

/// No master is replaced before [`replace_master`](Deployment::replace_master), however slow the test machine is.
const NEVER: Duration = Duration::from_secs(600);
const SOON: Duration = Duration::from_millis(500);

/// A slot of the first node, which no counter has.
const FIRST_SLOT: u16 = 0;

pub(super) enum Deployment {
    Single,
    Sentinel(Sentinels),
    /// The counters of the modes are on the first node, and the spared one is on the second.
    Cluster(Cluster),
}

impl Deployment {
    pub(super) fn start(setup: Setup) -> Self {
        let deployment = match setup {
            Setup::Direct | Setup::Proxy | Setup::ProxyFromStart | Setup::Memory => Self::Single,
            Setup::Sentinel => Self::Sentinel(Sentinels::start()),
            Setup::Cluster => Self::Cluster(placed(Cluster::start())),
            Setup::Shards => {
                let setup = ClusterSetup { replicas: false, ..ClusterSetup::default() };
                Self::Cluster(placed(Cluster::start_as(&setup)))
            }
        };
        deployment.notice_after(NEVER);
        deployment
    }

    pub(super) fn url(&self) -> String {
        match self {
            Self::Single => panic!("the row has a setup of its own"),
            Self::Sentinel(sentinels) => sentinels.url(),
            Self::Cluster(cluster) => cluster.url(),
        }
    }

    fn notice_after(&self, time: Duration) {
        match self {
            Self::Single => {}
            Self::Sentinel(sentinels) => sentinels.notice_after(time),
            Self::Cluster(cluster) => cluster.notice_after(time),
        }
    }

    /// Waits until a replica has taken over from the failed master.
    pub(super) fn replace_master(&self) {
        self.notice_after(SOON);
        match self {
            Self::Single => {}
            Self::Sentinel(sentinels) => drop(sentinels.announced()),
            Self::Cluster(cluster) => drop(cluster.announced(FIRST_SLOT, 0)),
        }
    }
}

/// Moves the slots of all counters to their nodes.
fn placed(cluster: Cluster) -> Cluster {
    move_slots(&cluster, &slots(&cluster, &["small", "large"]), 0);
    move_slots(&cluster, &[slot_of(&cluster, SPARED, "large")], 1);
    cluster.ready();
    cluster
}

/// Moves these slots and their keys to a node.
pub(super) fn move_slots(cluster: &Cluster, slots: &[u16], to: usize) {
    for slot in slots {
        if cluster.node_of(*slot) != to {
            cluster.move_slot(*slot, to);
        }
    }
}

/// The slots of the modes' counters with these values.
pub(super) fn slots(cluster: &Cluster, values: &[&str]) -> Vec<u16> {
    let keys = values.iter().flat_map(|value| MODES.map(|mode| (mode, *value)));
    keys.map(|(mode, value)| slot_of(cluster, mode, value)).collect()
}

fn slot_of(cluster: &Cluster, key: &str, value: &str) -> u16 {
    let slot = cluster.slot_of(&format!("{{faults|{key}={value}}}"));
    assert_ne!(slot, FIRST_SLOT);
    slot
}
