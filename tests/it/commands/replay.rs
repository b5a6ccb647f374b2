//! Recordings: what is recorded of calls, and what a replay with other rules says of them.

use std::os::unix::fs::PermissionsExt as _;

use crate::support::{pages::*, prelude::*};

const RULES: &str = "
domain: shop
descriptors:
  - { key: user, rate_limit: { unit: year, requests_per_unit: 3 } }
  - { key: path, value: /login, rate_limit: { unit: year, requests_per_unit: 2 } }
  - { key: card, secret: true, rate_limit: { unit: year, requests_per_unit: 3 } }
  - key: budget
    rate_limit: { unit: year, requests_per_unit: 100, hold: { for: 1h, estimate: 40 } }
  - { key: tenant, rate_limit: { unit: year, requests_per_unit: 40, lease: auto } }
";

/// The folder in which replicas record.
struct Recorded(TempDir);

impl Recorded {
    fn new() -> Self {
        Self(TempDir::new().unwrap())
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("calls")
    }

    fn service(&self, rules: &str, store: &str, more: &[&str]) -> Service {
        let folder = self.path();
        let flags = [&["--drain", "0s", "--record", folder.to_str().unwrap()], more].concat();
        let service = Service::with(rules).on(store).flags(&flags).start();
        // Until then, the key of digests may not be known.
        service.wait_until_ready();
        service
    }

    fn files(&self) -> Vec<PathBuf> {
        let files = fs::read_dir(self.path()).unwrap().map(|entry| entry.unwrap().path());
        let mut files: Vec<_> = files.collect();
        files.sort();
        files
    }

