//! The top keys: `/top` on the admin address, and `tollkeeper top`.

use crate::support::prelude::*;

fn top(service: &Service) -> Value {
    let (status, head, body) = service.exchange_at(service.admin, "GET", "/top", b"");
    assert_eq!(status, 200, "{head}{body}");
    serde_json::from_str(&body).unwrap()
}

/// Some fields of each key of a list.
fn keys(top: &Value, list: &str) -> Vec<(String, u64, u64)> {
    let keys = top[list].as_array().unwrap().iter();
    keys.map(|key| {
        let number = |name: &str| key[name].as_u64().unwrap();
        (key["key"].as_str().unwrap().to_owned(), number("count"), number("remaining"))
    })
    .collect()
}

fn expected(keys: &[(&str, u64, u64)]) -> Vec<(String, u64, u64)> {
    keys.iter().map(|(key, count, remaining)| ((*key).to_owned(), *count, *remaining)).collect()
}

/// Each call on a connection of its own, and so on any of the workers.
async fn ask(service: &Service, key: &str, value: &str, calls: usize) {
    for _ in 0..calls {
        service.ask(request("shop", vec![descriptor(&[(key, value)])])).await.unwrap();
    }
}

async fn calls(service: &Service) {
    ask(service, "user", "two", 5).await;
    ask(service, "work", "alice", 9).await;
    ask(service, "user", "bob", 8).await;
    // No counter is charged for these.
    ask(service, "free", "alice", 3).await;
    ask(service, "unknown", "alice", 3).await;
}

#[track_caller]
fn the_calls_are_shown(top: &Value) {
    assert_eq!(
        keys(top, "hottest"),
        expected(&[("work=alice", 9, 991), ("user=bob", 8, 2), ("user=two", 5, 0)])
    );
    assert_eq!(keys(top, "denied"), expected(&[("user=two", 3, 0)]));
    assert_eq!(keys(top, "nearest"), expected(&[("user=bob", 1, 2), ("user=two", 1, 0)]));
}

#[tokio::test]
async fn keys_over_a_shadow_limit_are_listed_apart_from_those_that_were_denied() {
    let rules = "
domain: shop
descriptors:
  - { key: user, shadow_mode: true, rate_limit: { unit: year, requests_per_unit: 2 } }
";
    let service = Service::with(rules).flags(&["--top-keys", "values"]).start();
    ask(&service, "user", "alice", 5).await;
    ask(&service, "user", "bob", 1).await;
    let top = top(&service);
    assert_eq!(keys(&top, "shadow"), expected(&[("user=alice", 3, 0)]));
    assert_eq!(keys(&top, "denied"), expected(&[]));
    let addr = service.admin.to_string();
    let text = run(tollkeeper().args(["top", "--once", "--addr", &addr])).1;
    let (_, shadow) = text.split_once("\nkeys most often over a shadow limit\n").unwrap();
    assert!(shadow.contains("user=alice") && !shadow.contains("user=bob"), "{text}");
}

#[tokio::test]
async fn the_keys_of_all_workers_are_shown_on_memory_and_on_redis() {
    let flags = &["--top-keys", "values", "--workers", "3"];
    let service = Service::shop().flags(flags).start();
    calls(&service).await;
    let top_keys = top(&service);
    the_calls_are_shown(&top_keys);
    let denied = &top_keys["denied"][0];
    let texts = ["domain", "rule", "limit", "algorithm"].map(|name| denied[name].as_str().unwrap());
    assert_eq!(texts, ["shop", "user=two", "2 per year", "fixed_window"]);
    assert_eq!((&denied["error"], &denied["capacity"]), (&0.into(), &2.into()));

    // Most of these denials come from the over-limit cache.
    let (_redis, service) = Service::shop().flags(flags).on_redis();
    calls(&service).await;
    the_calls_are_shown(&top(&service));
}

