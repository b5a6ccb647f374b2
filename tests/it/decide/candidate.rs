//! A candidate judges a part of the keys beside the rules in force, on counters of its own, until an operator promotes it
//! or ends its trial.

use crate::support::{overrides::send, prelude::*, service::metadata, stores::one};

const RULES: &str = "
domain: shop
descriptors:
  - { key: lowered, rate_limit: { unit: year, requests_per_unit: 6 } }
  - { key: opened, rate_limit: { unit: year, requests_per_unit: 2 } }
  - { key: raised, rate_limit: { unit: year, requests_per_unit: 2 } }
  - { key: brief, rate_limit: { unit: second, requests_per_unit: 2 } }
  - { key: same, rate_limit: { unit: year, requests_per_unit: 2 } }
  - { key: flight, rate_limit: { algorithm: in_flight, hold: 1h, requests_per_unit: 2 } }
";

const CANDIDATE: &str = "
domain: shop
descriptors:
  - { key: lowered, rate_limit: { unit: year, requests_per_unit: 4 } }
  - { key: opened, rate_limit: { unlimited: true } }
  - { key: raised, rate_limit: { unit: year, requests_per_unit: 4 } }
  - { key: brief, rate_limit: { unit: second, requests_per_unit: 100 } }
  - { key: same, rate_limit: { unit: year, requests_per_unit: 2 } }
  - { key: flight, rate_limit: { algorithm: in_flight, hold: 1h, requests_per_unit: 1 } }
";

/// Once it is ready, calls are judged.
fn launch(rules: &str, store: &str, candidate: &Path, flags: &[&str]) -> Service {
    let flags = &[&["--candidate", candidate.to_str().unwrap()], flags].concat();
    Service::with(rules).on(store).flags(flags).ready()
}

fn start(store: &str, candidate: &Path, flags: &[&str]) -> Service {
    launch(RULES, store, candidate, &[&["--top-keys", "values"], flags].concat())
}

/// Judges every key.
fn start_all(store: &str, candidate: &Path) -> Service {
    start(store, candidate, &["--candidate-one-in", "1"])
}

fn written(text: &str) -> (TempDir, PathBuf) {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("candidate.yaml");
    std::fs::write(&path, text).unwrap();
    (folder, path)
}

async fn admitted(service: &Service, key: &str, value: &str, calls: usize) -> usize {
    let mut admitted = 0;
    for _ in 0..calls {
        let answer = service.ask(shop(&format!("{key}={value}"))).await.unwrap();
        admitted += usize::from(answer.overall_code() == Code::Ok);
    }
    admitted
}

#[track_caller]
fn shown(service: &Service) -> Value {
    let (status, candidate) = send(service, "GET", "/candidate", "");
    assert_eq!(status, 200, "{candidate}");
    candidate
}

#[track_caller]
fn wait_for(service: &Service, state: &str) -> Value {
    eventually(state, || Some(shown(service)).filter(|shown| shown["state"] == state))
}

/// How many descriptors of a rule had the same verdict, are newly denied, and are newly admitted.
fn found(candidate: &Value, rule: &str) -> [u64; 3] {
    let rules = candidate["rules"].as_array().unwrap();
    let of_rule = rules.iter().find(|one| one["rule"] == rule);
    ["same", "newly_denied", "newly_admitted"]
        .map(|name| of_rule.map_or(0, |rule| rule[name].as_u64().unwrap()))
}

#[track_caller]
fn order(service: &Service, order: &str) -> Value {
    let version = shown(service)["version"].as_str().unwrap().to_owned();
    let path = format!("/candidate?order={order}&version={version}&because=INC-42");
    let (status, answer) = send(service, "POST", &path, "");
    assert_eq!(status, 200, "{answer}");
    answer
}

