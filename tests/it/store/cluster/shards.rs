//! A shard that is dead or fails: it degrades its own keys, and no others.

use tollkeeper::{
    engine::request::Hits,
    store::redis::script::{self, KeyDeclaration},
};

use crate::support::{
    cluster_calls::{
        ALGORITHMS, ask, charge, described, follow, masters, rules, serve, slot_of, used,
        values_on, years,
    },
    cluster_load::{Counted, Load},
    prelude::*,
};

const MODES: [&str; 4] = ["error", "deny", "allow", "local"];

fn mode_rules() -> String {
    let mut rules = "domain: shop\ndescriptors:\n".to_owned();
    for mode in MODES {
        rules += &format!(
            "  - key: {mode}\n    rate_limit: {{ unit: year, requests_per_unit: 10, on_store_failure: {mode} }}\n"
        );
    }
    rules + "  - key: other\n    rate_limit: { unit: year, requests_per_unit: 40 }\n"
}

/// The answer as one word.
async fn answer(service: &Service, call: &[Counted]) -> String {
    let descriptors = call.iter().map(described).collect();
    match service.ask(request("shop", descriptors)).await {
        Ok(response) if response.overall_code() == Code::Ok => "OK".to_owned(),
        Ok(_) => "OVER_LIMIT".to_owned(),
        Err(status) => status.code().to_string(),
    }
}

