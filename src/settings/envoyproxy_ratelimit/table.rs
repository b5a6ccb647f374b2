//! The variables of envoyproxy/ratelimit, from which docs/migrating-reference.md is made: how each is written, and what it sets
//! here or why it has no effect.

use super::variable::{
    Effect::{AsAsked, Nothing, Sets},
    EnvoyproxyRatelimitVariable, VariableForm,
};

const SWITCH: VariableForm = VariableForm::Switch;
const TEXT: VariableForm = VariableForm::Text;
const PORT: VariableForm = VariableForm::Number { min: 0, max: 65_535 };
const COUNT: VariableForm = VariableForm::Number { min: 0, max: i64::MAX };
const TIME: VariableForm = VariableForm::Time;
const HOST: VariableForm = VariableForm::Host;
const TYPES: VariableForm = VariableForm::Among(&["SINGLE", "SENTINEL", "CLUSTER"]);
const SOCKETS: VariableForm = VariableForm::Among(&["unix", "tcp"]);
const LEVELS: VariableForm =
    VariableForm::Among(&["panic", "fatal", "error", "warn", "warning", "info", "debug", "trace"]);

const STATSD: &str = "metrics are scraped, sent by OTLP, or to statsd over TCP";
const ONE_REDIS: &str = "one Redis counts all units";
const ON_EMPTY: &str = "TOLLKEEPER_DECISION_BUDGET bounds the wait";
const NO_WINDOW: &str = "calls are batched without a window";
const RETRIES: &str = "it retries after 0.2 s to 10 s";

const fn row(
    name: &'static str,
    form: VariableForm,
    effect: super::variable::Effect,
) -> EnvoyproxyRatelimitVariable {
    EnvoyproxyRatelimitVariable { name, form, effect }
}