#[tokio::test]
async fn the_answers_are_those_of_the_rules_and_what_the_candidate_would_change_is_shown() {
    let redis = Redis::start();
    for store in ["memory://", &redis.url_with_minimal_rights()] {
        let (_folder, path) = written(CANDIDATE);
        let service = start_all(store, &path);
        for (key, expected) in [("lowered", 6), ("opened", 2), ("raised", 2), ("same", 2)] {
            assert_eq!(admitted(&service, key, "a", 7).await, expected, "{key} {store}");
        }
        assert_eq!(admitted(&service, "flight", "a", 2).await, 2, "{store}");
        let is_whole = |shown: &Value| {
            // In the year that was under way, the candidate lacks hits, and would admit more for that alone.
            let expected = [("lowered", [5, 2, 0]), ("opened", [0, 0, 5]), ("raised", [5, 0, 0])];
            let mut expected =
                expected.into_iter().chain([("same", [7, 0, 0]), ("flight", [0; 3])]);
            expected.all(|(rule, counts)| found(shown, rule) == counts)
        };
        let mut last = Value::Null;
        wait_until("all calls were compared", || {
            last = shown(&service);
            is_whole(&last)
        });
        assert_eq!(last["left_out"], 0, "{last}");
        let (_, top) = send(&service, "GET", "/top", "");
        let keys = |list: &str| {
            let keys = top[list].as_array().unwrap().iter();
            keys.map(|key| (key["key"].clone(), key["limit"].clone(), key["count"].clone()))
                .collect::<Vec<_>>()
        };
        assert_eq!(keys("newly_denied"), [(json!("lowered=a"), json!("4 per year"), json!(2))]);
        assert_eq!(keys("newly_admitted"), [(json!("opened=a"), json!("2 per year"), json!(5))]);
        let deadline = Instant::now() + PATIENCE;
        // Until a window has begun during the trial.
        while found(&shown(&service), "brief")[2] == 0 {
            admitted(&service, "brief", "a", 4).await;
            assert!(Instant::now() < deadline, "{}", shown(&service));
        }
        assert_eq!(found(&shown(&service), "brief")[1], 0);
        let series = "ratelimit_candidate_decisions_total{domain=\"shop\",result=\"denied\",rule=\"lowered\"} 2";
        service.assert_metric(series);
    }
    let keys = redis.keys();
    let of_candidate = keys.iter().filter(|key| key.starts_with("tk1:c:tk1:fw:"));
    assert!(of_candidate.count() >= 3, "{keys:?}");
}

#[tokio::test]
async fn a_promoted_candidate_is_in_force_on_all_replicas_until_new_rules_or_an_order_end_it() {
    let redis = Redis::start();
    let (_folder, path) = written(CANDIDATE);
    let store = redis.url_with_minimal_rights();
    // Versions are of files with the same names.
    let start = || {
        let folder = TempDir::new().unwrap();
        std::fs::write(folder.path().join("rules.yaml"), RULES).unwrap();
        let mut command = serve();
        command.current_dir(folder.path()).args(["--rules", "rules.yaml", "--store", &store]);
        command.args(["--decision-budget", "10s", "--drain", "0s", "--audit-one-in", "0"]);
        command.args(["--candidate-one-in", "1", "--candidate"]).arg(&path);
        Service::spawn(command, folder)
    };
    let services = [start(), start()];
    for service in &services {
        wait_for(service, "judged");
    }
    assert_eq!(admitted(&services[0], "raised", "a", 5).await, 2);
    let promoted = order(&services[0], "promote");
    assert_eq!(promoted["state"], "in_force");
    wait_for(&services[1], "in_force");
    // Calls count on the counters of the rules, with the numbers of the candidate.
    assert_eq!(admitted(&services[1], "raised", "a", 5).await, 2);
    let late = start();
    late.wait_until_ready();
    assert_eq!(shown(&late)["state"], "in_force");

    order(&services[1], "abort");
    for service in services.iter().chain([&late]) {
        let aborted = wait_for(service, "aborted");
        assert_eq!(aborted["order"]["because"], "INC-42", "{aborted}");
        assert_eq!(aborted["order"]["by"], "127.0.0.1", "{aborted}");
        assert_eq!(admitted(service, "raised", "a", 1).await, 0);
    }
    order(&services[0], "judge");
    for service in services.iter().chain([&late]) {
        wait_for(service, "judged");
    }
    order(&services[0], "promote");
    wait_for(&services[1], "in_force");
    // Only this replica has newer rules.
    services[1].reload(&RULES.replace("requests_per_unit: 6", "requests_per_unit: 7"));
    let judged = wait_for(&services[1], "judged");
    assert_eq!(judged["version"], promoted["version"], "{judged}");
    assert_eq!(shown(&services[0])["state"], "in_force");
    let (_, audit) = send(&services[0], "GET", "/audit", "");
    let orders = audit["entries"].as_array().unwrap().iter().map(|entry| {
        assert_eq!(entry["action"], format!("{} candidate", entry["order"].as_str().unwrap()));
        &entry["order"]
    });
    assert_eq!(orders.collect::<Vec<_>>(), ["promote", "judge", "abort", "promote"]);
}

