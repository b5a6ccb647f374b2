//! The service in the place of envoyproxy/ratelimit: run by the name of its program, with the environments in which
//! control planes and samples run it.

mod ai_gateway;

use crate::support::{
    config_map::publish, control_plane::ControlPlane, prelude::*, service::exchange,
};

const RULES: &str = "
domain: shop
descriptors:
  - { key: user, rate_limit: { unit: year, requests_per_unit: 2 } }
  - { key: tokens, rate_limit: { unit: year, requests_per_unit: 2 } }
";

type Variables<'a> = &'a [(&'a str, &'a str)];

/// The pages with the environments in which the samples of Istio, Contour and kgateway, and Emissary's users, run
/// envoyproxy/ratelimit. `/data` and the address of Redis are replaced.
const SAMPLES: [&str; 4] = ["istio.md", "contour.md", "kgateway.md", "emissary.md"];

/// The environment on a page.
fn sample(page: &str) -> Vec<(&str, &str)> {
    let lines = blocks(page, "dotenv")[0].lines();
    let variables: Vec<_> = lines.map(|line| line.split_once('=').unwrap()).collect();
    assert!(variables.len() > 4, "{variables:?}");
    variables
}

/// What Envoy Gateway sets. The files are replaced.
const ENVOY_GATEWAY: &str = include_str!("envoyproxy_ratelimit/envoy-gateway.env");

/// A service in the place of envoyproxy/ratelimit.
struct EnvoyproxyRatelimit {
    grpc: SocketAddr,
    http: SocketAddr,
    metrics: Option<SocketAddr>,
    debug: SocketAddr,
    process: Process,
    redis: Redis,
    /// The folder that its environment calls `/data`.
    folder: TempDir,
}

/// A folder with the program under its old name, and with rules as a ConfigMap has them.
fn installed() -> TempDir {
    let folder = TempDir::new().unwrap();
    fs::create_dir(folder.path().join("bin")).unwrap();
    symlink(env!("CARGO_BIN_EXE_tollkeeper"), folder.path().join("bin/ratelimit")).unwrap();
    publish(&folder.path().join("ratelimit/config"), "first", "config.yaml", RULES);
    folder
}

fn program(folder: &Path) -> Command {
    let mut command = Command::new(folder.join("bin/ratelimit"));
    // A test machine may have a variable of envoyproxy/ratelimit, such as HOST.
    command.env_clear();
    command
}

impl EnvoyproxyRatelimit {
    fn start(variables: Variables<'_>, more: Variables<'_>) -> Self {
        Self::start_on(Redis::start(), variables, more)
    }

    fn start_on(redis: Redis, variables: Variables<'_>, more: Variables<'_>) -> Self {
        Self::start_with(redis, &[], variables, more)
    }

    fn start_with(
        redis: Redis,
        arguments: &[&str],
        variables: Variables<'_>,
        more: Variables<'_>,
    ) -> Self {
        let folder = installed();
        let mut command = program(folder.path());
        command.args(arguments);
        let url = format!("127.0.0.1:{}", redis.port);
        let data = folder.path().to_str().unwrap().to_owned();
        for (name, value) in variables {
            let value = value.replace("redis:6379", &url).replace("localhost:6379", &url);
            let value = value.replace("/data", &data);
            command.env(name, value.replace(":19001", ":0"));
        }
        for name in ["PORT", "GRPC_PORT", "DEBUG_PORT"] {
            command.env(name, "0");
        }
        // A test machine may be slow, and no test depends on speed.
        command.env("TOLLKEEPER_DECISION_BUDGET", "10s").env("TOLLKEEPER_DRAIN", "0s");
        command.envs(more.iter().copied());
        let (ready, log) = (folder.path().join("ready"), folder.path().join("log"));
        command.stdout(fs::File::create(&ready).unwrap()).stderr(fs::File::create(log).unwrap());
        let process = Process::spawn(&mut command);
        let line = eventually("the service is ready", || {
            let line = fs::read_to_string(&ready).unwrap();
            line.ends_with('\n').then_some(line)
        });
        let address = |name: &str| -> Option<SocketAddr> {
            let (_, rest) = line.split_once(&format!(" {name} "))?;
            rest.split(',').next()?.trim().parse().ok().map(|address: SocketAddr| {
                // The address that stands for all has loopback too.
                SocketAddr::from(([127, 0, 0, 1], address.port()))
            })
        };
        Self {
            grpc: address("grpc").unwrap(),
            http: address("http").unwrap(),
            metrics: address("metrics"),
            debug: address("debug").unwrap(),
            process,
            redis,
            folder,
        }
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap()
    }

