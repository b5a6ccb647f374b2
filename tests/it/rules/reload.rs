//! Reloads: rules that change while the service runs.

use crate::support::{config_map::publish, prelude::*};

fn rules(limit: u32) -> String {
    format!(
        "domain: shop\ndescriptors: [{{key: user, rate_limit: {{unit: year, requests_per_unit: {limit}}}}}]"
    )
}

fn in_force(service: &Service) -> Value {
    serde_json::from_str(&service.get("/rules")).unwrap()
}

#[track_caller]
fn wait_for_limit(service: &Service, limit: u32) {
    let expected = format!("{limit} per year");
    wait_until(&expected, || {
        in_force(service)["domains"][0]["rules"][0]["limit"] == expected.as_str()
    });
}

async fn ask(service: &Service) -> RateLimitResponse {
    service.ask(shop("user=alice")).await.unwrap()
}

#[tokio::test]
async fn a_changed_limit_keeps_its_count() {
    let redis = Redis::start();
    for store in ["memory://", &redis.url()] {
        let service = Service::with(&rules(3)).on(store).start();
        assert_eq!(spell(&ask(&service).await), "OK: OK 2/3 YEAR");
        assert_eq!(spell(&ask(&service).await), "OK: OK 1/3 YEAR");
        fs::write(&service.rules, rules(5)).unwrap();
        wait_for_limit(&service, 5);
        assert_eq!(spell(&ask(&service).await), "OK: OK 2/5 YEAR");
        fs::write(&service.rules, rules(1)).unwrap();
        wait_for_limit(&service, 1);
        assert_eq!(spell(&ask(&service).await), "OVER_LIMIT: OVER_LIMIT 0/1 YEAR");
    }
}

#[tokio::test]
async fn a_changed_algorithm_or_unit_starts_a_new_count_and_keeps_the_old_one() {
    let redis = Redis::start();
    for store in ["memory://", &redis.url()] {
        let service = Service::with(&rules(3)).on(store).start();
        assert_eq!(spell(&ask(&service).await), "OK: OK 2/3 YEAR");
        let changed = |from, to| rules(3).replace(from, to);
        for (rules, limit, unit) in [
            (changed("}}]", ", algorithm: token_bucket}}]"), "3 per year by token_bucket", "YEAR"),
            (changed("}}]", ", time_zone: Asia/Tokyo}}]"), "3 per year", "YEAR"),
            (changed("unit: year", "unit: month"), "3 per month", "MONTH"),
        ] {
            let version = in_force(&service)["version"].clone();
            fs::write(&service.rules, &rules).unwrap();
            wait_until("the new rules are in force", || in_force(&service)["version"] != version);
            assert_eq!(in_force(&service)["domains"][0]["rules"][0]["limit"], limit);
            assert_eq!(spell(&ask(&service).await), format!("OK: OK 2/3 {unit}"));
        }
        fs::write(&service.rules, rules(3) + "\n").unwrap();
        wait_for_limit(&service, 3);
        assert_eq!(spell(&ask(&service).await), "OK: OK 1/3 YEAR");
    }
}

