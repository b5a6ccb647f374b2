//! Each change on the admin address is an entry of the audit, also one that was refused.

use crate::support::{prelude::*, secured::Secured, service::exchange_with};

const RESET: &str = "/counters/reset?domain=shop&descriptor=user%3Dalice";
const SET: &str = "/counters/set?domain=shop&descriptor=user%3Dalice&used=7";

fn ask(admin: SocketAddr, method: &str, path: &str, headers: &[(&str, &str)]) -> (u16, Value) {
    let (status, _, body) = exchange_with(admin, method, path, headers, b"");
    (status, serde_json::from_str(&body).unwrap())
}

/// The entries, the newest first, each as its who, action and outcome.
#[track_caller]
fn entries(admin: SocketAddr, query: &str, headers: &[(&str, &str)]) -> Vec<[String; 3]> {
    let (status, answer) = ask(admin, "GET", &format!("/audit{query}"), headers);
    assert_eq!(status, 200, "{answer}");
    answer["entries"].as_array().unwrap().iter().map(in_short).collect()
}

fn in_short(entry: &Value) -> [String; 3] {
    ["who", "action", "outcome"].map(|name| entry[name].as_str().unwrap().to_owned())
}

fn texts<const N: usize>(expected: [[&str; 3]; N]) -> Vec<[String; 3]> {
    expected.map(|entry| entry.map(str::to_owned)).to_vec()
}