#[tokio::test]
async fn a_promoted_candidate_stays_in_force_while_its_files_change_and_those_are_judged_beside_it()
{
    let (_folder, path) = written(CANDIDATE);
    let service = start_all("memory://", &path);
    let promoted = order(&service, "promote");
    std::fs::write(&path, CANDIDATE.replace("requests_per_unit: 4", "requests_per_unit: 5"))
        .unwrap();
    let judged = wait_for(&service, "judged");
    assert_eq!(judged["rules_version"], promoted["version"], "{judged}");
    assert_eq!(admitted(&service, "lowered", "a", 7).await, 4);
    // Rules that are refused, and then written as before, are no new rules.
    let bad = RULES.replace("requests_per_unit: 6", "requests_per_unit: many");
    std::fs::write(&service.rules, bad).unwrap();
    service.wait_for_log("the previous ones stay");
    std::fs::write(&service.rules, RULES).unwrap();
    service.wait_for_log("again as they were loaded");
    assert_eq!(admitted(&service, "lowered", "b", 7).await, 4);
    let log = service.log();
    assert_eq!(log.matches("a promoted candidate is in force").count(), 1, "{log}");
    let path = "/candidate?order=promote&version=abc";
    let (status, refused) = send(&service, "POST", path, "");
    let version = judged["version"].as_str().unwrap();
    let problem = format!("version: abc is not the candidate of this replica, which is {version}");
    let expected = json!({ "error": problem });
    assert_eq!((status, refused), (409, expected));
}

#[tokio::test]
async fn a_candidate_with_a_problem_changes_no_answer_and_its_problem_is_shown() {
    let (_folder, path) = written("domain: shop\ndescriptors: 3\n");
    let service = start_all("memory://", &path);
    let problem = eventually("the problem is shown", || {
        shown(&service)["problems"][0].as_str().map(str::to_owned)
    });
    assert!(problem.contains("candidate.yaml:2"), "{problem}");
    assert_eq!(shown(&service)["state"], "absent");
    assert!(service.log().contains("candidate rules not loaded (1 problem)"), "{}", service.log());
    let (_, status) = send(&service, "GET", "/status", "");
    let text = format!("the candidate is not loaded: {problem}");
    assert_eq!(
        status["conditions"][0],
        json!({ "about": "candidate", "severity": "amber", "text": text })
    );
    assert_eq!(admitted(&service, "lowered", "a", 7).await, 6);
    let (refused, _) = send(&service, "POST", "/candidate?order=promote&version=a", "");
    assert_eq!(refused, 409);
    std::fs::write(&path, CANDIDATE).unwrap();
    wait_for(&service, "judged");
    std::fs::write(&path, "domain: shop\ndescriptors: 3\n").unwrap();
    eventually("the problem is shown again", || shown(&service)["problems"][0].as_str().map(drop));
    assert_eq!(shown(&service)["state"], "judged", "the last good rules stay");
}

#[tokio::test]
async fn one_key_in_sixteen_is_judged_and_always_the_same_ones() {
    let redis = Redis::start();
    let (_folder, path) = written(CANDIDATE);
    let services = [(); 2].map(|()| start(&redis.url(), &path, &[]));
    for user in 0..320 {
        admitted(&services[user % 2], "lowered", &user.to_string(), 1).await;
        admitted(&services[(user + 1) % 2], "lowered", &user.to_string(), 1).await;
    }
    let judged =
        || services.iter().map(|service| found(&shown(service), "lowered")[0]).sum::<u64>();
    let of_candidate = || {
        let keys = redis.keys();
        keys.iter().filter(|key| key.starts_with("tk1:c:")).count() as u64
    };
    wait_until("each key of the sample was judged twice", || {
        judged() >= 20 && judged() == 2 * of_candidate()
    });
    assert!((10..40).contains(&of_candidate()), "{} of 320", of_candidate());
}

