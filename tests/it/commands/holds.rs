//! Holds, as somebody at a terminal takes, commits and looks at them.

use crate::support::prelude::*;

const RULES: &str = "
domain: llm
descriptors:
  - { key: user, rate_limit: { unit: year, requests_per_unit: 1000, hold: 10m } }
  - key: short
    rate_limit: { unit: year, requests_per_unit: 1000, hold: { for: 1s, estimate: 100 } }
  - key: money
    rate_limit:
      unit: year
      requests_per_unit: 9007199254740991
      hold:
        for: 10m
        estimate: 1000000
        weights: { input: 250, cached: { weight: 25, included_in: input }, output: 1000 }
  - key: route
    rate_limit: { unit: year, requests_per_unit: 1000, hold: { for: 10m, by: counter, estimate: 100 } }
  - key: job
    rate_limit: { unit: year, requests_per_unit: 1000, hold: { for: 10m, by: id, estimate: { default: 200, learned: true } } }
  - { key: plain, rate_limit: { unit: year, requests_per_unit: 1000 } }
";

fn service() -> Service {
    Service::with(RULES).start()
}

/// The exit code and the output of `tollkeeper call`, without the seconds until a reset.
fn call(service: &Service, words: &[&str]) -> (Option<i32>, String) {
    let addr = service.grpc.to_string();
    let head = ["call", "--addr", &addr, "--domain", "llm"];
    let (code, stdout, stderr) = run(tollkeeper().args(head).args(words));
    assert_eq!(stderr, "");
    let lines = stdout.lines().map(|line| line.split(", resets").next().unwrap());
    (code, lines.collect::<Vec<_>>().join("\n"))
}

/// Takes a hold, and returns its token.
#[track_caller]
fn take(service: &Service, words: &[&str], answer: &str) -> String {
    let (code, output) = call(service, words);
    let (before, token) = output.split_once("\nhold: ").unwrap_or_else(|| panic!("{output}"));
    assert_eq!((code, before), (Some(0), answer));
    token.to_owned()
}

/// The output of a command that asks the admin address.
#[track_caller]
fn admin(service: &Service, words: &[&str], flag: &str) -> String {
    let addr = service.admin.to_string();
    let (code, stdout, stderr) = run(tollkeeper().args(words).args([flag, &addr]));
    assert_eq!((code, stderr.as_str()), (Some(0), ""), "{stdout}");
    let without_times = |line: &str| match line.rsplit_once(':') {
        // The start of a window.
        Some((key, _)) if line.contains(" tk1:") => key.to_owned(),
        _ => line.split(", resets").next().unwrap().to_owned(),
    };
    stdout.lines().map(without_times).collect::<Vec<_>>().join("\n")
}

#[test]
fn a_hold_is_taken_and_committed_once_with_its_token() {
    let service = service();
    let token = take(
        &service,
        &["--hold", "300", "user=alice"],
        "OK\n  user=alice: OK, 700 left of 1000 per year",
    );
    let commit = |used: &str| call(&service, &["--commit", &token, "--used", used]);
    assert_eq!(commit("42"), (Some(0), "OK\ncommit: committed".to_owned()));
    assert_eq!(commit("42"), (Some(0), "OK\ncommit: repeated".to_owned()));
    assert_eq!(commit("0"), (Some(0), "OK\ncommit: repeated".to_owned()));
    let left = "OK\n  user=alice: OK, 958 left of 1000 per year";
    assert_eq!(call(&service, &["--hits", "0", "user=alice"]), (Some(0), left.to_owned()));

    let overrun = take(&service, &["user=bob"], "OK\n  user=bob: OK, 999 left of 1000 per year");
    let over = call(&service, &["--commit", &overrun, "--used", "9007199254740991"]);
    assert_eq!(over, (Some(0), "OK\ncommit: overrun".to_owned()));
    let denied = "OVER_LIMIT\n  user=bob: OVER_LIMIT, 0 left of 1000 per year";
    assert_eq!(call(&service, &["user=bob"]), (Some(3), denied.to_owned()));

    let unused = take(&service, &["user=eve"], "OK\n  user=eve: OK, 999 left of 1000 per year");
    let ended = call(&service, &["--commit", &unused, "--end", "503 UF"]);
    assert_eq!(ended, (Some(0), "OK\ncommit: unused".to_owned()));
}

#[test]
fn a_commit_without_an_effect_says_so_and_exits_with_1() {
    let service = service();
    let bad = "OK\ncommit: bad: the token was not made by this service, or not for this domain";
    assert_eq!(call(&service, &["--commit", "bad"]), (Some(1), bad.to_owned()));
    let token = take(&service, &["short=a"], "OK\n  short=a: OK, 900 left of 1000 per year");
    assert_eq!(
        call(&service, &["--commit", &token]),
        (Some(0), "OK\ncommit: committed".to_owned())
    );
    let late = (Some(1), "OK\ncommit: late".to_owned());
    wait_until("the hold's end", || call(&service, &["--commit", &token]) == late);
    let none = "OK\n  plain=a: OK, 999 left of 1000 per year\n\
                hold: none: no limit that counted this call has holds by token";
    assert_eq!(call(&service, &["--hold", "5", "plain=a"]), (Some(0), none.to_owned()));
    let denied = "OVER_LIMIT\n  short=b: OVER_LIMIT, 0 left of 1000 per year\n\
                  hold: none: the call was denied";
    assert_eq!(call(&service, &["--hold", "1001", "short=b"]), (Some(3), denied.to_owned()));
}

