//! The tables of docs/ are complete, and agree with the program.

use tollkeeper::settings::{self, Row};

use self::scenarios::SCENARIOS;
use crate::support::{pages::*, prelude::*};

#[expect(dead_code, reason = "the benchmark uses the rest")]
#[path = "../../../benches/compare/scenarios.rs"]
mod scenarios;

/// The names in the first column of a table.
#[track_caller]
fn first_column<'page>(page: &'page str, header: &str) -> BTreeSet<&'page str> {
    rows(page, header).iter().flat_map(|row| names(cells(row)[0])).collect()
}

fn row_of_page(row: &Row) -> String {
    let values = match &row.range {
        Some((min, max)) => format!("{min} to {max}"),
        None => row.value.replace('|', ", "),
    };
    format!("| `--{}` | {values} | {} | {} |", row.flag, row.default, row.help)
}

#[test]
fn the_settings_of_the_page_are_those_of_the_program() {
    let table = settings::table();
    let headings: BTreeSet<&str> = table.iter().map(|row| row.heading).collect();
    for heading in headings {
        let rows = table.iter().filter(|row| row.heading == heading).map(row_of_page);
        let header = format!("| {heading} | values | default | meaning |");
        check_table("settings.md", &header, &rows.collect::<Vec<_>>());
    }
}

#[test]
fn the_fields_of_bench_are_on_its_page() {
    let page = page("bench.md");
    let service = Service::shop().start();
    let addr = service.grpc.to_string();
    let words = ["bench", "--addr", &addr, "--domain", "shop", "--calls", "1", "--json", "user=a"];
    let report: BTreeMap<String, Value> = serde_json::from_slice(&run(&words)).unwrap();
    let fields = report.keys().map(String::as_str).collect();
    assert_eq!(first_column(&page, "| field | meaning |"), fields);
}

#[test]
fn what_packages_do_in_faults_is_on_their_page() {
    let faults = fs::read(root().join("clients/conformance/faults.json")).unwrap();
    let faults: Value = serde_json::from_slice(&faults).unwrap();
    let rows = faults["rows"].as_array().unwrap().iter().map(|row| {
        let sent: Vec<&str> =
            row["sent"].as_array().unwrap().iter().flat_map(Value::as_str).collect();
        format!("| {} | {} |", row["name"].as_str().unwrap(), sent.join(", "))
    });
    check_table("clients.md", "| in a fault | requests |", &rows.collect::<Vec<_>>());
}

#[test]
fn the_scenarios_and_backends_of_the_benchmark_are_on_its_page() {
    let page = page("internals/benchmark.md");
    let names = SCENARIOS.iter().map(|scenario| scenario.name.to_owned());
    assert_eq!(first_cells(&page, "| scenario | calls |"), names.collect());
    let backends = SCENARIOS.iter().flat_map(|scenario| scenario.backends);
    let backends: BTreeSet<String> = backends.map(ToString::to_string).collect();
    assert_eq!(first_cells(&page, "| backend | what it is |"), backends);
}

/// The page keeps its figures until the benchmark is run again, so it may have fewer rows.
#[test]
fn the_measured_rows_and_targets_are_of_the_benchmark() {
    let page = page("internals/performance.md");
    for row in rows(&page, "| scenario | backend |") {
        let cells = cells(row);
        let scenario = SCENARIOS.iter().find(|scenario| scenario.name == cells[0]);
        let backends = scenario.unwrap_or_else(|| panic!("no such scenario: {row}")).backends;
        let known = backends.iter().any(|backend| backend.to_string() == cells[1]);
        assert!(known, "no such backend: {row}");
    }
    let targets = fs::read_to_string(root().join("benches/compare/targets.rs")).unwrap();
    for target in first_cells(&page, "| target | measured |") {
        assert!(targets.contains(&format!("\"{target}\"")), "no such target: {target}");
    }
}

