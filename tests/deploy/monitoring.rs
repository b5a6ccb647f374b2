//! The alerts and the dashboard of the chart, judged by the real promtool and by a real scrape.

use crate::support::{chart::*, prelude::*, scrapes::scrapes};

/// The address of the runbook in the files; the chart replaces it.
const RUNBOOK: &str = "https://github.com/tollkeeper/tollkeeper/blob/main/docs/operations.md";

/// Runs promtool, which must find nothing.
#[track_caller]
fn promtool(arguments: &[&str]) {
    succeeds(Command::new(tool("promtool")).current_dir(root()).args(arguments));
}

/// The metrics that an expression names. Other names are functions and labels.
fn metrics_of(expression: &str) -> BTreeSet<&str> {
    let is_part = |character: char| character.is_ascii_alphanumeric() || character == '_';
    let words = expression.split(|character| !is_part(character));
    let prefixes = ["ratelimit_", "rpc_server_", "db_client_", "process_"];
    words.filter(|word| prefixes.iter().any(|prefix| word.starts_with(prefix))).collect()
}

/// The tests of `alerts.txt`, as promtool reads them.
fn timelines(table: &str) -> Value {
    let timeline = |test: &str| {
        let lines: Vec<&str> = test.lines().collect();
        let [name, series @ .., times] = &lines[..] else { panic!("{test}") };
        let series = series.iter().map(|line| {
            let (series, values) = line.rsplit_once("} ").expect(line);
            json!({ "series": format!("{series}}}"), "values": values })
        });
        let (series, times): (Value, Value) =
            (series.collect(), times.split("; ").map(|time| fires(name, time)).collect());
        json!({ "name": name, "interval": "1m", "input_series": series, "promql_expr_test": times })
    };
    let tests: Value = table.split("\n\n").skip(1).map(timeline).collect();
    let files = [root().join("helm/files/alerts.yaml")];
    json!({ "rule_files": files, "evaluation_interval": "1m", "tests": tests })
}

/// The query for what fires at a time, and its result, from a text such as `8m TollkeeperPanics`. A failure shows the query, and
/// so the name of its test.
fn fires(name: &str, text: &str) -> Value {
    let (time, alerts) = text.split_once(' ').expect(text);
    let samples = alerts.split(", ").filter(|alert| *alert != "nothing").map(|alert| {
        let (count, alert) = alert.split_once(' ').unwrap_or(("1", alert));
        let (name, labels) = alert.split_once('{').unwrap_or((alert, "}"));
        let labels = format!("{{alertname=\"{name}\",{labels}");
        json!({ "labels": labels, "value": count.parse::<u32>().unwrap() })
    });
    let samples: Value = samples.collect();
    let labels = if text.contains('{') { "without (alertstate)" } else { "by (alertname)" };
    let query = format!("count {labels} (ALERTS{{alertstate=\"firing\"}}) # {name}");
    json!({ "expr": query, "eval_time": time, "exp_samples": samples })
}

#[test]
fn each_alert_fires_when_it_is_due_and_not_before() {
    let table = text("tests/deploy/alerts.txt");
    let file = TextFile::new("alerts.yaml", timelines(&table).to_string());
    promtool(&["test", "rules", &file]);
    let words: BTreeSet<&str> = table.split([' ', ',', ';', '{', '\n']).collect();
    for name in alerts().keys() {
        assert!(words.contains(&**name), "no test of {name}");
    }
}

