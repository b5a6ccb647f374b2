//! What the service relies on in Redis's own behaviour, beyond one plain server. No test here runs the service.

use crate::support::{
    certificates::Issued,
    cluster::ClusterSetup,
    prelude::*,
    redis_server::Setup,
    sentinels::{SentinelSetup, Sentinels},
};

/// What `redis-cli` gets for a PING through TLS.
fn ping(redis: &Redis, authority: &Authority, client: &Issued) -> String {
    let mut command = Command::new("redis-cli");
    command.args(["-p", &redis.tls_port.to_string(), "--tls"]);
    command.arg("--cacert").arg(&authority.certificate);
    command.arg("--cert").arg(&client.certificate).arg("--key").arg(&client.key).arg("PING");
    let (_, stdout, stderr) = run(&mut command);
    stdout + &stderr
}

#[test]
fn redis_and_its_client_refuse_certificates_of_another_authority_and_expired_ones() {
    let (ours, other) = (Authority::new(), Authority::new());
    let start = |server| Redis::start_as(Setup { tls: Some(server), ..Setup::default() });
    let redis = start(ours.server(&["localhost", "127.0.0.1"]));
    assert_eq!(ping(&redis, &ours, &ours.client()), "PONG\n");
    assert!(ping(&redis, &other, &ours.client()).contains("certificate verify failed"));
    assert!(!ping(&redis, &ours, &other.client()).contains("PONG"));
    let redis = start(ours.expired_server(&["localhost"]));
    assert!(ping(&redis, &ours, &ours.client()).contains("certificate verify failed"));
}

#[test]
fn each_installed_server_is_of_the_version_that_its_name_says() {
    for version in Version::ALL {
        let info: String = Redis::start_version(version).query(&["INFO"]);
        let line = match version {
            Version::Redis6 => "redis_version:6.2.14",
            Version::Redis7 => "redis_version:7.0.",
            Version::Redis8 => "redis_version:8.2.3",
            Version::Valkey9 => "valkey_version:9.1.2",
        };
        assert!(info.contains(line), "{version:?}: {info}");
    }
}

#[test]
fn sentinels_name_a_new_master_when_it_is_killed_and_when_they_are_told_to() {
    let mut sentinels = Sentinels::start();
    let hosts = sentinels.hosts();
    assert_eq!(sentinels.url(), format!("redis+sentinel://{hosts}/counters"));
    for host in hosts.split(',') {
        let mut sentinel = redis::Client::open(format!("redis://{host}")).unwrap();
        let masters: Vec<HashMap<String, String>> =
            redis::cmd("SENTINEL").arg("MASTERS").query(&mut sentinel).unwrap();
        assert_eq!(masters[0]["name"], "counters");
    }
    for fault in [Sentinels::kill_master, Sentinels::failover_by_hand] {
        let before = sentinels.master().port;
        fault(&mut sentinels);
        sentinels.heal();
        assert_ne!(sentinels.master().port, before);
        let info: String = sentinels.master().query(&["INFO", "replication"]);
        assert!(info.contains("role:master"), "{info}");
    }
}

#[test]
fn sentinels_with_passwords_and_tls_replace_a_master_that_hangs() {
    let authority = Authority::new();
    let mut sentinels = Sentinels::start_as(&SentinelSetup {
        password: "counters-password".to_owned(),
        sentinel_password: "sentinels-password".to_owned(),
        tls: Some(authority.server(&["localhost", "127.0.0.1"])),
        ..SentinelSetup::default()
    });
    sentinels.stop_master();
    sentinels.announced();
}

/// Adds one to each key that is on this node, and returns -3 for the others.
const NODE_WIDE: &str = "local replies = {} \
    for index, key in ipairs(ARGV) do \
      local exists = redis.pcall('EXISTS', key) \
      if type(exists) == 'table' then replies[index] = -3 \
      else replies[index] = redis.call('INCR', key) redis.call('PEXPIRE', key, 60000) end \
    end \
    return replies";

/// Runs [`NODE_WIDE`] without declared keys.
fn node_wide(redis: &Redis, keys: &[&str]) -> Vec<i64> {
    redis.query(&[&["EVAL", NODE_WIDE, "0"], keys].concat())
}

/// The error of [`NODE_WIDE`] with declared keys, or `ok`.
fn declared(connection: &mut redis::Connection, keys: &[&str]) -> String {
    let mut eval = redis::cmd("EVAL");
    eval.arg(NODE_WIDE).arg(keys.len()).arg(keys).arg(keys);
    match eval.query::<Vec<i64>>(connection) {
        Ok(_) => "ok".to_owned(),
        Err(error) => error.code().unwrap_or("no code").to_owned(),
    }
}