#[tokio::test]
async fn a_reset_of_counters_resets_those_of_the_candidate() {
    let redis = Redis::start();
    let (_folder, path) = written(CANDIDATE);
    for store in ["memory://", &redis.url()] {
        let service = start_all(store, &path);
        for calls in [4, 8] {
            admitted(&service, "lowered", "a", 4).await;
            wait_until("the calls were judged", || {
                found(&shown(&service), "lowered") == [calls, 0, 0]
            });
            let (status, answer) =
                send(&service, "POST", "/counters/reset?domain=shop&descriptor=lowered=a", "");
            assert_eq!(status, 200, "{answer}");
        }
    }
}

#[tokio::test]
async fn calls_that_the_candidates_counters_cannot_judge_are_left_out_and_answered_as_ever() {
    let redis = Redis::start();
    let (_folder, path) = written(CANDIDATE);
    let service = start_all(&redis.url(), &path);
    admitted(&service, "lowered", "a", 1).await;
    let key = eventually("the candidate has a counter", || {
        redis.keys().into_iter().find(|key| key.starts_with("tk1:c:"))
    });
    redis.query::<()>(&["SET", &key, "no count"]);
    assert_eq!(admitted(&service, "lowered", "a", 6).await, 5);
    wait_until("the calls were left out", || shown(&service)["left_out"] == 6);
    assert_eq!(found(&shown(&service), "lowered"), [1, 0, 0]);
}

#[tokio::test]
async fn a_service_without_a_candidate_says_so() {
    let service = Service::shop().start();
    for method in ["GET", "POST"] {
        let path = if method == "GET" { "/candidate" } else { "/candidate?order=abort&version=a" };
        let (status, answer) = send(&service, method, path, "");
        let error = "no rules are judged beside those in force: --candidate is not set";
        assert_eq!((status, answer), (404, json!({ "error": error })));
    }
}

#[test]
fn a_replica_without_an_answer_is_named_and_the_others_are_shown() {
    let (_folder, path) = written(CANDIDATE);
    let service = start_all("memory://", &path);
    let gone = Service::shop().start().admin.to_string();
    let admin = service.admin.to_string();
    let words = ["candidate", "show", "--addr", &gone, "--addr", &admin];
    let (code, text, problems) = run(tollkeeper().args(words));
    assert_eq!(code, Some(1), "{text}");
    assert!(text.starts_with(&format!("{admin}: candidate ")), "{text}");
    assert!(problems.starts_with(&format!("{gone}: ")), "{problems}");
}

/// docs/rollout.md: each of its commands, in its order, with its rules.
#[tokio::test]
async fn the_commands_of_the_page_show_and_promote_a_candidate() {
    let page = page("rollout.md");
    let rules = blocks(&page, "yaml");
    let (_folder, path) = written(&rules[1].replace("minute", "year"));
    let service = launch(rules[0], "memory://", &path, &["--candidate-one-in", "1"]);
    let [before, candidate] = ["rules_version", "version"].map(|name| shown(&service)[name].take());
    for _ in 0..12 {
        let call = request("api", vec![descriptor(&[("customer", "acme")])]);
        assert_eq!(service.ask(call).await.unwrap().overall_code(), Code::Ok);
    }
    wait_until("all calls were compared", || found(&shown(&service), "customer") == [10, 2, 0]);
    let commands = blocks(&page, "bash").into_iter().flat_map(str::lines);
    let commands = commands.filter(|line| line.starts_with("tollkeeper candidate "));
    let binary = PathBuf::from(tollkeeper().get_program());
    let path = format!("{}:/usr/bin:/bin", binary.parent().unwrap().display());
    let outputs = commands.map(|command| {
        let mut shell = Command::new("bash");
        shell.args(["-c", command]).env("PATH", &path);
        let (code, stdout, stderr) =
            run(shell.env("TOLLKEEPER_ADMIN_ADDR", service.admin.to_string()));
        assert_eq!((code, &*stderr), (Some(0), ""), "{command}");
        stdout
    });
    let [shown, promoted] = outputs.collect::<Vec<_>>().try_into().unwrap();
    let [before, candidate] =
        [before, candidate].map(|version| version.as_str().unwrap().to_owned());
    assert!(
        shown.contains(&format!("candidate {candidate} judges every key beside rules {before}")),
        "{shown}"
    );
    assert!(
        shown.contains(
            "api  customer\n  2 newly denied, 0 newly admitted, of 12 that were compared\n"
        ),
        "{shown}"
    );
    assert!(
        promoted.starts_with(&format!("candidate {candidate} is in force, promoted at 20")),
        "{promoted}"
    );
    let (_, audit) = send(&service, "GET", "/audit", "");
    assert_eq!(audit["entries"][0]["because"], "RFC 12", "{audit}");
}