#[tokio::test]
async fn values_are_digests_unless_a_setting_shows_them() {
    let service = Service::shop().start();
    ask(&service, "user", "alice", 2).await;
    let text = top(&service).to_string();
    assert!(!text.contains("alice"), "{text}");
    let shown = keys(&top(&service), "hottest");
    let [(digest, 2, 8)] = &shown[..] else { panic!("{shown:?}") };
    assert!(digest.len() == 16 && digest.chars().all(|c| c.is_ascii_hexdigit()), "{digest}");
    assert!(!service.log().contains("alice"));
    let shown = printed(&["top", "--once", "--addr", &service.admin.to_string()]);
    assert!(shown.contains("Keys without `=` are digests. Commands take them"), "{shown}");

    let service = Service::shop().flags(&["--top-keys", "off"]).start();
    ask(&service, "user", "alice", 1).await;
    let (status, _, body) = service.exchange_at(service.admin, "GET", "/top", b"");
    assert_eq!((status, &*body), (404, r#"{"error":"keys are not counted: --top-keys is off"}"#));
}

#[test]
fn only_the_admin_address_shows_keys() {
    let service = Service::shop().start();
    assert_eq!(service.exchange("GET", "/top", b"").0, 404);
    let token = TextFile::new("token", "a-token-of-16-characters");
    let service = Service::shop().flags(&["--admin-token-file", &token]).start();
    assert_eq!(service.admin("GET", "/top").0, 401);
    printed(&["top", "--addr", &service.admin.to_string(), "--token-file", &token]);
}

#[tokio::test]
async fn the_command_prints_tables_once_if_stdout_is_not_a_terminal() {
    let service = Service::shop().flags(&["--top-keys", "values"]).start();
    calls(&service).await;
    let addr = service.admin.to_string();
    let text = printed(&["top", "--addr", &addr, "--rows", "1"]);
    assert!(text.starts_with(|first: char| first.is_ascii_digit()), "{text}");
    assert!(text.lines().next().unwrap().ends_with(" failed calls/s, p99 -, store up"), "{text}");
    let lines: Vec<&str> = text.lines().skip(2).collect();
    assert!(lines[0].starts_with("decisions of this replica in the last "), "{text}");
    let cells = |line: &str| line.split_whitespace().skip(1).collect::<Vec<_>>().join(" ");
    assert_eq!(lines[2], "hottest keys");
    assert_eq!(cells(lines[4]), "9 991 1000 per year shop work work=alice");
    assert_eq!(lines[6], "most denied keys");
    assert_eq!(cells(lines[8]), "3 0 2 per year shop user=two user=two");
    assert_eq!(lines[10], "keys nearest to their limit");
    assert_eq!(cells(lines[12]), "1 2 10 per year shop user user=bob");
    assert_eq!(lines.len(), 13);

    let shown = printed(&["top", "--addr", &addr, "--json"]);
    the_calls_are_shown(&serde_json::from_str(&shown).unwrap());
}

#[test]
fn the_command_says_why_it_has_no_keys() {
    let service = Service::shop().flags(&["--top-keys", "off"]).start();
    let text = printed(&["top", "--once", "--addr", &service.admin.to_string()]);
    assert!(text.ends_with("\n\nkeys are not counted: --top-keys is off\n"), "{text}");
}

#[tokio::test]
async fn the_keys_of_several_replicas_are_merged() {
    let redis = Redis::start();
    let start = |flags| Service::shop().flags(flags).on(&redis.url()).start();
    let top = |services: &[&Service], words: &[&str]| {
        let mut command = tollkeeper();
        command.args(["top", "--once"]).args(words);
        for service in services {
            command.args(["--addr", &service.admin.to_string()]);
        }
        let (code, text, _) = run(&mut command);
        (code, text)
    };
    let flags = &["--top-keys", "values"];
    let (one, other) = (start(flags), start(flags));
    ask(&one, "user", "two", 3).await;
    ask(&other, "user", "two", 2).await;
    ask(&other, "work", "alice", 9).await;
    let (code, text) = top(&[&one, &other], &["--filter", "USER"]);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("\ndecisions of 2 replicas in the last "), "{text}");
    let hottest = text.lines().skip_while(|line| *line != "hottest keys").nth(2).unwrap();
    assert!(hottest.ends_with("5          0  2 per year  shop    user=two  user=two"), "{text}");
    assert!(!text.contains("alice"), "{text}");
    let (_, text) = top(&[&one, &other], &[]);
    assert!(text.contains(&format!("work=alice at {}", other.admin)), "{text}");

    // A key that one replica alone shows names it; one that does not answer is named, and the others are shown.
    let digests = start(&[]);
    ask(&digests, "user", "two", 3).await;
    let gone = start(&[]).admin.to_string();
    let (code, text) = top(&[&one, &digests], &["--addr", &gone]);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains(&format!("\nred: {gone}: ")), "{text}");
    assert!(text.contains(&format!(" at {}", digests.admin)), "{text}");
    let (code, text) = top(&[&one, &digests], &["--addr", &gone, "-o", "json"]);
    assert_eq!(code, Some(1), "{text}");
    let tops: Vec<Value> = serde_json::from_str(&text).unwrap();
    assert_eq!(tops.len(), 2, "{text}");
}

