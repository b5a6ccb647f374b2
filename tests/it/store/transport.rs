//! How the service reaches Redis: TLS, Unix sockets, users, passwords and databases.

use std::time::SystemTime;

use crate::support::{
    certificates::Issued,
    charges::prelude::*,
    prelude::*,
    redis_server::tls_redis,
    redis_store::{self, answer},
};

/// Starts a service with few connections.
fn service(store: &str, flags: &[&str]) -> Service {
    let few = ["--workers", "1", "--store-pool-size", "2", "--decision-budget", "500ms"];
    let flags = [&few, flags].concat();
    Service::shop().on(store).flags(&flags).start()
}

/// Asks until the log says why there is no answer.
async fn refused(service: &Service, line: &str) {
    for _ in 0..30 {
        let answer = service.ask(shop("user=b")).await;
        if service.log().contains(line) {
            assert!(answer.is_err(), "{answer:?}");
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("`{line}` is not logged: {}", service.log());
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[tokio::test]
async fn a_unix_socket_is_a_store_like_any_other() {
    let folder = TempDir::new().unwrap();
    let socket = folder.path().join("redis.sock");
    let redis = Redis::start_with(&["--unixsocket", text(&socket)]);
    redis.query::<()>(&["CONFIG", "SET", "requirepass", "s3cret"]);
    let store = format!("redis+unix://:s3cret@{}?db=3", text(&socket));
    let service = service(&store, &[]);
    service.answered("user=a(0)").await;
    assert_eq!(service.answer("user=a").await, "OK: OK 9/10 YEAR");
    let client = redis::Client::open(format!("redis://:s3cret@127.0.0.1:{}/3", redis.port));
    let mut connection = client.unwrap().get_connection().unwrap();
    let keys: Vec<String> = redis::cmd("KEYS").arg("*").query(&mut connection).unwrap();
    assert_eq!(keys.len(), 1, "it counts in database 3: {keys:?}");
}

#[tokio::test]
async fn a_store_without_its_socket_is_an_outage_with_the_cause() {
    let service = service("redis+unix:///does/not/exist", &[]);
    refused(&service, "No such file or directory").await;
}

#[tokio::test]
async fn tls_connections_are_verified_and_used_again() {
    let authority = Authority::new();
    let (redis, store) = tls_redis(&authority, &authority.server(&["127.0.0.1"]), "no");
    let service = service(&store, &["--store-tls-ca", text(&authority.certificate)]);
    service.answered("user=a(0)").await;
    let open =
        eventually("two connections", || Some(redis.clients()).filter(|open| open.len() == 2));
    for _ in 0..20 {
        service.answered("user=a(0)").await;
    }
    assert_eq!(redis.clients(), open, "session tickets are no reason to close one");
}

#[tokio::test]
async fn a_certificate_that_is_not_to_be_trusted_is_refused_with_the_reason() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let valid = authority.server(&["127.0.0.1"]);
    let other = authority.server(&["redis.example", "10.0.0.1"]);
    let wildcard = authority.server(&["*.redis-system"]);
    let expired = authority.expired_server(&["127.0.0.1"]);
    let ca = |of: &Authority| format!("--store-tls-ca {}", text(&of.certificate));
    let ours = ca(&authority);
    for (certificate, flags, cause) in [
        (
            &valid,
            ca(&stranger),
            "the server's certificate is not signed by a trusted CA; set --store-tls-ca to its CA",
        ),
        // The CAs of the system.
        (&valid, String::new(), "the server's certificate is not signed by a trusted CA"),
        (
            &other,
            ours.clone(),
            "the server's certificate is for redis.example, 10.0.0.1, not for 127.0.0.1; connect to \
             one of its names, or set --store-tls-name",
        ),
        (
            &wildcard,
            format!("{ours} --store-tls-name redis.redis-system"),
            "the server's certificate is for *.redis-system, not for redis.redis-system; use a \
             certificate with the server's own name: a wildcard counts only as a whole label \
             before at least two others, as in *.example.com",
        ),
        (&expired, ours.clone(), "the server's certificate expired at 2020-01-01T00:00:00Z"),
    ] {
        let (_redis, store) = tls_redis(&authority, certificate, "no");
        let flags: Vec<&str> = flags.split_whitespace().collect();
        refused(&service(&store, &flags), cause).await;
    }
}

/// As there: `REDIS_TLS_CACERT` is trusted beside the CAs of the system.
#[tokio::test]
async fn a_ca_of_envoyproxy_ratelimits_environment_leaves_those_of_the_system_trusted() {
    let (systems, other) = (Authority::new(), Authority::new());
    let (_redis, store) = tls_redis(&systems, &systems.server(&["127.0.0.1"]), "no");
    let start = |variables: &[(&str, &str)]| {
        let common = [
            ("TOLLKEEPER_COMPAT", "envoyproxy-ratelimit"),
            ("DEBUG_PORT", "0"),
            ("LOG_LEVEL", "info"),
            ("REDIS_TLS", "true"),
            ("SSL_CERT_FILE", text(&systems.certificate)),
        ];
        let environment = [&common, variables].concat();
        Service::shop().on(&store).environment(&environment).start()
    };
    start(&[("REDIS_TLS_CACERT", text(&other.certificate))]).answered("user=a(0)").await;
    let ours = start(&[("TOLLKEEPER_STORE_TLS_CA", text(&other.certificate))]);
    refused(&ours, "not signed by a trusted CA").await;
}

#[tokio::test]
async fn a_certificate_for_another_name_is_taken_if_that_name_is_expected() {
    let authority = Authority::new();
    let (_redis, store) = tls_redis(&authority, &authority.server(&["redis.example"]), "no");
    let flags = ["--store-tls-ca", text(&authority.certificate), "--store-tls-name"];
    let service = service(&store, &[&flags[..], &["redis.example"]].concat());
    service.answered("user=a(0)").await;
}

#[tokio::test]
async fn a_server_without_tls_is_refused_in_words() {
    let redis = Redis::start();
    let service = service(&format!("rediss://127.0.0.1:{}", redis.port), &[]);
    let line = "no TLS handshake within 800ms: does the server speak TLS on this port? If not, use redis in place of rediss in --store";
    refused(&service, line).await;
}

#[tokio::test]
async fn a_server_may_demand_a_client_certificate() {
    let (authority, other) = (Authority::new(), Authority::new());
    let (_redis, store) = tls_redis(&authority, &authority.server(&["127.0.0.1"]), "yes");
    let ca = ["--store-tls-ca", text(&authority.certificate)];
    refused(&service(&store, &ca), "the server demands a client certificate").await;
    let of_other = Issued { authority: authority.certificate.clone(), ..other.client() };
    let with = |client: &Issued| service(&store, &client.store_flags());
    refused(&with(&of_other), "the server refused our client certificate").await;
    with(&authority.client()).answered("user=a(0)").await;
}

#[tokio::test]
async fn renewed_certificates_are_used_and_bad_ones_are_not() {
    let (old, new) = (Authority::new(), Authority::new());
    let (redis, store) = tls_redis(&old, &old.server(&["127.0.0.1"]), "yes");
    let folder = TempDir::new().unwrap();
    let [ca, certificate, key] = ["ca", "cert", "key"].map(|name| folder.path().join(name));
    let issue = |authority: &Authority| {
        let client = authority.client();
        fs::copy(&authority.certificate, &ca).unwrap();
        fs::copy(&client.certificate, &certificate).unwrap();
        fs::copy(&client.key, &key).unwrap();
    };
    issue(&old);
    let files =
        Issued { authority: ca.clone(), certificate: certificate.clone(), key: key.clone() };
    let service = service(&store, &files.store_flags());
    service.answered("user=a(0)").await;
    eventually_in_use(&service, "store_certificates", 1);

    fs::write(&ca, "no certificate").unwrap();
    for _ in 0..3 {
        redis.close_connections();
        service.answered("user=a(0)").await;
    }
    let line = "the TLS files of Redis cannot be used, the last good ones stay";
    eventually_in_use(&service, "store_certificates", 0);
    assert_eq!(service.log().matches(line).count(), 1, "{}", service.log());

    let server = new.server(&["127.0.0.1"]);
    redis.query::<()>(&[
        "CONFIG",
        "SET",
        "tls-cert-file",
        text(&server.certificate),
        "tls-key-file",
        text(&server.key),
        "tls-ca-cert-file",
        text(&new.certificate),
    ]);
    redis.close_connections();
    refused(&service, "the server's certificate is not signed by a trusted CA").await;
    issue(&new);
    service.answered("user=a(0)").await;
    assert!(service.log().contains("the TLS files of Redis have changed"), "{}", service.log());
    eventually_in_use(&service, "store_certificates", 1);
}

/// A service whose user `app` logs in with the password `first` from a file.
struct PasswordFile {
    redis: Redis,
    file: PathBuf,
    service: Service,
    _folder: TempDir,
}

impl PasswordFile {
    async fn start() -> Self {
        let redis = Redis::start();
        redis.query::<()>(&["ACL", "SETUSER", "app", "on", ">first", "~*", "+@all"]);
        let folder = TempDir::new().unwrap();
        let file = folder.path().join("password");
        fs::write(&file, "first\n").unwrap();
        let store = format!("redis://app@127.0.0.1:{}", redis.port);
        let service = service(&store, &["--store-password-file", text(&file)]);
        service.answered("user=a(0)").await;
        Self { redis, file, service, _folder: folder }
    }
}

#[tokio::test]
async fn the_expiry_of_the_certificate_that_redis_is_shown_is_measured_also_after_its_renewal() {
    let authority = Authority::new();
    let (_redis, store) = tls_redis(&authority, &authority.server(&["127.0.0.1"]), "yes");
    let folder = TempDir::new().unwrap();
    let [certificate, key] = ["cert", "key"].map(|name| folder.path().join(name));
    let issue = |year| {
        let client = authority.client_until(year);
        fs::copy(&client.key, &key).unwrap();
        fs::copy(&client.certificate, &certificate).unwrap();
    };
    issue(2090);
    let files = Issued {
        authority: authority.certificate.clone(),
        certificate: certificate.clone(),
        key: key.clone(),
    };
    let service = service(&store, &files.store_flags());
    service.answered("user=a(0)").await;
    // The Unix times of the first day of these years.
    for (year, end) in [(2090, 3_786_912_000.0), (2095, 3_944_678_400.0)] {
        issue(year);
        eventually_expires_at(&service, "store_certificates", end);
    }
}

/// Waits until the certificate of these files is measured to end at this Unix time.
#[track_caller]
fn eventually_expires_at(service: &Service, files: &str, end: f64) {
    let series = format!("ratelimit_tls_certificate_expires_in_seconds{{files=\"{files}\"}} ");
    eventually(&format!("the certificate of {files} ends at {end}"), || {
        let metrics = service.get("/metrics");
        let left: f64 =
            metrics.lines().find_map(|line| line.strip_prefix(&series))?.parse().unwrap();
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
        ((left + now.as_secs_f64() - end).abs() < 3600.0).then_some(())
    });
}

#[test]
fn the_expiry_of_the_certificates_that_a_control_plane_and_collectors_are_shown_is_measured() {
    let authority = Authority::new();
    let [of_2090, of_2095] = [2090, 2095].map(|year| authority.client_until(year));
    let ca = text(&authority.certificate);
    let mut command = serve();
    command.args(["--rules", "xds+tls://127.0.0.1:1?node=n", "--rules-tls-ca", ca]);
    command.args(["--rules-tls-cert", text(&of_2090.certificate)]);
    command.args(["--rules-tls-key", text(&of_2090.key)]);
    for (name, value) in [
        ("ENDPOINT", "https://127.0.0.1:1"),
        ("CERTIFICATE", ca),
        ("CLIENT_CERTIFICATE", text(&of_2090.certificate)),
        ("CLIENT_KEY", text(&of_2090.key)),
        ("METRICS_CLIENT_CERTIFICATE", text(&of_2095.certificate)),
        ("METRICS_CLIENT_KEY", text(&of_2095.key)),
        ("LOGS_CLIENT_CERTIFICATE", text(&of_2095.certificate)),
        ("LOGS_CLIENT_KEY", text(&of_2095.key)),
    ] {
        command.env(format!("OTEL_EXPORTER_OTLP_{name}"), value);
    }
    command.env("OTEL_LOGS_EXPORTER", "otlp");
    let service = Service::spawn(command, TempDir::new().unwrap());
    for (files, end) in [
        ("rules_certificates", 3_786_912_000.0),
        ("otlp_traces_certificates", 3_786_912_000.0),
        ("otlp_metrics_certificates", 3_944_678_400.0),
        ("otlp_logs_certificates", 3_944_678_400.0),
    ] {
        eventually_expires_at(&service, files, end);
        eventually_in_use(&service, files, 1);
    }
}

#[tokio::test]
async fn a_changed_password_file_is_read_at_the_next_connection() {
    let PasswordFile { redis, file, service, _folder } = PasswordFile::start().await;
    redis.query::<()>(&["ACL", "SETUSER", "app", "resetpass", ">second"]);
    redis.close_connections();
    refused(&service, "login refused for the user `app`").await;
    fs::write(&file, "second\n").unwrap();
    service.answered("user=a(0)").await;
    assert!(!service.log().contains("second"), "{}", service.log());
}

#[tokio::test]
async fn a_password_file_that_is_missing_or_empty_is_one_warning_and_the_last_good_password_stays()
{
    let PasswordFile { redis, file, service, _folder } = PasswordFile::start().await;
    eventually_in_use(&service, "store_password", 1);
    let break_file = || fs::remove_file(&file).unwrap();
    let empty_file = || fs::write(&file, "\n").unwrap();
    let breaks: [(&dyn Fn(), &str); 2] =
        [(&break_file, "No such file or directory"), (&empty_file, "the file is empty")];
    for (break_it, problem) in breaks {
        break_it();
        for _ in 0..3 {
            redis.close_connections();
            service.answered("user=a(0)").await;
        }
        eventually_in_use(&service, "store_password", 0);
        let line = format!("--store-password-file: {}: {problem}", text(&file));
        assert_eq!(service.log().matches(&line).count(), 1, "{}", service.log());
    }
    assert!(!service.log().contains("is unusable"), "{}", service.log());
    fs::write(&file, "first").unwrap();
    eventually_in_use(&service, "store_password", 1);
    assert!(!service.log().contains("first"), "{}", service.log());
}

/// The file changes before Redis does, and is gone for a time.
#[tokio::test]
async fn a_password_that_redis_does_not_accept_leaves_the_last_that_it_accepted_in_use() {
    let PasswordFile { redis, file, service, _folder } = PasswordFile::start().await;
    fs::write(&file, "second").unwrap();
    for _ in 0..3 {
        redis.close_connections();
        service.answered("user=a(0)").await;
    }
    eventually_in_use(&service, "store_password", 0);
    let line = "a server refuses the password in it; the last good password stays in use";
    assert_eq!(service.log().matches(line).count(), 1, "{}", service.log());
    fs::remove_file(&file).unwrap();
    redis.close_connections();
    service.answered("user=a(0)").await;
    fs::write(&file, "second").unwrap();
    redis.query::<()>(&["ACL", "SETUSER", "app", "resetpass", ">second"]);
    redis.close_connections();
    service.answered("user=a(0)").await;
    eventually_in_use(&service, "store_password", 1);
    assert!(!service.log().contains("login refused"), "{}", service.log());
    assert!(!service.log().contains("second"), "{}", service.log());
}

/// Waits until the metric of files of the store has this value.
#[track_caller]
fn eventually_in_use(service: &Service, files: &str, value: u8) {
    service.wait_for_metric(&format!("ratelimit_tls_files_in_use{{files=\"{files}\"}} {value}\n"));
}

#[tokio::test]
async fn an_outage_of_a_single_redis_names_its_address() {
    let redis = Redis::absent();
    let service = service(&redis.url(), &[]);
    let line = format!("Redis at 127.0.0.1:{} is unusable: Connection refused", redis.port);
    refused(&service, &line).await;
}

/// Something on the way has forgotten the connections that were idle: what is sent on them is lost.
#[tokio::test]
async fn a_connection_that_was_idle_for_30_seconds_is_tried_before_a_call_uses_it() {
    let redis = Redis::start();
    let proxy = FaultProxy::start(redis.port, 1);
    let store = redis_store::store(&proxy.url, 0, system_clock, Duration::from_millis(300));
    let limit = Limit::new(1000, Unit::Year, 40).unwrap();
    let charge = [charge("alice", Hits::Charge(1), &limit.into())];
    for _ in 0..3 {
        answer(&store, &charge).await.unwrap();
    }
    tokio::time::sleep(Duration::from_secs(31)).await;
    proxy.set(Faults { requests: Flow::Drop, spares_new: true, ..Faults::default() });
    for _ in 0..3 {
        answer(&store, &charge).await.unwrap();
    }
    assert_eq!(redis.count("alice"), 6);
}
