//! The status page on the admin address, in a real browser.

use crate::support::{browser::Browser, http::status, prelude::*};

async fn ask(service: &Service, domain: &str, key: &str, value: &str, calls: usize) {
    for _ in 0..calls {
        service.ask(request(domain, vec![descriptor(&[(key, value)])])).await.unwrap();
    }
}

/// Opens the page, whatever it shows.
fn open_any(service: &Service) -> Browser {
    let mut browser = Browser::start();
    browser.view("light", 1180);
    browser.open(&format!("http://{}/", service.admin));
    browser
}

fn open(service: &Service) -> Browser {
    let mut browser = open_any(service);
    browser.wait_for("document.body.className !== ''");
    browser
}

/// Waits until the head of the page shows this state.
#[track_caller]
fn wait_for_state(browser: &mut Browser, state: &str) {
    browser.wait_for(&format!("document.getElementById('state').textContent === '{state}'"));
}

#[track_caller]
fn wait_for_text(browser: &mut Browser, id: &str, text: &str) {
    browser.wait_for(&format!("document.getElementById('{id}').innerText.includes('{text}')"));
}

/// The text of an element.
fn text_of(browser: &mut Browser, id: &str) -> String {
    let text = browser.value(&format!("document.getElementById('{id}').textContent"));
    text.as_str().unwrap().to_owned()
}

/// All conditions that the page shows, the gravest first.
fn conditions(browser: &mut Browser) -> String {
    browser.value("[...document.querySelectorAll('#worst, #conditions li')].map(at => at.textContent).join('\\n')")
        .as_str().unwrap().to_owned()
}

#[track_caller]
fn wait_for_condition(browser: &mut Browser, text: &str, is_shown: bool) {
    browser.wait_for(&format!(
        "[...document.querySelectorAll('#worst, #conditions li')].some(at => at.textContent.includes('{text}')) === {is_shown}"
    ));
}

#[track_caller]
fn wait_for_event(browser: &mut Browser, kind: &str) {
    browser.wait_for(&format!(
        "[...document.getElementById('events').tBodies[0].rows].some(row => row.cells[1]?.innerText.startsWith('{kind}'))"
    ));
}

/// The texts of the cells of a table, row by row.
fn table(browser: &mut Browser, id: &str) -> Vec<Vec<String>> {
    let rows = format!(
        "[...document.getElementById('{id}').tBodies[0].rows].map(row => [...row.cells].map(cell => cell.innerText))"
    );
    serde_json::from_value(browser.value(&rows)).unwrap()
}