async fn check_dead_shard(kill: fn(&mut Cluster)) {
    let mut cluster = masters(Version::Redis7);
    let service = serve(&cluster, &mode_rules(), &["--decision-budget", "1s"]);
    let others = values_on(&cluster, 1, "other", "living", 4);
    let dead: Vec<_> =
        MODES.iter().map(|mode| values_on(&cluster, 0, mode, "dead", 1).remove(0)).collect();
    for (mode, value) in MODES.into_iter().zip(&dead) {
        assert_eq!(answer(&service, &[(mode, value.clone())]).await, "OK");
    }
    kill(&mut cluster);
    // Both parts, then each alone: what the living one has reserved stays only if the call passes.
    let expected = [
        ("error", "The service is currently unavailable", 0),
        ("deny", "OVER_LIMIT", 0),
        ("allow", "OK", 5),
        ("local", "OK", 5),
    ];
    for (((mode, expected, charged), value), other) in expected.into_iter().zip(&dead).zip(&others)
    {
        for _ in 0..5 {
            let call = [("other", other.clone()), (mode, value.clone())];
            assert_eq!(answer(&service, &call).await, expected, "{mode}");
            assert_eq!(answer(&service, &[(mode, value.clone())]).await, expected, "{mode}");
        }
        let charged_of_other = || used(&service, "other", other);
        if charged_of_other() != charged {
            wait_until(&format!("{mode}: the other counter holds {charged}"), || {
                charged_of_other() == charged
            });
        }
        // The living shard is served exactly.
        for _ in charged..40 {
            assert_eq!(answer(&service, &[("other", other.clone())]).await, "OK", "{mode}");
        }
        assert_eq!(answer(&service, &[("other", other.clone())]).await, "OVER_LIMIT", "{mode}");
    }
    let (port, log) = (cluster.nodes[0].port, service.log());
    assert!(log.contains(&format!("Redis at 127.0.0.1:{port} is unusable")), "{log}");
    for node in [1, 2] {
        let port = cluster.nodes[node].port;
        assert!(!log.contains(&format!("Redis at 127.0.0.1:{port} is unusable")), "{log}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_shard_degrades_only_its_own_keys() {
    check_dead_shard(|cluster| cluster.kill(0)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_shard_degrades_only_its_own_keys() {
    check_dead_shard(|cluster| cluster.stop(0)).await;
}

/// Give-backs that are lost admit too little, and never too much.
#[tokio::test(flavor = "multi_thread")]
async fn calls_over_nodes_whose_connections_are_cut_never_admit_too_much() {
    const LIMIT: u64 = 60;
    let cluster = masters(Version::Redis7);
    let rules = rules(LIMIT, &[]);
    let service = serve(&cluster, &rules, &["--decision-budget", "1s"]);
    let mut calls: Vec<Vec<Counted>> = Vec::new();
    for name in ALGORITHMS {
        let on = |node, count| values_on(&cluster, node, name, "cut", count);
        let (first, second, third) = (on(0, 1), on(1, 2), on(2, 3));
        for number in 0..6 {
            let values = [&first[0], &second[number % 2], &third[number % 3]];
            calls.push(values.map(|value| (name, value.clone())).into());
        }
    }
    let counted: Vec<Counted> = calls.concat();
    let load = Load::start(&[&service], 8, calls, usize::MAX).await;
    let mut dice = Dice(number("SEED", 1));
    let until = Instant::now() + Duration::from_secs(number("CUT_SECONDS", 4));
    while Instant::now() < until {
        let node = &cluster.nodes[dice.below(3) as usize];
        if dice.below(8) == 0 {
            node.signal("STOP");
            tokio::time::sleep(Duration::from_millis(250)).await;
            node.signal("CONT");
        } else {
            node.close_connections();
        }
        tokio::time::sleep(Duration::from_millis(dice.below(30))).await;
    }
    let ledger = load.stop().await;
    println!("{} calls, {} of them failed", ledger.calls, ledger.failed.len());
    for counted in counted {
        let admitted = ledger.admitted.get(&counted).copied().unwrap_or(0);
        let used = used(&service, counted.0, &counted.1);
        assert!(admitted <= used && used <= LIMIT, "{counted:?}: {admitted} admitted, {used} used");
    }
    cluster.assert_no_key_leaks();
}

/// Where the probe for undeclared keys is refused, calls are decided by hash slots, in one write.
#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_that_refuses_undeclared_keys_decides_by_hash_slots() {
    let cluster = masters(Version::Redis7);
    for node in &cluster.nodes {
        for load in [script::ledger, script::fixed] {
            let text = load(script::CLOCK, KeyDeclaration::Declared);
            node.query::<String>(&["SCRIPT", "LOAD", &text]);
        }
        node.query::<()>(&["ACL", "SETUSER", "slots", "on", ">slots", "~tk1:*", "+@all", "-eval"]);
    }
    let url = cluster.url().replace("cluster://", "cluster://slots:slots@");
    let store = follow(&url, Duration::from_secs(10));
    for year in years(20) {
        let users = values_on(&cluster, 0, "user", year.algorithm.name(), 30);
        let one = |user: &String| [charge("user", user, Hits::Charge(1), &year)];
        ask(&store, &one(&users[0])).await;
        let before = cluster.nodes[0].runs_of("evalsha");
        let calls: Vec<_> = users.iter().map(one).collect();
        futures_util::future::join_all(calls.iter().map(|call| ask(&store, call))).await;
        assert_eq!(cluster.nodes[0].runs_of("evalsha") - before, 30, "{year:?}");

        let three = [&users[1], &users[2], &users[3]]
            .map(|user| charge("user", user, Hits::Charge(1), &year));
        let calls = (0..40).map(|_| store.charge(&three, crate::support::redis_store::soon()));
        let answers = futures_util::future::join_all(calls).await;
        let admitted = answers.iter().filter(|answer| !answer.as_ref().unwrap().denied).count();
        assert!(admitted <= 19, "{year:?}: {admitted}");
        for charge in &three {
            let no_hits =
                [tollkeeper::engine::ledger::Charge { hits: Hits::Check, ..charge.clone() }];
            let left =
                crate::support::charges::left(&ask(&store, &no_hits).await.tallies[0]).unwrap_or(0);
            assert_eq!(left as usize, 19 - admitted, "{year:?}");
        }
    }
    cluster.assert_no_key_leaks();
}

/// Each call on it asks for the map, which is read again and does not change.
#[tokio::test(flavor = "multi_thread")]
async fn a_slot_without_an_owner_is_one_outage_however_often_the_map_is_read() {
    let cluster = masters(Version::Redis7);
    let service = serve(&cluster, &rules(10, &[]), &[]);
    let value = values_on(&cluster, 0, "fixed_window", "lost", 1).remove(0);
    let other = values_on(&cluster, 1, "fixed_window", "found", 1).remove(0);
    let slot = slot_of(&cluster, "fixed_window", &value).to_string();
    wait_until("no node knows an owner of the slot", || {
        for node in &cluster.nodes {
            let mut forget = redis::cmd("CLUSTER");
            let _ = forget.arg("DELSLOTS").arg(&slot).query::<()>(&mut node.connect());
        }
        let is_lost = |node: &Redis| {
            node.query::<String>(&["CLUSTER", "INFO"]).contains("cluster_slots_assigned:16383")
        };
        cluster.nodes.iter().all(is_lost)
    });
    let maps_read = || cluster.nodes.iter().map(|node| node.runs_of("cluster|slots")).sum::<u64>();
    let before = maps_read();
    let deadline = Instant::now() + PATIENCE;
    while maps_read() < before + 18 {
        assert!(Instant::now() < deadline, "{}", service.log());
        answer(&service, &[("fixed_window", value.clone())]).await;
        assert_eq!(answer(&service, &[("fixed_window", other.clone())]).await, "OK");
        cluster.nodes[1].query::<()>(&["FLUSHALL"]);
    }
    let log = service.log();
    assert_eq!(
        log.matches("no server of the cluster has the counter's hash slot").count(),
        1,
        "{log}"
    );
    assert!(!log.contains("answers again"), "{log}");
    cluster.nodes[0].query::<()>(&["CLUSTER", "ADDSLOTS", &slot]);
    service.wait_for_log("answers again");
}
