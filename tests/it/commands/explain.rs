//! `tollkeeper explain` and `POST /explain`: the decision for a call, and its reasons.

use std::io::BufReader;

use crate::support::{prelude::*, redis_server::nobody};

const RULES: &str = "domain: shop
descriptors:
  - key: path
    value: /login
    descriptors:
      - key: user
        rate_limit: { unit: year, requests_per_unit: 3 }
  - key: path
    value: '/a*'
    rate_limit: { unit: year, requests_per_unit: 2, algorithm: token_bucket }
  - key: path
    value: '*.pdf'
    share_threshold: true
    quota_mode: true
    rate_limit: { unit: year, requests_per_unit: 4 }
  - key: path
    shadow_mode: true
    rate_limit: { unit: year, requests_per_unit: 1 }
  - key: free
    rate_limit: { unlimited: true }
  - key: log
    rate_limits:
      - { unit: year, requests_per_unit: 5, algorithm: sliding_log }
      - { unit: year, requests_per_unit: 4, algorithm: sliding_window }
  - key: plan
    value: free
    rate_limit: { name: free, unit: year, requests_per_unit: 1 }
  - key: plan
    value: paid
    rate_limit: { unit: year, requests_per_unit: 9, replaces: [{ name: free }] }
  - key: job
    rate_limit: { unit: year, requests_per_unit: 9, priority: { entry: class, share: { batch: 45, web: 100 } } }
";

/// Explains by these rules, and returns the exit code and the output.
#[track_caller]
fn explained(words: &[&str]) -> (Option<i32>, String) {
    let folder = TempDir::new().unwrap();
    std::fs::write(folder.path().join("rules.yaml"), RULES).unwrap();
    let (code, stdout, stderr) = run(tollkeeper()
        .current_dir(&folder)
        .args(["explain", "--rules", "rules.yaml", "--domain"])
        .args(words));
    assert_eq!(stderr, "");
    (code, without_years(&stdout))
}

/// The text with Y for the start of a window in a counter's key.
fn without_years(text: &str) -> String {
    let mut lines = String::new();
    for line in text.lines() {
        match line.split_once("}:") {
            Some((before, after)) => {
                let after = after.trim_start_matches(|digit: char| digit.is_ascii_digit());
                lines += &format!("{before}}}:Y{after}\n");
            }
            None => lines += &format!("{line}\n"),
        }
    }
    lines
}

#[test]
fn a_call_whose_charges_weigh_too_much_is_not_explained() {
    let service = Service::with(RULES).flags(&["--max-charges", "64"]).start();
    // Each log weighs 4, and the window beside it 1.
    for (count, status) in [(12, 200), (13, 400)] {
        let logs: String = (0..count).map(|number| format!("&d=log={number}")).collect();
        let path = format!("/explain?domain=shop{logs}");
        let (found, _, body) = service.exchange_at(service.admin, "POST", &path, b"");
        assert_eq!(found, status, "{body}");
        let refusal = "descriptors: charges of weight 65 exceed 64 (`--max-charges`)";
        assert_eq!(body.contains(refusal), status == 400, "{body}");
    }
}

/// A proxy may split what it sent in one descriptor: then no rule is met, and every call passes.
#[test]
fn a_key_that_is_only_below_another_is_named_with_its_rule() {
    let (code, text) = explained(&["shop", "path=/login", "user=alice"]);
    let user = "  user=alice: the rules have `path=/login|user`: send its entries in one descriptor, not apart\n";
    assert!(code == Some(1) && text.contains(user), "{text}");
}