#[tokio::test]
async fn bad_rules_are_reported_in_log_metric_and_page_and_the_last_good_ones_stay() {
    let service = Service::with(&rules(3)).start();
    let before = in_force(&service);
    assert_eq!(before["files"][0], service.rules.display().to_string());
    fs::write(&service.rules, "domain: shop\nlimits: []\n").unwrap();
    let problems = eventually("the problem is listed", || {
        let problems = in_force(&service)["problems"].clone();
        (problems != Value::Array(vec![])).then_some(problems)
    });
    let problem = problems[0].as_str().unwrap();
    assert!(problem.ends_with(
        "rules.yaml:2:1: unknown key `limits`; allowed here: domain, name, descriptors, defaults, require, require_mode, quota_group, draw, slot_by"
    ));
    assert_eq!(in_force(&service)["version"], before["version"]);
    assert_eq!(spell(&ask(&service).await), "OK: OK 2/3 YEAR");
    let log = service.log();
    assert!(log.contains("rules not loaded (1 problem); the previous ones stay"), "{log}");
    assert!(log.contains("unknown key `limits`"), "{log}");
    service.assert_metric("ratelimit_rules_last_reload_successful 0");

    fs::remove_file(&service.rules).unwrap();
    service.wait_for_log("No such file");
    assert_eq!(spell(&ask(&service).await), "OK: OK 1/3 YEAR");

    fs::write(&service.rules, rules(7)).unwrap();
    wait_for_limit(&service, 7);
    assert_eq!(in_force(&service)["problems"], Value::Array(vec![]));
    let metrics = service.get("/metrics");
    assert!(metrics.contains("ratelimit_rules_last_reload_successful 1"), "{metrics}");
    assert!(metrics.contains(r#"ratelimit_rules_reloads_total{outcome="bad"} 2"#), "{metrics}");
}

#[test]
fn a_config_map_is_followed_when_kubelet_swaps_its_link() {
    let folder = TempDir::new().unwrap();
    let volume = folder.path().join("rules");
    publish(&volume, "first", "rules.yaml", &rules(3));

    let mut command = serve();
    command.arg("--rules").arg(&volume).stdout(Stdio::null());
    let service = Service::spawn(command, folder);
    wait_for_limit(&service, 3);
    publish(&volume, "second", "rules.yaml", &rules(4));
    wait_for_limit(&service, 4);
    // Files that are not rule files are ignored.
    fs::write(volume.join("README"), "not rules").unwrap();
    fs::write(volume.join(".rules.yaml.swp"), "not rules").unwrap();
    publish(&volume, "third", "rules.yaml", &rules(5));
    wait_for_limit(&service, 5);
    assert_eq!(in_force(&service)["problems"], Value::Array(vec![]));
}

/// Promise "one version". Half of the new contents are bad. `RELOADS` sets their number; docs/internals/correctness.md has a long run.
#[tokio::test(flavor = "multi_thread")]
async fn no_call_fails_while_rules_change_for_good_and_bad() {
    const LIMIT: u32 = 4_000_000_000;
    let reloads: u32 = std::env::var("RELOADS").map_or(8, |text| text.parse().expect("a number"));
    let service = Service::with(&rules(LIMIT)).start();
    let mut client = service.client().await;
    let (stop, mut stopped) = tokio::sync::oneshot::channel::<()>();
    let calls = tokio::spawn(async move {
        let mut count = 0;
        while stopped.try_recv().is_err() {
            let answer = client.should_rate_limit(shop("user=alice")).await.unwrap().into_inner();
            assert!(spell(&answer).starts_with("OK: OK "), "{}", spell(&answer));
            count += 1;
        }
        count
    });
    for round in 0..reloads / 2 {
        fs::write(&service.rules, "domain: [").unwrap();
        wait_until("bad rules", || in_force(&service)["problems"][0].is_string());
        fs::write(&service.rules, rules(LIMIT - round)).unwrap();
        wait_for_limit(&service, LIMIT - round);
    }
    stop.send(()).unwrap();
    let calls = calls.await.unwrap();
    assert!(calls > 0);
    println!("{reloads} reloads, {calls} calls, none of them failed");
}

#[tokio::test]
async fn an_overlay_lies_over_files_and_follows_its_own() {
    let overlay =
        TextFile::new("overlay.yaml", "domain: shop\ndefaults: { algorithm: sliding_window }\n");
    let flags = ["--rules-overlay", &overlay];
    let service = Service::with(&rules(3)).flags(&flags).start();
    let limit = || in_force(&service)["domains"][0]["rules"][0]["limit"].clone();
    assert_eq!(limit(), "3 per year by sliding_window");
    assert_eq!(in_force(&service)["files"][1], *overlay);
    fs::write(&*overlay, "domain: shop\n").unwrap();
    wait_until("without the overlay", || limit() == "3 per year");
}