/// The first column of a table.
#[track_caller]
fn first_cells(page: &str, header: &str) -> BTreeSet<String> {
    rows(page, header).iter().map(|row| cells(row)[0].to_owned()).collect()
}

fn run(words: &[&str]) -> Vec<u8> {
    tollkeeper().args(words).output().unwrap().stdout
}

/// The routes of the service, such as `GET /rules`, each with the file that has it.
pub(super) fn routes() -> BTreeMap<String, &'static str> {
    let mut routes = BTreeMap::new();
    for file in ["src/http.rs", "src/http/admin.rs"] {
        let source = fs::read_to_string(root().join(file)).unwrap();
        for route in source.split("(\"/").skip(1) {
            let (path, rest) = route.split_once("\", ").unwrap();
            let (method, _) = rest.split_once('(').unwrap();
            routes.insert(format!("{} /{path}", method.to_uppercase()), file);
        }
    }
    routes
}

#[test]
fn the_http_paths_are_on_their_page() {
    let page = page("http-api.md");
    let mut listed = first_column(&page, "| path | answer |");
    listed.extend(first_column(&page, "| on the admin address | answer |"));
    assert_eq!(listed, routes().keys().map(String::as_str).collect());
}

/// A JSON value and all values in it.
fn below(value: &Value) -> Vec<&Value> {
    let mut all = vec![value];
    all.extend(value.as_object().into_iter().flat_map(|object| object.values()).flat_map(below));
    all.extend(value.as_array().into_iter().flatten().flat_map(below));
    all
}

#[test]
fn the_keys_of_rules_and_the_algorithms_are_on_their_pages() {
    let schema: Value = serde_json::from_str(&page("rules.schema.json")).unwrap();
    let (rules, redis) = (page("rules.md"), page("redis.md"));
    let listed = first_column(&rules, "| key | where | meaning |");
    let properties = below(&schema).into_iter().filter_map(|part| part["properties"].as_object());
    for key in properties.flat_map(|properties| properties.keys()) {
        assert!(listed.contains(key.as_str()), "docs/rules.md does not list `{key}`");
    }

    let mut enums = below(&schema).into_iter().filter_map(|part| part["enum"].as_array());
    let algorithms = enums.find(|names| names.contains(&Value::from("fixed_window"))).unwrap();
    let algorithms: BTreeSet<&str> =
        algorithms.iter().map(|algorithm| algorithm.as_str().unwrap()).collect();
    assert_eq!(first_column(&page("algorithms.md"), "| `algorithm` | meaning |"), algorithms);
    let stored = rows(&redis, "| | algorithm | value |");
    assert_eq!(stored.iter().map(|row| cells(row)[1]).collect::<BTreeSet<_>>(), algorithms);
}

#[test]
fn the_failure_modes_are_on_the_page_of_failures() {
    let table = settings::table();
    let row = table.iter().find(|row| row.flag == "on-store-failure").unwrap();
    let page = page("redis-failures.md");
    assert_eq!(first_column(&page, "| | the call |"), row.value.split('|').collect());
}

#[test]
fn the_checks_at_connect_are_on_the_page_of_redis() {
    let (_redis, service) = Service::shop().on_redis();
    let metrics = service.get("/metrics");
    let series = metrics.split("ratelimit_store_check_failed{check=\"").skip(1);
    let checks = series.map(|line| line.split('"').next().unwrap()).collect();
    assert_eq!(first_column(&page("redis.md"), "| `check` | fails if |"), checks);
}

