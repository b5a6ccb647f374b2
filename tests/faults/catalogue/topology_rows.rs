//! The table of faults of Sentinel deployments and Clusters.

use super::{
    Change, Counters, Effect, Reach, Row, Setup, World,
    deployment::{move_slots, slots},
    rows::{of_redis, of_refusal},
};
use crate::support::eventually;

/// A row of a Sentinel deployment, whose master fails.
const fn of_sentinel(fault: &'static str, stage: Change, heal: Change, effect: Effect) -> Row {
    of_redis(fault, stage, heal, effect).on(Setup::Sentinel)
}

/// A row of a Cluster with replicas, whose first node fails.
const fn of_cluster(fault: &'static str, stage: Change, heal: Change, effect: Effect) -> Row {
    of_redis(fault, stage, heal, effect).on(Setup::Cluster).reaching(Reach::FirstNode)
}

/// A row of a Cluster without replicas, whose first node fails.
const fn of_shards(fault: &'static str, stage: Change, heal: Change, effect: Effect) -> Row {
    of_cluster(fault, stage, heal, effect).on(Setup::Shards)
}

fn replace_master(world: &mut World) {
    world.deployment.replace_master();
}

/// A slot of the last node, which no counter has.
const LAST_SLOT: &str = "16383";

pub(super) const ROWS: &[Row] = &[
    of_sentinel(
        "F20 Sentinel: the master is killed and replaced",
        |world| world.sentinels().kill_master(),
        replace_master,
        Effect::Outage,
    )
    .counters(Counters::Replicated),
    // Once it is resumed it takes calls until the service has left it.
    of_sentinel(
        "F20 Sentinel: the master is stopped by SIGSTOP, replaced, and resumed",
        |world| world.sentinels().stop_master(),
        |world| {
            world.deployment.replace_master();
            world.sentinels().resume_master();
        },
        Effect::Outage,
    )
    .counters(Counters::Lost(1)),
    // The old master takes calls until the service has left it.
    of_sentinel(
        "F20 Sentinel: a replica is promoted by hand",
        |world| world.sentinels().failover_by_hand(),
        replace_master,
        Effect::Mixed,
    )
    .counters(Counters::Lost(1)),
    of_cluster(
        "F20 Cluster: a master is killed and replaced",
        |world| world.cluster().kill(0),
        replace_master,
        Effect::Outage,
    )
    .counters(Counters::Replicated),
    // Once it is resumed it takes calls until the service has left it.
    of_cluster(
        "F20 Cluster: a master is stopped by SIGSTOP, replaced, and resumed",
        |world| world.cluster().stop(0),
        |world| {
            world.deployment.replace_master();
            world.cluster().resume(0);
        },
        Effect::Outage,
    )
    .counters(Counters::Lost(1)),
    of_cluster(
        "F20 Cluster: a replica is promoted by hand",
        |world| world.cluster().failover_by_hand(0),
        replace_master,
        Effect::Mixed,
    ),
    of_shards(
        "F25 Cluster: a shard without replica is killed",
        |world| world.cluster().kill(0),
        |world| world.cluster().heal(),
        Effect::Outage,
    )
    .counters(Counters::Lost(1)),
    of_shards(
        "F25 Cluster: a shard without replica is stopped by SIGSTOP",
        |world| world.cluster().stop(0),
        |world| world.cluster().resume(0),
        Effect::Outage,
    ),
    of_refusal("F08 Cluster: OOM on a shard", "OOM").on(Setup::Shards).reaching(Reach::FirstNode),
    of_refusal("F22 Cluster: NOREPLICAS on a shard", "NOREPLICAS")
        .on(Setup::Shards)
        .reaching(Reach::FirstNode),
    of_shards(
        "F25 CLUSTERDOWN: a slot has no owner, and the nodes require full coverage",
        |world| {
            let cluster = world.cluster();
            for node in &cluster.nodes {
                node.query::<()>(&["CONFIG", "SET", "cluster-require-full-coverage", "yes"]);
            }
            eventually("all nodes say CLUSTERDOWN", || cluster.forget_slot(LAST_SLOT));
        },
        |world| {
            let cluster = world.cluster();
            cluster.nodes[2].query::<()>(&["CLUSTER", "ADDSLOTS", LAST_SLOT]);
            cluster.ready();
        },
        Effect::Outage,
    )
    .reaching(Reach::All),
    of_shards(
        "F24 MOVED: a node's counters move to another node",
        |world| {
            let cluster = world.cluster();
            move_slots(cluster, &slots(cluster, &["small", "large"]), 1);
        },
        |_| {},
        Effect::Served,
    ),
    of_shards(
        "F24 ASK: some counters have moved, their slots have not",
        |world| {
            let cluster = world.cluster();
            for slot in slots(cluster, &["small", "large"]) {
                cluster.begin_move(slot, 1);
            }
            for slot in slots(cluster, &["small"]) {
                cluster.begin_move(slot, 1).move_keys();
            }
        },
        |world| {
            let cluster = world.cluster();
            move_slots(cluster, &slots(cluster, &["small", "large"]), 1);
        },
        Effect::Served,
    ),
];
