//! What the service finds out about a Redis when it connects: a line in the log, and a metric.

use std::os::unix::net::UnixStream;

use crate::support::{envoy::Envoy, prelude::*, redis_server::*, sentinels::*, tool};

fn service(store: &str, flags: &[&str]) -> Service {
    let flags = [&["--workers", "1", "--store-pool-size", "2"], flags].concat();
    Service::shop().on(store).flags(&flags).start()
}

/// Waits until the metric of a check has this value.
#[track_caller]
fn eventually_failed(service: &Service, check: &str, value: u8) {
    service
        .wait_for_metric(&format!("ratelimit_store_check_failed{{check=\"{check}\"}} {value}\n"));
}

#[tokio::test]
async fn a_replica_is_one_warning_and_a_metric_until_it_is_a_master() {
    let redis = Redis::start();
    redis.query::<()>(&["REPLICAOF", "127.0.0.1", "1"]);
    let service = service(&redis.url(), &[]);
    eventually_failed(&service, "role", 1);
    for check in ["time", "version", "mode", "info", "eviction", "maxclients", "rights"] {
        eventually_failed(&service, check, 0);
    }
    let log = service.log();
    assert_eq!(
        log.matches(&format!("Redis at 127.0.0.1:{}: it is a replica", redis.port)).count(),
        1,
        "{log}"
    );
    redis.query::<()>(&["REPLICAOF", "NO", "ONE"]);
    wait_until("the service has connected again", || {
        redis.close_connections();
        let body = r#"{"domain":"shop","descriptors":[{"entries":[{"key":"user","value":"a"}]}]}"#;
        service.exchange("POST", "/json", body.as_bytes());
        let metrics = service.get("/metrics");
        metrics.contains(r#"ratelimit_store_check_failed{check="role"} 0"#)
    });
}

#[tokio::test]
async fn a_proxy_that_answers_time_itself_is_refused() {
    const CONFIG: &str = r#"
admin:
  address: { socket_address: { address: 127.0.0.1, port_value: 0 } }
static_resources:
  listeners:
  - name: public
    address: { socket_address: { address: 127.0.0.1, port_value: 0 } }
    filter_chains:
    - filters:
      - name: envoy.filters.network.redis_proxy
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.redis_proxy.v3.RedisProxy
          stat_prefix: redis
          settings: { op_timeout: 5s }
          prefix_routes: { catch_all_route: { cluster: redis } }
  clusters:
  - name: redis
    type: STATIC
    connect_timeout: 5s
    load_assignment:
      cluster_name: redis
      endpoints:
      - lb_endpoints:
        - endpoint: { address: { socket_address: { address: 127.0.0.1, port_value: @PORT@ } } }
"#;
    let redis = Redis::start();
    let config = CONFIG.replace("@PORT@", &redis.port.to_string());
    let proxy = Envoy::run(&config, TempDir::new().unwrap());
    let service = service(&format!("redis://{}", proxy.public), &[]);
    service.ask(shop("user=a")).await.expect_err("Envoy is no Redis");
    eventually_failed(&service, "time", 1);
    service.wait_for_log("a proxy such as Envoy's redis_proxy answers TIME instead of Redis");
    assert_eq!(redis.keys(), [""; 0]);
}

/// twemproxy closes a connection on which it gets INFO.
#[tokio::test]
async fn a_proxy_that_closes_the_connection_at_info_is_named() {
    let redis = Redis::start();
    let folder = TempDir::new().unwrap();
    let socket = folder.path().join("socket");
    let config = format!(
        "all:\n  listen: {}\n  redis: true\n  servers:\n  - 127.0.0.1:{}:1\n",
        socket.display(),
        redis.port
    );
    fs::write(folder.path().join("config"), config).unwrap();
    let mut proxy = Command::new(tool("nutcracker"));
    // It needs a port for its figures.
    let figures = nobody().port().to_string();
    proxy.args(["-c", "config", "-p", "pid", "-o", "log", "-a", "127.0.0.1", "-s", &figures]);
    proxy.current_dir(folder.path());
    let _proxy = Process::spawn(&mut proxy);
    eventually("twemproxy", || UnixStream::connect(&socket).ok());
    let service = service(&format!("redis+unix://{}", socket.display()), &[]);
    service.ask(shop("user=a")).await.expect_err("twemproxy is no Redis");
    service.wait_for_log("the connection was closed at INFO, as a proxy such as twemproxy does");
}

#[tokio::test]
async fn a_server_of_another_mode_than_the_url_says_fails_a_check_and_the_log_has_the_right_url() {
    let redis = Redis::start();
    let cluster = Redis::start_with(&["--cluster-enabled", "yes"]);
    let sentinel = sentinel_of(&redis);
    let configuration = "sentinel monitor other 127.0.0.1 1 1\n".to_owned();
    let setup = Setup { version: Version::Valkey9, configuration, ..Setup::default() };
    let valkey = Redis::start_as(setup.with(&["--sentinel"]));
    let [single, node, sentinel] = [&redis, &cluster, &sentinel].map(|server| server.port);
    let of_valkey = format!("127.0.0.1:{}", valkey.port);
    let of_cluster = format!("write redis+cluster://127.0.0.1:{node}");
    let of_sentinel = format!("write redis+sentinel://127.0.0.1:{sentinel}/NAME");
    let of_single = format!("write redis://127.0.0.1:{single}");
    for (store, advice) in [
        (format!("redis://127.0.0.1:{node}"), &of_cluster),
        (format!("redis://127.0.0.1:{sentinel}"), &of_sentinel),
        (format!("redis://{of_valkey}"), &format!("write redis+sentinel://{of_valkey}/NAME")),
        (format!("redis+cluster://127.0.0.1:{single}"), &of_single),
        (format!("redis+cluster://127.0.0.1:{sentinel}"), &of_sentinel),
        (format!("redis+sentinel://127.0.0.1:{single}/{NAME}"), &of_single),
        (format!("redis+sentinel://127.0.0.1:{node}/{NAME}"), &of_cluster),
    ] {
        let service = service(&store, &["--decision-budget", "300ms"]);
        assert_eq!(service.answer("user=a").await, "Unavailable", "{store}");
        eventually_failed(&service, "mode", 1);
        service.wait_for_log(advice);
    }
}

#[tokio::test]
async fn a_sentinel_that_is_none_fails_the_check_of_the_mode_beside_one_that_is() {
    let redis = Redis::start();
    let sentinel = sentinel_of(&redis);
    let hosts = format!("127.0.0.1:{},127.0.0.1:{}", redis.port, sentinel.port);
    let service = service(&format!("redis+sentinel://{hosts}/{NAME}"), &[]);
    service.ask(shop("user=a")).await.unwrap();
    eventually_failed(&service, "mode", 1);
    let line = format!("Redis at 127.0.0.1:{} is not a Sentinel", redis.port);
    assert_eq!(service.log().matches(&line).count(), 1, "{}", service.log());
}

/// The commands that the log names for a user with these rights.
fn refused(redis: &Redis, rights: &str, flags: &[&str]) -> String {
    let rights = format!("ACL SETUSER poor reset on >secret {rights}");
    redis.query::<()>(&rights.split(' ').collect::<Vec<_>>());
    let service = service(&format!("redis://poor:secret@127.0.0.1:{}", redis.port), flags);
    eventually_failed(&service, "rights", 1);
    let log = service.log();
    let line = format!("Redis at 127.0.0.1:{}: the user `poor` may not run ", redis.port);
    assert_eq!(log.matches(&line).count(), 1, "{log}");
    let (_, names) = log.split_once(&line).unwrap();
    assert_eq!(redis.keys(), [""; 0], "the probes have written");
    names.split_once(" with the keys of counters").unwrap().0.to_owned()
}

#[test]
fn missing_rights_are_named_at_once() {
    const MOST: &str = "~tk1:* +info +eval +evalsha +exists +get +set +incrby +del +pexpireat +llen +lindex \
        +lrange +lset +zadd +zcount +zrange +zrem +zscore";
    for version in Version::ALL {
        let redis = Redis::start_version(version);
        // It has no way to try the last two.
        let end = if version == Version::Redis6 { "" } else { ", INCR, RPUSH" };
        assert_eq!(refused(&redis, MOST, &[]), format!("TIME, LTRIM{end}"), "{version:?}");
        let no_scripts = MOST.replace("+eval +evalsha", "+time");
        assert_eq!(refused(&redis, &no_scripts, &[]), "EVAL, EVALSHA, LTRIM", "{version:?}");
        let other_keys = MOST.replace("~tk1:* +info", "~other:* +info +time");
        let names = refused(&redis, &other_keys, &[]);
        assert!(names.starts_with("GET, SET, EXISTS"), "{version:?}: {names}");
    }
}

#[test]
fn missing_rights_are_named_for_a_redis_without_scripts() {
    let redis = Redis::start();
    let off = &["--redis-scripts", "off"];
    assert_eq!(
        refused(&redis, "~tk1:* +info +time +get +multi +incrby", off),
        "SET, DEL, WATCH, EXEC"
    );
}

#[tokio::test]
async fn a_user_who_may_not_run_info_is_trusted_with_a_warning() {
    let redis = Redis::start();
    redis.allow("For a single server:");
    redis.query::<()>(&["ACL", "SETUSER", "tollkeeper", "-info"]);
    let service = service(&format!("redis://tollkeeper:secret@127.0.0.1:{}", redis.port), &[]);
    service.ask(shop("user=a")).await.unwrap();
    eventually_failed(&service, "info", 1);
    let log = service.log();
    assert_eq!(log.matches("the user `tollkeeper` may not run INFO").count(), 1, "{log}");
}