/// Every variable of envoyproxy/ratelimit.
const ENVOYPROXY_RATELIMIT: &str = "
    HOST PORT GRPC_HOST GRPC_PORT GRPC_UDS DEBUG_HOST DEBUG_PORT
    GRPC_MAX_CONNECTION_AGE GRPC_MAX_CONNECTION_AGE_GRACE GRPC_SERVER_USE_TLS GRPC_SERVER_TLS_CERT
    GRPC_SERVER_TLS_CA_CERT GRPC_SERVER_TLS_KEY GRPC_CLIENT_TLS_CACERT GRPC_CLIENT_TLS_SAN
    LOG_LEVEL LOG_FORMAT
    CONFIG_TYPE FORCE_START_WITHOUT_INITIAL_CONFIG MERGE_DOMAIN_CONFIG
    RUNTIME_ROOT RUNTIME_SUBDIRECTORY RUNTIME_APPDIRECTORY RUNTIME_IGNOREDOTFILES RUNTIME_WATCH_ROOT
    CONFIG_GRPC_XDS_NODE_ID CONFIG_GRPC_XDS_NODE_METADATA CONFIG_GRPC_XDS_SERVER_URL
    CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS
    CONFIG_GRPC_XDS_SERVER_USE_TLS CONFIG_GRPC_XDS_CLIENT_TLS_CERT CONFIG_GRPC_XDS_CLIENT_TLS_KEY
    CONFIG_GRPC_XDS_SERVER_TLS_CACERT CONFIG_GRPC_XDS_SERVER_TLS_SAN
    XDS_CLIENT_BACKOFF_INITIAL_INTERVAL XDS_CLIENT_BACKOFF_MAX_INTERVAL
    XDS_CLIENT_BACKOFF_RANDOM_FACTOR XDS_CLIENT_BACKOFF_JITTER XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES
    USE_STATSD STATSD_HOST STATSD_PORT USE_DOG_STATSD USE_DOG_STATSD_MOGRIFIERS DOG_STATSD_MOGRIFIER_TAG
    USE_PROMETHEUS PROMETHEUS_ADDR PROMETHEUS_PATH PROMETHEUS_MAPPER_YAML
    PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS EXTRA_TAGS STATS_FLUSH_INTERVAL DISABLE_STATS
    BACKEND_TYPE CACHE_KEY_PREFIX EXPIRATION_JITTER_MAX_SECONDS LOCAL_CACHE_SIZE_IN_BYTES
    NEAR_LIMIT_RATIO STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT SHADOW_MODE QUOTA_MODE
    RESPONSE_DYNAMIC_METADATA
    LIMIT_RESPONSE_HEADERS_ENABLED LIMIT_LIMIT_HEADER LIMIT_REMAINING_HEADER LIMIT_RESET_HEADER
    HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED REDIS_HEALTH_CHECK_ACTIVE_CONNECTION
    REDIS_SOCKET_TYPE REDIS_TYPE REDIS_URL REDIS_POOL_SIZE REDIS_AUTH REDIS_SENTINEL_AUTH REDIS_TLS
    REDIS_TLS_CLIENT_CERT REDIS_TLS_CLIENT_KEY REDIS_TLS_CACERT REDIS_TLS_SKIP_HOSTNAME_VERIFICATION
    REDIS_TIMEOUT REDIS_PIPELINE_WINDOW REDIS_PIPELINE_LIMIT REDIS_CLUSTER_PIPELINE_PARALLELISM
    REDIS_POOL_ON_EMPTY_BEHAVIOR REDIS_STARTUP_INITIAL_INTERVAL REDIS_STARTUP_MAX_INTERVAL
    REDIS_STARTUP_MAX_ELAPSED_TIME
    REDIS_PERSECOND REDIS_PERSECOND_SOCKET_TYPE REDIS_PERSECOND_TYPE REDIS_PERSECOND_URL
    REDIS_PERSECOND_POOL_SIZE REDIS_PERSECOND_AUTH REDIS_PERSECOND_SENTINEL_AUTH REDIS_PERSECOND_TLS
    REDIS_PERSECOND_PIPELINE_WINDOW REDIS_PERSECOND_PIPELINE_LIMIT
    REDIS_PERSECOND_CLUSTER_PIPELINE_PARALLELISM REDIS_PERSECOND_TIMEOUT
    REDIS_PERSECOND_POOL_ON_EMPTY_BEHAVIOR REDIS_PERSECOND_POOL_ON_EMPTY_WAIT_DURATION
    REDIS_POOL_ON_EMPTY_WAIT_DURATION DESCRIPTOR_KEY_CONFIG
    MEMCACHE_HOST_PORT MEMCACHE_MAX_IDLE_CONNS MEMCACHE_SRV MEMCACHE_SRV_REFRESH MEMCACHE_TLS
    MEMCACHE_TLS_CLIENT_CERT MEMCACHE_TLS_CLIENT_KEY MEMCACHE_TLS_CACERT
    MEMCACHE_TLS_SKIP_HOSTNAME_VERIFICATION
    TRACING_ENABLED TRACING_SERVICE_NAME TRACING_SERVICE_NAMESPACE TRACING_SERVICE_INSTANCE_ID
    TRACING_EXPORTER_PROTOCOL TRACING_SAMPLING_RATE
    GRPC_MAX_CONCURRENT_STREAMS MAX_CONCURRENT_REQUESTS REQUEST_TIMEOUT REDIS_AUTH_FILE
    REDIS_AWS_IAM_AUTH REDIS_AWS_IAM_CACHE_NAME REDIS_AWS_IAM_USER_ID REDIS_AWS_IAM_SERVERLESS REDIS_AWS_IAM_REGION
    REDIS_CLOSE_CONNECTION_ON_READONLY_ERROR USE_CALENDAR_MONTH_RATE_LIMIT
    LIMIT_REQUEST_HEADERS_ENABLED LIMIT_REQUEST_LIMIT_HEADER LIMIT_REQUEST_REMAINING_HEADER LIMIT_REQUEST_RESET_HEADER