#[tokio::test]
async fn the_page_shows_the_calls_the_rules_and_the_store_and_renews_itself() {
    let redis = Redis::start();
    let store = redis.url();
    let service = Service::shop().on(&store).flags(&["--top-keys", "values"]).ready();
    let mut browser = open(&service);
    wait_for_state(&mut browser, "All is well");
    assert!(browser.text().contains("No key was denied."));
    ask(&service, "shop", "user", "two", 5).await;
    ask(&service, "shop", "work", "alice", 4).await;

    wait_for_text(&mut browser, "most-denied", "user=two");
    let [denied] = &table(&mut browser, "most-denied")[..] else { panic!("one key was denied") };
    assert_eq!(denied[0], "user=two\nshop · user=two · 2 per year");
    assert_eq!(denied[2], "3");
    let hottest = table(&mut browser, "hottest");
    assert_eq!(hottest[0][0], "user=two\nshop · user=two · 2 per year");
    assert_eq!((&*hottest[1][2], hottest.len()), ("996", 2));
    assert_eq!(table(&mut browser, "nearest")[0][1..], ["used up", "100 %"]);
    let rules = table(&mut browser, "rules");
    assert_eq!(rules[0][..3], ["user=two", "shop", "2 per year"]);
    assert!(rules[0][7].ends_with("rules.yaml:6"), "{rules:?}");
    let node = &table(&mut browser, "nodes")[0];
    assert_eq!(node[..3], [&*format!("127.0.0.1:{}", redis.port), "up", "closed"]);
    browser.wait_for("document.getElementById('p99-note').textContent.startsWith('p50 ')");
    assert_eq!(text_of(&mut browser, "store"), "Up");
    browser.wait_for(
        "document.getElementById('denied-note').textContent.startsWith('33.3 % of decisions')",
    );
    let version: Value = serde_json::from_str(&service.get("/rules")).unwrap();
    assert!(browser.text().contains(version["version"].as_str().unwrap()));

    // The rules change, and the page follows.
    service.reload("domain: other\ndescriptors: [{ key: new_rule, rate_limit: { unit: day, requests_per_unit: 1 } }]");
    wait_for_text(&mut browser, "rules", "new_rule");
    drop(redis);
    ask_once(&service).await;
    wait_for_text(&mut browser, "nodes", "outage");
    assert_eq!(text_of(&mut browser, "store"), "Down");
    browser.wait_for("document.getElementById('failed-note').textContent === '1 since the start'");
    let numbers = service.admin("GET", "/status").1["numbers"].take();
    assert_eq!(
        (&numbers["calls"]["count"], &numbers["fallbacks"]),
        (&json!(10), &json!({ "error": 1, "deny": 0, "allow": 0, "local": 0 }))
    );
    assert!(numbers["started_at"].as_u64().unwrap() > 1_700_000_000, "{numbers}");
    assert!(numbers["round_trips"]["count"].as_u64().unwrap() > 3, "{numbers}");
    assert_eq!(browser.complaints(), [""; 0]);
}

/// A call whose answer does not matter.
async fn ask_once(service: &Service) {
    let call = request("other", vec![descriptor(&[("new_rule", "a")])]);
    drop(service.ask(call).await);
}

#[tokio::test]
async fn an_outage_of_redis_is_the_first_thing_that_the_page_shows() {
    let mut redis = Redis::start();
    let store = redis.url();
    let rules = "
domain: shop
descriptors:
  - { key: user, rate_limit: { unit: year, requests_per_unit: 1000, on_store_failure: allow } }
  - { key: card, rate_limit: { unit: year, requests_per_unit: 1000 } }
";
    let service = Service::with(rules).on(&store).flags(&["--decision-budget", "1s"]).ready();
    ask(&service, "shop", "user", "alice", 2).await;
    let mut browser = open(&service);
    wait_for_state(&mut browser, "All is well");
    assert_eq!(text_of(&mut browser, "worst"), "");
    redis.stop();
    let address = format!("127.0.0.1:{}", redis.port);
    for _ in 0..4 {
        drop(service.ask(shop("user=alice")).await);
    }
    drop(service.ask(shop("card=1")).await);
    wait_for_text(&mut browser, "nodes", "open: not asked");
    wait_for_state(&mut browser, "Failing");
    let worst = text_of(&mut browser, "worst");
    assert!(
        worst.starts_with(&format!("{address} does not answer, or takes no writes \u{2013} and ")),
        "{worst}"
    );
    let all = conditions(&mut browser);
    for expected in [
        "charges/s pass without a limit (on_store_failure: allow)",
        "charges/s get an error, so their callers decide",
        "calls/s fail",
        "1 breaker opening in the last 10 minutes",
    ] {
        assert!(all.contains(expected), "{expected}: {all}");
    }
    for (tile, severity) in [
        ("store", "red"),
        ("fallbacks", "red"),
        ("failed", "red"),
        ("breaker", "amber"),
        ("decisions", ""),
    ] {
        let class = format!("document.getElementById('{tile}').parentElement.className");
        assert_eq!(browser.value(&class), severity, "{tile}");
    }
    assert!(text_of(&mut browser, "fallbacks-note").contains("allow "));
    assert_eq!(browser.value("document.title"), "Failing \u{b7} tollkeeper");
    // The head stays in view.
    browser.view("light", 1180);
    browser.picture("outage");
    browser.value("window.scrollTo(0, 100000)");
    assert_eq!(browser.value("window.scrollY > 0 && document.querySelector('.masthead').getBoundingClientRect().top === 0"), true);
    browser.view("dark", 400);
    browser.picture("outage-phone");
    let output =
        tollkeeper().args(["status", "--addr", &service.admin.to_string()]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8(output.stdout).unwrap().contains(": red, ready, "));

    redis.start_again();
    wait_for_text(&mut browser, "nodes", "closed");
    for event in ["breaker opened", "breaker closed", "store lost", "store back"] {
        wait_for_event(&mut browser, event);
    }
    assert_eq!(browser.complaints(), [""; 0]);
}

