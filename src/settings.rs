//! Settings: what the operator typed, checked once, and only good values from there on.
//!
//! Each is a flag and an environment variable: `--grpc-addr` is `TOLLKEEPER_GRPC_ADDR`; the flag
//! wins. Nothing else in the program reads the environment.

mod store_url;
mod value;

pub use store_url::StoreUrl;
pub(crate) use value::time;

use std::{
    collections::BTreeMap, env, ffi::OsString, fs, net::SocketAddr, path::PathBuf, sync::Arc,
    time::Duration,
};

use self::{
    store_url::store_url,
    value::{
        address, header_name, headers, key_prefix, log_format, log_level, on_store_failure, ratio,
        size, truth, whole,
    },
};
use crate::{
    engine::rule::{Defaults, Everywhere, WhenDenied},
    rls::{decode::Echo, headers::Headers},
    rules::{Algorithms, Basis},
    telemetry::{Log, TelemetryOptions},
};

const PREFIX: &str = "TOLLKEEPER_";

/// The flags of `serve`, as typed.
#[derive(Debug, Default, Clone, clap::Args)]
pub struct ServeFlags {
    /// Where gRPC listens [env: TOLLKEEPER_GRPC_ADDR] [default: 127.0.0.1:8081]
    #[arg(long, value_name = "IP:PORT")]
    pub grpc_addr: Option<String>,
    /// Where HTTP listens [env: TOLLKEEPER_HTTP_ADDR] [default: 127.0.0.1:8080]
    #[arg(long, value_name = "IP:PORT")]
    pub http_addr: Option<String>,
    /// Where counters are shown and reset; off for nowhere [env: TOLLKEEPER_ADMIN_ADDR]
    /// [default: 127.0.0.1:6070]
    #[arg(long, value_name = "IP:PORT|off")]
    pub admin_addr: Option<String>,
    /// A file or folder of rules; may be repeated [env: TOLLKEEPER_RULES, separated by `:`]
    /// [default: the shipped example]
    #[arg(long, value_name = "PATH")]
    pub rules: Vec<PathBuf>,
    /// Where counters live: memory:// or redis://[user:password@]host:port[/db]
    /// [env: TOLLKEEPER_STORE] [default: memory://]
    #[arg(long, value_name = "URL")]
    pub store: Option<String>,
    /// A file that holds the store's password [env: TOLLKEEPER_STORE_PASSWORD_FILE]
    #[arg(long, value_name = "PATH")]
    pub store_password_file: Option<String>,
    /// The most connections to the store, 1 to 1000 [env: TOLLKEEPER_STORE_POOL_SIZE] [default: 16]
    #[arg(long, value_name = "N")]
    pub store_pool_size: Option<String>,
    /// Threads that answer gRPC, 1 to 1024 [env: TOLLKEEPER_WORKERS] [default: one for each core]
    #[arg(long, value_name = "N")]
    pub workers: Option<String>,
    /// Of how many counters it is kept for a second that Redis said they are over, 0 (off) to 10000000
    /// [env: TOLLKEEPER_OVER_LIMIT_CACHE] [default: 100000]
    #[arg(long, value_name = "N")]
    pub over_limit_cache: Option<String>,
    /// The most counters kept in memory, 1000 to 1000000000 [env: TOLLKEEPER_MEMORY_COUNTERS_MAX]
    /// [default: 1000000]
    #[arg(long, value_name = "N")]
    pub memory_counters_max: Option<String>,
    /// How long a decision may take, 1ms to 1m; Envoy waits 20ms [env: TOLLKEEPER_DECISION_BUDGET]
    /// [default: 15ms]
    #[arg(long, value_name = "TIME")]
    pub decision_budget: Option<String>,
    /// How long calls are still taken after SIGTERM, 0s to 10m [env: TOLLKEEPER_DRAIN] [default: 5s]
    #[arg(long, value_name = "TIME")]
    pub drain: Option<String>,
    /// The largest request, 1KiB to 64MiB [env: TOLLKEEPER_MAX_MESSAGE_BYTES] [default: 4MiB]
    #[arg(long, value_name = "SIZE")]
    pub max_message_bytes: Option<String>,
    /// The most descriptors in a request, 1 to 1000 [env: TOLLKEEPER_MAX_DESCRIPTORS] [default: 64]
    #[arg(long, value_name = "N")]
    pub max_descriptors: Option<String>,
    /// Where no answer comes from the store: error, deny, allow or local
    /// [env: TOLLKEEPER_ON_STORE_FAILURE] [default: error]
    #[arg(long, value_name = "MODE")]
    pub on_store_failure: Option<String>,
    /// How many of us share a limit, where each counts for itself; 1 to 10000
    /// [env: TOLLKEEPER_REPLICAS] [default: 1]
    #[arg(long, value_name = "N")]
    pub replicas: Option<String>,
    /// off: for a Redis that runs no scripts; fixed windows only [env: TOLLKEEPER_REDIS_SCRIPTS]
    /// [default: on]
    #[arg(long, value_name = "ON|OFF")]
    pub redis_scripts: Option<String>,
    /// Charge denied calls too, save by rules that say `count_denied: false`
    /// [env: TOLLKEEPER_COUNT_DENIED=true]
    #[arg(long)]
    pub count_denied: bool,
    /// Count and tell, but let every call pass [env: TOLLKEEPER_SHADOW_MODE=true]
    #[arg(long)]
    pub shadow_mode: bool,
    /// Take every limit for a quota: a call is denied if none of its limits fits
    /// [env: TOLLKEEPER_QUOTA_MODE=true]
    #[arg(long)]
    pub quota_mode: bool,
    /// What keys in Redis begin with, at most 64 bytes of visible ASCII without braces
    /// [env: TOLLKEEPER_KEY_PREFIX]
    #[arg(long, value_name = "TEXT")]
    pub key_prefix: Option<String>,
    /// From which part of a limit on hits count as near it, 0 to 1 [env: TOLLKEEPER_NEAR_LIMIT_RATIO]
    /// [default: 0.8]
    #[arg(long, value_name = "R")]
    pub near_limit_ratio: Option<String>,
    /// Headers of the answer: none, ratelimit (the classic three), draft (the IETF's) or both
    /// [env: TOLLKEEPER_HEADERS] [default: none]
    #[arg(long, value_name = "WHICH")]
    pub headers: Option<String>,
    /// The first of the classic three [env: TOLLKEEPER_HEADER_LIMIT] [default: RateLimit-Limit]
    #[arg(long, value_name = "NAME")]
    pub header_limit: Option<String>,
    /// The second [env: TOLLKEEPER_HEADER_REMAINING] [default: RateLimit-Remaining]
    #[arg(long, value_name = "NAME")]
    pub header_remaining: Option<String>,
    /// The third [env: TOLLKEEPER_HEADER_RESET] [default: RateLimit-Reset]
    #[arg(long, value_name = "NAME")]
    pub header_reset: Option<String>,
    /// Tell Envoy in the answer what was asked, and the metadata of the rules
    /// [env: TOLLKEEPER_DYNAMIC_METADATA=true]
    #[arg(long)]
    pub dynamic_metadata: bool,
    /// Serve gRPC reflection [env: TOLLKEEPER_REFLECTION=true]
    #[arg(long)]
    pub reflection: bool,
    /// error, warn, info, debug or off [env: TOLLKEEPER_LOG_LEVEL] [default: info]
    #[arg(long, value_name = "LEVEL")]
    pub log_level: Option<String>,
    /// text or json [env: TOLLKEEPER_LOG_FORMAT] [default: text]
    #[arg(long, value_name = "FORMAT")]
    pub log_format: Option<String>,
}