/// A service with this environment would decide so.
#[test]
fn commands_that_read_rule_files_take_their_defaults_from_the_environment() {
    let folder = TempDir::new().unwrap();
    let file = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    file(
        "rules.yaml",
        "domain: d\ndescriptors:\n  - { key: a, rate_limit: { unit: day, requests_per_unit: 0 } }\n",
    );
    file(
        "log.yaml",
        "domain: d\ndescriptors:\n  - { key: a, rate_limit: { unit: day, requests_per_unit: 1, algorithm: sliding_log } }\n",
    );
    file(
        "a.test.yaml",
        "rules: [rules.yaml]\ntests:\n  - name: n\n    domain: d\n    calls: [{ descriptors: a=1, expect: OK }]\n",
    );
    let with = |words: &[&str], environment: &[(&str, &str)]| {
        let mut command = tollkeeper();
        command.current_dir(&folder).args(words).envs(environment.iter().copied());
        let (code, stdout, stderr) = run(&mut command);
        (code, stdout + &stderr)
    };
    let explain = ["explain", "--rules", "rules.yaml", "--domain", "d", "a=1"];
    let (_, text) = with(&explain, &[]);
    assert!(text.contains("enforced, on_store_failure error"), "{text}");
    let (_, text) = with(&explain, &[("TOLLKEEPER_ON_STORE_FAILURE", "deny")]);
    assert!(text.contains("enforced, on_store_failure deny"), "{text}");

    let counted = [("TOLLKEEPER_COUNT_DENIED", "on")];
    let (code, text) = with(&["check", "log.yaml"], &counted);
    assert!(code == Some(1) && text.contains("count_denied"), "{text}");
    assert_eq!(with(&["check", "log.yaml"], &[]).0, Some(0));
    assert_eq!(with(&["test", "a.test.yaml"], &[]).0, Some(1));
    assert_eq!(with(&["test", "a.test.yaml"], &[("TOLLKEEPER_SHADOW_MODE", "on")]).0, Some(0));
}

#[test]
fn explain_shows_what_matched_or_not_the_location_and_the_charges() {
    assert_eq!(
        explained(&["shop", "path=/login,user=al ice"]),
        (
            Some(0),
            "path=/login,user=al ice
  path=/login: exact value match
  user=al ice: matches the key, with any value
  matches rule path=/login|user, written at rules.yaml:6
  3 per year by fixed_window (enforced, on_store_failure error)
    charges 1 to tk1:fw:31536000s:{shop|path=/login|user=al%20ice}:Y
"
            .to_owned()
        )
    );
    let (_, of_class) = explained(&["shop", "job=x,class=batch"]);
    let expected = "job=x
  parameters: class=batch
  job=x: matches the key, with any value
  matches rule job, written at rules.yaml:31
  4 per year by fixed_window (enforced, class batch: 45 %, on_store_failure error)
    charges 1 to tk1:fw:31536000s:{shop|job=x}:Y
";
    assert_eq!(of_class, expected);
    assert_eq!(
        explained(&["shop", "--hits", "0", "path=x.pdf", "path=x", "log=y"]),
        (
            Some(0),
            "path=x.pdf
  path=x.pdf: matches pattern `*.pdf`; did not match: 1 other value, pattern `/a*`
  matches rule path=*.pdf, written at rules.yaml:11
  4 per year by fixed_window (quota, on_store_failure error)
    charges nothing, checks tk1:fw:31536000s:{shop|path=%**.pdf}:Y
path=x
  path=x: matches the key, with any value; did not match: 1 other value, pattern `/a*`, pattern `*.pdf`
  matches rule path, written at rules.yaml:16
  1 per year by fixed_window (shadow, on_store_failure error)
    charges nothing, checks tk1:fw:31536000s:{shop|path=x}:Y
log=y
  log=y: matches the key, with any value
  matches rule log, written at rules.yaml:21
  5 per year by sliding_log (enforced, on_store_failure error)
    charges nothing, checks tk1:sl:31536000s:{shop|log=y}
  4 per year by sliding_window (enforced, on_store_failure error)
    charges nothing, checks tk1:sw:31536000s:{shop|log=y}:Y
"
            .to_owned()
        )
    );
}

#[test]
fn explain_shows_why_a_descriptor_has_no_limit() {
    assert_eq!(
        explained(&["shop", "path=/login", "free=x"]),
        (
            Some(0),
            "path=/login
  path=/login: exact value match
  matches a descriptor without a limit: passes
free=x
  free=x: matches the key, with any value
  matches rule free, written at rules.yaml:19: unlimited, passes
"
            .to_owned()
        )
    );
}