#[tokio::test]
async fn calls_above_the_decision_budget_and_overrides_that_are_not_known_are_shown() {
    let redis = Redis::start();
    let store = redis.url();
    let service = Service::shop().on(&store).flags(&["--decision-budget", "100ms"]).ready();
    // It shows the last 10 s.
    let mut browser = open(&service);
    redis.signal("STOP");
    // All at once: after the first ones have failed, the breaker answers the others.
    let client = service.client().await;
    let calls = (0..100).map(|_| {
        let mut client = client.clone();
        tokio::spawn(async move {
            drop(client.should_rate_limit(shop("user=two")).await);
        })
    });
    for call in calls.collect::<Vec<_>>() {
        call.await.unwrap();
    }
    wait_for_condition(&mut browser, "ms, above the decision budget of 100ms", true);
    browser.picture("late");

    let other = Service::shop().on(&store).start();
    let mut browser = open(&other);
    wait_for_condition(&mut browser, "overrides are not known yet", true);
    browser.picture("overrides-unknown");
    redis.signal("CONT");
    wait_for_condition(&mut browser, "overrides are not known yet", false);
}

#[test]
fn rules_that_are_refused_degrade_the_page() {
    let service = Service::shop().start();
    let mut browser = open(&service);
    let refused = "domain: shop\ndescriptors: [{ key: user, rate_limit: { unit: eon } }]\n";
    std::fs::write(&service.rules, refused).unwrap();
    wait_for_state(&mut browser, "Degraded");
    let worst = text_of(&mut browser, "worst");
    assert!(
        worst.starts_with("newer rules are not in force: ") && worst.contains("rules.yaml:2"),
        "{worst}"
    );
    assert_eq!(table(&mut browser, "events")[0][1], "rules refused");
    browser.picture("rules-refused");
}

#[test]
fn a_replica_that_drains_says_so() {
    let mut service = Service::shop().flags(&["--drain", "60s"]).start();
    let mut browser = open(&service);
    wait_for_state(&mut browser, "All is well");
    service.process().signal("TERM");
    wait_for_state(&mut browser, "Draining");
    assert_eq!(text_of(&mut browser, "worst"), "draining: new calls should go to other replicas");
    browser.picture("draining");
}

#[test]
fn a_control_plane_without_rules_is_the_worst_state() {
    let mut command = serve();
    command.args(["--rules", "xds://127.0.0.1:1?node=a"]);
    let service = Service::spawn(command, tempfile::TempDir::new().unwrap());
    let mut browser = open(&service);
    wait_for_state(&mut browser, "Failing");
    wait_for_text(&mut browser, "control-plane", "not connected (");
    let all = conditions(&mut browser);
    assert!(all.starts_with("there are no rules, so every call passes"), "{all}");
    assert!(all.contains("no connection to the control plane: "), "{all}");
    let plane = text_of(&mut browser, "control-plane");
    assert!(
        plane.starts_with("Control plane xds://127.0.0.1:1?node=a: not connected ("),
        "{plane}"
    );
    assert!(plane.ends_with("; no rules accepted yet"), "{plane}");
    browser.picture("no-rules");
}