#[test]
fn usage_is_given_by_kind_where_the_limit_has_weights() {
    let service = service();
    let token = take(
        &service,
        &["--hold", "input=1000", "--hold", "output=500", "money=a"],
        // The field of the protocol has 32 bits.
        "OK\n  money=a: OK, at least 4294967295 left of at least 4294967295 per year",
    );
    let words = ["--commit", &token, "--used", "input=10", "--used", "output=17"];
    assert_eq!(call(&service, &words), (Some(0), "OK\ncommit: committed".to_owned()));
    let shown = admin(&service, &["counter", "show", "--domain", "llm", "money=a"], "--addr");
    let expected = "fixed_window: 19500 used of 9007199254740991 per year, 9007199254721491 left";
    assert_eq!(shown, expected);

    // 100 tokens of input at 250, and 900 that were cached at 25.
    let token = take(
        &service,
        &["--hold", "output=500", "money=b"],
        "OK\n  money=b: OK, at least 4294967295 left of at least 4294967295 per year",
    );
    let words = ["--commit", &token, "--used", "input=1000", "--used", "cached=900"];
    assert_eq!(call(&service, &words), (Some(0), "OK\ncommit: committed".to_owned()));
    let shown = admin(&service, &["counter", "show", "--domain", "llm", "money=b"], "--addr");
    let expected = "fixed_window: 47500 used of 9007199254740991 per year, 9007199254693491 left";
    assert_eq!(shown, expected);
}

#[test]
fn bad_flags_of_holds_are_refused_in_words() {
    let usage = |words: &[&str]| {
        let (code, stdout, stderr) =
            run(tollkeeper().args(["call", "--domain", "llm"]).args(words));
        assert_eq!((code, stdout.as_str()), (Some(2), ""), "{words:?}: {stderr}");
        stderr
    };
    let number = "must be a whole number from 0 to 9007199254740991";
    for (words, problem) in [
        (&["--hold", "many", "user=a"][..], format!("--hold: invalid value `many`: {number}\n")),
        (&["--hold", "output=-1", "user=a"], format!("--hold: invalid value `-1`: {number}\n")),
        (&["--commit", "T", "--used", "1.5"], format!("--used: invalid value `1.5`: {number}\n")),
    ] {
        let stderr = usage(words);
        assert!(stderr.contains(&problem), "{words:?}: {stderr}");
    }
    for words in [
        &["--used", "42", "user=a"][..],
        &["--end", "200 -", "user=a"],
        &["--commit", "T", "user=a"],
        &["--commit", "T", "--hits", "1"],
        &["--commit", "T", "--hold", "1"],
        &[],
    ] {
        assert!(!usage(words).is_empty(), "{words:?}");
    }
}

#[test]
fn explain_says_what_would_be_held_and_names_a_commit() {
    let service = service();
    let explain = |words: &[&str]| {
        let head = ["explain", "--domain", "llm"];
        let text = admin(&service, &[&head[..], words].concat(), "--admin-addr");
        text.lines().filter(|line| !line.contains("written at")).collect::<Vec<_>>().join("\n")
    };
    assert_eq!(
        explain(&["user=alice,hold.estimate=300"]),
        "user=alice
  parameters: hold.estimate=300
  user=alice: matches the key, with any value
  1000 per year by fixed_window (enforced, on_store_failure error)
    charges 300 to tk1:fw:31536000s:{llm|user=alice}
    holds 300 (announced by the call) by token for 10m
    0 used, 1000 left
verdict: OK"
    );
    let line = |words: &[&str], part: &str| {
        let text = explain(words);
        let found = text.lines().find(|line| line.contains(part));
        found.unwrap_or_else(|| panic!("{text}")).trim().to_owned()
    };
    assert_eq!(line(&["user=a"], "holds"), "holds 1 (the hits of the call) by token for 10m");
    assert_eq!(line(&["short=a"], "holds"), "holds 100 (the rule's default) by token for 1s");
    assert_eq!(line(&["route=a"], "holds"), "holds 100 (the rule's default) by counter for 10m");
    assert_eq!(
        line(&["--hits", "7", "route=a"], "commits"),
        "commits 7, and so ends the oldest open hold"
    );
    for used in ["200", "200"] {
        call(&service, &[&format!("job=a,hold.id={used}")]);
        call(&service, &["--hits", used, &format!("job=a,hold.id={used}")]);
    }
    assert_eq!(
        line(&["job=a,hold.id=x"], "holds"),
        "holds 200 (learned from commits) by id for 10m; a call with a known id commits"
    );
    // The command has no keys, so it cannot check the token.
    let commit = explain(&["hold.commit=abc,hold.used=42"]);
    let expected = "commit\n  parameters: hold.commit=abc, hold.used=42\n  matches a descriptor without a limit: passes\nverdict: OK";
    assert_eq!(commit, expected);
}