    /// The answer to a call.
    async fn ask(&self, request: RateLimitRequest) -> String {
        let endpoint = Channel::from_shared(format!("http://{}", self.grpc)).unwrap();
        let mut client = RateLimitServiceClient::new(endpoint.connect().await.unwrap());
        spell(&client.should_rate_limit(request).await.unwrap().into_inner())
    }
}

fn get(address: SocketAddr, path: &str) -> (u16, String) {
    let (status, _, body) = exchange(address, "GET", path, b"");
    (status, body)
}

#[tokio::test]
async fn the_environments_of_the_samples_start_the_service_and_it_answers() {
    for name in SAMPLES {
        let page = page(name);
        let service = EnvoyproxyRatelimit::start(&sample(&page), &[]);
        let call = || shop("user=a");
        assert_eq!(service.ask(call()).await, "OK: OK 1/2 YEAR", "{name}");
        assert_eq!(service.ask(call()).await, "OK: OK 0/2 YEAR", "{name}");
        assert_eq!(service.ask(call()).await, "OVER_LIMIT: OVER_LIMIT 0/2 YEAR", "{name}");
        // A denied call is counted too, as there.
        let key = service.redis.key("user");
        assert_eq!(service.redis.query::<String>(&["GET", &key]), "3", "{name}");
        let healthy = (200, "OK".to_owned());
        assert_eq!(get(service.http, "/healthcheck"), healthy, "{name}");
        let listed = "shop.tokens: unit=YEAR requests_per_unit=2, shadow_mode: false, quota_mode: false\n\
                      shop.user: unit=YEAR requests_per_unit=2, shadow_mode: false, quota_mode: false\n";
        let (status, rules) = get(service.debug, "/rlconfig");
        let mut lines: Vec<&str> = rules.split_inclusive('\n').collect();
        lines.sort_unstable();
        assert_eq!((status, lines.concat()), (200, listed.to_owned()), "{name}");
        let log = service.log();
        assert!(!log.contains("has no effect"), "{name}: {log}");
    }
}

/// The environment of Envoy Gateway, with certificates in a folder, and its control plane at an address.
fn gateway(certificates: &Path, control_plane: &str) -> Vec<(&'static str, String)> {
    let certificates = format!("{}/", certificates.display());
    let mut variables = Vec::new();
    for line in ENVOY_GATEWAY.lines() {
        let (name, value) = line.split_once('=').unwrap();
        let value = value.replace("/certs/", &certificates);
        variables.push((name, value.replace("envoy-gateway:18001", control_plane)));
    }
    variables
}