#[tokio::test]
async fn shadow_denials_and_the_flags_of_rules_are_shown() {
    let rules = "
domain: shop
descriptors:
  - { key: user, rate_limit: { unit: year, requests_per_unit: 2 }, shadow_mode: true }
  - { key: tokens, rate_limit: { unit: year, requests_per_unit: 9, on_store_failure: deny }, quota_mode: true }
";
    let service = Service::with(rules).start();
    let mut browser = open(&service);
    ask(&service, "shop", "user", "alice", 5).await;
    ask(&service, "shop", "what", "ever", 1).await;
    ask(&service, "mail", "user", "alice", 1).await;
    browser.wait_for("document.querySelectorAll('#rules .warn').length === 1");
    let rules = table(&mut browser, "rules");
    assert_eq!(rules[0][..3], ["user\nshadow", "shop", "2 per year"]);
    assert_eq!((&*rules[0][4], &*rules[0][6]), ("0", "0 %"));
    let names: Vec<_> = rules.iter().map(|row| &*row[0]).collect();
    for name in [
        "tokens\non_store_failure: denyquota",
        "no rule matched, domain shop",
        "no rules of this domain",
    ] {
        assert!(names.contains(&name), "{name}: {names:?}");
    }
    browser.wait_for(
        "/; 0\\.\\d by shadow limits/.test(document.getElementById('denied-note').textContent)",
    );
    browser.picture("shadow");
}

#[tokio::test]
async fn the_history_is_there_when_the_page_opens() {
    let service = Service::shop().start();
    assert_eq!(service.admin("GET", "/status").1["history"], Value::Null);
    let denied = |point: &Value| point[1][1].as_f64().unwrap();
    let points = |history: &Value| history["points"].as_array().unwrap().clone();
    let history = |sum: f64| {
        eventually("two points", || {
            let history = service.admin("GET", "/status?history=1").1["history"].take();
            let is_counted = points(&history).iter().map(denied).sum::<f64>() >= sum;
            (points(&history).len() > 1 && is_counted).then_some(history)
        })
    };
    history(0.0);
    ask(&service, "shop", "user", "two", 5).await;
    // A busy machine takes a reading later.
    let history = history(0.01);
    assert_eq!((&history["every_seconds"], &history["columns"][1]), (&json!(10), &json!("denied")));
    let all: f64 = points(&history).iter().map(denied).sum();
    assert!(all <= 0.31, "3 denials in 10 s: {history:?}");
    let mut browser = open(&service);
    browser.wait_for("document.querySelectorAll('.trend path').length === 5");
    let axis = text_of(&mut browser, "decisions-note")
        + &browser
            .value("document.querySelector('#decisions ~ figure').innerText")
            .as_str()
            .unwrap()
            .replace('\n', " ");
    // A busy machine opens the page later.
    assert!(axis.contains(" ago max 0.") && axis.ends_with(" now"), "{axis}");
    browser.picture("history");
    let refused = service.admin("GET", "/status?history=all");
    assert_eq!(refused, (400, json!({ "error": "history: must be 1" })));
}

/// Types texts into fields of the page, and presses a button.
fn fill_in(browser: &mut Browser, fields: &[(&str, &str)], button: &str) {
    for (id, text) in fields {
        browser.value(&format!(
            "(field => {{ field.value = '{text}'; field.dispatchEvent(new Event('change')); }})(document.getElementById('{id}'))"
        ));
    }
    browser.value(&format!("document.querySelector('{button}').click()"));
}