#[tokio::test]
async fn a_digest_is_the_same_on_all_replicas_and_every_command_takes_it() {
    let redis = Redis::start();
    let store = redis.url();
    let flags = &["--log-denials", "1000/s", "--log-level", "info,tollkeeper::decision=debug"];
    let replicas = [(); 2].map(|()| Service::shop().on(&store).flags(flags).start());
    let [one, other] = &replicas;
    // The first digest that is shown makes the key.
    replicas.iter().for_each(|replica| drop(top(replica)));
    for service in [one, other, one] {
        ask(service, "user", "two", 1).await;
    }
    let [(digest, 2, 0)] = &keys(&top(one), "hottest")[..] else { panic!("{}", top(one)) };
    assert_eq!(keys(&top(other), "hottest"), [(digest.clone(), 1, 0)]);
    let addresses = replicas.each_ref().map(|replica| replica.admin.to_string());
    let fleet = printed(&["top", "--once", "--addr", &addresses[0], "--addr", &addresses[1]]);
    let merged = format!("3          0  2 per year  shop    user=two  {digest}\n");
    assert!(fleet.contains(&merged), "{fleet}");
    for line in [format!("caller {digest}"), format!("key={digest:?}")] {
        assert!(one.log().contains(&line), "{line}: {}", one.log());
    }

    let admin =
        |words: &[&str]| printed(&[words, &["--addr", &addresses[1], "-d", "shop"]].concat());
    assert!(admin(&["counter", "show", digest]).starts_with("fixed_window: 2 used of 2 per year"));
    let listed = admin(&["counter", "list", digest]);
    assert!(listed.starts_with("user=two: fixed_window: 2 used of 2 per year"), "{listed}");
    let explained = admin(&["explain", digest]);
    assert!(explained.starts_with("user=two\n"), "{explained}");
    let set = ["override", "set", digest, "--times", "3", "--for", "1m", "--because", "x", "--yes"];
    let set = admin(&set);
    assert!(set.contains(": times 3 for user=two in shop, "), "{set}");
    let was = admin(&["counter", "set", digest, "--used", "1"]);
    assert!(was.starts_with("fixed_window: 1 used (was 2) of 6 per year"), "{was}");
    assert!(admin(&["counter", "reset", digest]).starts_with("fixed_window: 1 of 6 per year"));
    let audit = printed(&["audit", "--addr", &addresses[0], "--text", "user=two"]);
    assert_eq!(audit.lines().count(), 3, "{audit}");

    let unknown = "0123456789abcdef";
    let command = |words: &[&str]| {
        run(tollkeeper().args(words).args(["--addr", &addresses[1], "-d", "shop"])).2
    };
    for words in [&["counter", "show", unknown][..], &["explain", unknown]] {
        let problem = "descriptor: no counter of this domain has the digest 0123456789abcdef now";
        assert!(command(words).contains(problem), "{}", command(words));
    }
    let problem = command(&["counter", "reset", "--matching", unknown]);
    assert!(problem.contains("a digest is of one descriptor; leave out --matching"), "{problem}");
}

/// Each walk asks Redis for its keys.
#[tokio::test]
async fn digests_are_looked_up_in_one_walk_and_only_where_a_descriptor_is_read() {
    let (redis, service) = Service::shop().flags(&["--max-descriptors", "3"]).on_redis();
    // The first digest that is shown makes the key.
    drop(top(&service));
    ask(&service, "user", "alice", 2).await;
    ask(&service, "user", "bob", 1).await;
    let [(alice, ..), (bob, ..)] = &keys(&top(&service), "hottest")[..] else { panic!() };
    let ask = |method, path: &str, count: usize| {
        let before = redis.runs_of("scan");
        let digests: String =
            [alice, bob].iter().cycle().take(count).map(|one| format!("&d={one}")).collect();
        let path = format!("{path}?domain=shop{digests}");
        let (status, _, body) = service.exchange_at(service.admin, method, &path, b"");
        (status, redis.runs_of("scan") - before, body)
    };
    let (status, walks, body) = ask("POST", "/explain", 3);
    assert_eq!((status, walks), (200, 1), "{body}");
    assert_eq!(body.matches("user=alice").count(), 2 * body.matches("user=bob").count(), "{body}");
    let (status, walks, body) = ask("POST", "/explain", 4);
    assert_eq!((status, walks), (400, 0), "{body}");
    assert!(body.contains("descriptors: 4 exceeds 3"), "{body}");
    for (method, path) in
        [("GET", "/nope"), ("GET", "/status"), ("GET", "/audit"), ("POST", "/log")]
    {
        assert_eq!(ask(method, path, 1).1, 0, "{path}");
    }
}

/// What the command prints, if it succeeds.
#[track_caller]
fn printed(words: &[&str]) -> String {
    succeeds(tollkeeper().args(words))
}