    /// The recorded calls, in the words of `record show`.
    fn shown(&self, flags: &[&str]) -> Vec<Value> {
        let mut command = tollkeeper();
        command.args(["record", "show", "-o", "json"]).args(flags).arg(self.path());
        let stdout = succeeds(&mut command);
        stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// The exit code, the report, and what is said beside it.
    fn replay(&self, rules: &str, flags: &[&str]) -> (Option<i32>, Value, String) {
        let file = self.0.path().join("new.yaml");
        fs::write(&file, rules).unwrap();
        let mut command = tollkeeper();
        command.args(["replay", "-o", "json", "--rules"]).arg(file).args(flags).arg(self.path());
        let (code, stdout, stderr) = run(&mut command);
        (code, serde_json::from_str(&stdout).unwrap_or_default(), stderr)
    }
}

fn end(mut service: Service) {
    service.end();
}

async fn ask(service: &Service, key: &str, value: &str, calls: usize) {
    ask_in(service, "shop", key, value, calls).await;
}

async fn ask_in(service: &Service, domain: &str, key: &str, value: &str, calls: usize) {
    for _ in 0..calls {
        service.ask(request(domain, vec![descriptor(&[(key, value)])])).await.unwrap();
    }
}

fn entries(call: &Value) -> &str {
    call["descriptors"][0]["entries"].as_str().unwrap()
}

fn counts(report: &Value) -> [u64; 5] {
    ["calls", "denied_before", "denied_after", "newly_denied", "newly_admitted"]
        .map(|name| report[name].as_u64().unwrap_or_else(|| panic!("{name}: {report}")))
}

#[tokio::test]
async fn a_recording_has_digests_for_values_that_no_rule_names_and_all_replicas_give_the_same() {
    let (recorded, redis) = (Recorded::new(), Redis::start());
    let replicas = [(); 2].map(|()| recorded.service(RULES, &redis.url(), &[]));
    for replica in &replicas {
        ask(replica, "user", "alice", 2).await;
        ask(replica, "path", "/login", 1).await;
    }
    replicas.into_iter().for_each(end);

    let calls = recorded.shown(&[]);
    let users: BTreeSet<&str> =
        calls.iter().map(entries).filter(|call| call.starts_with("user=")).collect();
    assert_eq!(users.len(), 1, "{calls:?}");
    assert!(!users.first().unwrap().contains("alice"), "{calls:?}");
    assert_eq!(calls.iter().filter(|call| entries(call) == "path=/login").count(), 2, "{calls:?}");
    let denied = recorded.shown(&["--denied", "--rule", "user"]);
    assert_eq!(denied.len(), 1, "{calls:?}");
    assert_eq!(denied[0]["over"][0]["limit"], "3 per year");
    for file in recorded.files() {
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    }
}

const SECRET_RULES: &str = "
domain: shop
descriptors:
  - { key: mail, value: '*', rate_limit: { unit: year, requests_per_unit: 3 } }
  - { key: url, value: '/reset/*/of/*', rate_limit: { unit: year, requests_per_unit: 2 } }
  - { key: apikey, value: 'sk-*', secret: true, rate_limit: { unit: year, requests_per_unit: 3 } }
  - { key: card, secret: true, rate_limit: { unit: year, requests_per_unit: 3 } }
  - key: outer
    descriptors:
      - { key: deep, secret: true, rate_limit: { unit: year, requests_per_unit: 3 } }
";

#[tokio::test]
async fn what_a_pattern_matches_stays_hidden_in_its_form_and_secrets_stay_hidden_wherever_they_are()
{
    let secrets = [
        &[("apikey", "sk-HIDDEN")][..],
        &[("x", "1"), ("apikey", "sk-HIDDEN")],
        &[("apikey", "sk-HIDDEN"), ("x", "1")],
        &[("card", "HIDDEN"), ("x", "1")],
        &[("outer", "o"), ("deep", "HIDDEN")],
        &[("deep", "HIDDEN")],
        &[("hold.end", "HIDDEN NAME")],
        &[("hold.note", "4111111111111111")],
    ];
    let values = [&[("mail", "HIDDEN@example.com")][..], &[("url", "/reset/HIDDEN/of/me")]];
    for (flags, is_shown) in [(&[][..], false), (&["--top-keys", "values"], true)] {
        let recorded = Recorded::new();
        let service = recorded.service(SECRET_RULES, "memory://", flags);
        for entries in secrets.iter().chain(values.iter().cycle().take(8)) {
            service.ask(request("shop", vec![descriptor(entries)])).await.unwrap();
        }
        service.ask(request("unknown", vec![descriptor(&[("card", "HIDDEN")])])).await.unwrap();
        end(service);
        let calls = recorded.shown(&[]);
        let (of_values, of_secrets): (Vec<&Value>, Vec<&Value>) = calls
            .iter()
            .partition(|call| ["mail", "url"].iter().any(|key| entries(call).starts_with(key)));
        assert_eq!((of_values.len(), of_secrets.len()), (8, 9), "{calls:?}");
        assert!(
            !of_secrets
                .iter()
                .any(|call| entries(call).contains("HIDDEN") || entries(call).contains("4111")),
            "{calls:?}"
        );
        assert_eq!(
            of_values.iter().all(|call| entries(call).contains("HIDDEN")),
            is_shown,
            "{calls:?}"
        );
        assert_eq!(
            of_values.iter().any(|call| entries(call).contains("HIDDEN")),
            is_shown,
            "{calls:?}"
        );
        let (code, report, stderr) = recorded.replay(SECRET_RULES, &[]);
        // Of four mails one is denied, and of four resets two.
        assert_eq!((code, counts(&report)), (Some(0), [17, 3, 3, 0, 0]), "{stderr}");
    }
}

#[tokio::test]
async fn values_are_recorded_where_lists_show_them_but_secrets_and_tokens_are_not() {
    let recorded = Recorded::new();
    let service = recorded.service(RULES, "memory://", &["--top-keys", "values"]);
    ask(&service, "user", "alice", 1).await;
    ask(&service, "card", "4111", 1).await;
    let take = service.post("/v1/decide", json!({"domain": "shop", "calls": [{"descriptors": [{"entries": [{"key": "budget", "value": "team"}]}]}]}));
    let token = take["verdicts"][0]["hold"].as_str().unwrap().to_owned();
    service
        .post("/v1/commit", json!({"domain": "shop", "commits": [{"hold": token, "used": "10"}]}));
    end(service);
    let calls = recorded.shown(&[]);
    assert_eq!(entries(&calls[0]), "user=alice");
    assert!(entries(&calls[1]).starts_with("card=#"), "{calls:?}");
    let hold = calls[2]["hold"].as_str().unwrap();
    assert!(hold.starts_with('#'), "{calls:?}");
    assert_eq!(entries(&calls[3]), format!("hold.commit={hold},hold.used=10"));
    assert_eq!(recorded.shown(&["--entry", "user=alice"]).len(), 1);
}

#[tokio::test]
async fn a_replay_with_the_same_rules_changes_no_verdict() {
    for store in ["memory", "redis"] {
        let (recorded, redis) = (Recorded::new(), Redis::start());
        let url = if store == "redis" { redis.url() } else { "memory://".to_owned() };
        let service = recorded.service(RULES, &url, &[]);
        for user in ["alice", "bob", "carol"] {
            ask(&service, "user", user, 5).await;
        }
        // Two takes of 40 fit, a third only after the first has used less.
        let take = json!({"domain": "shop", "calls": [{"descriptors": [{"entries": [{"key": "budget", "value": "team"}]}]}]});
        let taken = service.post("/v1/decide", &take);
        let hold = &taken["verdicts"][0]["hold"];
        for _ in 0..2 {
            service.post("/v1/decide", &take);
        }
        service.post(
            "/v1/commit",
            json!({"domain": "shop", "commits": [{"hold": hold, "used": "5"}]}),
        );
        service.post("/v1/decide", &take);
        // What is left of a lease goes back: of the takes, the last does not fit.
        let of_tenant = |mode, hits| json!({"domain": "shop", "calls": [{"mode": mode, "hits": hits, "descriptors": [{"entries": [{"key": "tenant", "value": "all"}]}]}]});
        let leased = service.post("/v1/decide", of_tenant("LEASE", 2));
        service.post("/v1/decide", of_tenant("TAKE", 38));
        let hold = &leased["verdicts"][0]["hold"];
        let commit = json!({"domain": "shop", "commits": [{"hold": hold, "used": 0}]});
        service.post("/v1/commit", &commit);
        service.post("/v1/decide", of_tenant("TAKE", 2));
        service.post("/v1/decide", of_tenant("TAKE", 1));
        end(service);
        let (code, report, stderr) =
            recorded.replay(RULES, &["--fail-if", "denied > 0", "--fail-if", "admitted > 0"]);
        assert_eq!((code, counts(&report)), (Some(0), [25, 8, 8, 0, 0]), "{store}: {stderr}");
    }
}

#[tokio::test]
async fn a_replay_takes_the_overlay_of_the_service_and_says_that_no_limit_denies() {
    let recorded = Recorded::new();
    let overlay = recorded.0.path().join("overlay.yaml");
    fs::write(&overlay, "domain: shop\ndefaults: { scale: 2 }\n").unwrap();
    let overlay = ["--rules-overlay", overlay.to_str().unwrap()];
    let service = recorded.service(RULES, "memory://", &overlay);
    ask(&service, "user", "alice", 8).await;
    end(service);
    let (_, report, _) = recorded.replay(RULES, &[]);
    assert_eq!(counts(&report), [8, 2, 5, 3, 0]);
    let (_, report, stderr) = recorded.replay(RULES, &overlay);
    assert_eq!((counts(&report), &*stderr), ([8, 2, 2, 0, 0], ""));

    let rules = recorded.0.path().join("new.yaml");
    let (_, _, stderr) = run(tollkeeper()
        .env("TOLLKEEPER_SHADOW_MODE", "on")
        .args(["replay", "--rules"])
        .args([rules, recorded.path()]));
    assert!(stderr.starts_with("TOLLKEEPER_SHADOW_MODE or a similar setting applies"), "{stderr}");
}

#[test]
fn an_import_names_what_it_leaves_out_and_leaves_no_part_of_a_file() {
    let folder = TempDir::new().unwrap();
    let line =
        |user: &str| format!("{{\"start_time\": \"2026-03-01T00:00:00Z\", \"u\": \"{user}\"}}\n");
    let log = line("alice") + &line(&"x".repeat(1 << 20)) + &line("bob");
    fs::write(folder.path().join("access.log"), log).unwrap();
    let import_as = |descriptor| {
        let flags = ["--domain", "shop", "--descriptor", descriptor, "--to", "calls.lz4"];
        let mut command = tollkeeper();
        run(command.current_dir(folder.path()).args(["record", "import", "access.log"]).args(flags))
    };
    for (descriptor, problem) in [
        ("user=\\xff{u}", "--descriptor: user: the value is not UTF-8\n"),
        ("user={u", "--descriptor: user: a brace is not closed\n"),
    ] {
        let (code, _, stderr) = import_as(descriptor);
        assert_eq!((code, &*stderr), (Some(2), problem));
    }
    let import = || import_as("user={u}");
    let (code, stdout, stderr) = import();
    assert_eq!((code, &*stdout), (Some(1), "2 calls, 0 lines without a descriptor\n"), "{stderr}");
    assert!(stderr.starts_with("access.log:2: a call of 1048"), "{stderr}");
    let (code, stdout, _) =
        run(tollkeeper().current_dir(folder.path()).args(["record", "show", "calls.lz4"]));
    assert_eq!((code, stdout.lines().count()), (Some(0), 2), "{stdout}");
    let (code, _, stderr) = import();
    assert_eq!(
        (code, &*stderr),
        (Some(1), "calls.lz4: already exists; --to must name a new file\n")
    );
    fs::remove_file(folder.path().join("calls.lz4")).unwrap();
    for (bad, named, last) in [(10, 10, "access.log:10: "), (12, 11, "12 bad lines in all")] {
        fs::write(folder.path().join("access.log"), "[]\n".repeat(bad) + &line("alice")).unwrap();
        let (code, _, stderr) = import();
        assert_eq!((code, stderr.lines().count()), (Some(1), named), "{stderr}");
        assert!(stderr.lines().last().unwrap().starts_with(last), "{stderr}");
        fs::remove_file(folder.path().join("calls.lz4")).unwrap();
    }
}

#[tokio::test]
async fn calls_are_recorded_while_an_operator_asks_for_it() {
    let recorded = Recorded::new();
    let service =
        recorded.service(RULES, "memory://", &["--record-when", "asked", "--top-keys", "values"]);
    let recording = |method: &str, query: &str| -> Value {
        let path = format!("/recording{query}");
        let (status, _, body) = service.exchange_at(service.admin, method, &path, b"");
        assert_eq!(status, 200, "{body}");
        serde_json::from_str(&body).unwrap()
    };
    let off = json!({"folder": recorded.path(), "recording": false, "seconds_left": 0});
    assert_eq!(recording("GET", ""), off);
    ask(&service, "user", "before", 1).await;
    let on = recording("POST", "?for=10m");
    assert_eq!(on["recording"], true);
    assert!((1..=600).contains(&on["seconds_left"].as_u64().unwrap()), "{on}");
    ask(&service, "user", "meanwhile", 1).await;
    assert_eq!(recording("POST", "?for=0s"), off);
    ask(&service, "user", "behind", 1).await;
    recording("POST", "?for=100ms");
    wait_until("the recording ends by itself", || recording("GET", "") == off);
    ask(&service, "user", "too late", 1).await;
    end(service);
    let calls = recorded.shown(&[]);
    assert_eq!(calls.iter().map(entries).collect::<Vec<_>>(), ["user=meanwhile"]);

    // What is recorded always goes on, whatever time is asked for.
    let recorded = Recorded::new();
    let service = recorded.service(RULES, "memory://", &[]);
    let (_, _, on) = service.exchange_at(service.admin, "POST", "/recording?for=1s", b"");
    assert!(on.contains("\"recording\":true") && on.contains("\"seconds_left\":null"), "{on}");
}

#[tokio::test]
async fn what_a_shadow_counts_is_what_a_replay_with_its_number_denies() {
    let rules = "
domain: shop
descriptors:
  - key: user
    rate_limit: { unit: year, requests_per_unit: 5, shadow: { requests_per_unit: 3 } }
";
    let recorded = Recorded::new();
    let service = recorded.service(rules, "memory://", &[]);
    for (user, calls) in [("alice", 3), ("bob", 4), ("carol", 7)] {
        ask(&service, "user", user, calls).await;
    }
    end(service);
    let over: Vec<Value> = recorded.shown(&[]).iter().map(|call| call["over"][0].clone()).collect();
    let tried = over.iter().filter(|over| over["shadow"] == true);
    assert_eq!(tried.clone().count(), 3, "{over:?}");
    assert!(tried.clone().all(|over| over["limit"] == "3 per year"), "{over:?}");
    let (_, report, _) = recorded.replay(rules, &[]);
    assert_eq!((counts(&report), &report["over_shadow"]), ([14, 2, 2, 0, 0], &json!(3)));
    let stricter = rules.replace("5, shadow: { requests_per_unit: 3 }", "3");
    let (_, report, _) = recorded.replay(&stricter, &[]);
    assert_eq!((counts(&report), &report["over_shadow"]), ([14, 2, 5, 3, 0], &json!(0)));
}

#[tokio::test]
async fn a_replay_names_the_rule_and_the_keys_whose_verdicts_change() {
    let recorded = Recorded::new();
    let service = recorded.service(RULES, "memory://", &["--top-keys", "values"]);
    ask(&service, "user", "alice", 3).await;
    ask(&service, "user", "bob", 2).await;
    ask(&service, "path", "/login", 4).await;
    end(service);
    let stricter = RULES.replacen("requests_per_unit: 3 }", "requests_per_unit: 1 }", 1);
    let laxer = stricter.replace("requests_per_unit: 2 }", "requests_per_unit: 4 }");
    let (code, report, stderr) = recorded
        .replay(&laxer, &["--suggest", "--fail-if", "denied > 30 %", "--fail-if", "admitted > 2"]);
    assert_eq!((code, counts(&report)), (Some(1), [9, 2, 3, 3, 2]), "{stderr}");
    assert_eq!(stderr, "--fail-if: denied > 30 % is met: 3 calls, 33.333 %\n");
    let user = &report["rules"][0];
    assert_eq!((&user["rule"], &user["newly_denied"]), (&json!("user"), &json!(3)));
    assert_eq!(
        user["keys"],
        json!([{"key": "user=alice", "calls": 2}, {"key": "user=bob", "calls": 1}])
    );
    assert_eq!(report["rules"][1]["newly_admitted"], 2);
    let suggestion =
        report["suggestions"].as_array().unwrap().iter().find(|one| one["rule"] == "user").unwrap();
    assert_eq!((&suggestion["max"], &suggestion["denies_none"]), (&json!(3), &json!(3)));
    let classes = laxer.replacen(
        "requests_per_unit: 1 }",
        "requests_per_unit: 10, priority: { entry: class, share: { low: 50 }, default: 50 } }",
        1,
    );
    let (_, report, stderr) = recorded.replay(&classes, &["--suggest"]);
    let suggestions = report["suggestions"].as_array().unwrap();
    let of_user = suggestions.iter().find(|one| one["rule"] == "user").unwrap();
    assert_eq!(of_user["limit"], "10 per year", "{stderr}");

    // Against other rules, in place of the recorded verdicts.
    let old = recorded.0.path().join("old.yaml");
    fs::write(&old, stricter).unwrap();
    let (_, report, _) = recorded.replay(&laxer, &["--against", old.to_str().unwrap()]);
    assert_eq!(counts(&report), [9, 5, 3, 0, 2]);
}

#[tokio::test]
async fn calls_without_the_store_and_under_an_override_are_not_compared() {
    let recorded = Recorded::new();
    let rules =
        RULES.replace("requests_per_unit: 3 }", "requests_per_unit: 3, on_store_failure: deny }");
    let redis = Redis::start();
    let service = recorded.service(&rules, &redis.url(), &[]);
    drop(redis);
    ask(&service, "user", "alice", 2).await;
    end(service);
    let service = recorded.service(&rules, "memory://", &["--top-keys", "values"]);
    let ban = json!({"domain": "shop", "descriptor": "user=bob", "action": "ban", "for": "1h", "because": "a test"});
    let (status, head, body) =
        service.exchange_at(service.admin, "POST", "/overrides", ban.to_string().as_bytes());
    assert!(status < 300, "{status} {head}{body}");
    wait_until("the ban", || {
        let answer = service.exchange("POST", "/json", br#"{"domain": "shop", "descriptors": [{"entries": [{"key": "user", "value": "bob"}]}]}"#);
        answer.0 == 429
    });
    end(service);
    let (code, report, stderr) = recorded.replay(&rules, &[]);
    assert_eq!(code, Some(1), "{stderr}");
    assert!(stderr.contains("no call can be compared"), "{stderr}");
    assert_eq!(report["without_store"], 2, "{report}");
    assert!(report["overridden"].as_u64().unwrap() >= 1, "{report}");
    assert_eq!(counts(&report)[3..], [0, 0]);
}

#[tokio::test]
async fn the_oldest_files_go_when_the_folder_is_full() {
    let recorded = Recorded::new();
    let service =
        recorded.service(RULES, "memory://", &["--record-size", "1MiB", "--top-keys", "values"]);
    let mut client = service.client().await;
    // Values that do not become smaller by compression.
    let mut dice = Dice(1);
    for _ in 0..400 {
        let mut text =
            || (0..1_000).map(|_| char::from(b'!' + dice.below(90) as u8)).collect::<String>();
        let descriptors = (0..8).map(|_| descriptor(&[("user", &text())])).collect();
        client.should_rate_limit(request("shop", descriptors)).await.unwrap();
    }
    end(service);
    let bytes: u64 = recorded.files().iter().map(|file| fs::metadata(file).unwrap().len()).sum();
    assert!((512 << 10..=1 << 20).contains(&bytes), "{bytes}");
    let calls = recorded.shown(&[]);
    assert!((50..400).contains(&calls.len()), "{}", calls.len());
}

#[tokio::test]
async fn a_disk_that_takes_nothing_drops_calls_and_delays_none() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let folder = file.path().join("calls");
    let flags = ["--record", folder.to_str().unwrap(), "--drain", "0s"];
    let service = Service::with(RULES).flags(&flags).start();
    ask(&service, "user", "alice", 4).await;
    wait_until("a drop", || {
        let metrics = service.get("/metrics");
        metrics.contains("ratelimit_recorded_calls_total{outcome=\"dropped\"} 4")
    });
    assert!(service.log().contains("calls cannot be recorded: "), "{}", service.log());
    assert_eq!(service.log().matches("calls cannot be recorded: ").count(), 1);
}

#[tokio::test]
async fn a_file_that_reaches_the_size_limit_of_the_process_drops_calls_and_ends_no_service() {
    let (recorded, folder) = (Recorded::new(), TempDir::new().unwrap());
    fs::write(folder.path().join("rules.yaml"), RULES).unwrap();
    let service = serve();
    let mut limited = Command::new("sh");
    limited.args(["-c", "ulimit -f 8; exec \"$0\" \"$@\""]).arg(service.get_program());
    limited.args(service.get_args()).arg("--rules").arg(folder.path().join("rules.yaml"));
    limited.args(["--top-keys", "values", "--drain", "0s", "--record"]).arg(recorded.path());
    let service = Service::spawn(limited, folder);
    let long: String = (0..16 << 10).map(|number| format!("{number:x}")).collect();
    ask(&service, "user", &long, 1).await;
    wait_until("a drop", || {
        let metrics = service.get("/metrics");
        metrics.contains("ratelimit_recorded_calls_total{outcome=\"dropped\"} 1")
    });
    ask(&service, "user", "alice", 1).await;
    end(service);
    assert_eq!(recorded.shown(&[]).iter().map(entries).collect::<Vec<_>>(), ["user=alice"]);
}

#[tokio::test]
async fn calls_go_on_into_a_new_file_when_somebody_has_removed_the_old_one() {
    let recorded = Recorded::new();
    let service = recorded.service(RULES, "memory://", &[]);
    ask(&service, "user", "alice", 1).await;
    let written = |count| {
        wait_until("a written call", || {
            let line = format!("ratelimit_recorded_calls_total{{outcome=\"written\"}} {count}\n");
            service.get("/metrics").contains(&line)
        });
    };
    written(1);
    fs::remove_dir_all(recorded.path()).unwrap();
    ask(&service, "user", "alice", 2).await;
    written(3);
    assert_eq!(recorded.shown(&[]).len(), 2);
}

#[tokio::test]
async fn files_that_are_cut_or_foreign_are_named_and_what_they_have_counts() {
    let recorded = Recorded::new();
    let service = recorded.service(RULES, "memory://", &[]);
    ask(&service, "user", "alice", 3).await;
    end(service);
    let whole: Vec<u8> = recorded.files().iter().flat_map(|file| fs::read(file).unwrap()).collect();
    let name = |name: &str| recorded.path().join(name);
    // A part of the last frame lacks.
    fs::write(name("calls-2-cut.lz4"), [&whole[..], &whole[..whole.len() - 9]].concat()).unwrap();
    fs::write(name("calls-3-foreign.lz4"), "what is this?").unwrap();
    fs::write(name("calls-4-empty.lz4"), "").unwrap();
    let mut command = tollkeeper();
    let (code, stdout, stderr) = run(command.args(["record", "show"]).arg(recorded.path()));
    // Each whole copy has three calls; the copy that is cut may lose its last frame.
    let count = stdout.lines().count();
    assert!(code == Some(1) && (6..=9).contains(&count), "{stdout}{stderr}");
    let lines: Vec<&str> = stderr.lines().collect();
    assert_eq!(lines.len(), 2, "{stderr}");
    assert!(lines.iter().any(|line| line.contains("calls-2-cut.lz4: ends after ")), "{stderr}");
    assert!(
        lines.iter().any(|line| line.contains("calls-3-foreign.lz4: is no recording")),
        "{stderr}"
    );

    let (code, _, stderr) =
        run(tollkeeper().args(["replay", "--rules", "nowhere.yaml", "nothing"]));
    assert_eq!(code, Some(1), "{stderr}");
    // Frames without calls, and a file that is named twice, change nothing.
    let (code, stdout, _) = run(Command::new("bash").current_dir(recorded.path()).env("T", tollkeeper().get_program()).args(["-c",
        "rm calls-2* calls-3* calls-4*; echo '{}' >none; $T record import none --domain shop --descriptor 'user={u}' --to empty.lz4 2>/dev/null; cat calls-*.lz4 empty.lz4 calls-*.lz4 >twice.lz4; $T record show twice.lz4 twice.lz4"]));
    assert_eq!(
        (code, stdout.lines().filter(|line| line.contains("  shop  ")).count()),
        (Some(0), 6),
        "{stdout}"
    );
    let empty = TempDir::new().unwrap();
    let (code, _, stderr) = run(tollkeeper().args(["record", "show"]).arg(empty.path()));
    assert_eq!(code, Some(1));
    assert!(stderr.contains("no file of a recording"), "{stderr}");
}

#[test]
fn calls_behind_a_clock_that_was_set_back_are_counted() {
    let folder = TempDir::new().unwrap();
    let import = |name: &str, hour: u32| {
        let line = |second: u32| {
            format!("{{\"start_time\": \"2026-03-01T{hour:02}:00:{second:02}Z\", \"u\": \"a\"}}\n")
        };
        fs::write(folder.path().join("log"), (0..5).map(line).collect::<String>()).unwrap();
        let flags = ["record", "import", "log", "--domain", "shop", "--descriptor", "user={u}"];
        let mut command = tollkeeper();
        let (code, ..) = run(command.current_dir(folder.path()).args(flags).args(["--to", name]));
        assert_eq!(code, Some(0));
        fs::read(folder.path().join(name)).unwrap()
    };
    let (later, earlier) = (import("later.lz4", 7), import("earlier.lz4", 6));
    fs::write(folder.path().join("both.lz4"), [later, earlier].concat()).unwrap();
    fs::write(folder.path().join("rules.yaml"), RULES).unwrap();
    let flags = ["replay", "--rules", "rules.yaml", "both.lz4"];
    let stdout = succeeds(tollkeeper().current_dir(folder.path()).args(flags));
    assert!(
        stdout.starts_with("10 calls from 2026-03-01T06:00:00Z to 2026-03-01T07:00:04Z\n"),
        "{stdout}"
    );
    assert!(stdout.contains("\nwith an earlier time than calls before them, "), "{stdout}");
}

/// docs/rollout.md: each of its commands, in its order.
#[tokio::test]
async fn the_steps_of_the_page_lead_from_a_recording_to_a_limit_that_is_enforced() {
    let page = page("rollout.md");
    let rules = blocks(&page, "yaml");
    let recorded = Recorded::new();
    let service = recorded.service(rules[0], "memory://", &["--top-keys", "values"]);
    for (customer, calls) in [("acme", 30), ("globex", 4), ("initech", 3)] {
        ask_in(&service, "api", "customer", customer, calls).await;
    }
    end(service);
    let folder = recorded.0.path();
    fs::create_dir(folder.join("rules")).unwrap();
    fs::create_dir(folder.join("new-rules")).unwrap();
    fs::write(folder.join("rules/api.yaml"), rules[0]).unwrap();
    // So that no window ends meanwhile.
    fs::write(folder.join("new-rules/api.yaml"), rules[1].replace("minute", "year")).unwrap();
    let binary = PathBuf::from(tollkeeper().get_program());
    let path = format!("{}:/usr/bin:/bin", binary.parent().unwrap().display());
    // In the order in which the requests ended.
    let line = |second: u32, customer| {
        format!(
            "{{\"start_time\": \"2026-03-01T00:00:{second:02}Z\", \"x_customer\": \"{customer}\"}}\n"
        )
    };
    let lines: String = (0..12).rev().map(|second| line(second, "acme")).collect();
    fs::write(folder.join("access.log"), lines + &line(12, "-")).unwrap();
    let commands = blocks(&page, "bash").into_iter().flat_map(str::lines);
    let commands = commands.filter(|line| {
        ["replay", "record"].iter().any(|word| line.starts_with(&format!("tollkeeper {word} ")))
    });
    let mut outputs = Vec::new();
    for command in commands {
        let (code, stdout, stderr) =
            run(Command::new("bash").args(["-c", command]).env("PATH", &path).current_dir(folder));
        assert_eq!(
            stderr.lines().filter(|line| !line.contains("--fail-if")).count(),
            0,
            "{command}: {stderr}"
        );
        assert!(matches!(code, Some(0 | 1)), "{command}: {stderr}");
        outputs.push(stdout);
    }
    assert_eq!(outputs[0], "12 calls, 1 line without a descriptor\n");
    assert!(outputs[1].contains("denies none: 30;"), "{}", outputs[1]);
    assert!(outputs[2].contains("newly denied: 20 (54.054 %)"), "{}", outputs[2]);
    let (_, stdout, stderr) = run(tollkeeper().current_dir(folder).args([
        "replay",
        "--rules",
        "new-rules/",
        "from-log.lz4",
    ]));
    assert!(
        stdout.contains("newly denied: 2 (")
            && stdout.starts_with("12 calls from 2026-03-01T00:00:00Z to 2026-03-01T00:00:11Z"),
        "{stdout}{stderr}"
    );
}