#[test]
fn the_environment_of_envoy_gateway_starts_a_service_on_its_control_plane() {
    let (authority, certificates) = (Authority::new(), TempDir::new().unwrap());
    let issued = authority.server(&["envoy-gateway", "localhost", "127.0.0.1"]);
    issued.install(certificates.path());
    let mut control_plane = ControlPlane::start_with_tls(certificates.path());
    let limit = json!({ "unit": "YEAR", "requestsPerUnit": 2 });
    let descriptors = json!([{ "key": "user", "rateLimit": limit }]);
    control_plane
        .set("1", &[json!({ "name": "shop", "domain": "shop", "descriptors": descriptors })]);
    let variables = gateway(certificates.path(), &control_plane.address);
    let variables: Vec<(&str, &str)> =
        variables.iter().map(|(name, value)| (*name, &**value)).collect();
    let service = EnvoyproxyRatelimit::start(&variables, &[]);
    assert_eq!(get(service.http, "/healthcheck"), (200, "OK".to_owned()));
    let listed =
        "shop.user: unit=YEAR requests_per_unit=2, shadow_mode: false, quota_mode: false\n";
    assert_eq!(get(service.debug, "/rlconfig"), (200, listed.to_owned()));

    let address = service.grpc.to_string();
    for (expected, code) in [("OK", 0), ("OK", 0), ("OVER_LIMIT", 3)] {
        let mut call = tollkeeper();
        call.args(["call", "--addr", &address, "--tls-ca"]).arg(&issued.authority);
        let (found, shown, problem) = run(call.args(["--domain", "shop", "user=a"]));
        assert_eq!(found, Some(code), "{shown}{problem}");
        assert!(shown.starts_with(&format!("{expected}\n")), "{shown}");
    }
    let metrics = get(service.metrics.unwrap(), "/metrics").1;
    let hits = "ratelimit_service_rate_limit_total_hits{domain=\"shop\",key1=\"user\"} 3";
    assert!(metrics.contains(hits), "{metrics}");
    assert!(metrics.contains("process_resident_memory_bytes "), "{metrics}");

    let log = service.log();
    let mut warnings: Vec<&str> = log
        .lines()
        .filter_map(|line| line.split_once(" has no effect: "))
        .map(|(name, _)| name.rsplit(' ').next().unwrap())
        .collect();
    warnings.sort_unstable();
    let expected = [
        "GRPC_SERVER_TLS_CA_CERT",
        "PROMETHEUS_MAPPER_YAML",
        "RUNTIME_ROOT",
        "RUNTIME_SUBDIRECTORY",
    ];
    assert_eq!(warnings, expected);
    assert!(log.contains("RUNTIME_ROOT has no effect: CONFIG_TYPE is GRPC_XDS_SOTW"), "{log}");
}

/// Its host does not exist here: the service is ready without the control plane, and answers.
#[test]
fn the_environment_of_envoy_gateway_starts_the_service_without_its_control_plane() {
    let (authority, certificates) = (Authority::new(), TempDir::new().unwrap());
    let issued = authority.server(&["localhost", "127.0.0.1"]);
    issued.install(certificates.path());
    let variables = gateway(certificates.path(), "envoy-gateway:18001");
    let variables: Vec<(&str, &str)> =
        variables.iter().map(|(name, value)| (*name, &**value)).collect();
    let service = EnvoyproxyRatelimit::start(&variables, &[]);
    assert_eq!(get(service.http, "/healthcheck"), (200, "OK".to_owned()));
    assert_eq!(get(service.debug, "/rlconfig"), (200, String::new()));
    let ready = fs::read_to_string(service.folder.path().join("ready")).unwrap();
    assert!(ready.contains("rules xds"), "{ready}");
    let mut call = tollkeeper();
    call.args(["call", "--addr", &service.grpc.to_string(), "--tls-ca"]).arg(&issued.authority);
    succeeds(call.args(["--domain", "shop", "user=a"]));
}

#[test]
fn every_bad_value_and_memcache_are_reported_at_once() {
    let folder = installed();
    let mut command = program(folder.path());
    command.env("RUNTIME_ROOT", folder.path()).env("RUNTIME_SUBDIRECTORY", "ratelimit");
    command.env("BACKEND_TYPE", "memcache").env("PORT", "http").env("SHADOW_MODE", "yes");
    let (code, _, problems) = run(&mut command);
    let expected = "\
PORT: invalid value `http`: must be a whole number from 0 to 65535, without leading zeros
SHADOW_MODE: invalid value `yes`: must be true or false, also as 1, t, 0 or f
BACKEND_TYPE: memcache is not supported, since it has no atomic scripts; set it to redis, and REDIS_URL
";
    assert_eq!((code, &*problems), (Some(2), expected));
}

