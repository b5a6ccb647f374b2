//! docs/openapi.yaml describes every path of the service, and what real services answer.

use std::sync::LazyLock;

use prost_types::{DescriptorProto, EnumDescriptorProto, FileDescriptorSet};

use super::tables::routes;
use crate::support::{overrides, prelude::*, secured::Secured, service::exchange_with};

static DOCUMENT: LazyLock<Value> = LazyLock::new(|| documents(&page("openapi.yaml")).remove(0));

/// The operations of the document, such as `GET /rules`, with the URL of their server.
fn operations() -> BTreeMap<String, (String, &'static Value)> {
    let mut operations = BTreeMap::new();
    for (path, item) in DOCUMENT["paths"].as_object().unwrap() {
        let servers = item.get("servers").unwrap_or(&DOCUMENT["servers"]);
        let server = servers[0]["url"].as_str().unwrap();
        for method in ["get", "post", "put", "patch", "delete"] {
            if let Some(operation) = item.get(method) {
                let name = format!("{} {path}", method.to_uppercase());
                operations.insert(name, (server.to_owned(), operation));
            }
        }
    }
    operations
}

const HTTP: &str = "http://127.0.0.1:8080";
/// What `GET /check` needs.
const FORWARDED: &[(&str, &str)] = &[("x-forwarded-method", "GET")];
const ADMIN: &str = "http://127.0.0.1:6070";

#[test]
fn the_paths_of_the_document_are_those_that_the_service_serves() {
    let found: BTreeSet<(String, bool)> =
        operations().into_iter().map(|(name, (server, _))| (name, server == ADMIN)).collect();
    let served = routes().into_iter().map(|(route, file)| {
        let is_debug = route == "GET /rlconfig";
        (route, is_debug || file.contains("admin"))
    });
    assert_eq!(found, served.collect());
}

#[test]
fn a_linter_has_no_complaint() {
    let venv = root().join("target/tools/venv/bin/node");
    let cli = root().join("target/tools/redocly/node_modules/@redocly/cli/bin/cli.js");
    let (code, output, problems) = run(Command::new(venv)
        .arg(cli)
        // Probes and pages have no error of the client.
        .args(["lint", "--extends", "recommended-strict", "--skip-rule", "operation-4xx-response"])
        .arg(root().join("docs/openapi.yaml"))
        .env("REDOCLY_TELEMETRY", "off")
        .env("REDOCLY_SUPPRESS_UPDATE_NOTICE", "true"));
    assert_eq!(code, Some(0), "{output}{problems}");
}

fn names<'list>(list: impl IntoIterator<Item = &'list str>) -> BTreeSet<String> {
    list.into_iter().map(str::to_owned).collect()
}

#[track_caller]
fn check_message(message: &DescriptorProto) {
    let properties = &DOCUMENT["components"]["schemas"][message.name()]["properties"];
    let properties = properties.as_object().unwrap_or_else(|| panic!("{}", message.name()));
    let fields = message.field.iter().map(|field| field.json_name());
    assert_eq!(names(properties.keys().map(|key| &**key)), names(fields), "{}", message.name());
    message.enum_type.iter().for_each(check_enum);
    let is_map =
        |nested: &&DescriptorProto| nested.options.as_ref().is_some_and(|it| it.map_entry());
    message.nested_type.iter().filter(|nested| !is_map(nested)).for_each(check_message);
}

#[track_caller]
fn check_enum(written: &EnumDescriptorProto) {
    let listed = DOCUMENT["components"]["schemas"][written.name()]["enum"].as_array();
    let listed = listed.unwrap_or_else(|| panic!("{}", written.name())).iter();
    let values = written.value.iter().map(|value| value.name());
    assert_eq!(names(listed.map(|value| value.as_str().unwrap())), names(values));
}

#[test]
fn the_messages_of_v1_have_the_fields_and_the_values_of_the_proto() {
    let files = FileDescriptorSet::decode(tollkeeper_proto::FILE_DESCRIPTORS).unwrap().file;
    let ours = files.iter().find(|file| file.package() == "tollkeeper.v1").unwrap();
    assert!(ours.message_type.len() > 10);
    ours.message_type.iter().for_each(check_message);
}