/// The settings of `serve`, checked.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Where gRPC listens.
    pub grpc_addr: SocketAddr,
    /// Where HTTP listens.
    pub http_addr: SocketAddr,
    /// Where counters are shown and reset, if anywhere.
    pub admin_addr: Option<SocketAddr>,
    /// Files and folders of rules; none means the shipped example.
    pub rules: Vec<PathBuf>,
    /// Where counters live.
    pub store: StoreUrl,
    /// The most connections to the store.
    pub store_pool_size: u32,
    /// How many threads answer gRPC.
    pub workers: usize,
    /// Of how many counters it is kept what the store said of them.
    pub over_limit_cache: usize,
    /// The most counters kept in memory.
    pub memory_counters_max: usize,
    /// How long a decision may take.
    pub decision_budget: Duration,
    /// How long calls are still taken after the signal to stop.
    pub drain: Duration,
    /// The largest request, in bytes.
    pub max_message_bytes: usize,
    /// The most descriptors in a request.
    pub max_descriptors: usize,
    /// What is said of all rules.
    pub basis: Basis,
    /// How many replicas share a limit where each counts for itself.
    pub replicas: u32,
    /// Which headers an answer carries.
    pub headers: Arc<Headers>,
    /// Whether an answer tells what was asked.
    pub echo: Echo,
    /// What keys in Redis begin with.
    pub key_prefix: String,
    /// The part of a limit from which on hits are counted as near it.
    pub near_limit_ratio: f64,
    /// Whether gRPC reflection is served.
    pub reflection: bool,
    /// Log lines.
    pub log: Log,
    /// Traces and metrics.
    pub telemetry: TelemetryOptions,
    /// What looks like a mistake, and is none for certain.
    pub warnings: Vec<String>,
}