/// Every variable, in the order of docs/migrating-reference.md. One line each, so that it reads as a table.
#[rustfmt::skip]
pub(super) const VARIABLES: &[EnvoyproxyRatelimitVariable] = &[
    row("GRPC_HOST", HOST, Sets("`--grpc-addr`, default 0.0.0.0:8081")),
    row("GRPC_PORT", PORT, Sets("`--grpc-addr`")),
    row("GRPC_UDS", TEXT, Sets("refused: gRPC is served on TCP only")),
    row("GRPC_MAX_CONNECTION_AGE", TIME, Sets("`--connection-age`, default 30m (24h there), 1s to 24h; 0 is off")),
    row("GRPC_MAX_CONNECTION_AGE_GRACE", TIME, Nothing("the grace is always 30 s")),
    row("GRPC_SERVER_USE_TLS", SWITCH, Sets("`--tls-cert` and `--tls-key`, with `--tls-scope grpc`")),
    row("GRPC_SERVER_TLS_CERT", TEXT, Sets("`--tls-cert`")),
    row("GRPC_SERVER_TLS_KEY", TEXT, Sets("`--tls-key`")),
    row("GRPC_CLIENT_TLS_CACERT", TEXT, Sets("`--tls-client-ca`")),
    row("GRPC_CLIENT_TLS_SAN", TEXT, Sets("refused: use `--client-domains`")),
    row("GRPC_SERVER_TLS_CA_CERT", TEXT, Nothing("envoyproxy/ratelimit ignores it too; GRPC_CLIENT_TLS_CACERT asks for certificates")),
    row("GRPC_MAX_CONCURRENT_STREAMS", COUNT, Nothing("memory bounds the calls of a connection")),
    row("MAX_CONCURRENT_REQUESTS", COUNT, Nothing("memory bounds the calls under way")),
    row("REQUEST_TIMEOUT", TIME, Nothing("TOLLKEEPER_DECISION_BUDGET bounds each decision")),
    row("HOST", HOST, Sets("`--http-addr`, default 0.0.0.0:8080")),
    row("PORT", PORT, Sets("`--http-addr`")),
    row("DEBUG_HOST", HOST, Sets("address of `/rlconfig`, default 0.0.0.0:6070; `--admin-addr` is off")),
    row("DEBUG_PORT", PORT, Sets("address of `/rlconfig`")),
    row("LOG_LEVEL", LEVELS, Sets("`--log-level`, default warn; `panic` and `fatal` mean error, `trace` debug")),
    row("LOG_FORMAT", VariableForm::Among(&["text", "json"]), Sets("`--log-format`")),
    row("CONFIG_TYPE", VariableForm::Among(&["FILE", "GRPC_XDS_SOTW"]), Sets("`--rules`: a folder, or a control plane")),
    row("CONFIG_GRPC_XDS_SERVER_URL", TEXT, Sets("`--rules`, default localhost:18000")),
    row("CONFIG_GRPC_XDS_NODE_ID", TEXT, Sets("`--rules`, default `default`")),
    row("CONFIG_GRPC_XDS_NODE_METADATA", TEXT, Nothing("only the node's id is sent")),
    row("CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS", TEXT, Nothing("a control plane gets none")),
    row("CONFIG_GRPC_XDS_SERVER_USE_TLS", SWITCH, Sets("`--rules xds+tls://…`")),
    row("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", TEXT, Sets("`--rules-tls-cert`")),
    row("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", TEXT, Sets("`--rules-tls-key`")),
    row("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", TEXT, Sets("`--rules-tls-ca`, added to the system's CAs")),
    row("CONFIG_GRPC_XDS_SERVER_TLS_SAN", TEXT, Sets("`--rules-tls-name`")),
    row("CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL", TIME, Nothing(RETRIES)),
    row("XDS_CLIENT_BACKOFF_…", TEXT, Nothing(RETRIES)),
    row("XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES", COUNT, Nothing("a message may have 64 MiB")),
    row("FORCE_START_WITHOUT_INITIAL_CONFIG", SWITCH, Sets("`--ready-needs-rules` for a control plane: default once, true is off; bad files always prevent the start")),
    row("HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED", SWITCH, Sets("`--ready-needs-rules`; true is `always`")),
    row("MERGE_DOMAIN_CONFIG", SWITCH, AsAsked("true", "files of a domain are merged, by path")),
    row("RUNTIME_ROOT", TEXT, Sets("`--rules`, default /srv/runtime_data/current/config")),
    row("RUNTIME_SUBDIRECTORY", TEXT, Sets("`--rules`: the folders below RUNTIME_ROOT")),
    row("RUNTIME_APPDIRECTORY", TEXT, Sets("`--rules`: the folders below RUNTIME_ROOT")),
    row("RUNTIME_WATCH_ROOT", SWITCH, Sets("changed files are always loaded, also behind links")),
    row("RUNTIME_IGNOREDOTFILES", SWITCH, AsAsked("true", "they are never read")),
    row("USE_PROMETHEUS", SWITCH, Sets("another address of metrics, and `--metrics-compat envoyproxy`")),
    row("PROMETHEUS_ADDR", TEXT, Sets("that address, default 0.0.0.0:9090; without a host, HOST")),
    row("PROMETHEUS_PATH", TEXT, Sets("path on that address, default /metrics")),
    row("PROMETHEUS_MAPPER_YAML", TEXT, Nothing("names and labels follow the default mapping")),
    row("PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS", SWITCH, AsAsked("false", "durations are in seconds")),
    row("USE_STATSD", SWITCH, Sets("`--statsd-addr`, default off (on there)")),
    row("STATSD_HOST", TEXT, Sets("`--statsd-addr`, default localhost")),
    row("STATSD_PORT", PORT, Sets("`--statsd-addr`, default 8125")),
    row("USE_DOG_STATSD", SWITCH, AsAsked("false", STATSD)),
    row("USE_DOG_STATSD_MOGRIFIERS", TEXT, Nothing(STATSD)),
    row("DOG_STATSD_…", TEXT, Nothing(STATSD)),
    row("EXTRA_TAGS", TEXT, Nothing("use OTEL_RESOURCE_ATTRIBUTES, or the scraper's labels")),
    row("STATS_FLUSH_INTERVAL", TIME, Nothing("statsd gets metrics every 10 s, and scrapes are up to date")),
    row("DISABLE_STATS", SWITCH, AsAsked("false", "metrics are always kept")),
    row("BACKEND_TYPE", VariableForm::Among(&["redis", "memcache"]), Sets("`--store`; memcache is refused")),
    row("REDIS_SOCKET_TYPE", SOCKETS, Sets("`--store`, default unix")),
    row("REDIS_TYPE", TYPES, Sets("`--store redis://`, `redis+sentinel://` or `redis+cluster://`")),
    row("REDIS_URL", TEXT, Sets("`--store`, default /var/run/nutcracker/ratelimit.sock")),
    row("REDIS_AUTH", TEXT, Sets("`password` or `user:password` in `--store`")),
    row("REDIS_AUTH_FILE", TEXT, Sets("`--store-password-file`; `--store` names the user")),
    row("REDIS_AWS_IAM_…", TEXT, Nothing("it logs in by password only: give the user of Redis one")),
    row("REDIS_SENTINEL_AUTH", TEXT, Sets("the same for the Sentinels")),
    row("REDIS_TLS", SWITCH, Sets("`--store rediss://…`")),
    row("REDIS_TLS_CLIENT_CERT", TEXT, Sets("`--store-tls-cert`")),
    row("REDIS_TLS_CLIENT_KEY", TEXT, Sets("`--store-tls-key`")),
    row("REDIS_TLS_CACERT", TEXT, Sets("`--store-tls-ca`, added to the system's CAs")),
    row("REDIS_TLS_SKIP_HOSTNAME_VERIFICATION", SWITCH, AsAsked("false", "TOLLKEEPER_STORE_TLS_NAME is the name, default the host")),
    row("REDIS_POOL_SIZE", COUNT, Sets("`--store-pool-size`, 1 to 1000")),
    row("REDIS_POOL_ON_EMPTY_BEHAVIOR", TEXT, AsAsked("WAIT", ON_EMPTY)),
    row("REDIS_POOL_ON_EMPTY_WAIT_DURATION", TIME, Nothing(ON_EMPTY)),
    row("REDIS_TIMEOUT", TIME, Nothing("TOLLKEEPER_DECISION_BUDGET bounds the whole decision")),
    row("REDIS_PIPELINE_…", TEXT, Nothing(NO_WINDOW)),
    row("REDIS_CLUSTER_PIPELINE_PARALLELISM", COUNT, Nothing(NO_WINDOW)),
    row("REDIS_STARTUP_…", TEXT, Nothing("ready without Redis after 10 s")),
    row("REDIS_HEALTH_CHECK_ACTIVE_CONNECTION", SWITCH, Sets("`--ready-needs-store`")),
    row("REDIS_CLOSE_CONNECTION_ON_READONLY_ERROR", SWITCH, AsAsked("true", "a server that takes no writes is always left")),
    row("REDIS_PERSECOND", SWITCH, AsAsked("false", ONE_REDIS)),
    row("REDIS_PERSECOND_…", TEXT, Nothing(ONE_REDIS)),
    row("MEMCACHE_…", TEXT, Nothing("memcache is not supported")),
    row("CACHE_KEY_PREFIX", TEXT, Sets("`--key-prefix`")),
    row("EXPIRATION_JITTER_MAX_SECONDS", COUNT, Nothing("expiries are always spread")),
    row("LOCAL_CACHE_SIZE_IN_BYTES", COUNT, Sets("`--over-limit-cache`, a counter per 128 bytes, default on; 0 is off")),
    row("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", SWITCH, Sets("`--count-denied`, default on; true is off")),
    row("DESCRIPTOR_KEY_CONFIG", TEXT, Nothing("limit overrides have no values in metrics")),
    row("NEAR_LIMIT_RATIO", VariableForm::Fraction, Sets("`--near-limit-ratio`, 0 to 1")),
    row("SHADOW_MODE", SWITCH, Sets("`--shadow-mode`")),
    row("QUOTA_MODE", SWITCH, Sets("`--quota-mode`")),
    row("RESPONSE_DYNAMIC_METADATA", SWITCH, Sets("`--dynamic-metadata`")),
    row("LIMIT_RESPONSE_HEADERS_ENABLED", SWITCH, Sets("`--headers ratelimit`")),
    row("LIMIT_LIMIT_HEADER", TEXT, Sets("`--header-limit`")),
    row("LIMIT_REMAINING_HEADER", TEXT, Sets("`--header-remaining`")),
    row("LIMIT_RESET_HEADER", TEXT, Sets("`--header-reset`")),
    row("LIMIT_REQUEST_HEADERS_ENABLED", SWITCH, Sets("`--request-headers`, with these three names")),
    row("LIMIT_REQUEST_LIMIT_HEADER", TEXT, Sets("`--request-headers`, default RateLimit-Limit")),
    row("LIMIT_REQUEST_REMAINING_HEADER", TEXT, Sets("`--request-headers`, default RateLimit-Remaining")),
    row("LIMIT_REQUEST_RESET_HEADER", TEXT, Sets("`--request-headers`, default RateLimit-Reset")),
    row("USE_CALENDAR_MONTH_RATE_LIMIT", SWITCH, AsAsked("false", "write `time_zone: UTC` at each limit of a month")),
    row("TRACING_ENABLED", SWITCH, Sets("sends spans to `OTEL_EXPORTER_OTLP_ENDPOINT`, default http://localhost:4318")),
    row("TRACING_EXPORTER_PROTOCOL", VariableForm::Among(&["http", "grpc"]), Sets("`OTEL_EXPORTER_OTLP_TRACES_PROTOCOL`")),
    row("TRACING_SERVICE_NAME", TEXT, Sets("`OTEL_SERVICE_NAME`, default RateLimit")),
    row("TRACING_SERVICE_NAMESPACE", TEXT, Sets("`service.namespace` in `OTEL_RESOURCE_ATTRIBUTES`")),
    row("TRACING_SERVICE_INSTANCE_ID", TEXT, Sets("`service.instance.id` in `OTEL_RESOURCE_ATTRIBUTES`")),
    row("TRACING_SAMPLING_RATE", VariableForm::Fraction, Sets("`OTEL_TRACES_SAMPLER_ARG` of `parentbased_traceidratio`, 0 to 1")),
];
