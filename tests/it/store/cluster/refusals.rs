//! Shards that refuse writes: they are in an outage until they take writes again.

use crate::support::{
    cluster_calls::{masters, serve, values_on},
    prelude::*,
};

const RULES: &str = "
domain: shop
descriptors:
  - { key: user, rate_limit: { unit: year, requests_per_unit: 10, on_store_failure: deny } }
";

/// Longer than an outage lasts after the last failed call, if the server then answers.
const LONGER_THAN_QUIET: Duration = Duration::from_millis(2500);

async fn passes(service: &Service, user: &str) -> bool {
    let answer = service.ask(shop(&format!("user={user}"))).await;
    answer.unwrap().overall_code() == Code::Ok
}

/// The value of a gauge of this node.
fn gauge(service: &Service, name: &str, node: &Redis) -> String {
    let line = format!("{name}{{server=\"127.0.0.1:{}\"}} ", node.port);
    let metrics = service.get("/metrics");
    let value = metrics.lines().find_map(|metric| metric.strip_prefix(&line));
    value.unwrap_or_else(|| panic!("{line}: {metrics}")).to_owned()
}

/// Each node is probed by a write to a hash slot of its own: on any other the probe would be redirected, which says
/// nothing of its writes.
#[tokio::test(flavor = "multi_thread")]
async fn shards_that_refuse_writes_are_down_until_they_take_them_although_no_call_asks() {
    let cluster = masters(Version::Redis7);
    let service = serve(&cluster, RULES, &["--decision-budget", "2s"]);
    let users: Vec<String> =
        (0..3).map(|node| values_on(&cluster, node, "user", "refused", 1).remove(0)).collect();
    for (round, code) in ["OOM", "NOREPLICAS", "MISCONF"].into_iter().enumerate() {
        for user in &users {
            assert!(passes(&service, user).await, "{code}: {user}");
        }
        cluster.nodes.iter().for_each(|node| node.refuse_writes(code));
        for user in &users {
            assert!(!passes(&service, user).await, "{code}: {user}");
        }
        let began = Instant::now();
        while began.elapsed() < LONGER_THAN_QUIET {
            for node in &cluster.nodes {
                assert_eq!(gauge(&service, "ratelimit_store_up", node), "0", "{code}");
                assert_eq!(gauge(&service, "ratelimit_store_breaker_open", node), "0", "{code}");
            }
            thread::sleep(Duration::from_millis(50));
        }
        cluster.nodes.iter().for_each(Redis::accept_writes);
        for node in &cluster.nodes {
            wait_until("the shard is up again", || {
                gauge(&service, "ratelimit_store_up", node) == "1"
            });
            let ended = format!("Redis at 127.0.0.1:{} answers again", node.port);
            assert_eq!(service.log().matches(&ended).count(), round + 1, "{}", service.log());
        }
    }
    cluster.assert_no_key_leaks();
}

/// Before, each call asked again until its budget was over.
#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_that_is_down_opens_the_breakers_of_its_nodes_until_it_is_up_again() {
    let cluster = masters(Version::Redis7);
    let service = serve(&cluster, RULES, &["--decision-budget", "2s"]);
    let users: Vec<String> =
        (0..3).map(|node| values_on(&cluster, node, "user", "down", 1).remove(0)).collect();
    for user in &users {
        assert!(passes(&service, user).await, "{user}");
    }
    for node in &cluster.nodes {
        node.query::<()>(&["CONFIG", "SET", "cluster-require-full-coverage", "yes"]);
    }
    eventually("all nodes say CLUSTERDOWN", || cluster.forget_slot("16383"));
    for user in &users {
        assert!(!passes(&service, user).await, "{user}");
    }
    for node in &cluster.nodes {
        assert_eq!(gauge(&service, "ratelimit_store_breaker_open", node), "1");
    }
    cluster.nodes[2].query::<()>(&["CLUSTER", "ADDSLOTS", "16383"]);
    cluster.ready();
    for node in &cluster.nodes {
        wait_until("the breaker is closed, and the node up", || {
            let is = |name, value| gauge(&service, name, node) == value;
            is("ratelimit_store_breaker_open", "0") && is("ratelimit_store_up", "1")
        });
    }
    for user in &users {
        assert!(passes(&service, user).await, "{user}");
    }
}