";

#[test]
fn every_variable_of_envoyproxy_ratelimit_is_in_the_table_and_on_the_page() {
    let table = settings::envoyproxy_ratelimit_variables();
    let of = |name: &str| {
        table.iter().position(|row| match row.name.strip_suffix('…') {
            Some(family) => name.starts_with(family),
            None => name == row.name,
        })
    };
    let rows: Option<BTreeSet<usize>> = ENVOYPROXY_RATELIMIT.split_whitespace().map(of).collect();
    assert_eq!(rows, Some((0..table.len()).collect()), "a variable or a row is missing");
    let page = page("migrating-reference.md");
    // Variables with the same effect share a row. Those that only have another name are in a sentence.
    let mut effects: Vec<(String, Vec<String>)> = Vec::new();
    for row in table {
        let (name, meaning) = (format!("`{}`", row.name), row.meaning());
        if meaning.starts_with("`--") && meaning.ends_with('`') && !meaning.contains(' ') {
            assert!(page.contains(&format!("{name} ({meaning})")), "{name} ({meaning})");
            continue;
        }
        match effects.iter_mut().find(|(other, _)| *other == meaning) {
            Some((_, names)) => names.push(name),
            None => effects.push((meaning, vec![name])),
        }
    }
    let row =
        |(meaning, names): &(String, Vec<String>)| format!("| {} | {meaning} |", names.join(", "));
    let rows: Vec<String> = effects.iter().map(row).collect();
    const NO_EFFECT: &str = "| no effect: ";
    let (without_effect, used): (Vec<String>, Vec<String>) =
        rows.iter().cloned().partition(|row| row.contains(NO_EFFECT));
    let without_effect: Vec<String> =
        without_effect.iter().map(|row| row.replace(NO_EFFECT, "| ")).collect();
    check_table("migrating-reference.md", "| envoyproxy/ratelimit | here |", &used);
    check_table("migrating-reference.md", "| without an effect | why |", &without_effect);

    let flags: BTreeSet<String> =
        settings::table().iter().map(|row| format!("--{}", row.flag)).collect();
    for row in table.iter().map(|row| row.meaning()) {
        let settings = names(&row).into_iter().filter(|name| name.starts_with("--"));
        for flag in settings.map(|name| name.split(' ').next().unwrap()) {
            assert!(flags.contains(flag), "{flag} is no setting: {row}");
        }
    }
}