#[test]
fn an_alert_says_what_happens_and_where_the_runbook_has_it() {
    promtool(&["test", "rules", "tests/deploy/alert_texts.yaml"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_metric_of_the_alerts_and_the_dashboard_is_in_a_scrape() {
    let lines = scrapes().await.iter().flat_map(|scrape| scrape.lines());
    let scraped: BTreeSet<&str> = lines
        .filter(|line| !line.starts_with('#'))
        .map(|line| line.split(['{', ' ']).next().unwrap())
        .collect();
    let alerts = alerts();
    let mut expressions = queries();
    expressions.extend(alerts.values().map(|alert| alert["expr"].as_str().unwrap().to_owned()));
    for expression in &expressions {
        let names = metrics_of(expression);
        assert!(!names.is_empty(), "no metric in {expression}");
        for name in names {
            assert!(scraped.contains(name), "no {name} in a scrape: {expression}");
        }
    }
}

/// Operators find each metric without knowing its name.
#[test]
fn every_metric_is_in_the_dashboard_or_an_alert() {
    let shown = text("helm/files/dashboard.json") + &text("helm/files/alerts.yaml");
    let page = text("docs/observability.md");
    let names: Vec<&str> = page
        .lines()
        .filter(|line| line.starts_with("| `") && line.contains("` (`"))
        .map(|line| line.split('`').nth(3).unwrap())
        .collect();
    assert!(names.len() > 50, "{names:?}");
    let absent: Vec<_> = names.iter().filter(|name| !shown.contains(**name)).collect();
    assert!(absent.is_empty(), "{absent:?}");
}

#[test]
fn each_panel_explains_itself_and_links_to_a_section_of_the_runbook() {
    let page = text("docs/operations.md");
    let sections: BTreeSet<String> = page
        .lines()
        .filter_map(|line| line.strip_prefix("## "))
        .map(|title| title.to_lowercase().replace(' ', "-").replace([':', '`'], ""))
        .collect();
    let dashboard: Value = serde_json::from_str(&text("helm/files/dashboard.json")).unwrap();
    for panel in dashboard["panels"].as_array().unwrap() {
        if panel["type"] == "row" {
            continue;
        }
        let title = &panel["title"];
        assert!(panel["description"].as_str().is_some_and(|text| text.ends_with('.')), "{title}");
        let link = panel["links"][0]["url"].as_str().unwrap().strip_prefix(RUNBOOK).unwrap();
        let section = link.strip_prefix('#');
        assert!(section.is_none_or(|section| sections.contains(section)), "{title}: {link}");
    }
}

#[test]
fn each_alert_links_to_its_section_of_the_runbook() {
    let page = text("docs/operations.md");
    let mut sections = BTreeMap::new();
    for section in page.split("\n## ").skip(1) {
        let (title, body) = section.split_once('\n').unwrap();
        sections.insert(title.to_lowercase().replace(' ', "-"), body);
    }
    for (name, alert) in alerts() {
        let link = alert["annotations"]["runbook_url"].as_str().unwrap();
        let section = link.strip_prefix(RUNBOOK).unwrap().strip_prefix('#').unwrap();
        let body = sections.get(section).unwrap_or_else(|| panic!("{name}: no section {section}"));
        assert!(body.contains(&format!("`{name}`")), "{section} does not name {name}");
        for part in ["- Check:", "- Action:"] {
            assert!(body.contains(part), "{section} has no {part}");
        }
    }
}

#[test]
fn the_chart_deploys_the_files_with_the_runbook_of_a_value() {
    let on = "monitoring.alerts.enabled=true,monitoring.dashboard.enabled=true";
    let runbook = "monitoring.alerts.runbook=https://wiki.example/runbook";
    let deployed = render(&["--set", on, "--set", runbook]);
    let at_wiki = |file| text(file).replace(RUNBOOK, "https://wiki.example/runbook");
    let expected = at_wiki("helm/files/alerts.yaml");
    assert_eq!(object(&deployed, "PrometheusRule")["spec"], documents(&expected)[0]);
    let dashboard = deployed.iter().find_map(|object| object["data"]["tollkeeper.json"].as_str());
    let [found, expected] = [dashboard.unwrap(), &at_wiki("helm/files/dashboard.json")]
        .map(|text| serde_json::from_str::<Value>(text).unwrap());
    assert_eq!(found, expected);
}
