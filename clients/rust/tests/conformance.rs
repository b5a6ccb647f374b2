//! The cases that all clients share, against a real service: ../conformance/README.md describes them.

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
    time::{Duration, Instant},
};

use serde_json::{Map, Value, json};
use support::{service, unique};
use tollkeeper_client::{
    Call, Client, Commit, Decision, Descriptor, Error, OnFailure, Options, Tls, on,
};

const METHODS: &[&str] =
    &["decide", "check", "read", "debit", "part", "refund", "hold", "decide_all"];
const KEYS: &[&str] = &[
    "method",
    "descriptors",
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
    "fails",
    "commits",
    "expect",
    "raises",
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_client_passes_the_cases_that_all_clients_share() {
    if service("TOLLKEEPER_ADDR").is_none() {
        return;
    }
    let text = fs::read_to_string("../conformance/cases.json").unwrap();
    let number = serde_json::from_str::<Value>(&text).unwrap()["cases"].as_array().unwrap().len();
    assert!(number > 20, "{number} cases");
    for index in 0..number {
        let text = text.replace("{run}", &format!("{}-{index}", unique()));
        let case = serde_json::from_str::<Value>(&text).unwrap()["cases"][index].take();
        let name = case["name"].as_str().unwrap();
        println!("{name}");
        let client = client_of(&case["client"]);
        Box::pin(run_steps(&client, &case["steps"])).await;
    }
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
    let client = support::connect(&address, Options { tls: Some(tls), ..support::patient() });
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

fn client_of(settings: &Value) -> Client {
    let kind = settings["service"].as_str().unwrap_or("plain");
    let variable = match kind {
        "plain" => "TOLLKEEPER_ADDR",
        "gone" => "TOLLKEEPER_GONE_ADDR",
        "silent" => "TOLLKEEPER_SILENT_ADDR",
        "tls" | "tls without a certificate" => "TOLLKEEPER_TLS_ADDR",
        other => panic!("service {other:?} is not known"),
    };
    let file = |name: &str| Some(env::var_os(name).unwrap().into());
    let tls = kind.starts_with("tls").then(|| Tls {
        ca: file("TOLLKEEPER_CA"),
        cert: (kind == "tls").then(|| file("TOLLKEEPER_CERT")).flatten(),
        key: (kind == "tls").then(|| file("TOLLKEEPER_KEY")).flatten(),
        server_name: Some("localhost".to_owned()),
    });
    let on_failure = match settings["on_failure"].as_str() {
        None | Some("allow") => OnFailure::Allow,
        Some("deny") => OnFailure::Deny,
        Some("function") => OnFailure::by(|_, descriptors| descriptors[0].entries[0].key == b"vip"),
        Some(other) => panic!("on_failure {other:?} is not known"),
    };
    let timeout = Duration::from_millis(settings["timeout_ms"].as_u64().unwrap_or(10_000));
    let options = Options { timeout, on_failure, tls, ..Options::default() };
    let domain = settings["domain"].as_str().unwrap_or("conformance");
    Client::new(&service(variable).unwrap(), domain, options).unwrap()
}

async fn run_steps(client: &Client, steps: &Value) {
    for step in steps.as_array().into_iter().flatten() {
        assert!(step.as_object().unwrap().keys().all(|key| KEYS.contains(&key.as_str())), "{step}");
        let began = Instant::now();
        let outcome = Box::pin(run(client, step)).await;
        assert!(began.elapsed() < Duration::from_secs(20), "{step} took {:?}", began.elapsed());
        if let Some(parts) = step["raises"].as_array() {
            let error = outcome.expect_err("it fails").to_string();
            for part in parts {
                assert!(error.contains(part.as_str().unwrap()), "{error:?} lacks {part}");
            }
            continue;
        }
        let decisions = outcome.unwrap_or_else(|error| panic!("{step}: {error}"));
        let Some(expect) = step.get("expect") else { continue };
        let wanted = expect.as_array().cloned().unwrap_or_else(|| vec![expect.clone()]);
        assert_eq!(decisions.len(), wanted.len(), "{step}");
        for (decision, wanted) in decisions.iter().zip(&wanted) {
            compare("", &facts(decision), wanted, step);
        }
    }
}

async fn run(client: &Client, step: &Value) -> Result<Vec<Decision>, Error> {
    let method = step["method"].as_str().unwrap();
    assert!(METHODS.contains(&method), "method {method:?} is not known");
    let on = descriptors(step);
    let hits = number(&step["hits"]);
    let decision = match (method, hits) {
        ("decide", None) => client.decide(on).await,
        ("decide", Some(hits)) => client.decide_n(hits, on).await,
        ("check", _) => client.check(on).await,
        ("read", _) => client.read(on).await,
        ("debit", _) => client.debit(hits.unwrap_or(1), on).await,
        ("part", _) => client.decide_call(Call::part(hits.unwrap_or(1), on)).await,
        ("refund", _) => client.refund(hits.unwrap_or(1), on).await,
        ("hold", _) => hold(client, step).await,
        _ => {
            let calls = step["calls"].as_array().unwrap().iter().map(call);
            return client.decide_all(calls.collect::<Vec<_>>()).await;
        }
    };
    decision.map(|decision| vec![decision])
}

/// A negative number becomes what a careless cast of the caller makes of it.
#[expect(clippy::cast_sign_loss, reason = "see above")]
fn number(hits: &Value) -> Option<u64> {
    hits.as_u64().or_else(|| hits.as_i64().map(|hits| hits as u64))
}

fn call(step: &Value) -> Call {
    let (hits, on) = (number(&step["hits"]).unwrap_or(1), descriptors(step));
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

fn descriptors(step: &Value) -> Vec<Descriptor> {
    let descriptors = step["descriptors"].as_array().into_iter().flatten();
    let entries = descriptors.map(|entries| entries.as_array().unwrap().iter());
    entries
        .map(|entries| {
            entries.fold(Descriptor::default(), |descriptor, entry| {
                descriptor.and(bytes(&entry[0]), bytes(&entry[1]))
            })
        })
        .collect()
}

/// Text, or bytes as `{"hex": "ff"}`.
fn bytes(value: &Value) -> Vec<u8> {
    if let Some(text) = value.as_str() {
        return text.into();
    }
    let hex = value["hex"].as_str().unwrap();
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
}

async fn hold(client: &Client, step: &Value) -> Result<Decision, Error> {
    let on = descriptors(step);
    let kinds = step["hits_by_kind"].as_object();
    let mut hold = match (number(&step["estimate"]), kinds) {
        (Some(estimate), _) => client.hold(estimate, on).await?,
        (None, Some(kinds)) => {
            let call = Call::take(1, on);
            let estimate = |call: Call, (kind, hits)| call.kind(kind, number(hits).unwrap());
            client.hold_call(kinds.iter().fold(call, estimate)).await?
        }
        (None, None) => client.hold_default(on).await?,
    };
    let decision = hold.decision.clone();
    Box::pin(run_steps(client, &step["while_open"])).await;
    let mut commit = Commit { hold: decision.hold.clone(), ..Commit::default() };
    if let Some(used) = number(&step["used"]) {
        hold.used(used)?;
        commit.used = Some(used);
    }
    for (kind, used) in step["used_by_kind"].as_object().into_iter().flatten() {
        hold.used_kind(kind, number(used).unwrap())?;
    }
    if let Some(end) = step["end"].as_str() {
        hold.end(end);
    }
    for _ in 1..step["commits"].as_u64().unwrap_or(1) {
        client.commit(commit.clone()).await?;
    }
    if step["release"] == true {
        hold.release().await;
    } else if step["fails"] == true {
        let work = tokio::spawn(async move {
            let _hold = hold;
            std::panic::resume_unwind(Box::new("the work fails"));
        });
        assert!(work.await.unwrap_err().is_panic());
    } else {
        drop(hold);
    }
    // A dropped hold is committed in the background.
    client.flush().await;
    Ok(decision)
}

/// A decision as the cases have it.
fn facts(decision: &Decision) -> Value {
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
        "hits": decision.hits, "remaining": decision.remaining, "rule": decision.rule, "reset": decision.reset > Duration::ZERO,
        "retry_after": decision.retry_after.is_some(), "statuses": statuses.collect::<Vec<_>>(),
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
                if key == "error" {
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