/// What node-wide runs rely on, on a Cluster of this version.
fn check_scripts_on_a_cluster(version: Version) {
    let cluster = Cluster::start_as(&ClusterSetup {
        version,
        masters: 2,
        replicas: false,
        ..ClusterSetup::default()
    });
    let here = &cluster.nodes[0];
    let (own, others) = (cluster.keys_on(0, 20), cluster.keys_on(1, 20));
    let own: Vec<_> = own.iter().map(String::as_str).collect();
    let other = others[0].as_str();
    assert_eq!(node_wide(here, &own), [1; 20], "single keys of many slots of one node");
    let mixed = [own[0], other, own[1]];
    assert_eq!(node_wide(here, &mixed), [2, -3, 2], "a key of another node");
    assert_eq!(node_wide(here, &own[2..]), [2; 18], "it leaves no trace");
    assert!(cluster.nodes[1].keys().is_empty());

    let mut connection = here.connect();
    assert_eq!(declared(&mut connection, &own[..1]), "ok");
    assert_eq!(declared(&mut connection, &own[..2]), "CROSSSLOT");
    assert_eq!(declared(&mut connection, &[other]), "MOVED");
    cluster.assert_no_key_leaks();
    check_a_moved_slot(version, &cluster, own[0]);
}

/// Moves the slot of this key, which exists on node 0.
fn check_a_moved_slot(version: Version, cluster: &Cluster, key: &str) {
    let slot = cluster.slot_of(key);
    let (there, absent) = (format!("{{{key}}}there"), format!("{{{key}}}absent"));
    let mut from = cluster.nodes[0].connect();
    let mut to = cluster.nodes[1].connect();
    assert_eq!(declared(&mut from, &[&there]), "ok");

    let migration = cluster.begin_move(slot, 1);
    migration.move_key(&there);
    assert_eq!(declared(&mut from, &[key]), "ok");
    assert_eq!(declared(&mut from, &[&there]), "ASK");
    // Redis 6 says ASK, and then TRYAGAIN on the other node.
    let not_both = if version == Version::Redis6 { "ASK" } else { "TRYAGAIN" };
    assert_eq!(declared(&mut from, &[key, &there]), not_both);
    assert_eq!(node_wide(&cluster.nodes[0], &[&absent, &there]), [-3, -3]);
    assert_eq!(declared(&mut to, &[&there]), "MOVED");
    let mut ask = |keys: &[&str]| {
        redis::cmd("ASKING").query::<()>(&mut to).unwrap();
        declared(&mut to, keys)
    };
    assert_eq!(ask(&[&there]), "ok");
    assert_eq!(ask(&[&there, key]), "TRYAGAIN");
    migration.move_keys();
    migration.finish();

    assert_eq!(cluster.node_of(slot), 1);
    assert_eq!(declared(&mut from, &[key]), "MOVED");
    assert_eq!(declared(&mut to, &[key, &there]), "ok");
    cluster.assert_no_key_leaks();
}

#[test]
fn a_cluster_of_redis_6_runs_scripts_over_the_keys_of_one_node() {
    check_scripts_on_a_cluster(Version::Redis6);
}

#[test]
fn a_cluster_of_redis_7_runs_scripts_over_the_keys_of_one_node() {
    check_scripts_on_a_cluster(Version::Redis7);
}

#[test]
fn a_cluster_of_redis_8_runs_scripts_over_the_keys_of_one_node() {
    check_scripts_on_a_cluster(Version::Redis8);
}

#[test]
fn a_cluster_of_valkey_9_runs_scripts_over_the_keys_of_one_node() {
    check_scripts_on_a_cluster(Version::Valkey9);
}

#[test]
fn a_dead_master_costs_only_its_own_keys_and_its_replica_takes_over() {
    let mut cluster = Cluster::start();
    assert_eq!(cluster.url(), format!("redis+cluster://{}", cluster.hosts()));
    let keys: Vec<_> = (0..3).map(|node| cluster.key_on(node)).collect();
    let slot = cluster.slot_of(&keys[0]);
    cluster.kill(0);
    loop {
        for node in [1, 2] {
            assert_eq!(node_wide(&cluster.nodes[node], &[&keys[node]]).len(), 1);
        }
        if cluster.nodes[1].query::<String>(&["CLUSTER", "NODES"]).contains("fail ") {
            break;
        }
    }
    cluster.announced(slot, 0);
    cluster.heal();
    assert_eq!(cluster.node_of(slot), 3);
    cluster.failover_by_hand(3);
    cluster.announced(slot, 3);
    assert_eq!(cluster.node_of(slot), 0);
    cluster.stop(0);
    cluster.announced(slot, 0);
}

#[test]
fn a_cluster_with_a_password_and_tls_moves_slots() {
    let authority = Authority::new();
    let cluster = Cluster::start_as(&ClusterSetup {
        masters: 2,
        password: "counters-password".to_owned(),
        tls: Some(authority.server(&["localhost", "127.0.0.1"])),
        ..ClusterSetup::default()
    });
    let key = cluster.key_on(0);
    node_wide(&cluster.nodes[0], &[&key]);
    let slot = cluster.slot_of(&key);
    cluster.move_slot(slot, 1);
    assert_eq!(cluster.node_of(slot), 1);
    assert_eq!(node_wide(&cluster.nodes[1], &[&key]), [2]);
}
