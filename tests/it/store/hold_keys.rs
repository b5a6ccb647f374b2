//! The keys that sign tokens of holds, which replicas share in their store, or have from a file.

use tollkeeper::{
    engine::time::Timestamp,
    limiter::holds::HoldKeys,
    store::{redis::RedisStore, system_clock},
};
use tonic::Code;

use crate::{
    support::{prelude::*, redis_store, stores::one},
    wire::fuzz::targets::forged,
};

const RULES: &str = "
domain: shop
descriptors:
  - key: user
    rate_limit: { unit: year, requests_per_unit: 1000, hold: { for: 10m, estimate: 100 } }
  - { key: done, rate_limit: { unit: year, requests_per_unit: 1000, count_denied: true } }
  - key: open
    rate_limit:
      { unit: year, requests_per_unit: 1000, on_store_failure: allow, hold: { for: 10m, estimate: 100 } }
  - key: closed
    rate_limit:
      { unit: year, requests_per_unit: 1000, on_store_failure: deny, hold: { for: 10m, estimate: 100 } }
";

/// How long one key signs.
const EPOCH_MS: u64 = 8 * 86_400_000;
const NOW: Timestamp = Timestamp::from_millis(2600 * EPOCH_MS + 1);

fn replica(store: &str, flags: &[&str]) -> Service {
    let flags = [&["--workers", "1"], flags].concat();
    Service::with(RULES).on(store).flags(&flags).start()
}

/// Takes a hold of 100, and returns its token.
fn take(service: &Service) -> Option<String> {
    let body = r#"{"domain":"shop","calls":[{"descriptors":[{"entries":[{"key":"user","value":"alice"}]}]}]}"#;
    let answer = service.post("/v1/decide", body);
    Some(answer["verdicts"][0]["hold"].as_str()?.to_owned())
}