#[test]
fn a_key_that_is_printed_is_an_argument_of_every_command() {
    let service = Service::shop().flags(&["--top-keys", "values"]).start();
    let (grpc, admin) = (service.grpc.to_string(), service.admin.to_string());
    for (index, value) in
        [r"a\,b", "a=b", "100%", "%41", r"a\\b", r"\xff\x00", "a b", "*", "über|{x}"]
            .iter()
            .enumerate()
    {
        let typed = format!("work={value}");
        let call = |key: &str| printed(&["call", "-o", "json", "--addr", &grpc, "-d", "shop", key]);
        let admin = |words: &[&str]| printed(&[words, &["--addr", &admin, "-d", "shop"]].concat());
        let json = |words: &[&str]| -> Value {
            let addr = service.admin.to_string();
            serde_json::from_str(&printed(&[words, &["--addr", &addr]].concat())).unwrap()
        };
        call(&typed);
        let shown = json(&["top", "-o", "json"]);
        let all = shown["hottest"].as_array().unwrap();
        let key = all.iter().find(|key| key["count"] == 1).unwrap()["key"].as_str().unwrap();
        call(key);
        assert!(admin(&["counter", "show", key]).starts_with("fixed_window: 2 used"), "{key}");
        let listed = admin(&["counter", "list", key]);
        assert!(listed.contains(&format!("{key}: fixed_window: 2 used")), "{key}: {listed}");
        let explained = admin(&["explain", key]);
        assert!(
            explained.starts_with(&format!("{key}\n")) && explained.contains("2 used, "),
            "{explained}"
        );
        let rules = service.rules.display().to_string();
        let from_files = printed(&["explain", "-r", &rules, "-d", "shop", key]);
        assert!(from_files.starts_with(&format!("{key}\n")), "{from_files}");
        if *value != "*" {
            let set =
                ["override", "set", key, "--times", "2", "--for", "1m", "--because", "x", "--yes"];
            admin(&set);
            let set = json(&["override", "list", "-o", "json"]);
            assert_eq!(set["overrides"][0]["descriptor"], key, "{set}");
        }
        admin(&["counter", "reset", key]);
        // Of the next value, one call is counted once.
        assert_eq!(all.len(), index + 1, "{shown}");
    }
}

/// `script` gives the command a terminal.
#[tokio::test]
async fn on_a_terminal_the_view_renews_itself_and_says_when_it_is_not_current() {
    let [coloured, plain] =
        [renewed_view("TERM", "xterm").await, renewed_view("NO_COLOR", "1").await];
    let has_row = |screen: &str, start, end| {
        screen.lines().any(|line| line.starts_with(start) && line.contains(end))
    };
    assert!(has_row(&coloured, "\x1b[31m! ", "user=two\x1b[0m"), "{coloured:?}");
    assert!(has_row(&plain, "! ", "user=two") && !plain.contains("\x1b[31m"), "{plain:?}");
    assert!(!plain.contains("\x1b[1m"), "{plain:?}");
}

/// What the view writes until the service is gone, after a key was denied; with this variable.
async fn renewed_view(variable: &str, value: &str) -> String {
    let mut service = Service::shop().flags(&["--top-keys", "values"]).start();
    let folder = tempfile::TempDir::new().unwrap();
    let screen = folder.path().join("screen");
    let command = tollkeeper();
    let program = command.get_program().to_str().unwrap();
    let words = format!("{program} top --interval 100ms --addr {}", service.admin);
    let mut script = std::process::Command::new("script");
    script.args(["--quiet", "--flush", "--command", &words]).arg(&screen);
    script.env_remove("NO_COLOR").env("TERM", "xterm").env(variable, value);
    script.env("TOLLKEEPER_ADMIN_ADDR", "").stdout(Stdio::null());
    let _view = Process::spawn(&mut script);
    let shows = |text: &str| {
        let screen =
            String::from_utf8_lossy(&std::fs::read(&screen).unwrap_or_default()).into_owned();
        let last =
            screen.rsplit("\x1b[H").find(|frame| frame.contains("\x1b[J")).map(str::to_owned);
        last.is_some_and(|frame| frame.contains(text)).then_some(())
    };
    eventually("an empty view", || shows("no key was denied"));
    ask(&service, "user", "two", 3).await;
    // A view between the calls has the key too.
    let has_denied = || shows("user=two").filter(|()| shows("no key was denied").is_none());
    eventually("the denied key", has_denied);
    service.process().signal("KILL");
    eventually("the failure", || shows("NOT CURRENT: "));
    assert_eq!(shows("user=two"), Some(()));
    String::from_utf8_lossy(&std::fs::read(&screen).unwrap()).into_owned()
}