/// The environment, as far as it concerns us.
#[derive(Debug, Clone, Default)]
pub struct Environment(BTreeMap<String, OsString>);

impl Environment {
    /// The process's own.
    pub fn of_process() -> Self {
        Self::new(
            env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value))),
        )
    }

    /// One made for the occasion. A variable that is set to nothing counts as unset.
    pub fn new(variables: impl IntoIterator<Item = (String, OsString)>) -> Self {
        Self(variables.into_iter().filter(|(_, value)| !value.is_empty()).collect())
    }

    fn get(&self, name: &str) -> Option<&OsString> {
        self.0.get(name)
    }

    fn text(&self, name: &str) -> Option<&str> {
        self.get(name)?.to_str()
    }

    /// The address that `call` asks when it is given none.
    pub fn call_addr(&self) -> Option<&str> {
        self.text("TOLLKEEPER_ADDR")
    }

    /// The address that `counter` asks when it is given none.
    pub fn admin_addr(&self) -> Option<&str> {
        self.text("TOLLKEEPER_ADMIN_ADDR")
    }
}

impl Settings {
    /// Checks what was typed.
    ///
    /// # Errors
    /// Every problem, each with the name of its setting.
    pub fn resolve(flags: ServeFlags, environment: &Environment) -> Result<Self, Vec<String>> {
        let names = vec!["TOLLKEEPER_ADDR".to_owned(), variable("--rules")];
        let mut known = Known { environment, names, problems: vec![] };
        let rules = Self::rule_paths(&flags, environment);
        let grpc_addr = known.read("--grpc-addr", flags.grpc_addr, "127.0.0.1:8081", address);
        let http_addr = known.read("--http-addr", flags.http_addr, "127.0.0.1:8080", address);
        let admin_addr =
            known.read("--admin-addr", flags.admin_addr, "127.0.0.1:6070", |text| match text {
                "off" => Ok(None),
                text => address(text).map(Some),
            });
        let store = known.read("--store", flags.store, "memory://", store_url);
        let password = known.optional("--store-password-file", flags.store_password_file, |path| {
            let text = fs::read_to_string(path).map_err(|error| format!("{path}: {error}"))?;
            Ok(text.trim_end_matches(['\r', '\n']).to_owned())
        });
        let store_pool_size =
            known.read("--store-pool-size", flags.store_pool_size, "16", |it| whole(it, 1, 1000));
        let workers = known.optional::<usize>("--workers", flags.workers, |it| whole(it, 1, 1024));
        let over_limit_cache =
            known.read("--over-limit-cache", flags.over_limit_cache, "100000", |it| {
                whole(it, 0, 10_000_000)
            });
        let memory_counters_max =
            known.read("--memory-counters-max", flags.memory_counters_max, "1000000", |it| {
                whole(it, 1000, 1_000_000_000)
            });
        let decision_budget =
            known.read("--decision-budget", flags.decision_budget, "15ms", |text| {
                time(text, Duration::from_millis(1), Duration::from_secs(60))
            });
        let drain = known.read("--drain", flags.drain, "5s", |text| {
            time(text, Duration::ZERO, Duration::from_secs(600))
        });
        let max_message_bytes =
            known.read("--max-message-bytes", flags.max_message_bytes, "4MiB", size);
        let max_descriptors =
            known.read("--max-descriptors", flags.max_descriptors, "64", |it| whole(it, 1, 1000));
        let on_store_failure =
            known.read("--on-store-failure", flags.on_store_failure, "error", on_store_failure);
        let replicas = known.read("--replicas", flags.replicas, "1", |it| whole(it, 1, 10_000));
        let redis_scripts = known.read("--redis-scripts", flags.redis_scripts, "on", truth);
        let count_denied = known.switch("--count-denied", flags.count_denied);
        let shadow_mode = known.switch("--shadow-mode", flags.shadow_mode);
        let quota_mode = known.switch("--quota-mode", flags.quota_mode);
        let key_prefix = known.read("--key-prefix", flags.key_prefix, "", key_prefix);
        let near_limit_ratio =
            known.read("--near-limit-ratio", flags.near_limit_ratio, "0.8", ratio);
        let headers = known.read("--headers", flags.headers, "none", headers);
        let name = |text: &str| header_name(text);
        let limit = known.read("--header-limit", flags.header_limit, "RateLimit-Limit", name);
        let remaining =
            known.read("--header-remaining", flags.header_remaining, "RateLimit-Remaining", name);
        let reset = known.read("--header-reset", flags.header_reset, "RateLimit-Reset", name);
        let echo = known.switch("--dynamic-metadata", flags.dynamic_metadata);
        let reflection = known.switch("--reflection", flags.reflection);
        let level = known.read("--log-level", flags.log_level, "info", log_level);
        let json = known.read("--log-format", flags.log_format, "text", log_format);
        let telemetry = known.telemetry();
        let warnings = known.unknown();

        let problems = known.problems;
        let settings = (|| {
            Some(Self {
                grpc_addr: grpc_addr?,
                http_addr: http_addr?,
                admin_addr: admin_addr?,
                rules,
                store: store?.with_password(password),
                store_pool_size: store_pool_size?,
                workers: workers.unwrap_or_else(cores),
                over_limit_cache: over_limit_cache?,
                memory_counters_max: memory_counters_max?,
                decision_budget: decision_budget?,
                drain: drain?,
                max_message_bytes: max_message_bytes?,
                max_descriptors: max_descriptors?,
                basis: Basis {
                    defaults: Defaults {
                        when_denied: when_denied(count_denied?),
                        on_store_failure: on_store_failure?,
                        everywhere: match (shadow_mode?, quota_mode?) {
                            (true, _) => Everywhere::Shadow,
                            (false, true) => Everywhere::Quota,
                            (false, false) => Everywhere::AsWritten,
                        },
                    },
                    algorithms: match redis_scripts? {
                        true => Algorithms::All,
                        false => Algorithms::FixedWindow,
                    },
                },
                replicas: replicas?,
                headers: {
                    let (classic, draft) = headers?;
                    let names = [limit?, remaining?, reset?];
                    Arc::new(Headers { classic: classic.then_some(names), draft })
                },
                echo: if echo? { Echo::On } else { Echo::Off },
                key_prefix: key_prefix?,
                near_limit_ratio: near_limit_ratio?,
                reflection: reflection?,
                log: Log { level: level?, json: json? },
                telemetry,
                warnings,
            })
        })();
        settings.filter(|_| problems.is_empty()).ok_or(problems)
    }
}