#[test]
fn an_unknown_name_gets_a_suggestion_and_exit_code_1() {
    assert_eq!(
        explained(&["shop", "paht=/login", "path=/login,role=x", "plan=gold", "plan=piad", "log=y"]),
        (
            Some(1),
            "paht=/login
  paht=/login: unknown key; did you mean `path`?
  matches no rule: passes
path=/login,role=x
  path=/login: exact value match
  role=x: unknown key
  matches no rule: passes
plan=gold
  plan=gold: no rule has this value for this key; the rules have 2 other values
  matches no rule: passes
plan=piad
  plan=piad: no rule has this value for this key; the rules have 2 other values; did you mean `paid`?
  matches no rule: passes
log=y
  log=y: matches the key, with any value
  matches rule log, written at rules.yaml:21
  5 per year by sliding_log (enforced, on_store_failure error)
    charges 1 to tk1:sl:31536000s:{shop|log=y}
  4 per year by sliding_window (enforced, on_store_failure error)
    charges 1 to tk1:sw:31536000s:{shop|log=y}:Y
"
            .to_owned()
        )
    );
    let unknown = "domain `shopp`: no rule file has this domain, so every call passes; did you mean `shop`?\n";
    assert_eq!(explained(&["shopp", "a=b"]), (Some(1), unknown.to_owned()));
    let far = "domain `nowhere`: no rule file has this domain, so every call passes\n";
    assert_eq!(explained(&["nowhere", "a=b"]), (Some(1), far.to_owned()));
}

#[test]
fn entries_in_another_order_than_a_rule_are_explained_by_that_rule() {
    let rules = root().join("examples/rules.yaml");
    let words = ["--domain", "example", "user=alice,path=/login"];
    let (code, stdout, _) = run(tollkeeper().args(["explain", "--rules"]).arg(rules).args(words));
    let hint = "  path=/login: the rules have `path=/login|user`: entries in another order\n";
    assert!(code == Some(1) && stdout.contains(hint), "{stdout}");
}

#[test]
fn a_replaced_limit_is_shown_with_the_rule_that_replaces_it() {
    assert_eq!(
        explained(&["shop", "plan=free", "plan=paid"]),
        (
            Some(0),
            "plan=free
  plan=free: exact value match
  matches rule plan=free, written at rules.yaml:25
  1 per year (name free): replaced by rule plan=paid, written at rules.yaml:28
plan=paid
  plan=paid: exact value match
  matches rule plan=paid, written at rules.yaml:28
  9 per year by fixed_window (enforced, on_store_failure error)
    charges 1 to tk1:fw:31536000s:{shop|plan=paid}:Y
"
            .to_owned()
        )
    );
}