#[test]
fn open_holds_without_ids_are_shown_with_their_counter() {
    let service = service();
    let show = |descriptor: &str| {
        admin(&service, &["counter", "show", "--domain", "llm", descriptor], "--addr")
    };
    let expected = "fixed_window: 0 used of 1000 per year, 1000 left";
    assert_eq!(show("route=a"), expected);
    call(&service, &["--hits", "0", "route=a"]);
    call(&service, &["--hits", "0", "route=a"]);
    call(&service, &["--hits", "20", "route=a"]);
    let expected = "fixed_window: 20 used of 1000 per year, 100 held by 1 open hold, 880 left";
    assert_eq!(show("route=a"), expected);
    let explained = admin(&service, &["explain", "--domain", "llm", "route=a"], "--admin-addr");
    assert!(explained.contains("\n    20 used, 100 held, 880 left\n"), "{explained}");
    let top = admin(&service, &["top", "--once"], "--addr");
    assert!(top.contains("  remaining  held  limit          domain  rule"), "{top}");
    assert!(top.contains("        880   100  1000 per year  llm     route"), "{top}");
    let status: Value =
        serde_json::from_str(&service.exchange_at(service.admin, "GET", "/status", b"").2).unwrap();
    assert_eq!(status["top"]["hottest"][0]["held"], 100, "{status}");

    let reset = admin(&service, &["counter", "reset", "--domain", "llm", "route=a"], "--addr");
    assert_eq!(reset, "fixed_window: 20 of 1000 per year were used; now 0");
    let expected = "fixed_window: 0 used of 1000 per year, 1000 left";
    assert_eq!(show("route=a"), expected);
}

/// The sum of a series of these replicas.
fn sum(replicas: &[&Service], series: &str) -> i64 {
    let value = |service: &&Service| {
        let metrics = service.get("/metrics");
        let line = metrics.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        line.map_or(0, |value| value.parse::<i64>().unwrap())
    };
    replicas.iter().map(value).sum()
}

#[test]
fn open_and_expired_holds_are_sums_over_the_replicas_that_take_and_end_them() {
    let redis = Redis::start();
    let start = || Service::with(RULES).on(&redis.url()).start();
    let [one, other] = [start(), start()];
    let open = |rule: &str| {
        ["open", "hits"]
            .map(|of| sum(&[&one, &other], &format!("ratelimit_holds_{of}{{rule=\"{rule}\"}}")))
    };
    let user =
        take(&one, &["--hold", "30", "user=a"], "OK\n  user=a: OK, 970 left of 1000 per year");
    call(&other, &["--hold", "5", "user=b"]);
    assert_eq!(open("user"), [2, 35]);
    call(&other, &["--commit", &user, "--used", "7"]);
    assert_eq!(open("user"), [1, 5]);
    call(&one, &["job=a,hold.id=x"]);
    assert_eq!(open("job"), [1, 200]);
    call(&one, &["--hits", "20", "job=a,hold.id=x"]);
    assert_eq!(open("job"), [0, 0]);

    let short = take(&one, &["short=a"], "OK\n  short=a: OK, 900 left of 1000 per year");
    take(&one, &["short=b"], "OK\n  short=b: OK, 900 left of 1000 per year");
    let (_, outcome) = call(&other, &["--commit", &short, "--used", "20"]);
    assert_eq!(outcome, "OK\ncommit: committed");
    wait_until("the time of both has passed", || {
        let outcomes = ["expired", "elsewhere"].map(|outcome| {
            let series = format!("ratelimit_holds_total{{outcome=\"{outcome}\",rule=\"short\"}}");
            sum(&[&one, &other], &series)
        });
        // The other replica may let its holds lapse a moment later.
        outcomes == [2, 1] && open("short") == [0, 0]
    });
}

#[test]
fn the_series_of_holds_end_with_their_rule() {
    let service = service();
    let token = take(&service, &["user=alice"], "OK\n  user=alice: OK, 999 left of 1000 per year");
    call(&service, &["--commit", &token]);
    let series = || {
        let metrics = service.get("/metrics");
        let lines = metrics.lines().filter(|line| line.starts_with("ratelimit_holds_"));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(
        series(),
        [
            "ratelimit_holds_hits{rule=\"user\"} 0",
            "ratelimit_holds_open{rule=\"user\"} 0",
            "ratelimit_holds_total{outcome=\"committed\",rule=\"user\"} 1",
            "ratelimit_holds_total{outcome=\"elsewhere\",rule=\"user\"} 0",
            "ratelimit_holds_total{outcome=\"expired\",rule=\"user\"} 0",
            "ratelimit_holds_total{outcome=\"taken\",rule=\"user\"} 1",
        ]
    );
    service.reload(&RULES.replace("key: user", "key: person"));
    wait_until("the series end", || series().is_empty());
}