/// What becomes of the commit of 1 hit.
fn commit(service: &Service, token: &str) -> String {
    let body = format!(r#"{{"domain":"shop","commits":[{{"hold":"{token}","used":1}}]}}"#);
    let answer = service.post("/v1/commit", body);
    answer["results"][0]["charges"][0]["outcome"].as_str().unwrap_or("none").to_owned()
}

/// Whether any replica commits the token of any other, and all have signed with one key, which no log or metric shows.
fn share(store: &str, flags: &[&str]) {
    let replicas = [(); 2].map(|()| replica(store, flags));
    for (of, by) in [(0, 1), (1, 0), (0, 0)] {
        let token = take(&replicas[of]).expect("a token");
        assert_eq!(commit(&replicas[by], &token), "APPLIED", "of {of} by {by}");
    }
}

#[test]
fn replicas_commit_tokens_of_each_other_with_the_documented_rights() {
    let redis = Redis::start();
    share(&redis.url_with_minimal_rights(), &[]);
    share(&redis.url_without_scripts(), &["--redis-scripts", "off"]);
    let keys: Vec<_> = redis.keys().into_iter().filter(|key| key.contains("hold-key")).collect();
    assert_eq!(keys.len(), 2, "for now and next: {keys:?}");
    redis.assert_no_key_leaks();
}

#[test]
fn replicas_on_a_cluster_commit_tokens_of_each_other() {
    let cluster = Cluster::start();
    share(&cluster.url(), &[]);
    cluster.assert_no_key_leaks();
}

/// Values that name no hold: three that are no tokens, and one that is signed with a key of nobody.
fn foreign() -> [String; 4] {
    let nobody = HoldKeys::new([&b"a key that no replica has"[..]].into_iter());
    let token = nobody.sealed(forged(&[], system_clock())).unwrap();
    let cut = token[..40].to_owned();
    ["none".to_owned(), "AQ".to_owned(), cut, token]
}

#[tokio::test]
async fn without_holds_by_token_no_key_is_made_and_tokens_count_as_absent() {
    let redis = Redis::start();
    let store = redis.url();
    let rules = "
domain: shop
descriptors:
  - { key: user, rate_limit: { unit: year, requests_per_unit: 4 } }
";
    let service = Service::with(rules).on(&store).ready();
    let call = |token: &str| {
        request("shop", vec![descriptor(&[("user", "alice"), ("hold.commit", token)])])
    };
    for token in foreign() {
        let answer = service.ask(call(&token)).await.expect("no error");
        assert!(spell(&answer).starts_with("OK"), "{token}: {}", spell(&answer));
        assert_eq!(commit(&service, &token), "none");
    }
    let answer = service.ask(call("none")).await.expect("no error");
    assert!(spell(&answer).starts_with("OVER_LIMIT"), "each has counted: {}", spell(&answer));
    assert!(!redis.keys().iter().any(|key| key.contains("hold-key")), "{:?}", redis.keys());
    assert!(service.log().contains("a commit has no effect"));
}

#[test]
fn a_replica_without_holds_by_token_commits_those_of_others() {
    let redis = Redis::start();
    let store = redis.url();
    let without = Service::shop().on(&store).ready();
    let [before, ..] = foreign();
    assert_eq!(commit(&without, &before), "none");
    let with = replica(&store, &[]);
    let token = take(&with).expect("a token");
    wait_until("a commit", || commit(&without, &token) == "APPLIED");
    // It has no key of its own yet when its rules need one.
    redis.query::<()>(&["FLUSHALL"]);
    without.reload(RULES);
    let token = take(&without).expect("a token");
    wait_until("a commit", || commit(&with, &token) == "APPLIED");
}

#[tokio::test]
async fn until_the_keys_are_read_a_token_is_no_error_of_what_else_its_call_has() {
    let mut redis = Redis::absent();
    let store = redis.url();
    let service = replica(&store, &["--decision-budget", "100ms"]);
    let ask = async |entries: &[(&str, &str)]| {
        service.ask(request("shop", vec![descriptor(entries)])).await
    };
    for token in foreign() {
        let allowed = ask(&[("open", "alice"), ("hold.commit", &token)]).await.expect("allowed");
        assert!(spell(&allowed).starts_with("OK"), "{}", spell(&allowed));
        let denied = ask(&[("closed", "alice"), ("hold.commit", &token)]).await.expect("denied");
        assert!(spell(&denied).starts_with("OVER_LIMIT"), "{}", spell(&denied));
    }
    let [none, .., token] = foreign();
    let debit = vec![one("done", "alice"), one("hold.commit", &token)];
    let kept = service.ask(request("shop", debit)).await.unwrap_err();
    assert_eq!(kept.code(), Code::Unavailable);
    assert!(ask(&[("hold.commit", &none)]).await.is_ok(), "it is no token");
    assert_eq!(ask(&[("hold.commit", &token)]).await.unwrap_err().code(), Code::Unavailable);
    let unsent = r#"ratelimit_holds_total{outcome="unsent",rule="other"} "#;
    assert!(service.get("/metrics").contains(unsent), "{}", service.get("/metrics"));
    redis.start_again();
    for _ in 0..500 {
        if ask(&[("hold.commit", &token)]).await.is_ok() {
            return wait_until("the debit counts", || {
                let done = redis.keys().into_iter().find(|key| key.contains("done=alice"));
                done.is_some_and(|done| redis.query::<u32>(&["GET", &done]) == 1)
            });
        }
    }
    panic!("the keys are not read");
}

#[test]
fn a_store_that_answers_without_a_key_is_no_error_of_tokens() {
    let redis = Redis::start();
    let epoch = system_clock().as_millis() / EPOCH_MS;
    redis.query::<()>(&["SET", &format!("tk1:op:{{hold-key-{epoch}}}"), "short", "EX", "600"]);
    let service = replica(&redis.url(), &[]);
    let [.., token] = foreign();
    let body = format!(r#"{{"domain":"shop","commits":[{{"hold":"{token}"}}]}}"#);
    wait_until("an answer", || {
        let (_, _, answer) = service.exchange("POST", "/v1/commit", body.as_bytes());
        !answer.contains("UNAVAILABLE")
    });
    let line = "the key that signs tokens of holds is not known";
    assert_eq!(service.log().matches(line).count(), 1, "{}", service.log());
}

#[test]
fn a_changed_file_of_keys_is_in_use_without_a_restart_and_a_bad_one_is_not() {
    let [old, new] = ["o", "n"].map(|key| key.repeat(32));
    let file = tempfile::NamedTempFile::new().unwrap();
    let write = |text: &str| fs::write(file.path(), text).unwrap();
    write(&old);
    let service = replica("memory://", &["--hold-key-file", file.path().to_str().unwrap()]);
    let is_signed_with = |token: &str, key: &str| {
        let keys = HoldKeys::new([key.as_bytes()].into_iter());
        keys.read(token.as_bytes(), system_clock()).is_some()
    };
    let take = || take(&service).expect("a token");
    let has_changed = |times: usize| {
        let line = "the keys that sign tokens of holds have changed and are in use";
        let has_changed = || service.log().matches(line).count() == times;
        wait_until(line, has_changed);
    };
    let in_use = |value: u8| {
        service.wait_for_metric(&format!(
            "ratelimit_tls_files_in_use{{files=\"hold_keys\"}} {value}\n"
        ));
    };
    in_use(1);
    let first = take();
    // As docs/budgets.md has it: accepted first, then signing, then alone.
    write(&format!("{old}\n{new}\n"));
    has_changed(1);
    assert!(is_signed_with(&first, &old) && is_signed_with(&take(), &old));
    write(&format!("{new}\n{old}\n"));
    has_changed(2);
    let second = take();
    assert!(is_signed_with(&second, &new));
    assert_eq!(commit(&service, &first), "APPLIED");
    write("short");
    in_use(0);
    assert!(is_signed_with(&take(), &new));
    let log = "the keys that sign tokens of holds cannot be used, the last good ones stay";
    assert!(service.log().contains(log), "{}", service.log());
    write(&new);
    in_use(1);
    wait_until("it is not accepted", || commit(&service, &first) == "none");
    assert_eq!(commit(&service, &second), "APPLIED");
    assert!(!service.log().contains(&new), "a key is a secret");
}

#[tokio::test]
async fn a_take_is_answered_by_its_failure_mode_until_the_key_is_known() {
    let mut redis = Redis::absent();
    let store = redis.url();
    let service = replica(&store, &["--decision-budget", "100ms"]);
    let ask =
        async |key: &str| service.ask(request("shop", vec![descriptor(&[(key, "alice")])])).await;
    assert_eq!(ask("user").await.unwrap_err().code(), Code::Unavailable);
    let allowed = ask("open").await.expect("allowed");
    assert!(spell(&allowed).starts_with("OK") && allowed.dynamic_metadata.is_none());
    redis.start_again();
    wait_until("tokens", || {
        let (status, _, answer) = service.exchange(
            "POST",
            "/v1/decide",
            br#"{"domain":"shop","calls":[{"descriptors":[{"entries":[{"key":"user","value":"alice"}]}]}]}"#,
        );
        status == 200 && answer.contains("\"hold\"")
    });
    let secret: Vec<u8> = redis.query(&["GET", &current_key(&redis)]);
    assert_eq!(secret.len(), 32);
    let shown = service.log() + &service.get("/metrics");
    assert!(!shown.contains(&*String::from_utf8_lossy(&secret)));
}

#[tokio::test]
async fn a_take_does_not_wait_for_a_key_that_the_store_did_not_give_when_it_was_last_asked() {
    let full = Redis::start();
    full.query::<()>(&["CONFIG", "SET", "maxmemory", "1"]);
    for store in ["redis://127.0.0.1:1", &full.url()] {
        let service = replica(store, &["--decision-budget", "1m"]);
        service.wait_for_log("the key that signs tokens of holds is not known");
        let call = request("shop", vec![descriptor(&[("open", "alice")])]);
        let answer = tokio::time::timeout(Duration::from_secs(30), service.ask(call)).await;
        assert!(spell(&answer.expect("it waits").expect("allowed")).starts_with("OK"));
    }
}

/// The key that signs now.
fn current_key(redis: &Redis) -> String {
    redis.keys().into_iter().find(|key| key.contains("hold-key")).expect("a key")
}

async fn knows(keys: &HoldKeys, store: &RedisStore, now: Timestamp) {
    keys.poll_at(store, now, true).await.unwrap();
}

#[tokio::test]
async fn a_key_is_replaced_in_time_and_accepted_as_long_as_its_tokens_live() {
    let redis = Redis::start();
    let store = Arc::new(redis_store::patient(&redis.url()));
    let [first, second, late] = [(); 3].map(|()| HoldKeys::default());
    assert!(first.sealed(forged(&[], NOW)).is_none(), "no key is known");
    knows(&first, &store, NOW).await;
    knows(&second, &store, NOW).await;
    let last = NOW.plus_millis(EPOCH_MS - 2);
    let token = first.sealed(forged(&[], last)).unwrap();
    assert!(second.read(token.as_bytes(), last).is_some());
    let digest = first.digest(7);
    assert_eq!(second.digest(7), digest);
    assert_ne!(HoldKeys::default().digest(7), digest, "without a key it is another");

    // One has seen the next epoch, and the other has not looked since.
    let next = NOW.plus_millis(EPOCH_MS);
    knows(&second, &store, next).await;
    let new = second.sealed(forged(&[], next)).unwrap();
    assert!(first.read(new.as_bytes(), next).is_some(), "the next key is known before it signs");
    let renewed = second.digest(7);
    assert_ne!(renewed, digest);
    for (keys, digest) in [(&second, &digest), (&first, &renewed)] {
        assert!(keys.digests(7).contains(digest) && !keys.digests(8).contains(digest));
    }

    // A replica that starts now accepts what was signed before, as long as it can be open.
    let open = last.plus_millis(7 * 86_400_000);
    knows(&late, &store, open).await;
    assert!(late.read(token.as_bytes(), open).is_some());
    let now = NOW.plus_millis(2 * EPOCH_MS);
    let newest = HoldKeys::default();
    knows(&newest, &store, now).await;
    assert!(newest.read(token.as_bytes(), last).is_none(), "two epochs later it is forgotten");
    redis.assert_no_key_leaks();
}

#[tokio::test]
async fn a_store_that_has_lost_the_key_gets_it_back() {
    let redis = Redis::start();
    let store = Arc::new(redis_store::patient(&redis.url()));
    let [first, second] = [(); 2].map(|()| HoldKeys::default());
    knows(&first, &store, NOW).await;
    let token = first.sealed(forged(&[], NOW)).unwrap();
    redis.query::<()>(&["FLUSHALL"]);
    knows(&first, &store, NOW).await;
    knows(&second, &store, NOW).await;
    assert!(second.read(token.as_bytes(), NOW).is_some());

    // Another replica was faster: both keys are accepted where both are known.
    redis.query::<()>(&["FLUSHALL"]);
    let third = HoldKeys::default();
    knows(&third, &store, NOW).await;
    knows(&first, &store, NOW).await;
    assert!(first.read(token.as_bytes(), NOW).is_some());
    let other = first.sealed(forged(&[], NOW)).unwrap();
    assert!(third.read(other.as_bytes(), NOW).is_some(), "the store's key signs");
}