#[test]
fn slot_by_domain_in_one_file_applies_to_all_files_of_the_domain() {
    let folder = TempDir::new().unwrap();
    for (name, text) in [
        ("a.yaml", "domain: shop\nslot_by: domain\n"),
        ("b.yaml", RULES),
        ("c.yaml", &RULES.replace("domain: shop", "domain: other")),
    ] {
        std::fs::write(folder.path().join(name), text).unwrap();
    }
    for (domain, key) in [
        ("shop", "charges 1 to tk1:fw:31536000s:{shop}|plan=free:"),
        ("other", "charges 1 to tk1:fw:31536000s:{other|plan=free}:"),
    ] {
        let words = ["explain", "--rules", ".", "--domain", domain, "plan=free"];
        let (_, stdout, stderr) = run(tollkeeper().current_dir(&folder).args(words));
        assert!(stdout.contains(key), "{stdout}{stderr}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_running_service_explains_by_its_own_rules_and_counters() {
    let service = Service::with(RULES).start();
    let admin = service.admin.to_string();
    let ask = |words: &[&str]| {
        let (code, stdout, stderr) =
            run(tollkeeper().args(["explain", "--admin-addr", &admin, "--domain"]).args(words));
        // The path of the rule file is private to the test.
        let rules = service.rules.display().to_string();
        (code, without_years(&stdout).replace(&rules, "rules.yaml"), stderr)
    };
    let plan = |used: u32, verdict: &str| {
        let left = 2 - used;
        format!(
            "path=/abc
  path=/abc: matches pattern `/a*`; did not match: 1 other value
  matches rule path=/a*, written at rules.yaml:8
  2 per year by token_bucket (enforced, burst 2, on_store_failure error)
    charges 2 to tk1:tb:31536000s:{{shop|path=/abc}}
    {used} used, {left} left
verdict: {verdict}
"
        )
    };
    let words = ["shop", "--hits", "2", "path=/abc"];
    assert_eq!(ask(&words), (Some(0), plan(0, "OK"), String::new()));
    service.ask(shop("path=/abc")).await.unwrap();
    assert_eq!(ask(&words), (Some(0), plan(1, "OVER_LIMIT"), String::new()));

    let (code, stdout, _) = ask(&["shpo", "path=/abc"]);
    assert!(code == Some(1) && stdout.contains("did you mean `shop`?"), "{stdout}");
    let (code, stdout, _) = ask(&["shop", r"path=\xff"]);
    assert!(code == Some(0) && stdout.starts_with("path=\\xff\n"), "{stdout}");
    let grpc = service.grpc.to_string();
    let elsewhere = ["explain", "--admin-addr", &grpc, "--domain", "shop", "a=b"];
    let (code, stdout, stderr) = run(tollkeeper().args(elsewhere));
    assert_eq!((code, stdout.as_str()), (Some(1), ""));
    assert!(stderr.starts_with(&grpc), "{stderr}");
    let both = ["explain", "--admin-addr", &admin, "--rules", "r", "--domain", "shop", "a=b"];
    assert_eq!(run(tollkeeper().args(both)).0, Some(2));
}

#[tokio::test]
async fn a_quota_is_shown_with_its_place_and_whether_the_call_draws_it_and_a_tier_with_its_headers()
{
    const QUOTAS: &str = "
domain: shop
draw: first
descriptors:
  - key: plan
    quota_mode: true
    rate_limit: { unit: year, requests_per_unit: 3, tiers: [{ at: 60, request_headers: { x-tier: warn } }, { at: 90, request_headers: { x-tier: last } }] }
  - key: credits
    quota_mode: true
    rate_limit: { unit: year, requests_per_unit: 4, count_denied: true }
  - key: cap
    rate_limit: { unit: year, requests_per_unit: 5 }
";
    let redis = Redis::start();
    for store in ["memory://", &redis.url()] {
        let service = Service::with(QUOTAS).on(store).start();
        let admin = service.admin.to_string();
        let explain = |words: &[&str]| {
            let words = [&["explain", "--addr", &admin, "--domain", "shop"], words].concat();
            let (code, stdout, stderr) = run(tollkeeper().args(words));
            assert_eq!((code, &*stderr), (Some(0), ""));
            stdout
        };
        let both = ["--hits", "2", "plan=a", "credits=a", "cap=a"];
        let facts = || {
            let shown = explain(&both);
            let lines = shown.lines().map(str::trim);
            let is_fact = |line: &&str| {
                ["drawn", "not drawn", "tier at", "verdict"]
                    .iter()
                    .any(|start| line.starts_with(start))
            };
            lines.filter(is_fact).map(str::to_owned).collect::<Vec<_>>()
        };
        let shown = explain(&both);
        for (number, more) in [(1, ", tiers at 60 % and 90 %"), (2, ", count_denied")] {
            let details =
                format!("(quota, draw first, number {number} of 2{more}, on_store_failure error)");
            assert!(shown.contains(&details), "{shown}");
        }
        let (plan, credits) = ("drawn by this call", "not drawn by this call");
        for (expected, headers) in [
            (&[plan, "tier at 60 %: x-tier: warn", credits, "verdict: OK"][..], "x-tier: warn"),
            // One is left, and does not fit two: the limit is reached.
            (&[credits, "tier at 90 %: x-tier: last", plan, "verdict: OK"], "x-tier: last"),
            // The cap denies the call uncharged, but for the quota that counts work that is done.
            (&[credits, plan, "verdict: OVER_LIMIT"], ""),
        ] {
            assert_eq!(facts(), expected, "{store}");
            let charged = ["plan", "credits", "cap"].map(|key| hits(descriptor(&[(key, "a")]), 2));
            let answer = service.ask(request("shop", charged.to_vec())).await.unwrap();
            let added: Vec<String> = answer
                .request_headers_to_add
                .iter()
                .map(|header| format!("{}: {}", header.key, header.value))
                .collect();
            assert_eq!(added.join(", "), headers);
        }
        let json: Value =
            serde_json::from_str(&explain(&["-o", "json", "plan=b", "credits=b"])).unwrap();
        let charges = ["/descriptors/0/charges/0", "/descriptors/1/charges/0"]
            .map(|path| json.pointer(path).unwrap());
        assert_eq!(charges.map(|charge| charge["drawn"].clone()), [true, false].map(Value::from));
        assert_eq!(
            (&charges[0]["tier"], explain(&["cap=a"]).contains("drawn")),
            (&Value::Null, false)
        );
    }
}

#[tokio::test]
async fn the_verdict_is_that_of_the_next_real_call_and_nothing_is_charged() {
    let redis = Redis::start();
    for store in ["memory://", &redis.url()] {
        let service = Service::with(RULES).on(store).start();
        let mut client = service.client().await;
        let mut dice = Dice(11);
        let (mut passed, mut denied) = (0, 0);
        for _ in 0..400 {
            let mut descriptors = Vec::new();
            let mut written = Vec::new();
            for _ in 0..=dice.below(2) {
                let user = ["u", "v"][dice.below(2) as usize];
                let pairs: &[(&str, &str)] = match dice.below(6) {
                    0 => &[("path", "/login"), ("user", user)],
                    1 => &[("path", "/abc")],
                    2 => &[("path", "x.pdf")],
                    3 => &[("path", user)],
                    4 => &[("free", "x")],
                    _ => &[("log", user)],
                };
                let entries: Vec<Value> = pairs
                    .iter()
                    .map(|(key, value)| json!({ "key": key, "value": value }))
                    .collect();
                let (count, back) = ([1, 1, 1, 2, 0][dice.below(5) as usize], dice.below(6) == 0);
                let asked = descriptor(pairs);
                descriptors.push(if back { refund(asked, count) } else { hits(asked, count) });
                written.push(
                    json!({ "entries": entries, "hitsAddend": count, "isNegativeHits": back }),
                );
            }
            let body = json!({ "domain": "shop", "descriptors": written }).to_string();
            let (code, _, explained) =
                service.exchange_at(service.admin, "POST", "/explain", body.as_bytes());
            assert_eq!(code, 200, "{explained}");
            let explained: Value = serde_json::from_str(&explained).unwrap();
            let answer = client.should_rate_limit(request("shop", descriptors)).await.unwrap();
            let real = answer.into_inner().overall_code().as_str_name();
            assert_eq!(explained["verdict"], real, "on {store}: {body} {explained}");
            *(if real == "OK" { &mut passed } else { &mut denied }) += 1;
        }
        assert!(passed > 50 && denied > 50, "{passed} passed, {denied} were denied");
    }
}

#[test]
fn explain_sends_no_write_to_redis() {
    let (redis, service) = Service::with(RULES).on_redis();
    let mut monitor = TcpStream::connect(("127.0.0.1", redis.port)).unwrap();
    monitor.write_all(b"MONITOR\r\n").unwrap();
    let mut lines = BufReader::new(monitor).lines().map(Result::unwrap);
    assert_eq!(lines.next().unwrap(), "+OK");
    let body = json!({ "domain": "shop", "descriptors": [
        { "entries": [{ "key": "path", "value": "/abc" }] },
        { "entries": [{ "key": "log", "value": "x" }] },
        { "entries": [{ "key": "path", "value": "x.pdf" }] },
    ] });
    service.exchange_at(service.admin, "POST", "/explain", body.to_string().as_bytes());
    let mark: String = redis.query(&["ECHO", "end-of-test"]);
    let seen: Vec<String> = lines.take_while(|line| !line.contains(&mark)).collect();
    assert!(seen.iter().any(|line| line.contains(" lua] \"GET\"")), "{seen:#?}");
    for line in &seen {
        let reads = [
            "GET", "LLEN", "LINDEX", "LRANGE", "TIME", "EVALSHA", "EVAL", "INFO", "HELLO",
            "CLIENT", "PING", "MULTI", "HGET", "HGETALL", "HLEN", "EXEC",
        ];
        let command = line.split('"').nth(1).unwrap_or("TIME").to_uppercase();
        assert!(reads.contains(&command.as_str()), "{line}");
    }
    assert_eq!(redis.keys(), [""; 0]);
}

/// Explains, and returns the exit code and stderr.
#[track_caller]
fn refused(words: &[&str]) -> (Option<i32>, String) {
    let (code, stdout, stderr) = run(tollkeeper().arg("explain").args(words));
    assert_eq!(stdout, "");
    (code, stderr)
}

#[test]
fn a_request_that_the_service_refuses_is_refused_from_files_and_by_the_service() {
    let service = Service::with(RULES).start();
    let admin = service.admin.to_string();
    let example = root().join("examples/rules.yaml").display().to_string();
    let wide = vec!["k=v"; 33].join(",");
    let many = ["k=v"; 65];
    for (domain, descriptors, expected) in [
        ("shop", &many[..], "descriptors: 65 exceeds 64\n"),
        ("shop", &[&*wide], "descriptors[0].entries: 33 exceeds 32\n"),
        ("", &["k=v"], "domain: must not be empty\n"),
    ] {
        let words = [&["--domain", domain][..], descriptors].concat();
        let from_files = [&["--rules", &example][..], &words].concat();
        assert_eq!(refused(&from_files), (Some(1), expected.to_owned()));
        let by_service = [&["--admin-addr", &admin], &words[..]].concat();
        assert_eq!(refused(&by_service), (Some(1), format!("{admin}: {expected}")));
    }
}

#[test]
fn without_rule_files_a_running_service_explains_and_never_the_shipped_example() {
    let service = Service::with(RULES).start();
    let admin = service.admin.to_string();
    let explain = |addr: &str, domain: &str| {
        let words = ["explain", "--domain", domain, "plan=free"];
        run(tollkeeper().env("TOLLKEEPER_ADMIN_ADDR", addr).args(words))
    };
    let (code, stdout, stderr) = explain(&admin, "shop");
    assert_eq!((code, stderr.as_str()), (Some(0), ""));
    assert!(stdout.starts_with(&format!("by the rules of {admin}\nplan=free\n")), "{stdout}");

    let files = |variables: &[(&str, &str)]| {
        let words = ["explain", "--domain", "example", "user=alice"];
        run(tollkeeper().current_dir(root()).envs(variables.iter().copied()).args(words))
    };
    let rules = ("TOLLKEEPER_RULES", "examples/rules.yaml");
    let (code, stdout, stderr) = files(&[rules]);
    assert_eq!((code, stderr.as_str()), (Some(0), ""));
    assert!(stdout.starts_with("by the rules of TOLLKEEPER_RULES\nuser=alice\n"), "{stdout}");
    assert_eq!(files(&[rules, ("TOLLKEEPER_ADMIN_ADDR", &admin)]).0, Some(1), "its own rules");

    let nobody = nobody().to_string();
    let (code, stdout, stderr) = explain(&nobody, "example");
    assert_eq!((code, stdout.as_str()), (Some(1), ""));
    assert!(stderr.starts_with(&format!("{nobody}: ")), "{stderr}");
    assert!(stderr.ends_with("; or name rule files by --rules\n"), "{stderr}");

    let (code, _, stderr) = explain("off", "example");
    assert_eq!(code, Some(2));
    assert!(stderr.starts_with("TOLLKEEPER_ADMIN_ADDR is off; "), "{stderr}");
}

#[test]
fn hits_are_a_whole_number_for_explain_and_call() {
    for hits in ["x", "-x", "1.5", "-1.5", "+1", "18446744073709551615", ""] {
        let problem = format!(
            "--hits: invalid value `{hits}`: must be a whole number from -9223372036854775808 to 9223372036854775807\n"
        );
        for command in ["explain", "call"] {
            let words = [command, "--domain", "shop", "--hits", hits, "a=b"];
            let expected = (Some(2), String::new(), problem.clone());
            assert_eq!(run(tollkeeper().args(words)), expected);
        }
    }
}

#[test]
fn negative_hits_are_explained_as_a_refund() {
    let (code, stdout) = explained(&["shop", "--hits", "-2", "plan=free"]);
    assert_eq!(code, Some(0));
    let line = "    gives back 2 to tk1:fw:31536000s:{shop|plan=free}:Y\n";
    assert!(stdout.ends_with(line), "{stdout}");

    let service = Service::with(RULES).start();
    let admin = service.admin.to_string();
    let words = ["--admin-addr", &admin, "--domain", "shop", "--hits", "-2", "plan=free"];
    let stdout = succeeds(tollkeeper().arg("explain").args(words));
    assert!(stdout.contains("    gives back 2 to "), "{stdout}");
}