#[test]
fn a_check_of_the_settings_names_the_problem_of_a_candidate() {
    let (_folder, path) = written("domain: shop\ndescriptors: 3\n");
    let mut check = tollkeeper();
    check.args(["serve", "--check", "--candidate"]).arg(&path);
    let (code, _, stderr) = run(&mut check);
    assert_eq!(code, Some(2), "{stderr}");
    assert!(stderr.contains("--candidate: ") && stderr.contains("candidate.yaml:2:"), "{stderr}");
    std::fs::write(&path, CANDIDATE).unwrap();
    let (code, stdout, stderr) = run(&mut check);
    assert_eq!((code, &*stderr), (Some(0), ""), "{stdout}");
}

/// A service whose candidate judges every key.
fn start_with(rules: &str, candidate: &str, store: &str) -> (Service, TempDir, PathBuf) {
    let (folder, path) = written(candidate);
    let service = launch(rules, store, &path, &["--candidate-one-in", "1"]);
    (service, folder, path)
}

#[tokio::test]
async fn new_rules_end_a_promotion_also_if_they_are_reverted_and_an_abort_of_another_candidate_does_not()
 {
    let redis = Redis::start();
    for store in ["memory://", &redis.url()] {
        let (service, _folder, path) = start_with(RULES, CANDIDATE, store);
        let promoted = order(&service, "promote")["version"].take();
        std::fs::write(&path, CANDIDATE.replace("requests_per_unit: 4", "requests_per_unit: 5"))
            .unwrap();
        wait_for(&service, "judged");
        order(&service, "abort");
        let aborted = wait_for(&service, "aborted");
        assert_eq!(
            (&aborted["rules_version"], &aborted["promoted"]["candidate"]),
            (&promoted, &promoted)
        );
        assert!(
            aborted["problem"].as_str().unwrap().contains("is no longer in the files"),
            "{aborted}"
        );
        let abort = format!("/candidate?order=abort&version={}", promoted.as_str().unwrap());
        let (status, ended) = send(&service, "POST", &abort, "");
        assert_eq!((status, &ended["promoted"]), (200, &Value::Null));
        assert_ne!(ended["rules_version"], promoted);

        std::fs::write(&path, CANDIDATE).unwrap();
        wait_until("the first candidate is back", || shown(&service)["version"] == promoted);
        order(&service, "promote");
        service.reload(&RULES.replace("requests_per_unit: 6", "requests_per_unit: 7"));
        wait_for(&service, "judged");
        service.reload(RULES);
        wait_until("the orders for these rules are read", || {
            let shown = shown(&service);
            store == "memory://" || shown["promoted"]["candidate"] == promoted
        });
        assert_eq!(shown(&service)["state"], "judged", "{store}");
        assert_eq!(admitted(&service, "lowered", "a", 7).await, 6, "{store}");
    }
}

#[tokio::test]
async fn an_abort_behind_a_deployment_keeps_a_replica_with_the_old_rules_from_following_the_promotion()
 {
    let redis = Redis::start();
    let (_folder, path) = written(CANDIDATE);
    let start = |rules: &str| launch(rules, &redis.url(), &path, &[]);
    let old = start(RULES);
    order(&old, "promote");
    drop(old);
    let again = start(RULES);
    assert_eq!(shown(&again)["state"], "in_force");
    drop(again);
    order(&start(&RULES.replace("requests_per_unit: 6", "requests_per_unit: 7")), "abort");
    let again = start(RULES);
    assert!(shown(&again)["promoted"].is_object());
    assert_eq!(shown(&again)["state"], "judged");
}