fn with(token: &str) -> [(&'static str, &str); 1] {
    [("authorization", token)]
}

fn used(admin: SocketAddr, headers: &[(&str, &str)]) -> Value {
    let show = "/counters?domain=shop&descriptor=user%3Dalice";
    ask(admin, "GET", show, headers).1["counters"][0]["used"].clone()
}

fn each_change_is_an_entry(services: &[&Service]) {
    let (first, last) = (services[0].admin, services[services.len() - 1].admin);
    let ask = |admin, method: &str, path: &str| {
        // Within a millisecond, entries of Redis's two streams have no order.
        thread::sleep(Duration::from_millis(2));
        ask(admin, method, path, &[])
    };
    assert_eq!(exchange_with(first, "GET", SET, &[], b"").0, 405, "which is no change");
    assert_eq!(ask(first, "POST", SET).0, 200);
    assert_eq!(ask(last, "POST", RESET).0, 200);
    assert_eq!(ask(first, "POST", "/log?filter=info").0, 200);
    assert_eq!(ask(last, "POST", "/counters/reset?domain=shop&descriptor=other%3D1").0, 404);
    assert_eq!(ask(first, "POST", "/log?filter=loud=1=1").0, 400);
    for service in services {
        let found = entries(service.admin, "", &[]);
        let done = texts([
            ["127.0.0.1", "reset counters", "refused: no limit applies to this descriptor"],
            ["127.0.0.1", "change log filter", "done"],
            ["127.0.0.1", "reset counters", "done"],
            ["127.0.0.1", "set counter", "done"],
        ]);
        assert_eq!(found[1..], done);
        assert_eq!(found[0][1], "change log filter");
        assert!(found[0][2].starts_with("refused: filter: "), "{found:?}");

        let set = ask(service.admin, "GET", "/audit?text=%22USED%22").1["entries"][0].clone();
        assert_eq!(
            ["domain", "descriptor"].map(|name| set[name].as_str().unwrap()),
            ["shop", "user=alice"]
        );
        assert_eq!((set["used"].as_u64(), set["who"].as_str()), (Some(7), Some("127.0.0.1")));
        assert!(set["at_ms"].as_u64().unwrap() > 1_700_000_000_000);
        assert_eq!(entries(service.admin, "?who=somebody", &[]), texts([]));

        let (mut paged, mut after) = (Vec::new(), String::new());
        loop {
            let page = ask(service.admin, "GET", &format!("/audit?limit=2{after}")).1;
            paged.extend(page["entries"].as_array().unwrap().iter().map(in_short));
            let Some(more) = page["more"].as_str() else { break };
            after = format!("&after={more}");
        }
        assert_eq!(paged, found);
    }
    let log = services[0].log();
    assert!(log.contains("set counter") && log.contains("user=alice"), "{log}");
}

#[test]
fn each_change_is_an_entry_in_memory_and_in_redis_for_all_replicas() {
    each_change_is_an_entry(&[&Service::shop().start()]);
    let redis = Redis::start();
    let start = || Service::shop().on(&redis.url_with_minimal_rights()).start();
    each_change_is_an_entry(&[&start(), &start()]);
    // Refusals are bounded apart, so that they push no change out.
    let length = |key: &str| redis.query::<u64>(&["XLEN", key]);
    assert_eq!([length("tk1:op:{audit}"), length("tk1:op:{audit-refused}")], [3, 2]);
    redis.assert_no_key_leaks();
}

#[test]
fn changes_and_refusals_within_a_millisecond_are_in_their_order_in_memory() {
    let service = Service::shop().start();
    for _ in 0..20 {
        assert_eq!(ask(service.admin, "POST", RESET, &[]).0, 200);
        assert_eq!(ask(service.admin, "POST", "/log?filter=loud=1=1", &[]).0, 400);
    }
    let found = entries(service.admin, "?limit=40", &[]);
    let actions: Vec<&str> = found.iter().map(|[_, action, _]| action.as_str()).collect();
    assert_eq!(actions, ["change log filter", "reset counters"].repeat(20));
}

#[test]
fn a_change_without_redis_is_in_the_log_and_the_audit_has_no_answer() {
    let mut redis = Redis::start();
    let service = Service::shop().on(&redis.url()).ready();
    redis.stop();
    assert_eq!(ask(service.admin, "POST", "/log?filter=off", &[]).0, 200);
    assert_eq!(ask(service.admin, "GET", "/audit", &[]).0, 503);
    let log = service.log();
    assert!(log.contains("change log filter"), "{log}");
    assert!(log.contains("Redis has not stored the last entry of the audit"), "{log}");
}

#[test]
fn named_tokens_say_who_and_a_read_only_one_changes_nothing() {
    let tokens = TextFile::new(
        "tokens",
        "alice aaaaaaaaaaaaaaaa\nbob bbbbbbbbbbbbbbbb read-only\ncccccccccccccccc\n",
    );
    let service = Service::shop().flags(&["--admin-token-file", &tokens]).start();
    let admin = service.admin;
    let [alice, bob, unnamed, wrong] =
        ['a', 'b', 'c', 'd'].map(|letter| format!("Bearer {}", letter.to_string().repeat(16)));
    assert_eq!(ask(admin, "POST", SET, &with(&alice)).0, 200);
    for (headers, path, expected) in [
        (&with(&bob)[..], RESET, 403),
        (&with(&bob), "/log?filter=debug", 403),
        (&with(&wrong), RESET, 401),
        (&[], RESET, 401),
        (&[], SET, 401),
    ] {
        assert_eq!(ask(admin, "POST", path, headers).0, expected, "{path}");
    }
    assert_eq!(used(admin, &with(&bob)), 7, "nothing was changed");
    assert_eq!(ask(admin, "POST", RESET, &with(&unnamed)).0, 200);
    let expected = texts([
        ["admin", "reset counters", "done"],
        ["127.0.0.1", "reset counters", "refused: invalid bearer token"],
        ["bob", "change log filter", "refused: this token may only read"],
        ["bob", "reset counters", "refused: this token may only read"],
        ["alice", "set counter", "done"],
    ]);
    assert_eq!(entries(admin, "", &with(&bob)), expected, "strangers have one entry a minute");

    fs::write(&*tokens, "alice dddddddddddddddd\nalice aaaaaaaaaaaaaaaa\n").unwrap();
    wait_until("both tokens of alice are valid, and no other", || {
        let status = |token: &str| ask(admin, "GET", "/log", &with(token)).0;
        [&alice, &wrong, &bob].map(|token| status(token)) == [200, 200, 401]
    });
    let everything = service.log() + &ask(admin, "GET", "/audit", &with(&alice)).1.to_string();
    for letter in ['a', 'b', 'c', 'd'] {
        assert!(!everything.contains(&letter.to_string().repeat(16)), "{everything}");
    }
}

/// The endpoints of docs/openapi.yaml, each with what a token that may only read gets, what one that may change gets, and
/// whether the status page may use it.
#[test]
fn every_admin_endpoint_refuses_strangers_readers_who_change_and_pages_that_it_is_not_for() {
    const OVERRIDE: &str = r#"{"domain":"shop","descriptor":"user=alice","action":"shadow","for":"60s","because":"a test"}"#;
    let endpoints = [
        ("GET /audit", "", 200, 200, false),
        ("GET /candidate", "", 404, 404, false),
        ("POST /candidate?order=abort&version=a", "", 403, 404, false),
        ("GET /counters?domain=shop&descriptor=user%3Dalice", "", 200, 200, true),
        ("GET /counters/list?domain=shop", "", 200, 200, false),
        ("POST /counters/reset?domain=shop&descriptor=user%3Dalice", "", 403, 200, true),
        ("POST /counters/set?domain=shop&descriptor=user%3Dalice&used=7", "", 403, 200, true),
        ("POST /explain?domain=shop&d=user%3Dalice", "", 200, 200, true),
        ("GET /log", "", 200, 200, false),
        ("POST /log?filter=info", "", 403, 200, true),
        ("GET /overrides", "", 200, 200, true),
        ("POST /overrides", OVERRIDE, 403, 200, true),
        ("GET /overrides/{id}", "", 404, 404, false),
        ("DELETE /overrides/{id}", "", 404, 404, true),
        ("GET /recording", "", 404, 404, false),
        ("POST /recording?for=10m", "", 403, 404, false),
        ("GET /stats", "", 404, 404, false),
        ("GET /status", "", 200, 200, true),
        ("GET /top", "", 200, 200, false),
        ("GET /nothing", "", 404, 404, true),
    ];
    let mut described = BTreeSet::from(["GET /", "GET /nothing"].map(str::to_owned));
    let document = documents(&page("openapi.yaml")).remove(0);
    for (path, of_path) in document["paths"].as_object().unwrap() {
        let server = of_path["servers"][0]["description"].as_str().unwrap_or_default();
        let methods =
            ["get", "post", "delete"].into_iter().filter(|name| of_path.get(name).is_some());
        let described_here = methods.map(|method| format!("{} {path}", method.to_uppercase()));
        described.extend(described_here.filter(|_| server.starts_with("The admin address")));
    }
    let walked =
        endpoints.iter().map(|(endpoint, ..)| endpoint.split('?').next().unwrap().to_owned());
    assert_eq!(walked.chain(["GET /".to_owned()]).collect::<BTreeSet<_>>(), described);

    let path = TextFile::new("tokens", "alice aaaaaaaaaaaaaaaa\nbob bbbbbbbbbbbbbbbb read-only\n");
    let service = Service::shop().flags(&["--admin-token-file", &path]).start();
    let [alice, bob, wrong] =
        ['a', 'b', 'c'].map(|letter| format!("Bearer {}", letter.to_string().repeat(16)));
    let open = Service::shop().start();
    let own = |service: &Service| format!("http://{}", service.admin);
    let (own_origin, origin_of_open) = (own(&service), own(&open));
    let (page, page_of_open) = (("origin", &*own_origin), ("origin", &*origin_of_open));
    let own_site = ("sec-fetch-site", "same-origin");
    let by_name = format!("http://localhost:{}", service.admin.port());
    let longer = format!("{own_origin}.evil.example");
    let origins = ["https://evil.example", "null", "http://127.0.0.1", &by_name, &longer];
    let foreign = origins.map(|origin| ("origin", origin)).into_iter();
    let foreign = foreign.chain(["cross-site", "same-site"].map(|site| ("sec-fetch-site", site)));
    for (endpoint, body, read, change, is_for_page) in endpoints {
        let (method, path) = endpoint.split_once(' ').unwrap();
        let path = path.replace("{id}", "00");
        let check = |service: &Service, headers: &[(&str, &str)], expected| {
            let (status, ..) =
                exchange_with(service.admin, method, &path, headers, body.as_bytes());
            assert_eq!(status, expected, "{endpoint} {headers:?}");
        };
        let of_page = if is_for_page { change } else { 403 };
        check(&service, &[], 401);
        check(&service, &with(&wrong), 401);
        check(&service, &[page], 401);
        check(&service, &with(&bob), read);
        check(&service, &with(&alice), change);
        check(&service, &[with(&alice)[0], page], of_page);
        check(&service, &[with(&alice)[0], page, own_site], of_page);
        // Without tokens, anybody but a page may change, and its own page may read.
        let changes = read == 403 || method == "DELETE";
        check(&open, &[], change);
        check(&open, &[page_of_open, own_site], if changes { 403 } else { of_page });
        for header in foreign.clone() {
            check(&service, &[with(&alice)[0], header], 403);
            check(&open, &[header], 403);
        }
    }
}

#[test]
fn requests_of_web_pages_and_foreign_hosts_change_nothing_and_are_entries() {
    for (headers, problem) in [
        (&[("origin", "https://evil.example")][..], "requests from web pages are not allowed"),
        (&[("sec-fetch-site", "cross-site")], "requests from web pages are not allowed"),
        (&[("host", "evil.example")], "host: must be an IP address or localhost"),
    ] {
        let service = Service::shop().start();
        let admin = service.admin;
        assert_eq!(ask(admin, "POST", SET, &[]).0, 200);
        assert_eq!(ask(admin, "POST", RESET, headers).0, 403);
        assert_eq!(used(admin, &[]), 7);
        let outcome = format!("refused: {problem}");
        let expected = texts([
            ["127.0.0.1", "reset counters", &outcome],
            ["127.0.0.1", "set counter", "done"],
        ]);
        assert_eq!(entries(admin, "", &[]), expected);
    }
}

#[test]
fn a_refused_request_is_an_entry_with_what_could_be_read_of_it() {
    let service = Service::shop().start();
    let admin = service.admin;
    let newest = || ask(admin, "GET", "/audit?limit=1", &[]).1["entries"][0].clone();
    let body =
        r#"{"domain":"shop","descriptor":"user=alice","limit":-5,"for":"1h","because":"INC-42"}"#;
    let (status, _, answer) = exchange_with(admin, "POST", "/overrides", &[], body.as_bytes());
    assert_eq!(status, 400, "{answer}");
    let expected = json!({
        "who": "127.0.0.1", "action": "set override", "domain": "shop", "descriptor": "user=alice", "sets": "limit -5",
        "for": "1h", "because": "INC-42", "outcome": "refused: limit: must be a whole number from 0 to 9007199254740991",
    });
    let same = |entry: Value| {
        for (name, value) in expected.as_object().unwrap() {
            assert_eq!(&entry[name], value, "{entry}");
        }
    };
    same(newest());
    assert_eq!(exchange_with(admin, "POST", "/overrides", &[], b"{\"domain\":").0, 400);
    assert!(newest()["outcome"].as_str().unwrap().starts_with("refused: body: "));
    assert_eq!(
        ask(admin, "POST", "/counters/set?domain=shop&descriptor=user%3Dbob&used=x&token=y", &[]).0,
        400
    );
    let entry = newest();
    assert_eq!(
        [&entry["action"], &entry["descriptor"], &entry["used"]],
        ["set counter", "user=bob", "x"]
    );
    assert!(entry["outcome"].as_str().unwrap().starts_with("refused: `token`: "), "{entry}");
    assert_eq!(entry["token"], Value::Null);
    assert_eq!(ask(admin, "DELETE", "/overrides/0123abcd?because=INC-42", &[]).0, 404);
    let entry = newest();
    assert_eq!(
        [&entry["action"], &entry["override"], &entry["because"]],
        ["undo override", "0123abcd", "INC-42"]
    );
    assert_eq!(ask(admin, "DELETE", "/overrides/e12d", &[]).0, 404);
    assert_eq!(newest()["override"], "e12d");
    let trial = b"{\"domain\":\"none\",\"dry_run\":true}";
    assert_eq!(exchange_with(admin, "POST", "/overrides", &[], trial).0, 400);
    assert_eq!(newest()["dry_run"], true);
}

#[test]
fn a_cursor_that_no_answer_has_had_is_refused() {
    let redis = Redis::start();
    let service = Service::shop().on(&redis.url()).ready();
    for (path, problem) in [
        ("/audit?after=0-0", "after: must be the id of an entry, such as 1764103200000-0"),
        ("/overrides?after=x", "after: must be the `more` of an answer"),
    ] {
        let (status, answer) = ask(service.admin, "GET", path, &[]);
        assert_eq!((status, answer["error"].as_str().unwrap()), (400, problem));
    }
}

#[test]
fn each_kind_of_refusal_has_its_own_first_entry() {
    let file = TextFile::new("tokens", "aaaaaaaaaaaaaaaa\n");
    let service = Service::shop().flags(&["--admin-token-file", &file]).start();
    let token = "Bearer aaaaaaaaaaaaaaaa";
    let cross_site = [("authorization", token), ("origin", "https://evil.example")];
    for headers in [&[][..], &cross_site, &[], &cross_site, &[]] {
        assert_ne!(ask(service.admin, "POST", RESET, headers).0, 200);
    }
    let expected = texts([
        ["admin", "reset counters", "refused: requests from web pages are not allowed"],
        ["127.0.0.1", "reset counters", "refused: a bearer token is required"],
    ]);
    assert_eq!(entries(service.admin, "", &with(token)), expected);
}

#[test]
fn a_flood_of_refused_requests_fills_neither_the_audit_nor_the_log() {
    let mut service = Service::shop().start();
    assert_eq!(ask(service.admin, "POST", SET, &[]).0, 200);
    for attempt in 0..300 {
        let path = format!("/counters/reset?domain=shop&descriptor=user%3Dv{attempt}");
        assert_eq!(ask(service.admin, "POST", &path, &[("origin", "https://evil.example")]).0, 403);
    }
    let found = entries(service.admin, "", &[]);
    assert_eq!(found.len(), 2, "{found:?}");
    assert_eq!(service.log().matches("refused: ").count(), 1, "{}", service.log());
    assert!(!service.log().contains("v17"), "a stranger's text is not logged");
    service.end();
    assert!(service.log().contains("refused: 299 further attempts"), "{}", service.log());
}

#[test]
fn the_name_in_the_certificate_says_who() {
    let rights = "spiffe://test/envoy: [shop]\nspiffe://test/mail: [mail]\nspiffe://test/ops: { operates: ['*'] }\n";
    let clients = TextFile::new("clients.yaml", rights);
    let secured = Secured::start(&["--tls-client-ca", "CLIENTS", "--client-domains", &clients]);
    let admin = secured.service.admin;
    let client = |name: &str| secured.authority.client_named(&[name]);
    let (envoy, ops) = (client("spiffe://test/envoy"), client("spiffe://test/ops"));
    let ask = |client, request: &str| secured.ask(admin, request, "", "", Some(client)).unwrap();
    assert_eq!(ask(&ops, &format!("POST {SET}")).0, 200);
    assert_eq!(ask(&envoy, &format!("POST {RESET}")).0, 403);
    let shown =
        secured.get(admin, "/counters?domain=shop&descriptor=user%3Dalice", "", Some(&envoy));
    assert!(shown.unwrap().1.contains(r#""used":7"#));
    // The owner of a key cannot raise its limit, nor end its ban.
    let send = |client, request: &str, body: &str| {
        let (status, body) = secured.ask(admin, request, "", body, Some(client)).unwrap();
        (status, serde_json::from_str::<Value>(&body).unwrap())
    };
    let other = |what| {
        format!(
            r#"{{"domain":"shop","descriptor":"user=alice",{what},"for":"1h","because":"abuse"}}"#
        )
    };
    assert_eq!(send(&envoy, "POST /overrides", &other(r#""limit":5000"#)).0, 403);
    let (status, set) = send(&ops, "POST /overrides", &other(r#""action":"ban""#));
    assert_eq!((status, &set["override"]["by"]), (200, &"spiffe://test/ops".into()));
    let ban = format!("/overrides/{}", set["override"]["id"].as_str().unwrap());
    assert_eq!(send(&envoy, &format!("GET {ban}"), "").0, 200);
    assert_eq!(send(&envoy, &format!("DELETE {ban}"), "").0, 403);
    assert_eq!(send(&envoy, "GET /overrides?domain=shop", "").1["overrides"][0]["action"], "ban");
    // A client that may not use the domain learns nothing by an id.
    let stranger = client("spiffe://test/mail");
    for method in ["GET", "DELETE"] {
        let [known, unknown] =
            [&*ban, "/overrides/0000"].map(|path| send(&stranger, &format!("{method} {path}"), ""));
        assert_eq!((known.0, &known), (404, &unknown));
    }
    assert_eq!(ask(&envoy, "GET /audit").0, 403);
    let (status, audit) = ask(&ops, "GET /audit");
    assert_eq!(status, 200);
    let audit: Value = serde_json::from_str(&audit).unwrap();
    let found: Vec<_> = audit["entries"].as_array().unwrap().iter().map(in_short).collect();
    let refused = "refused: domain: this client may not change `shop`";
    let unknown = "refused: id: no override in force has this id";
    let expected = texts([
        ["spiffe://test/mail", "undo override", unknown],
        ["spiffe://test/mail", "undo override", refused],
        ["spiffe://test/envoy", "undo override", refused],
        ["spiffe://test/ops", "set override", "done"],
        ["spiffe://test/envoy", "set override", refused],
        ["spiffe://test/envoy", "reset counters", refused],
        ["spiffe://test/ops", "set counter", "done"],
    ]);
    assert_eq!(found, expected);
}

#[test]
fn entries_are_escaped_and_bounded() {
    let service = Service::shop().start();
    let value = "%1B%5B31m".repeat(500);
    let path = format!("/counters/reset?domain=shop&descriptor=user%3D{value}");
    assert_eq!(ask(service.admin, "POST", &path, &[]).0, 200);
    let entry = ask(service.admin, "GET", "/audit", &[]).1["entries"][0].clone();
    let descriptor = entry["descriptor"].as_str().unwrap();
    assert!(descriptor.len() < 600 && descriptor.ends_with('…'), "{descriptor}");
    assert!(!descriptor.contains('\x1b') && !service.log().contains('\x1b'));
    let ids: BTreeSet<String> = (0..3)
        .map(|_| {
            ask(service.admin, "POST", RESET, &[]);
            ask(service.admin, "GET", "/audit?limit=1", &[]).1["entries"][0]["id"].to_string()
        })
        .collect();
    assert_eq!(ids.len(), 3, "ids are distinct, also within a millisecond");
}

#[test]
fn an_entry_names_the_client_by_the_name_that_gave_it_the_right() {
    let file =
        TextFile::new("clients.yaml", "first.example: [shop]\nops.example: { operates: [shop] }\n");
    let flags = ["--tls-client-ca", "CLIENTS", "--client-domains", &file];
    let (with_rights, without) = (Secured::start(&flags), Secured::start(&flags[..2]));
    let names = ["first.example", "ops.example"];
    for (secured, names, expected) in [
        (&with_rights, &names[..], "ops.example"),
        (&with_rights, &names[..1], "first.example"),
        (&without, &names, "first.example"),
        (&without, &["", "ops.example"], "ops.example"),
        (&without, &[""], "127.0.0.1"),
    ] {
        let client = secured.authority.client_named(names);
        let reset = format!("POST {RESET}");
        secured.ask(secured.service.admin, &reset, "", "", Some(&client)).unwrap();
        let log = secured.service.log();
        let line = log.lines().rfind(|line| line.contains("action=\"reset counters\"")).unwrap();
        assert!(line.contains(&format!("who=\"{expected}\"")), "{names:?}: {line}");
    }
}
