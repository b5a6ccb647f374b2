//! The cases and the faults that all clients share: ../conformance/README.md describes them.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::disallowed_methods,
    clippy::indexing_slicing,
    unreachable_pub,
    reason = "a test that panics has failed, which is its purpose"
)]

mod support;

use std::{
    env, fs,
    path::PathBuf,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use serde_json::{Map, Value, json};
use support::{Log, service, unique};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tollkeeper_client::{
    Call, Client, Commit, Decision, Descriptor, Error, OnFailure, Options, ServiceError, Tls, Unit,
    on,
};

const KEYS: &[&str] = &[
    "method",
    "descriptors",
    "limit",
    "hits",
    "calls",
    "mode",
    "estimate",
    "hits_by_kind",
    "while_open",
    "used",
    "used_by_kind",
    "end",
    "release",
    "renew",
    "fails",
    "commits",
    "expect",
    "raises",
    // Of faults.
    "with",
    "close_meanwhile",
    "leave_meanwhile",
    "ms",
    "expect_commit",
    "after",
];
const BOUND: Duration = Duration::from_secs(20);

/// What the hook got: the method and the outcome of each request.
type Heard = Arc<Mutex<Vec<(&'static str, &'static str)>>>;

/// A client, and where its steps run.
struct Run {
    client: Client,
    address: String,
    /// Of steps without descriptors.
    user: String,
}

fn table(name: &str, rows: &str) -> Vec<Value> {
    let text = fs::read_to_string(format!("../conformance/{name}")).unwrap();
    let number = serde_json::from_str::<Value>(&text).unwrap()[rows].as_array().unwrap().len();
    assert!(number > 20, "{number} rows");
    let row = |index| {
        let text = text.replace("{run}", &format!("{}-{index}", unique()));
        serde_json::from_str::<Value>(&text).unwrap()[rows][index].take()
    };
    (0..number).map(row).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_client_passes_the_cases_that_all_clients_share() {
    if service("TOLLKEEPER_ADDR").is_none() {
        return;
    }
    for case in table("cases.json", "cases") {
        println!("{}", case["name"]);
        let address = address_of(&case["client"]);
        let options = options(defaults(), &case["client"]);
        let client = Client::new(&address, options).unwrap();
        Box::pin(Run { client, address, user: unique() }.steps(&case["steps"])).await;
    }
}

#[tokio::test]
async fn the_client_passes_the_faults_that_all_clients_share() {
    let Some(addresses) = service("TOLLKEEPER_FAULTS") else { return };
    let addresses: Value = serde_json::from_str(&addresses).unwrap();
    for row in table("faults.json", "rows") {
        let name = row["name"].as_str().unwrap();
        println!("{name}");
        let log = Log::start();
        let (heard, address) = (Heard::default(), addresses[name].as_str().unwrap().to_owned());
        let options = options(defaults(), &row["client"]);
        let options = observed(options, &heard, row["client"]["on_call"] == "throws");
        let client = Client::new(&address, options).unwrap();
        let run = Run { client, address, user: unique() };
        let began = Instant::now();
        Box::pin(run.steps(&row["steps"])).await;
        let ms = began.elapsed().as_millis();
        let bound = |key: &str| row[key].as_u64().map(u128::from);
        assert!(bound("at_least_ms").is_none_or(|least| ms >= least), "{name}: {ms} ms");
        assert!(bound("at_most_ms").is_none_or(|most| ms <= most), "{name}: {ms} ms");
        let heard = heard.lock().unwrap();
        if let Some(wanted) = row["on_call"].as_array() {
            let is_wanted = |((method, outcome), wanted): (&(_, _), &Value)| {
                wanted[0] == *method
                    && wanted[1].as_str().unwrap().split('|').any(|it| it == *outcome)
            };
            let is_wanted = heard.iter().zip(wanted).all(is_wanted) && heard.len() == wanted.len();
            assert!(is_wanted, "{name}: heard {heard:?}, not {wanted:?}");
        }
        let lines = log.lines();
        for text in row["log"].as_array().into_iter().flatten() {
            let text = text.as_str().unwrap().replace("{address}", &run.address);
            assert!(
                lines.iter().any(|line| line.contains(&text)),
                "{name}: {lines:?} lacks {text}"
            );
        }
        if let Some(number) = row["logs"].as_u64() {
            assert_eq!(lines.len() as u64, number, "{name}: {lines:?}");
        }
    }
}

fn observed(options: Options, heard: &Heard, throws: bool) -> Options {
    let heard = Arc::clone(heard);
    options.on_call(move |method, elapsed, outcome| {
        assert!(elapsed > Duration::ZERO);
        heard.lock().unwrap().push((method, outcome));
        assert!(!throws, "the hook throws");
    })
}

#[tokio::test]
async fn tls_files_are_read_again_for_each_connection() {
    let Some(address) = service("TOLLKEEPER_TLS_ADDR") else { return };
    let (folder, path) =
        (tempfile::tempdir().unwrap(), |name: &str| env::var_os(name).unwrap().into());
    let (ca, cert, key) =
        (folder.path().join("ca.pem"), path("TOLLKEEPER_CERT"), path("TOLLKEEPER_KEY"));
    // It has not signed the certificate of the service.
    fs::copy::<&PathBuf, _>(&cert, &ca).unwrap();
    let tls = Tls {
        ca: Some(ca.clone()),
        cert: Some(cert),
        key: Some(key),
        server_name: Some("localhost".into()),
    };
    let client = support::connect(&address, support::patient().tls(tls));
    let error = async || client.decide(on("three", unique())).await.unwrap().error;
    let refused = error().await.unwrap().to_string();
    assert!(refused.contains("UnknownIssuer"), "{refused}");
    fs::copy::<PathBuf, _>(path("TOLLKEEPER_CA"), &ca).unwrap();
    let replaced = Instant::now();
    while let Some(error) = error().await {
        assert!(replaced.elapsed() < Duration::from_secs(20), "{error}");
    }
}

#[tokio::test]
async fn a_plain_client_of_a_service_with_tls_says_so() {
    let Some(address) = service("TOLLKEEPER_TLS_ADDR") else { return };
    let client = support::connect(&address, support::patient());
    let error = client.decide(on("three", unique())).await.unwrap().error.unwrap().to_string();
    let expected =
        "the service answers in TLS, and the target is plain (http): set `tls` in the options";
    assert!(error.contains(expected), "{error}");
}

fn defaults() -> Options {
    let long = Duration::from_secs(10);
    Options::new("conformance").timeout(long).commit_timeout(long)
}

/// The address of a case.
fn address_of(settings: &Value) -> String {
    let variable = match settings["service"].as_str().unwrap_or("plain") {
        "plain" => "TOLLKEEPER_ADDR",
        "gone" => "TOLLKEEPER_GONE_ADDR",
        "silent" => "TOLLKEEPER_SILENT_ADDR",
        "tls" | "tls without a certificate" => "TOLLKEEPER_TLS_ADDR",
        other => panic!("service {other:?} is not known"),
    };
    service(variable).unwrap()
}

/// The options with the settings of a row or a step.
fn options(mut options: Options, settings: &Value) -> Options {
    for (key, value) in settings.as_object().into_iter().flatten() {
        let ms = || Duration::from_millis(value.as_u64().unwrap());
        options = match (key.as_str(), value.as_str()) {
            ("domain", Some(domain)) => options.domain(domain),
            ("timeout_ms", _) => options.timeout(ms()),
            ("commit_timeout_ms", _) => options.commit_timeout(ms()),
            ("remember_denials_ms", _) => options.remember_denials(ms()),
            ("require_limit", _) => options.require_limit(value == true),
            ("on_failure", Some("allow")) => options.on_failure(OnFailure::Allow),
            ("on_failure", Some("deny")) => options.on_failure(OnFailure::Deny),
            ("on_failure", Some("throws")) => {
                options.on_failure(OnFailure::by(|_, _| panic!("on_failure throws")))
            }
            ("on_failure", Some("function")) => {
                let is_vip = |descriptor: &Descriptor| descriptor.get("vip").is_some();
                options.on_failure(OnFailure::by(move |_, on| on.iter().any(is_vip)))
            }
            ("service", Some(kind @ ("tls" | "tls without a certificate"))) => {
                let file = |name: &str| Some(env::var_os(name).unwrap().into());
                options.tls(Tls {
                    ca: file("TOLLKEEPER_CA"),
                    cert: (kind == "tls").then(|| file("TOLLKEEPER_CERT")).flatten(),
                    key: (kind == "tls").then(|| file("TOLLKEEPER_KEY")).flatten(),
                    server_name: Some("localhost".to_owned()),
                })
            }
            ("service", Some("plain" | "gone" | "silent")) | ("on_call", _) => options,
            other => panic!("{other:?} is not known"),
        }
    }
    options
}

impl Run {
    async fn steps(&self, steps: &Value) {
        for step in steps.as_array().into_iter().flatten() {
            let keys = step.as_object().unwrap().keys();
            assert!(keys.clone().all(|key| KEYS.contains(&key.as_str())), "{step}");
            let client = self.client.with(|it| options(it, &step["with"]));
            let (address, user) = (self.address.clone(), self.user.clone());
            let (run, began) = (Self { client, address, user }, Instant::now());
            let closing = async {
                if let Some(number) = step["close_meanwhile"].as_u64() {
                    self.ask(&format!("sent {number}")).await;
                    self.client.close().await;
                }
            };
            let (outcome, ()) = tokio::join!(Box::pin(run.step(step)), closing);
            assert!(step["method"] == "pinged" || began.elapsed() < BOUND, "{step}");
            if let Some(parts) = step["raises"].as_array() {
                let error = outcome.expect_err("it fails").to_string();
                for part in parts {
                    assert!(error.contains(part.as_str().unwrap()), "{error:?} lacks {part}");
                }
                continue;
            }
            let facts = outcome.unwrap_or_else(|error| panic!("{step}: {error}"));
            let Some(expect) = step.get("expect") else { continue };
            let wanted = expect.as_array().cloned().unwrap_or_else(|| vec![expect.clone()]);
            assert_eq!(facts.len(), wanted.len(), "{step}");
            facts.iter().zip(&wanted).for_each(|(facts, wanted)| compare("", facts, wanted, step));
        }
    }

    /// Returns facts about each decision.
    async fn step(&self, step: &Value) -> Result<Vec<Value>, Error> {
        let on = self.descriptors(step);
        let hits = number(&step["hits"]);
        let call = match (step["method"].as_str().unwrap(), hits) {
            ("decide", None) => on.into(),
            ("decide", Some(hits)) => Call::take(hits, on),
            ("check", _) => Call::check(on),
            ("read", _) => Call::read(on),
            ("debit", _) => Call::debit(hits.unwrap_or(1), on),
            ("part", _) => Call::part(hits.unwrap_or(1), on),
            ("refund", _) => Call::refund(hits.unwrap_or(1), on),
            ("hold", _) => return Ok(vec![facts(&self.hold(step).await?)]),
            ("decide_all", _) => {
                let calls = step["calls"].as_array().unwrap().iter().map(|call| self.call(call));
                return Ok(self.client.decide_all(calls).await?.iter().map(facts).collect());
            }
            ("commit", _) => {
                let commit = Commit::new("token", number(&step["used"]));
                let error = self.client.commit(commit).await?;
                return Ok(vec![json!({ "error": error.map(|error| error.to_string()) })]);
            }
            ("close", _) => {
                self.client.close().await;
                return Ok(vec![]);
            }
            ("wait", _) => {
                tokio::time::sleep(Duration::from_millis(step["ms"].as_u64().unwrap())).await;
                return Ok(vec![]);
            }
            (question @ ("connected" | "pinged"), _) => {
                self.ask(question).await;
                return Ok(vec![]);
            }
            other => panic!("{other:?} is not known"),
        };
        Ok(vec![facts(&self.client.decide(call).await?)])
    }

    /// Waits until the service of a row has something.
    async fn ask(&self, question: &str) {
        let mut stream = TcpStream::connect(&self.address).await.unwrap();
        stream.write_all(format!("{question}\n").as_bytes()).await.unwrap();
        let mut answer = [0; 3];
        stream.read_exact(&mut answer).await.unwrap();
    }

    /// The outcome, unless the step says when to leave.
    async fn unless_left<T>(&self, step: &Value, work: impl Future<Output = T>) -> Option<T> {
        let Some(number) = step["leave_meanwhile"].as_u64() else { return Some(work.await) };
        let question = format!("sent {number}");
        tokio::select! {
            _ = work => panic!("{step}: it has an answer"),
            () = self.ask(&question) => None,
        }
    }

    async fn hold(&self, step: &Value) -> Result<Decision, Error> {
        let on = self.descriptors(step);
        let kinds = step["hits_by_kind"].as_object();
        let call = match (number(&step["estimate"]), kinds) {
            (Some(estimate), _) => Call::take(estimate, on),
            (None, Some(kinds)) => {
                let estimate = |call: Call, (kind, hits)| call.kind(kind, number(hits).unwrap());
                kinds.iter().fold(Call::take(1, on), estimate)
            }
            (None, None) => on.into(),
        };
        let Some(hold) = self.unless_left(step, self.client.hold(call)).await else {
            return Ok(Decision::default());
        };
        let mut hold = hold?;
        let decision = hold.decision.clone();
        Box::pin(self.steps(&step["while_open"])).await;
        if let Some(renew) = step["renew"].as_object() {
            let call = Call::take(number(&renew["estimate"]).unwrap(), self.descriptors(step));
            let renewing = hold.renew(number(&renew["used"]), call);
            if let Some(renewed) = self.unless_left(&step["renew"], renewing).await
                && let Some(expect) = renew.get("expect")
            {
                compare("renewed ", &facts(&renewed?), expect, step);
            }
        }
        for (kind, used) in step["used_by_kind"].as_object().into_iter().flatten() {
            hold.used_kind(kind, number(used).unwrap())?;
        }
        if let Some(end) = step["end"].as_str() {
            hold.end(end);
        }
        let used = number(&step["used"]);
        if let Some(used) = used {
            hold.used(used)?;
        }
        let expect_commit = |error: Option<ServiceError>| {
            if let Some(expect) = step.get("expect_commit") {
                let facts = json!({ "error": error.map(|error| error.to_string()) });
                compare("commit ", &facts, expect, step);
            }
        };
        if step["release"] == true {
            expect_commit(hold.release().await);
        } else if step["fails"] == true {
            let work = tokio::spawn(async move {
                let _hold = hold;
                std::panic::resume_unwind(Box::new("the work fails"));
            });
            assert!(work.await.unwrap_err().is_panic());
        } else if step["commits"].as_u64().is_some_and(|commits| commits > 1) {
            // It ends the hold: a failure is sent again when it is dropped, which is then.
            expect_commit(hold.commit(used).await?);
        } else {
            drop(hold);
        }
        Box::pin(self.steps(&step["after"])).await;
        // A dropped hold is committed in the background.
        self.client.flush().await;
        Ok(decision)
    }

    fn call(&self, step: &Value) -> Call {
        let (hits, on) = (number(&step["hits"]).unwrap_or(1), self.descriptors(step));
        let call = match step["mode"].as_str() {
            None | Some("take") => Call::take(hits, on),
            Some("check") => Call::check(on),
            Some("read") => Call::read(on),
            Some("debit") => Call::debit(hits, on),
            Some("part") => Call::part(hits, on),
            Some(other) => panic!("mode {other:?} is not known"),
        };
        call.once(step["id"].as_str().unwrap_or_default())
    }

    fn descriptors(&self, step: &Value) -> Vec<Descriptor> {
        let Some(descriptors) = step["descriptors"].as_array() else {
            return on("user", self.user.as_str()).into();
        };
        let entry = |descriptor: Descriptor, entry: &Value| {
            descriptor.and(bytes(&entry[0]), bytes(&entry[1]))
        };
        let descriptor = |entries: &Value| {
            let entries = entries.as_array().unwrap().iter();
            let descriptor = entries.fold(Descriptor::default(), entry);
            match (number(&step["limit"]["requests_per_unit"]), step["limit"]["unit"].as_str()) {
                (None, None) => descriptor,
                (Some(hits), Some("day")) => {
                    descriptor.limit(hits.try_into().unwrap(), 1, Unit::Day)
                }
                other => panic!("limit {other:?} is not known"),
            }
        };
        descriptors.iter().map(descriptor).collect()
    }
}

/// A negative number becomes what a careless cast of the caller makes of it.
#[expect(clippy::cast_sign_loss, reason = "see above")]
fn number(hits: &Value) -> Option<u64> {
    hits.as_u64().or_else(|| hits.as_i64().map(|hits| hits as u64))
}

/// Text, bytes as `{"hex": "ff"}`, or a long text as `{"text": "x", "times": 1000}`.
fn bytes(value: &Value) -> Vec<u8> {
    if let Some(text) = value.as_str() {
        return text.into();
    }
    if let Some(times) = value["times"].as_u64() {
        return value["text"].as_str().unwrap().repeat(times.try_into().unwrap()).into();
    }
    let hex = value["hex"].as_str().unwrap();
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
}

/// A decision as the cases have it.
fn facts(decision: &Decision) -> Value {
    let headers = decision.headers().into_iter();
    let headers: Map<_, _> =
        headers.map(|(name, value)| (name.to_owned(), value.to_string().into())).collect();
    assert!(decision.retry_after.is_none_or(|time| time >= Duration::from_secs(1)), "{decision:?}");
    let statuses = decision.statuses.iter().map(|status| {
        let limit = status.limit.as_ref();
        json!({
            "allowed": status.allowed, "limit": limit.map(|limit| limit.hits), "remaining": status.remaining,
            "name": limit.map(|limit| limit.name.clone()), "rule": status.rule, "used": status.used, "held": status.held,
        })
    });
    let mut facts = json!({
        "allowed": decision.allowed, "failed": decision.failed(), "limit": decision.limit,
        "hits": decision.hits, "remaining": decision.remaining, "rule": decision.rule(), "reset": decision.reset > Duration::ZERO,
        "retry_after": decision.retry_after.is_some(), "statuses": statuses.collect::<Vec<_>>(),
        "headers": headers, "hold": decision.hold,
    });
    if let Some(error) = &decision.error {
        facts["error"] = error.to_string().into();
    }
    facts
}

/// Keys that are not expected are not compared.
#[track_caller]
fn compare(path: &str, facts: &Value, expect: &Value, step: &Value) {
    match expect {
        Value::Object(expect) => {
            let none = Map::new();
            let facts = facts.as_object().unwrap_or(&none);
            for (key, wanted) in expect {
                let fact =
                    facts.get(key).unwrap_or_else(|| panic!("{path}{key} is absent: {step}"));
                if key == "headers" {
                    assert_eq!(fact, wanted, "{path}headers of {step}");
                } else if key == "error" && wanted.is_string() {
                    let (fact, wanted) = (fact.as_str().unwrap(), wanted.as_str().unwrap());
                    assert!(fact.contains(wanted), "{fact:?} lacks {wanted:?}: {step}");
                } else {
                    compare(&format!("{path}{key} "), fact, wanted, step);
                }
            }
        }
        Value::Array(expect) => {
            let facts = facts.as_array().unwrap();
            assert_eq!(facts.len(), expect.len(), "{path}in {step}");
            facts.iter().zip(expect).for_each(|(fact, wanted)| compare(path, fact, wanted, step));
        }
        wanted => assert_eq!(facts, wanted, "{path}in {step}"),
    }
}
