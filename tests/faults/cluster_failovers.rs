//! Failovers under load. `FAILOVERS` is the number of each kind.

use crate::support::{
    cluster_calls::{ALGORITHMS, rules, serve, slot_of, used, values_on},
    cluster_load::{Counted, Load},
    prelude::*,
};

/// How long after the announcement calls may still fail. It is below a second unless the machine is busy: the map is read
/// again after a second at most.
const BACK_WITHIN: Duration = Duration::from_secs(2);

const BY_HAND: &str = "by hand";

/// Number of failovers in one cluster: each of its six nodes is replaced once. Masters do not vote about a node again
/// within twice the node timeout.
const IN_A_CLUSTER: u64 = 6;

/// The node timeout for failovers by hand. A node that is held up for longer, as by the disk of a busy machine, is
/// considered down, and calls that need it do fail.
const HELD_UP_AT_MOST: Duration = Duration::from_secs(60);

/// Number of clients. A busy machine that stops once lets a call of each fail.
const CLIENTS: usize = 8;

/// How long no call may fail before service counts as back.
const QUIET: Duration = Duration::from_millis(400);

struct Outcome {
    /// The answers to the calls that failed.
    failed: Vec<String>,
    /// Calls that failed after that, since the machine is busy.
    strays: usize,
    announced: Duration,
    /// After the announcement.
    back: Duration,
    acknowledged: u64,
    beyond: u64,
}

/// Fails the master of `value` over under load, and waits until the cluster is whole again.
async fn fail_over(
    cluster: &mut Cluster,
    services: &[&Service],
    calls: Vec<Vec<Counted>>,
    slot: u16,
    fault: fn(&mut Cluster, usize),
) -> Outcome {
    let master = cluster.node_of(slot);
    let counted: Vec<Counted> = calls.concat();
    let load = Load::start(services, CLIENTS, calls, usize::MAX).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    let began = Instant::now();
    fault(cluster, master);
    let announced = cluster.announced(slot, master);
    tokio::time::sleep(BACK_WITHIN + Duration::from_secs(1)).await;
    let ledger = load.stop().await;
    let mut back = announced;
    for (at, _) in &ledger.failed {
        if *at > back && *at - back <= QUIET {
            back = *at;
        }
    }
    let sum = |of: &dyn Fn(&Counted) -> u64| counted.iter().map(of).sum();
    let admitted = |counted: &Counted| ledger.admitted.get(counted).copied().unwrap_or(0);
    let lost = |counted: &Counted| {
        admitted(counted).saturating_sub(used(services[0], counted.0, &counted.1))
    };
    let outcome = Outcome {
        failed: ledger.failed.iter().map(|(_, answer)| answer.clone()).collect(),
        strays: ledger.failed.iter().filter(|(at, _)| *at > back).count(),
        announced: announced - began,
        back: back - announced,
        acknowledged: sum(&admitted),
        beyond: sum(&lost),
    };
    cluster.heal();
    cluster.assert_no_key_leaks();
    outcome
}

async fn check_failovers(kind: &str, budget: &str, fault: fn(&mut Cluster, usize)) {
    let mut left = number("FAILOVERS", 3);
    while left > 0 {
        let rounds = left.min(IN_A_CLUSTER);
        check_failovers_in_a_cluster(kind, budget, rounds, fault).await;
        left -= rounds;
    }
}

async fn check_failovers_in_a_cluster(
    kind: &str,
    budget: &str,
    rounds: u64,
    fault: fn(&mut Cluster, usize),
) {
    let mut cluster = Cluster::start();
    if kind == BY_HAND {
        cluster.notice_after(HELD_UP_AT_MOST);
    }
    let rules = rules(9_000, &[]);
    let flags = ["--decision-budget", budget];
    let services = [serve(&cluster, &rules, &flags), serve(&cluster, &rules, &flags)];
    for round in 0..rounds {
        // The slots of one node go to its replica and back, then the slots of the next node.
        let first_owner = usize::try_from(round / 2).unwrap();
        let mut calls: Vec<Vec<Counted>> = Vec::new();
        for name in ALGORITHMS {
            let value = values_on(&cluster, first_owner, name, &format!("r{round}k"), 1).remove(0);
            calls.push(vec![(name, value)]);
            calls.push((0..3).map(|number| (name, format!("r{round}of{number}"))).collect());
        }
        let slot = slot_of(&cluster, calls[0][0].0, &calls[0][0].1);
        let services = services.each_ref();
        let outcome = fail_over(&mut cluster, &services, calls, slot, fault).await;
        let Outcome { failed, strays, announced, back, acknowledged, beyond } = outcome;
        println!(
            "{kind} {round}: announced after {announced:.2?}, back {back:.2?} after that, {} calls failed, {acknowledged} hits acknowledged, {beyond} of them lost",
            failed.len()
        );
        if kind == BY_HAND {
            let logs = services.map(Service::log).concat();
            assert_eq!((failed, beyond), (vec![], 0), "{kind}: {logs}");
            continue;
        }
        assert!(back <= BACK_WITHIN, "{kind}: {back:?} after the announcement");
        assert!(
            strays <= CLIENTS + failed.len() / 20,
            "{kind}: {strays} calls fail after service is back"
        );
        // A process that ends loses nothing that it has sent.
        assert!(beyond <= 50, "{kind}: {beyond} hits are lost");
    }
    for service in &services {
        service.wait_for_log("failover from 127.0.0.1:");
        service.assert_metric("ratelimit_store_charges_lost_total");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_master_is_replaced_soon_after_the_announcement() {
    check_failovers("kill", "300ms", Cluster::kill).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_master_is_replaced_soon_after_the_announcement() {
    check_failovers("stop", "300ms", Cluster::stop).await;
}

/// None of the old masters answers.
#[tokio::test(flavor = "multi_thread")]
async fn masters_that_are_replaced_together_are_each_followed_and_reported() {
    let mut cluster = Cluster::start();
    let service = serve(&cluster, &rules(10, &[]), &["--decision-budget", "300ms"]);
    let values: Vec<String> = (0..3)
        .map(|node| values_on(&cluster, node, "fixed_window", "together", 1).remove(0))
        .collect();
    let ask = async |value: &str| service.ask(shop(&format!("fixed_window={value}"))).await.is_ok();
    for value in &values {
        assert!(ask(value).await, "{}", service.log());
    }
    for master in 0..3 {
        cluster.stop(master);
    }
    for replica in 3..6 {
        cluster.nodes[replica].query::<()>(&["CLUSTER", "FAILOVER", "TAKEOVER"]);
    }
    let deadline = Instant::now() + Duration::from_secs(30);
    for value in &values {
        while !ask(value).await {
            assert!(Instant::now() < deadline, "{}", service.log());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    for master in 0..3 {
        service.wait_for_log(&format!("failover from 127.0.0.1:{} to", cluster.nodes[master].port));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failover_by_hand_fails_no_call_and_loses_no_hit() {
    check_failovers(BY_HAND, "30s", |cluster, master| cluster.failover_by_hand(master)).await;
}