#[test]
fn a_missing_folder_of_rules_names_its_variable_and_a_bad_variable_has_no_second_problem() {
    let folder = installed();
    let mut command = program(folder.path());
    command.envs([("RUNTIME_ROOT", "/no"), ("REDIS_SOCKET_TYPE", "udp"), ("REDIS_URL", "h:1")]);
    let problems = "\
REDIS_SOCKET_TYPE: invalid value `udp`: must be one of: unix, tcp
RUNTIME_ROOT: /no/config: No such file or directory (os error 2)
";
    assert_eq!(run(&mut command), (Some(2), String::new(), problems.to_owned()));
}

/// Only the writer of the variable knows whether the colon separates a user, or is a part of the password.
#[tokio::test]
async fn nothing_of_redis_auth_is_logged() {
    let redis = Redis::start();
    redis.query::<()>(&["CONFIG", "SET", "requirepass", "s3:cret"]);
    let more = [("REDIS_AUTH", "default:s3:cret"), ("LOG_LEVEL", "debug")];
    let service = EnvoyproxyRatelimit::start_on(redis, &sample(&page("contour.md")), &more);
    assert_eq!(service.ask(shop("user=a")).await, "OK: OK 1/2 YEAR");
    let ready = fs::read_to_string(service.folder.path().join("ready")).unwrap();
    assert!(ready.contains("store redis://***:***@127.0.0.1:"), "{ready}");
    let log = service.log();
    assert!(!log.contains("s3") && !log.contains("default"), "{log}");
}

#[test]
fn healthcheck_is_our_command_under_the_old_name_too() {
    let service = EnvoyproxyRatelimit::start(&sample(&page("contour.md")), &[]);
    let mut check = Command::new(service.folder.path().join("bin/ratelimit"));
    check.env_clear().env("GRPC_PORT", service.grpc.port().to_string());
    let serving = (Some(0), "SERVING\n".to_owned(), String::new());
    assert_eq!(run(check.arg("healthcheck")), serving);
    check.env("GRPC_PORT", "x");
    let problem = "GRPC_PORT: invalid value `x`: must be a whole number from 0 to 65535, without \
                   leading zeros\n";
    assert_eq!(run(&mut check), (Some(2), String::new(), problem.to_owned()));
}

#[test]
fn our_variable_turns_the_old_environment_off_under_the_old_name() {
    let folder = installed();
    let mut command = program(folder.path());
    command.envs([("TOLLKEEPER_COMPAT", "none"), ("TOLLKEEPER_WORKERS", "0"), ("PORT", "http")]);
    let problem = "TOLLKEEPER_WORKERS: invalid value `0`: must be a whole number from 1 to 1024\n";
    assert_eq!(run(&mut command), (Some(2), String::new(), problem.to_owned()));
}

#[test]
fn arguments_under_the_old_name_are_ours_if_our_variable_turns_the_old_environment_off() {
    let folder = installed();
    let ours = |arguments: &[&str]| {
        let mut command = program(folder.path());
        // Without the arguments the service would refuse to start.
        command.envs([("TOLLKEEPER_COMPAT", "none"), ("TOLLKEEPER_WORKERS", "none")]);
        run(command.args(arguments))
    };
    let problem = "--workers: invalid value `0`: must be a whole number from 1 to 1024\n";
    let serve = ["serve", "--workers", "0"];
    assert_eq!(ours(&serve), (Some(2), String::new(), problem.to_owned()));
    let (code, _, problem) = ours(&["--no-such-flag"]);
    assert_eq!(code, Some(2));
    assert!(problem.contains("unexpected argument '--no-such-flag'"), "{problem}");
    let (code, shown, _) = ours(&["check", folder.path().join("ratelimit").to_str().unwrap()]);
    assert_eq!(code, Some(0), "{shown}");
}