#[tokio::test]
async fn a_key_is_found_by_its_descriptor() {
    let service = Service::shop().start();
    ask(&service, "shop", "user", "two", 5).await;
    ask(&service, "shop", "work", "alice", 4).await;
    let mut browser = open(&service);
    browser.wait_for("document.getElementById('find-domain').value === 'shop'");
    fill_in(&mut browser, &[("find-descriptor", "user=two")], "#find button");
    browser.wait_for("document.querySelectorAll('#keys tr.found').length === 3");
    let found = browser.value("document.getElementById('found').innerText");
    let found = found.as_str().unwrap();
    for expected in [
        "Rule user=two, ",
        "The next call would be denied.",
        "2 per year: 2 used, 0 remaining, resets in ",
    ] {
        assert!(found.contains(expected), "{expected}: {found}");
    }
    let digest = found.rsplit_once("shown as ").unwrap().1;
    assert!(table(&mut browser, "most-denied")[0][0].starts_with(digest), "{digest}");
    // Nothing can be changed without a token.
    assert_eq!(browser.value("[document.getElementById('change').hidden, document.getElementById('change-how').hidden]"), json!([true, false]));
    browser.picture("found");
    fill_in(&mut browser, &[("find-descriptor", "nothing=here")], "#find button");
    browser.wait_for("document.getElementById('found').innerText.startsWith('No rule matches')");

    // The rule of a key is a link, and the filter applies to rules and keys.
    browser.value("[...document.querySelectorAll('#hottest .link')].find(link => link.textContent === 'work').click()");
    assert_eq!(table(&mut browser, "rules").len(), 1);
    assert_eq!(table(&mut browser, "hottest").len(), 1);
    assert_eq!(browser.complaints(), [""; 0]);
}

#[tokio::test]
async fn an_operator_who_types_the_token_overrides_a_limit_and_undoes_it() {
    let token = TextFile::new("token", "a-token-of-16-characters");
    let flags = &["--admin-token-file", &token, "--top-keys", "values"];
    let service = Service::shop().flags(flags).start();
    ask(&service, "shop", "user", "two", 3).await;
    let call = || service.ask(shop("user=two"));
    let mut browser = open_any(&service);
    browser.wait_for("!document.getElementById('login').hidden");
    for (typed, state) in [("wrong", "Not current"), ("a-token-of-16-characters", "All is well")] {
        fill_in(&mut browser, &[("token", typed)], "#login button");
        wait_for_state(&mut browser, state);
    }
    assert_eq!(browser.value("document.getElementById('login').checkVisibility()"), false);
    fill_in(
        &mut browser,
        &[("find-domain", "shop"), ("find-descriptor", "user=two")],
        "#find button",
    );
    browser.wait_for("!document.getElementById('change').hidden");

    let wanted = [
        ("change-action", "limit"),
        ("change-value", "5"),
        ("change-for", "10m"),
        ("change-because", "INC-42"),
    ];
    fill_in(&mut browser, &wanted, "#change button");
    browser.wait_for("!document.getElementById('confirm').hidden");
    let effect = text_of(&mut browser, "confirm-text");
    assert!(
        effect.starts_with("limit 5 for user=two in shop, for 10m, on all replicas."),
        "{effect}"
    );
    assert_eq!(
        spell(&call().await.unwrap()),
        "OVER_LIMIT: OVER_LIMIT 0/2 YEAR",
        "not confirmed yet"
    );
    browser.picture("override-confirm");
    browser.value("document.getElementById('confirm-yes').click()");
    wait_for_text(&mut browser, "overrides", "limit 5");
    assert!(spell(&call().await.unwrap()).starts_with("OK: OK 2/5"));
    let row = &table(&mut browser, "overrides")[0];
    assert_eq!((&*row[0], &*row[1], &*row[3]), ("user=two\nshop", "limit 5", "INC-42 (admin)"));
    browser.picture("override");

    fill_in(&mut browser, &[("change-value", "7")], "#change button");
    browser.wait_for("document.getElementById('confirm-text').innerText.startsWith('limit 7 ')");
    let effect = text_of(&mut browser, "confirm-text");
    assert!(effect.contains("It supersedes limit 5 by admin until "), "{effect}");
    browser.value("document.getElementById('confirm-yes').click()");
    wait_for_text(&mut browser, "overrides", "limit 7");
    fill_in(&mut browser, &[], "#overrides td button");
    browser.value("document.getElementById('confirm-yes').click()");
    wait_for_text(&mut browser, "found", "In force again: limit 5 by admin");
    browser.wait_for("!document.getElementById('overrides').innerText.includes('limit 7')");
    fill_in(&mut browser, &[], "#overrides td button");
    browser.value("document.getElementById('confirm-yes').click()");
    browser.wait_for("document.getElementById('overrides-card').hidden");
    assert_eq!(spell(&call().await.unwrap()), "OVER_LIMIT: OVER_LIMIT 0/2 YEAR");
    fill_in(&mut browser, &[], "#reset");
    browser.wait_for("!document.getElementById('confirm').hidden");
    let effect = text_of(&mut browser, "confirm-text");
    assert!(effect.contains("2 per year: "), "{effect}");
    browser.value("document.getElementById('confirm-yes').click()");
    wait_for_text(&mut browser, "found", "0 used, 2 remaining");
    for event in ["override set", "override undone", "counters reset"] {
        wait_for_event(&mut browser, event);
    }
    browser.picture("operators");
    // The page has learned by 401 that a token is needed.
    assert_eq!(browser.complaints().iter().filter(|text| !text.contains("401")).count(), 0);
}