impl Settings {
    /// The rules that are named, whether or not the other settings are good.
    pub fn rule_paths(flags: &ServeFlags, environment: &Environment) -> Vec<PathBuf> {
        match environment.get(&variable("--rules")) {
            Some(value) if flags.rules.is_empty() => env::split_paths(value).collect(),
            _ => flags.rules.clone(),
        }
    }
}

fn when_denied(count_denied: bool) -> WhenDenied {
    if count_denied { WhenDenied::Counted } else { WhenDenied::Free }
}

/// Reads settings one by one, and remembers their names and problems.
struct Known<'a> {
    environment: &'a Environment,
    names: Vec<String>,
    problems: Vec<String>,
}

impl Known<'_> {
    fn read<T>(
        &mut self,
        flag: &str,
        typed: Option<String>,
        default: &str,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Option<T> {
        let typed = typed.or_else(|| Some(default.to_owned()).filter(|_| !self.is_set(flag)));
        self.optional(flag, typed, parse)
    }

    fn optional<T>(
        &mut self,
        flag: &str,
        typed: Option<String>,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Option<T> {
        let variable = variable(flag);
        self.names.push(variable.clone());
        let (name, text) = match (typed, self.environment.get(&variable)) {
            (Some(text), _) => (flag.to_owned(), text),
            (None, None) => return None,
            (None, Some(value)) => match value.to_str() {
                Some(text) => (variable, text.to_owned()),
                None => {
                    self.problems.push(format!("{variable}: not UTF-8 text"));
                    return None;
                }
            },
        };
        parse(&text).map_err(|problem| self.problems.push(format!("{name}: {problem}"))).ok()
    }

    /// A flag without a value: there it is on, and a variable says true or false.
    fn switch(&mut self, flag: &str, on: bool) -> Option<bool> {
        self.read(flag, on.then(|| "true".to_owned()), "false", truth)
    }

    fn is_set(&self, flag: &str) -> bool {
        self.environment.get(&variable(flag)).is_some()
    }

    /// The part of OpenTelemetry's standard variables that its SDK leaves to the program.
    fn telemetry(&mut self) -> TelemetryOptions {
        let text = |name: &str| self.environment.text(name);
        let enabled = !text("OTEL_SDK_DISABLED").is_some_and(|it| it.eq_ignore_ascii_case("true"));
        let endpoint = |signal: &str| {
            let names = [
                format!("OTEL_EXPORTER_OTLP_{signal}_ENDPOINT"),
                "OTEL_EXPORTER_OTLP_ENDPOINT".to_owned(),
            ];
            let named = names.into_iter().find_map(|name| Some((text(&name)?.to_owned(), name)));
            let exporter = text(&format!("OTEL_{signal}_EXPORTER")).unwrap_or("otlp");
            named.filter(|_| enabled && exporter != "none")
        };
        let (traces, metrics) = (endpoint("TRACES"), endpoint("METRICS"));
        let mut problems = Vec::new();
        for (signal, endpoint) in [("TRACES", &traces), ("METRICS", &metrics)] {
            let Some((endpoint, name)) = endpoint else { continue };
            if !endpoint.starts_with("http://") {
                problems.push(format!("{name}: must begin with http://; TLS is not built in"));
            }
            for name in [
                format!("OTEL_EXPORTER_OTLP_{signal}_PROTOCOL"),
                "OTEL_EXPORTER_OTLP_PROTOCOL".to_owned(),
            ] {
                if text(&name).is_some_and(|protocol| protocol != "grpc") {
                    problems.push(format!("{name}: only `grpc` is built in"));
                }
            }
        }
        // Both signals may meet the same variable.
        problems.sort();
        problems.dedup();
        self.problems.extend(problems);
        TelemetryOptions {
            export_traces: traces.map(|(_, variable)| variable),
            export_metrics: metrics.map(|(_, variable)| variable),
            service_name: text("OTEL_SERVICE_NAME").is_none().then_some("tollkeeper"),
        }
    }

    /// Variables with our prefix that mean nothing to us. Kubernetes sets its own for a Service of
    /// our name (`TOLLKEEPER_PORT`, `TOLLKEEPER_SERVICE_HOST`, …); those are passed over.
    fn unknown(&self) -> Vec<String> {
        let ours = |name: &&String| name.starts_with(PREFIX);
        let injected = |name: &str| {
            name.ends_with("_PORT") || name.contains("_SERVICE_") || name.contains("_PORT_")
        };
        let unknown = |name: &&String| !self.names.contains(name) && !injected(name);
        let warn = |name: &String| format!("{name}: no such setting; see tollkeeper serve --help");
        self.environment.0.keys().filter(ours).filter(unknown).map(warn).collect()
    }
}

fn variable(flag: &str) -> String {
    let name = flag.trim_start_matches('-').replace('-', "_").to_ascii_uppercase();
    format!("{PREFIX}{name}")
}

/// The cores that this process may use; a container's quota counts.
fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(variables: &[(&str, &str)]) -> Environment {
        Environment::new(variables.iter().map(|(name, value)| ((*name).into(), (*value).into())))
    }

    fn resolve(variables: &[(&str, &str)]) -> Result<Settings, Vec<String>> {
        Settings::resolve(ServeFlags::default(), &environment(variables))
    }

    #[test]
    fn the_defaults_need_nothing() {
        let settings = resolve(&[]).unwrap();
        assert_eq!(settings.grpc_addr.to_string(), "127.0.0.1:8081");
        assert_eq!(settings.store.to_string(), "memory://");
        assert_eq!(settings.memory_counters_max, 1_000_000);
        assert_eq!(settings.decision_budget, Duration::from_millis(15));
        assert_eq!(settings.over_limit_cache, 100_000);
        assert_eq!(settings.max_message_bytes, 4 << 20);
        assert!(settings.warnings.is_empty());
    }

    #[test]
    fn a_flag_wins_over_its_variable() {
        let flags = ServeFlags { drain: Some("1s".into()), ..ServeFlags::default() };
        let environment = environment(&[("TOLLKEEPER_DRAIN", "2s")]);
        let settings = Settings::resolve(flags, &environment).unwrap();
        assert_eq!(settings.drain, Duration::from_secs(1));
    }

    #[test]
    fn an_empty_variable_is_an_unset_one() {
        assert_eq!(resolve(&[("TOLLKEEPER_DRAIN", "")]).unwrap().drain, Duration::from_secs(5));
    }

    #[test]
    fn every_problem_is_told_at_once_under_the_name_that_was_used() {
        let flags = ServeFlags { grpc_addr: Some("abc".into()), ..ServeFlags::default() };
        let environment = environment(&[
            ("TOLLKEEPER_HTTP_ADDR", "127.0.0.1:65536"),
            ("TOLLKEEPER_STORE", "rediss://u:s3cret@h"),
            ("TOLLKEEPER_STORE_PASSWORD_FILE", "/does/not/exist"),
            ("TOLLKEEPER_STORE_POOL_SIZE", "0"),
            ("TOLLKEEPER_MEMORY_COUNTERS_MAX", "999"),
            ("TOLLKEEPER_DECISION_BUDGET", "15"),
            ("TOLLKEEPER_DRAIN", "99999999h"),
            ("TOLLKEEPER_MAX_MESSAGE_BYTES", "4 MB"),
            ("TOLLKEEPER_MAX_DESCRIPTORS", "-1"),
            ("TOLLKEEPER_REFLECTION", "yes"),
            ("TOLLKEEPER_LOG_LEVEL", "verbose"),
            ("TOLLKEEPER_LOG_FORMAT", "xml"),
        ]);
        let problems = Settings::resolve(flags, &environment).unwrap_err();
        assert_eq!(
            problems,
            [
                "--grpc-addr: `abc` is no IP address and port, such as 127.0.0.1:8081",
                "TOLLKEEPER_HTTP_ADDR: `127.0.0.1:65536` is no IP address and port, such as 127.0.0.1:8081",
                "TOLLKEEPER_STORE: must be memory:// or redis://[user:password@]host:port[/db]",
                "TOLLKEEPER_STORE_PASSWORD_FILE: /does/not/exist: No such file or directory (os error 2)",
                "TOLLKEEPER_STORE_POOL_SIZE: `0` is no whole number from 1 to 1000",
                "TOLLKEEPER_MEMORY_COUNTERS_MAX: `999` is no whole number from 1000 to 1000000000",
                "TOLLKEEPER_DECISION_BUDGET: `15` is no time from 1ms to 60s, such as 15ms, 5s or 2m",
                "TOLLKEEPER_DRAIN: `99999999h` is no time from 0ns to 600s, such as 15ms, 5s or 2m",
                "TOLLKEEPER_MAX_MESSAGE_BYTES: `4 MB` is no size from 1KiB to 64MiB",
                "TOLLKEEPER_MAX_DESCRIPTORS: `-1` is no whole number from 1 to 1000",
                "TOLLKEEPER_REFLECTION: `yes` is neither true nor false",
                "TOLLKEEPER_LOG_LEVEL: `verbose` is none of error, warn, info, debug, off",
                "TOLLKEEPER_LOG_FORMAT: `xml` is neither text nor json",
            ]
        );
    }

    #[test]
    fn a_number_with_a_plus_sign_is_refused() {
        for (name, text) in [
            ("TOLLKEEPER_WORKERS", "+4"),
            ("TOLLKEEPER_DRAIN", "+5s"),
            ("TOLLKEEPER_MAX_MESSAGE_BYTES", "+4MiB"),
            ("TOLLKEEPER_NEAR_LIMIT_RATIO", "+0.5"),
            ("TOLLKEEPER_STORE", "redis://h:+6379"),
            ("TOLLKEEPER_STORE", "redis://h/+1"),
            ("TOLLKEEPER_STORE", "redis://h/-1"),
        ] {
            let problems = resolve(&[(name, text)]).expect_err(text);
            assert!(problems[0].starts_with(name), "{problems:?}");
        }
    }

    #[test]
    fn a_store_without_a_host_is_refused() {
        for url in [
            "redis://",
            "redis://:6379",
            "redis:///0",
            "redis://user:s3cret@",
            "redis://h:x",
            "redis://u:12#s3cret@h",
        ] {
            let problems = resolve(&[("TOLLKEEPER_STORE", url)]).unwrap_err().join("\n");
            assert!(problems.starts_with("TOLLKEEPER_STORE: "), "for {url}: {problems}");
            assert!(!problems.contains("s3cret"), "for {url}: {problems}");
        }
    }

    #[test]
    fn a_password_is_never_shown() {
        let url = "redis://user:s3cret@127.0.0.1:6379/2";
        let settings = resolve(&[("TOLLKEEPER_STORE", url)]).unwrap();
        assert_eq!(settings.store.to_string(), "redis://user:***@127.0.0.1:6379/2");
        assert!(!format!("{settings:?}").contains("s3cret"));
    }

    #[test]
    fn an_ipv6_address_is_shown_as_it_is_written() {
        let settings = resolve(&[("TOLLKEEPER_STORE", "redis://[::1]:6379")]).unwrap();
        assert_eq!(settings.store.to_string(), "redis://[::1]:6379/0");
    }

    #[test]
    fn an_unknown_variable_of_ours_is_a_warning_unless_kubernetes_set_it() {
        let settings = resolve(&[
            ("TOLLKEEPER_GRPC_ADR", "x"),
            ("TOLLKEEPER_PORT", "tcp://10.0.0.1:8081"),
            ("TOLLKEEPER_PORT_8081_TCP_ADDR", "10.0.0.1"),
            ("TOLLKEEPER_SERVICE_HOST", "10.0.0.1"),
        ]);
        let expected = "TOLLKEEPER_GRPC_ADR: no such setting; see tollkeeper serve --help";
        assert_eq!(settings.unwrap().warnings, [expected]);
    }

    #[test]
    fn spans_and_metrics_go_out_only_where_the_standard_variables_say_so() {
        let exports = |variables: &[(&str, &str)]| {
            let options = resolve(variables).unwrap().telemetry;
            (options.export_traces.is_some(), options.export_metrics.is_some())
        };
        let endpoint = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4317");
        assert_eq!(exports(&[]), (false, false));
        assert_eq!(exports(&[endpoint]), (true, true));
        assert_eq!(exports(&[endpoint, ("OTEL_METRICS_EXPORTER", "none")]), (true, false));
        assert_eq!(exports(&[endpoint, ("OTEL_SDK_DISABLED", "true")]), (false, false));
        resolve(&[endpoint, ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")]).unwrap_err();
    }

    #[test]
    fn a_bad_endpoint_is_told_once_under_the_name_that_was_used() {
        let (endpoint, bad) = ("OTEL_EXPORTER_OTLP_ENDPOINT", "https://h:4317");
        let traces = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT";
        let protocol = ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json");
        let problem = |name: &str| format!("{name}: must begin with http://; TLS is not built in");
        let problems = |variables: &[(&str, &str)]| resolve(variables).unwrap_err();
        let both = [problem(endpoint), format!("{}: only `grpc` is built in", protocol.0)];
        assert_eq!(problems(&[(endpoint, bad), protocol]), both);
        assert_eq!(problems(&[(traces, bad)]), [problem(traces)]);
        assert_eq!(problems(&[(endpoint, "http://h"), (traces, bad)]), [problem(traces)]);
        assert_eq!(problems(&[(endpoint, bad), (traces, "http://h")]), [problem(endpoint)]);
    }
}
