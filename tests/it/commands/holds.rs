//! Holds, as somebody at a terminal takes, commits and looks at them.

use crate::support::{prelude::*, sessions::*};

const SESSIONS: &str = include_str!("holds.txt");

#[test]
fn each_session_of_holds_shows_what_its_text_says() {
    check_sessions(SESSIONS);
}

fn rules() -> String {
    shared_file(SESSIONS, "rules.yaml")
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
    let start = || Service::with(&rules()).on(&redis.url()).start();
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
    let service = Service::with(&rules()).start();
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
    service.reload(&rules().replace("key: user", "key: person"));
    wait_until("the series end", || series().is_empty());
}