#[tokio::test]
async fn hostile_names_and_values_are_text() {
    let code = "<img src=x onerror=window.harmed=1>";
    let rules = format!(
        "domain: '{code}'\ndescriptors: [{{ key: '{code}', rate_limit: {{ unit: year, requests_per_unit: 1 }} }}]"
    );
    let service = Service::with(&rules).flags(&["--top-keys", "values"]).start();
    ask(&service, code, code, "</script><script>window.harmed=1</script>", 3).await;
    let mut browser = open(&service);
    browser.wait_for("document.getElementById('most-denied').rows.length > 1");
    let text = browser.text();
    assert!(text.contains(code), "{text}");
    assert!(text.contains("<script>window.harmed"), "{text}");
    assert_eq!(browser.value("window.harmed === undefined"), true);
    assert_eq!(
        browser.value("document.querySelectorAll('img, script:not(:last-child)').length"),
        0
    );
    assert_eq!(browser.complaints(), [""; 0]);
}

#[tokio::test]
async fn the_page_asks_no_other_origin_and_runs_no_other_code() {
    let service = Service::shop().start();
    let mut browser = open(&service);
    let origin = format!("http://{}/", service.admin);
    browser.wait_for("performance.getEntriesByType('resource').length > 2");
    let urls = browser.requested_urls();
    assert!(urls.len() > 3, "{urls:?}");
    for url in urls {
        assert!(url.starts_with(&origin) || url == "data:,", "{url}");
    }
    // Whatever got into the page, the policy would stop it.
    let injected = "new Promise(done => {
        document.addEventListener('securitypolicyviolation', event => done(event.effectiveDirective));
        const script = document.createElement('script');
        script.textContent = 'window.harmed = 1';
        document.body.append(script);
    })";
    assert_eq!(browser.value(injected), "script-src-elem");
    let asked = "fetch('http://localhost:1/').then(() => 'sent', () => 'refused')";
    assert_eq!(browser.value(asked), "refused");
    assert_eq!(browser.value("window.harmed === undefined"), true);
}

#[tokio::test]
async fn the_page_marks_what_is_not_current() {
    let mut service = Service::shop().start();
    ask(&service, "shop", "user", "two", 3).await;
    let mut browser = open(&service);
    let text = browser.text();
    assert!(text.contains("Store\nMemory\n1 of 1M counters"), "{text}");
    service.process().signal("KILL");
    wait_for_state(&mut browser, "Not current");
    let text = browser.text();
    assert!(
        text.contains("The service cannot be reached. The numbers below are those of "),
        "{text}"
    );
    assert_eq!(browser.value("document.title"), "Not current · tollkeeper");
    assert_eq!(table(&mut browser, "most-denied").len(), 1, "the last numbers remain");
}