#[tokio::test]
async fn the_same_rules_as_a_candidate_change_nothing_wherever_the_trial_begins() {
    let rules = "
domain: shop
descriptors:
  - { key: a, rate_limit: { unit: year, requests_per_unit: 3 } }
  - key: two
    rate_limits:
      - { unit: second, requests_per_unit: 100 }
      - { unit: year, requests_per_unit: 3 }
  - { key: banned, rate_limit: { unit: second, requests_per_unit: 2, ban_for: 1h } }
  - { key: small, quota_mode: true, rate_limit: { unit: year, requests_per_unit: 1 } }
  - { key: large, quota_mode: true, rate_limit: { unit: year, requests_per_unit: 100 } }
  - { key: counted, rate_limit: { unit: year, requests_per_unit: 4, count_denied: true } }
  - key: mixed
    rate_limits:
      - { unit: day, requests_per_unit: 100, count_denied: true }
      - { unit: year, requests_per_unit: 3 }
  - { key: cleared, rate_limit: { unit: year, requests_per_unit: 3 } }
  - { key: full, rate_limit: { algorithm: in_flight, hold: 1h, requests_per_unit: 1 } }
";
    let (service, _folder, path) =
        start_with(rules, &format!("# another text\n{rules}"), "memory://");
    let ask = async |keys: &[&str]| {
        let descriptors = keys.iter().map(|key| one(key, "x")).collect();
        service.ask(request("shop", descriptors)).await.unwrap();
    };
    for _ in 0..3 {
        ask(&["cleared"]).await;
    }
    wait_until("they are compared", || found(&shown(&service), "cleared")[0] == 3);
    order(&service, "abort");
    let reset = "/counters/reset?domain=shop&descriptor=cleared=x";
    assert_eq!(send(&service, "POST", reset, "").0, 200);
    for _ in 0..6 {
        ask(&["a"]).await;
        ask(&["two"]).await;
        ask(&["banned"]).await;
    }
    ask(&["full"]).await;
    order(&service, "judge");
    // The window of a second in which the trial began ends.
    tokio::time::sleep(Duration::from_secs(2)).await;
    for _ in 0..6 {
        ask(&["a"]).await;
        ask(&["two"]).await;
        ask(&["banned"]).await;
        ask(&["small", "large"]).await;
        ask(&["full", "counted"]).await;
        ask(&["full", "mixed"]).await;
    }
    for _ in 0..3 {
        ask(&["mixed"]).await;
        ask(&["cleared"]).await;
    }
    ask(&["counted"]).await;
    let compared = || found(&shown(&service), "counted")[0] >= 1;
    wait_until("the last call is compared", compared);
    let shown = shown(&service);
    assert_eq!(
        (&shown["newly_denied"], &shown["newly_admitted"]),
        (&json!(0), &json!(0)),
        "{shown}"
    );
    drop(path);
}

#[tokio::test]
async fn a_candidate_counts_refunds_of_denied_calls_and_what_is_charged_beside_commits_and_by_callers_limits()
 {
    let rules = "
domain: shop
descriptors:
  - { key: returned, rate_limit: { unit: year, requests_per_unit: 3 } }
  - { key: limited, rate_limit: { unit: year, requests_per_unit: 3 } }
  - { key: beside, rate_limit: { unit: year, requests_per_unit: 3 } }
  - { key: held, rate_limit: { unit: year, requests_per_unit: 9, hold: { for: 1h } } }
  - { key: full, rate_limit: { algorithm: in_flight, hold: 1h, requests_per_unit: 1 } }
";
    let (service, _folder, _path) =
        start_with(rules, &format!("# another text\n{rules}"), "memory://");
    let token = metadata(&service.ask(shop("held=x")).await.unwrap(), "hold").expect("a token");
    let commit = format!("beside=x(2) hold.commit={token}");
    for (call, code) in [
        ("full=x", "OK"),
        ("returned=x(3)", "OK"),
        ("full=x returned=x(-1)", "OVER_LIMIT"),
        ("returned=x", "OK"),
        ("limited=x(2;100/YEAR)", "OK"),
        ("limited=x", "OK"),
        ("limited=x", "OVER_LIMIT"),
        (&*commit, "OK"),
        ("beside=x", "OK"),
        ("beside=x", "OVER_LIMIT"),
    ] {
        let answer = service.answer(call).await;
        assert!(answer.starts_with(&format!("{code}:")), "{call}: {answer}");
    }
    wait_until("the last call is compared", || found(&shown(&service), "beside")[0] >= 3);
    let found = ["returned", "limited", "beside"].map(|rule| found(&shown(&service), rule));
    assert_eq!(found, [[2, 0, 0], [2, 0, 0], [3, 0, 0]], "{}", shown(&service));
}