#[test]
fn arguments_under_the_old_name_are_ignored_with_one_warning_that_repeats_none() {
    let page = page("contour.md");
    let warnings = |arguments: &[&str]| {
        let service =
            EnvoyproxyRatelimit::start_with(Redis::start(), arguments, &sample(&page), &[]);
        let log = service.log();
        assert!(!log.contains("s3cret"), "{log}");
        let warnings = log.lines().filter(|line| line.contains("WARN"));
        warnings.map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(warnings(&[]), [""; 0]);
    let [warning] = &warnings(&["serve", "--workers=0", "s3cret"])[..] else { panic!("one line") };
    let expected = "command line arguments have no effect, since this program is run by the name \
                    ratelimit, which has none: set environment variables instead, such as \
                    TOLLKEEPER_STORE for --store, or run it by the name tollkeeper";
    assert!(warning.ends_with(expected), "{warning}");

    let folder = installed();
    let mut command = program(folder.path());
    command.env("RUNTIME_ROOT", "/no").args(["serve", "--rules", "s3cret"]);
    let problems =
        format!("RUNTIME_ROOT: /no/config: No such file or directory (os error 2)\n{expected}\n");
    assert_eq!(run(&mut command), (Some(2), String::new(), problems));
}

/// As envoyproxy/ratelimit's own scripts expect: Envoy checks with 0 hits before a stream and debits 1 after it, and
/// a limit of two lets three pass.
#[tokio::test]
async fn a_token_quota_of_two_lets_three_through_as_in_envoyproxy_ratelimit() {
    let service = EnvoyproxyRatelimit::start(&sample(&page("contour.md")), &[]);
    let tokens = |count| request("shop", vec![hits(descriptor(&[("tokens", "x")]), count)]);
    let mut checks = Vec::new();
    for _ in 0..4 {
        let check = service.ask(tokens(0)).await;
        if check.starts_with("OK") {
            service.ask(tokens(1)).await;
        }
        checks.push(check);
    }
    let expected = [
        "OK: OK 2/2 YEAR",
        "OK: OK 1/2 YEAR",
        "OK: OK 0/2 YEAR",
        "OVER_LIMIT: OVER_LIMIT 0/2 YEAR",
    ];
    assert_eq!(checks, expected);
}

#[test]
fn rules_are_loaded_again_when_kubelet_moves_its_link() {
    let service = EnvoyproxyRatelimit::start(&sample(&page("kgateway.md")), &[]);
    let volume = service.folder.path().join("ratelimit/config");
    publish(&volume, "second", "config.yaml", &RULES.replace("user", "account"));
    wait_until("the new rules are in force", || {
        let rules = get(service.debug, "/rlconfig").1;
        rules.contains("shop.account: ") && !rules.contains("shop.user: ")
    });
}

#[test]
fn sighup_and_sigterm_end_the_service_in_order() {
    for signal in ["HUP", "TERM"] {
        let mut service =
            EnvoyproxyRatelimit::start(&sample(&page("contour.md")), &[("LOG_LEVEL", "info")]);
        service.process.signal(signal);
        let status = eventually("the service ends", || service.process.0.try_wait().unwrap());
        assert_eq!(status.code(), Some(0), "{signal}");
        assert!(service.log().contains("draining"), "{signal}");
    }
}

#[tokio::test]
async fn the_flag_has_the_same_effect_as_the_name_and_our_flags_have_precedence() {
    let (folder, redis) = (installed(), Redis::start());
    let mut command = tollkeeper();
    command
        .args(["serve", "--compat", "envoyproxy-ratelimit", "--http-addr", "127.0.0.1:0"])
        .env_clear()
        .env("RUNTIME_ROOT", folder.path())
        .env("RUNTIME_SUBDIRECTORY", "ratelimit")
        .env("REDIS_SOCKET_TYPE", "tcp")
        .env("REDIS_URL", format!("127.0.0.1:{}", redis.port))
        .envs([("GRPC_PORT", "0"), ("PORT", "0"), ("DEBUG_PORT", "0")]);
    let ready: PathBuf = folder.path().join("ready");
    command.stdout(fs::File::create(&ready).unwrap()).stderr(Stdio::null());
    let _process = Process::spawn(&mut command);
    let line = eventually("the service is ready", || {
        let line = fs::read_to_string(&ready).unwrap();
        line.ends_with('\n').then_some(line)
    });
    assert!(line.contains(" grpc 0.0.0.0:") && line.contains(" http 127.0.0.1:"), "{line}");
    assert!(line.contains(" debug 0.0.0.0:") && !line.contains(" admin "), "{line}");
}