/// The lowest contrast between a text and what is behind it, as WCAG 2 defines it.
const LOWEST_CONTRAST: &str = "
(() => {
    const parse = color => color.match(/[\\d.]+/g).map(Number);
    const luminance = color => parse(color).slice(0, 3).map(part => part / 255)
        .map(part => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4)
        .reduce((sum, part, index) => sum + part * [0.2126, 0.7152, 0.0722][index], 0);
    const behind = at => {
        for (; at; at = at.parentElement) {
            const color = getComputedStyle(at).backgroundColor;
            if (parse(color)[3] !== 0) return color;
        }
    };
    const contrasts = [...document.querySelectorAll('body *')]
        .filter(at => at.checkVisibility() && [...at.childNodes].some(node => node.nodeType === 3 && node.data.trim()))
        .map(at => [luminance(getComputedStyle(at).color), luminance(behind(at))].sort((a, b) => b - a))
        .map(([light, dark]) => (light + 0.05) / (dark + 0.05));
    return contrasts.length > 30 ? Math.min(...contrasts) : 0;
})()";

#[tokio::test]
async fn the_page_is_readable_in_both_colour_schemes_on_a_phone_and_with_a_keyboard() {
    let service = Service::shop().start();
    ask(&service, "shop", "user", "two", 5).await;
    let mut browser = open(&service);
    let mut grounds = Vec::new();
    for scheme in ["light", "dark"] {
        for width in [400, 830, 1180] {
            browser.view(scheme, width);
            let contrast = browser.value(LOWEST_CONTRAST).as_f64().unwrap();
            assert!(contrast >= 4.5, "{scheme}, {width}: {contrast}");
            let overflow =
                "document.documentElement.scrollWidth - document.documentElement.clientWidth";
            assert_eq!(browser.value(overflow), 0, "{scheme}, {width}");
            browser.picture(&format!("{scheme}-{width}"));
        }
        grounds.push(browser.value("getComputedStyle(document.body).backgroundColor"));
    }
    assert_ne!(grounds[0], grounds[1]);

    for table in ["hottest", "most-denied", "nearest", "rules", "nodes", "events"] {
        let parts = format!(
            "(table => table.caption.textContent.trim() !== '' && [...table.tHead.rows[0].cells].every(cell => cell.scope === 'col'))
             (document.getElementById('{table}'))"
        );
        assert_eq!(browser.value(&parts), true, "{table} has a caption and headings");
    }
    let sorted = "document.querySelector('[aria-sort]').dataset.sort";
    assert_eq!(browser.value(sorted), "decisions");
    browser.value("document.querySelector('[data-sort=denied] button').focus()");
    browser.key("Enter");
    assert_eq!(browser.value(sorted), "denied");
    let outline = "getComputedStyle(document.activeElement).outlineStyle";
    assert_eq!(browser.value(outline), "solid", "the focus is visible");
}

#[test]
fn the_data_of_the_page_is_for_the_page_alone() {
    let service = Service::shop().start();
    let own = format!("host: {}", service.admin);
    let same = "sec-fetch-site: same-origin";
    for (headers, expected) in [
        (&[&*own, same][..], "200"),
        (&[&own, same, "origin: null"], "403"),
        // A page whose name resolves to the service's address.
        (&["host: evil.example:6070", same], "403"),
    ] {
        let found = status(service.admin, "GET /status HTTP/1.1", headers, "");
        assert_eq!(found, expected, "{headers:?}");
    }
    assert_eq!(service.exchange("GET", "/status", b"").0, 404, "not on the public address");
    let (status, head, _) = service.exchange_at(service.admin, "GET", "/", b"");
    assert_eq!(status, 200);
    for part in ["frame-ancestors 'none'", "default-src 'none'"] {
        assert!(head.contains(part), "{head}");
    }
}