const RULES: &str = "
domain: shop
descriptors:
  - { key: user, rate_limit: { name: per_user, unit: year, requests_per_unit: 2 } }
  - { key: budget, rate_limit: { unit: year, requests_per_unit: 1000, hold: 10m } }
  - { key: lent, rate_limit: { unit: year, requests_per_unit: 1000, lease: auto } }
  - { key: slots, rate_limit: { algorithm: in_flight, requests_per_unit: 2, hold: 10m } }
  - { key: log, rate_limit: { unit: year, requests_per_unit: 9, algorithm: sliding_log } }
  - key: counted
    rate_limit: { unit: year, requests_per_unit: 9, hold: { by: counter, for: 10m, estimate: { default: 3 } } }
  - { key: free, rate_limit: { unlimited: true } }
  - { key: closed, rate_limit: { unit: year, requests_per_unit: 0 } }
";

/// Exchanges with real services.
#[derive(Default)]
struct Exchanges(Vec<Value>);

/// The URL of a server in the document, and where it is.
type At = (&'static str, SocketAddr);

impl Exchanges {
    /// Sends a request such as `POST /json`, and returns the answer.
    #[track_caller]
    fn ask(&mut self, at: At, request: &str, body: &str, expected: u16) -> Value {
        let headers = if request.starts_with("GET /check") { FORWARDED } else { &[] };
        self.ask_with(at, request, headers, body, expected)
    }

    #[track_caller]
    fn ask_with(
        &mut self,
        (server, address): At,
        request: &str,
        headers: &[(&str, &str)],
        body: &str,
        expected: u16,
    ) -> Value {
        let (method, target) = request.split_once(' ').unwrap();
        let answer = exchange_with(address, method, target, headers, body.as_bytes());
        self.add(server, request, headers, body, expected, answer)
    }

    #[track_caller]
    fn add(
        &mut self,
        server: &str,
        request: &str,
        headers: &[(&str, &str)],
        body: &str,
        expected: u16,
        (status, head, answer): (u16, String, String),
    ) -> Value {
        assert_eq!(status, expected, "{request} {body}: {answer}");
        let (method, target) = request.split_once(' ').unwrap();
        let answer_headers = head.lines().filter_map(|line| line.split_once(": "));
        self.0.push(json!({
            "server": server,
            "method": method,
            "target": target,
            "headers": headers,
            "body": body,
            "status": status,
            "answer_headers": answer_headers.collect::<Vec<_>>(),
            "answer": answer,
        }));
        serde_json::from_str(&answer).unwrap_or_default()
    }

    /// Fails if the document describes other answers, or allows other requests than the service reads. Returns the operations,
    /// each with the statuses that it gave.
    fn check(&self) -> BTreeMap<String, BTreeSet<String>> {
        let mut python = Command::new(tool("python"))
            .arg(root().join("tests/support/openapi_check.py"))
            .arg(root().join("docs/openapi.yaml"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let list = serde_json::to_vec(&self.0).unwrap();
        python.stdin.take().unwrap().write_all(&list).unwrap();
        let output = python.wait_with_output().unwrap();
        let found: Vec<[Option<String>; 2]> = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(found.len(), self.0.len());
        let mut statuses: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for (exchange, [of_request, of_answer]) in self.0.iter().zip(found) {
            assert_eq!(of_answer, None, "{exchange:#}");
            let is_bad = exchange["status"] == 400;
            assert_eq!(of_request.is_some(), is_bad, "{of_request:?} in {exchange:#}");
            let [method, target] =
                ["method", "target"].map(|name| exchange[name].as_str().unwrap());
            let path = target.split('?').next().unwrap();
            let is_one = path.starts_with("/overrides/");
            let path = if is_one { "/overrides/{id}" } else { path };
            let operation = statuses.entry(format!("{method} {path}")).or_default();
            operation.insert(exchange["status"].to_string());
        }
        statuses
    }
}

/// The part of the document that a reference leads to.
fn resolve(part: &Value) -> &Value {
    match part["$ref"].as_str() {
        Some(link) => resolve(DOCUMENT.pointer(link.trim_start_matches('#')).unwrap()),
        None => part,
    }
}

/// The id of an override in examples.
const ID: &str = "5f2c01aa";

/// The example of a request of this operation, and of its body.
fn example(name: &str) -> (String, String) {
    let (method, path) = name.split_once(' ').unwrap();
    let item = &DOCUMENT["paths"][path];
    let operation = &item[method.to_lowercase()];
    let lists = [&item["parameters"], &operation["parameters"]];
    let parameters = lists.into_iter().filter_map(Value::as_array).flatten().map(resolve);
    let mut query = String::new();
    for parameter in parameters.filter(|it| it["required"] == true && it["in"] == "query") {
        let example = &parameter["example"];
        let value = example.get(0).unwrap_or(example);
        let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let separator = if query.is_empty() { '?' } else { '&' };
        query += &format!("{separator}{}={value}", parameter["name"].as_str().unwrap());
    }
    let content = &operation["requestBody"]["content"]["application/json"];
    let body = content.get("example").unwrap_or(&resolve(&content["schema"])["examples"][0]);
    let body = if body.is_null() { String::new() } else { body.to_string() };
    (format!("{name}{query}").replace("{id}", ID), body)
}

/// A call with a descriptor such as `user=a`, and further fields.
fn call(descriptor: &str, more: &str) -> String {
    let (key, value) = descriptor.split_once('=').unwrap();
    format!(r#"{{"descriptors":[{{"entries":[{{"key":"{key}","value":"{value}"}}]}}]{more}}}"#)
}

fn batch(field: &str, items: &[String]) -> String {
    format!(r#"{{"domain":"shop","{field}":[{}]}}"#, items.join(","))
}

/// A call for `/json` and `/explain`.
fn one(descriptor: &str, more: &str) -> String {
    call(descriptor, &format!(r#","domain":"shop"{more}"#))
}

fn decisions(exchanges: &mut Exchanges, service: &Service) {
    let http = (HTTP, service.http);
    for (descriptor, more, expected) in [
        ("user=a", "", 200),
        ("user=a", r#","hitsAddend":1"#, 200),
        ("user=a", "", 429),
        ("slots=a", "", 200),
        ("free=a", "", 200),
        ("nothing=here", "", 200),
        ("user=a", r#","hitsAddend":-1"#, 400),
        ("user=a", r#","hits":1"#, 400),
        ("=a", "", 400),
    ] {
        exchanges.ask(http, "POST /json", &one(descriptor, more), expected);
    }
    let own = r#"{"domain":"shop","descriptors":[{"limit":LIMIT,"hitsAddend":2,"isNegativeHits":true,"entries":[{"key":"x"}]}]}"#;
    let limit = r#"{"requestsPerUnit":5,"unit":"DAY","unitMultiplier":2}"#;
    exchanges.ask(http, "POST /json", &own.replace("LIMIT", limit), 200);
    for limit in [r#"{"unit":"FORTNIGHT"}"#, r#"{"requestsPerUnit":4294967296}"#, "7"] {
        exchanges.ask(http, "POST /json", &own.replace("LIMIT", limit), 400);
    }
    for body in ["", "{", "[]", r#"{"domain":"shop","descriptors":[]}"#, r#"{"descriptors":[{}]}"#]
    {
        exchanges.ask(http, "POST /json", body, 400);
    }

    for (query, expected) in [
        ("d=user=b", 200),
        ("d=user=b&d=closed=x", 429),
        ("d=closed=x&hits=3&deny=418", 418),
        ("d=user=b&on_failure=allow", 200),
        ("e=user=b", 400),
        ("d=user=b&hits=x", 400),
        ("d=user=b&deny=200", 400),
        ("d=user=b&on_failure=wait", 400),
    ] {
        exchanges.ask(http, &format!("GET /check?domain=shop&{query}"), "", expected);
    }
    for (query, expected) in [("d=closed=x", 429), ("d=closed=x&deny=418", 418), ("x=y", 400)] {
        exchanges.ask(http, &format!("POST /check?domain=shop&{query}"), "", expected);
    }

    let calls = [
        call("user=c", ""),
        call("user=c", r#","mode":"CHECK""#),
        call("user=c", r#","mode":"DEBIT","hits":7"#),
        call("user=c", ""),
        call("budget=c", r#","mode":"READ""#),
        call("slots=c", r#","mode":"READ""#),
        call("slots=c", ""),
        call("nothing=here", ""),
        call("budget=c", r#","hits":300"#),
        call("user=part", r#","mode":"PART","hits":5"#),
        call("lent=a", r#","mode":"LEASE","hits":5"#),
        call("user=once", r#","id":"order 1""#),
        call("budget=kinds", r#","hitsByKind":{"input":4}"#),
        // These have errors of their own.
        call("user=c", r#","mode":"CHECK","hits":1"#),
        call("user=c", r#","mode":"READ","id":"order 1""#),
    ];
    let answer = exchanges.ask(http, "POST /v1/decide", &batch("calls", &calls), 200);
    let hold = answer["verdicts"][8]["hold"].as_str().unwrap();
    let renewal = |hold: &str, more: &str| {
        let call = call("budget=c", more);
        format!(r#"{{"commit":{{"hold":"{hold}","used":200}},"call":{call}}}"#)
    };
    let renewals = [renewal(hold, ""), renewal("x", ""), renewal(hold, r#","hits":2000"#)];
    let answer = exchanges.ask(http, "POST /v1/renew", &batch("renewals", &renewals), 200);
    let hold = answer["results"][0]["verdict"]["hold"].as_str().unwrap();
    let commit = |hold: &str| {
        format!(r#"{{"hold":"{hold}","used":9,"usedByKind":{{"input":4}},"end":"503 UF"}}"#)
    };
    let commits = [commit(hold), commit(hold), commit("x")];
    exchanges.ask(http, "POST /v1/commit", &batch("commits", &commits), 200);
    for (method, field) in [("decide", "calls"), ("commit", "commits"), ("renew", "renewals")] {
        let request = format!("POST /v1/{method}");
        exchanges.ask(http, &request, &batch(field, &[]), 400);
        exchanges.ask(http, &request, &batch("items", &["{}".to_owned()]), 400);
        exchanges.ask(http, &request, &batch(field, &vec!["{}".to_owned(); 1001]), 400);
    }
    let call_without_domain = format!(r#"{{"calls":[{}]}}"#, call("user=c", ""));
    exchanges.ask(http, "POST /v1/decide", &call_without_domain, 400);
    for (query, expected) in [("d=user=c&d=budget=c&d=slots=c", 200), ("d=user", 400), ("", 400)] {
        exchanges.ask(http, &format!("GET /v1/usage?domain=shop&{query}"), "", expected);
    }
}

fn admin(exchanges: &mut Exchanges, service: &Service) {
    let admin = (ADMIN, service.admin);
    for (descriptor, expected) in [
        ("user=a", 200),
        ("slots=a", 200),
        ("log=a", 200),
        ("counted=a", 200),
        ("nothing=here", 404),
        ("user", 400),
    ] {
        let query = format!("domain=shop&descriptor={descriptor}");
        exchanges.ask(admin, &format!("GET /counters?{query}"), "", expected);
        exchanges.ask(admin, &format!("POST /counters/reset?{query}"), "", expected);
        if descriptor != "slots=a" {
            exchanges.ask(admin, &format!("POST /counters/set?{query}&used=3"), "", expected);
        }
    }
    for query in ["used=-1&domain=shop&descriptor=user=a", "domain=shop&descriptor=user=a"] {
        exchanges.ask(admin, &format!("POST /counters/set?{query}"), "", 400);
    }
    for (query, expected) in [
        ("", 200),
        ("?limit=1&after=9999999999999-0&text=reset&who=127", 200),
        ("?limit=0", 400),
        ("?after=now", 400),
    ] {
        exchanges.ask(admin, &format!("GET /audit{query}"), "", expected);
    }
    for (query, expected) in [
        ("domain=shop", 200),
        ("domain=shop&descriptor=user=a*&whole=true&over=true", 200),
        ("limit=1", 400),
    ] {
        exchanges.ask(admin, &format!("GET /counters/list?{query}"), "", expected);
    }
    let own = r#","limit":{"requestsPerUnit":5,"unit":"DAY"}"#;
    let own = one("x=y", "").replace("}]}]", &format!("}}]{own}}}]"));
    let unknown = one("user=a", "").replace("shop", "mail");
    let known = ["user=a", "budget=a", "counted=a", "free=a", "nothing=here"];
    let calls = known.map(|descriptor| one(descriptor, "")).into_iter().chain([own, unknown]);
    for call in calls {
        exchanges.ask(admin, "POST /explain", &call, 200);
    }
    exchanges.ask(admin, "POST /explain", "{}", 400);
    for path in ["/top", "/log", "/recording", "/candidate", "/status"] {
        exchanges.ask(admin, &format!("GET {path}?x=y"), "", 400);
    }
    exchanges.ask(admin, "POST /log", "", 400);
    exchanges.ask(admin, "POST /recording?for=0s", "", 200);
    exchanges.ask(admin, "GET /candidate", "", 200);
    exchanges.ask(admin, "POST /candidate?order=abort", "", 400);
    exchanges.ask(admin, "POST /candidate?order=abort&version=x", "", 409);
    for query in ["", "?for=x"] {
        exchanges.ask(admin, &format!("POST /recording{query}"), "", 400);
    }
    of_overrides(exchanges, service);
}

fn of_overrides(exchanges: &mut Exchanges, service: &Service) {
    let admin = (ADMIN, service.admin);
    for more in [r#""limit":5"#, r#""times":2,"dry_run":true"#, r#""action":"shadow""#] {
        let body = |lasts| {
            format!(
                r#"{{"domain":"shop","descriptor":"user=*",{more},"for":"{lasts}","because":"x"}}"#
            )
        };
        exchanges.ask(admin, "POST /overrides", &body("1h30m"), 200);
        exchanges.ask(admin, "POST /overrides", &body("soon"), 400);
    }
    exchanges.ask(admin, "POST /explain", &one("user=z", ""), 200);
    exchanges.ask(admin, "GET /overrides?domain=shop&text=user&limit=1", "", 200);
    exchanges.ask(admin, "GET /overrides?limit=0", "", 400);
    exchanges.ask(admin, "GET /overrides/none", "", 404);
    exchanges.ask(admin, "DELETE /overrides/none", "", 404);
    exchanges.ask(admin, "DELETE /overrides/none?x=y", "", 400);
    let full = Service::with(RULES).start();
    for number in 0..1000 {
        overrides::set(&full, &format!("user={number}"), json!({ "limit": 5 }));
    }
    let (_, body) = example("POST /overrides");
    exchanges.ask((ADMIN, full.admin), "POST /overrides", &body, 409);
}

/// A service that takes the place of envoyproxy/ratelimit, and the address of its debug port.
fn in_place_of_envoyproxy() -> (Service, SocketAddr) {
    let flags = &["--compat", "envoyproxy-ratelimit", "--log-level", "info"];
    let environment = &[("DEBUG_PORT", "0")];
    let service = Service::shop().flags(flags).environment(environment).start();
    let log = service.log();
    let (_, debug) = log.split_once(", debug ").unwrap();
    let digits = debug.rsplit_once(':').unwrap().1.split_whitespace().next().unwrap();
    (service, SocketAddr::from(([127, 0, 0, 1], digits.parse().unwrap())))
}

/// The operations that ask who makes a request: whether it is a web page, or has a token.
fn guarded(tag: &str) -> impl Iterator<Item = String> {
    let guarded = operations().into_iter().filter(move |(_, (_, operation))| {
        operation["tags"][0] == tag && operation["security"] != json!([])
    });
    guarded.map(|(name, _)| name)
}

/// Requests that are good, but for who makes them, their length, or what is switched off.
fn refusals(exchanges: &mut Exchanges, service: &Service) {
    for name in guarded("decisions").chain(guarded("admin")) {
        let is_admin = operations()[&name].0 == ADMIN;
        let at = if is_admin { (ADMIN, service.admin) } else { (HTTP, service.http) };
        let (request, body) = example(&name);
        let page = [&[("origin", "http://evil.example")][..], FORWARDED].concat();
        exchanges.ask_with(at, &request, &page, &body, 403);
    }

    let token = TextFile::new("token", "0123456789abcdef");
    let flags = &["--admin-token-file", &token, "--top-keys", "off", "--max-message-bytes", "1KiB"];
    let bounded = Service::with(RULES).flags(flags).start();
    let http = (HTTP, bounded.http);
    let admin = (ADMIN, bounded.admin);
    for name in guarded("admin") {
        let (request, body) = example(&name);
        exchanges.ask(admin, &request, &body, 401);
    }
    let bearer = [("authorization", "Bearer 0123456789abcdef")];
    for path in [
        "GET /top",
        "GET /stats",
        "GET /recording",
        "POST /recording?for=10m",
        "GET /candidate",
        "POST /candidate?order=abort&version=x",
    ] {
        exchanges.ask_with(admin, path, &bearer, "", 404);
    }
    let long = |name: &str| example(name).1 + &" ".repeat(1024);
    for name in ["/json", "/v1/decide", "/v1/commit", "/v1/renew"] {
        let name = format!("POST {name}");
        exchanges.ask(http, &name, &long(&name), 413);
    }
    exchanges.ask_with(admin, "POST /explain", &bearer, &long("POST /explain"), 413);
    let encoded = [("content-encoding", "gzip"), bearer[0]];
    for name in ["POST /json", "POST /v1/decide", "POST /v1/commit", "POST /v1/renew"] {
        exchanges.ask_with(http, name, &encoded, &example(name).1, 415);
    }
    for name in ["POST /explain", "POST /overrides"] {
        exchanges.ask_with(admin, name, &encoded, &example(name).1, 415);
    }

    let secured = Secured::start(&["--tls-scope", "grpc", "--tls-client-ca", "CLIENTS"]);
    for name in guarded("decisions") {
        let (request, body) = example(&name);
        exchanges.ask((HTTP, secured.service.http), &request, &body, 403);
    }
    let secured = Secured::start(&["--tls-client-ca", "CLIENTS"]);
    for request in ["GET /metrics", "GET /rules"] {
        let answer = secured.exchange(secured.service.http, request, "", "", None).unwrap();
        exchanges.add(HTTP, request, &[], "", 403, answer);
    }
}

fn failures(exchanges: &mut Exchanges) {
    let redis = Redis::absent();
    let flags = &["--decision-budget", "20ms"];
    let store = &redis.url();
    let failing = Service::with(RULES).on(store).flags(flags).start();
    let (http, admin) = ((HTTP, failing.http), (ADMIN, failing.admin));
    exchanges.ask(http, "GET /readyz", "", 503);
    exchanges.ask(http, "GET /healthcheck", "", 500);
    exchanges.ask(http, "POST /json", &one("user=a", ""), 503);
    exchanges.ask(http, "POST /v1/decide", &batch("calls", &[call("user=a", "")]), 200);
    for request in [
        "GET /check?domain=shop&d=user=a",
        "POST /check?domain=shop&d=user=a",
        "GET /v1/usage?domain=shop&d=user=a",
    ] {
        exchanges.ask(http, request, "", 503);
    }
    let counters = "domain=shop&descriptor=user=a";
    exchanges.ask(admin, &format!("GET /counters?{counters}"), "", 503);
    exchanges.ask(admin, &format!("POST /counters/reset?{counters}"), "", 503);
    exchanges.ask(admin, &format!("POST /counters/set?{counters}&used=1"), "", 503);
    exchanges.ask(admin, "GET /audit", "", 503);
    exchanges.ask(admin, "GET /counters/list?domain=shop", "", 503);
    exchanges.ask(admin, "POST /explain", &one("user=a", ""), 503);
    exchanges.ask(admin, "GET /status", "", 200);
    exchanges.ask(admin, "GET /overrides", "", 200);
    exchanges.ask(admin, "POST /overrides", &example("POST /overrides").1, 503);
    let redis = Redis::start();
    let candidate = TextFile::new("candidate.yaml", RULES);
    let flags = &["--candidate", &*candidate];
    let service = Service::with(RULES).on(&redis.url()).flags(flags).start();
    let set = overrides::set(&service, "user=z", json!({ "action": "ban" }));
    let version = overrides::send(&service, "GET", "/candidate", "").1["version"].take();
    drop(redis);
    let request = format!("DELETE /overrides/{}", set["id"].as_str().unwrap());
    exchanges.ask((ADMIN, service.admin), &request, "", 503);
    let request = format!("POST /candidate?order=judge&version={}", version.as_str().unwrap());
    exchanges.ask((ADMIN, service.admin), &request, "", 503);
}

#[test]
fn real_services_answer_as_the_document_describes() {
    let mut exchanges = Exchanges::default();
    let folder = TempDir::new().unwrap();
    let flags = ["--headers", "both", "--dynamic-metadata=on", "--metrics-compat", "envoyproxy"];
    let (record, candidate) = (folder.path().to_str().unwrap(), TextFile::new("a.yaml", RULES));
    let flags = [&flags[..], &["--record", record, "--candidate", &candidate]].concat();
    let service = Service::with(RULES).flags(&flags).ready();
    let (compat, debug) = in_place_of_envoyproxy();
    for (name, (server, _)) in operations() {
        let (request, body) = example(&name);
        let at = match &*name {
            "GET /rlconfig" => (ADMIN, debug),
            _ if server == ADMIN => (ADMIN, service.admin),
            _ => (HTTP, service.http),
        };
        let request = if request.contains(ID) {
            let set = overrides::set(&service, "user=z", json!({ "action": "ban" }));
            request.replace(ID, set["id"].as_str().unwrap())
        } else if name == "POST /candidate" {
            let version = overrides::send(&service, "GET", "/candidate", "").1["version"].take();
            format!("POST /candidate?order=judge&version={}", version.as_str().unwrap())
        } else {
            request
        };
        exchanges.ask(at, &request, &body, 200);
    }
    decisions(&mut exchanges, &service);
    for descriptor in ["log=a", "slots=a", "counted=a", "log=a"] {
        exchanges.ask((HTTP, service.http), "POST /json", &one(descriptor, ""), 200);
    }
    admin(&mut exchanges, &service);
    for request in ["GET /status?history=1", "GET /top"] {
        exchanges.ask((ADMIN, service.admin), request, "", 200);
    }
    exchanges.ask((HTTP, service.http), "GET /rules?x=y", "", 400);
    exchanges.ask((HTTP, compat.http), "GET /rules", "", 200);
    refusals(&mut exchanges, &service);
    failures(&mut exchanges);

    let mut unseen = Vec::new();
    let seen = exchanges.check();
    for (name, (_, operation)) in operations() {
        let listed = operation["responses"].as_object().unwrap();
        for (status, response) in listed {
            let of_load = ["TooSlow", "Busy"].map(|name| format!("#/components/responses/{name}"));
            let is_of_load = of_load.iter().any(|link| response["$ref"] == **link);
            let is_seen = seen[&name].iter().any(|seen| match &**status {
                "default" => !listed.contains_key(seen),
                status => status == seen,
            });
            if !is_of_load && !is_seen {
                unseen.push(format!("{name} {status}"));
            }
        }
    }
    assert_eq!(unseen, ["POST /explain 408"], "no exchange has them");
}

/// hyper answers the last three, for any path.
#[test]
fn the_statuses_that_no_path_lists_are_in_the_description_of_all() {
    let service = Service::shop().start();
    let description = DOCUMENT["info"]["description"].as_str().unwrap();
    let long = format!("/{}", "x".repeat(100_000));
    let headers = vec![("x", "1"); 101];
    for (method, path, headers, expected) in [
        ("GET", "/unknown", &[][..], 404),
        ("PUT", "/json", &[], 405),
        ("GET", "/healthz", &headers, 431),
        ("GET", &long, &[], 431),
        ("GET", "/healthz", &[("x y", "1")], 400),
    ] {
        let (status, _, body) = exchange_with(service.http, method, path, headers, b"");
        let has_body = [404, 405].contains(&status);
        assert_eq!(
            (status, body.starts_with(r#"{"error":{"code":"#)),
            (expected, has_body),
            "{method} {path}"
        );
        assert!(has_body || body.is_empty(), "{body}");
        assert!(description.contains(&expected.to_string()), "{expected}");
    }
    assert!(description.contains("414"));
}

#[test]
fn the_service_allows_the_methods_of_the_document_and_no_others() {
    let service = Service::shop().start();
    let (_compat, debug) = in_place_of_envoyproxy();
    let mut methods: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    let operations = operations();
    for name in operations.keys() {
        let (method, path) = name.split_once(' ').unwrap();
        let allowed = methods.entry(path).or_default();
        allowed.insert(method);
        // HTTP has it wherever it has GET.
        allowed.extend((method == "GET").then_some("HEAD"));
    }
    for (path, expected) in methods {
        let server = DOCUMENT["paths"][path]["servers"][0]["url"].as_str().unwrap_or(HTTP);
        let address = match path {
            "/rlconfig" => debug,
            _ if server == ADMIN => service.admin,
            _ => service.http,
        };
        let (status, head, body) = exchange_with(address, "PUT", path, &[], b"");
        let allow = head.lines().find_map(|line| line.strip_prefix("allow: ")).unwrap();
        let allow = allow.to_uppercase();
        assert_eq!((status, allow.split(',').collect()), (405, expected.clone()), "{path}");
        if address == service.http {
            let usable = expected.into_iter().filter(|method| *method != "HEAD");
            let usable = usable.collect::<Vec<_>>().join(" or ");
            let error = json!({ "code": "UNIMPLEMENTED", "message": format!("use {usable}") });
            assert_eq!(body, json!({ "error": error }).to_string(), "{path}");
        }
    }
}
