//! docs/budgets.md: its rules, its commands, and its overlays. tests/faults/budgets.rs runs the Envoy that it names.

use crate::support::{pages::without_times, prelude::*};

/// What control planes send, and the entries of its limit.
const OVERLAID: [(&str, &[(&str, &str)]); 2] = [
    (
        "
domain: ai-gateway-quota
descriptors:
  - key: backend_name
    value: default/openai
    descriptors:
      - key: model_name_override
        value: gpt
        quota_mode: true
        rate_limit: { unit: year, requests_per_unit: 6000 }
",
        &[("backend_name", "default/openai"), ("model_name_override", "gpt")],
    ),
    (
        "
domain: default/eg/http
descriptors:
  - key: httproute/default/backend/rule/0/match/0/*
    value: httproute/default/backend/rule/0/match/0/*
    descriptors:
      - { key: rule-0-match-0, rate_limit: { unit: year, requests_per_unit: 6000 } }
",
        &[(ENVOY_GATEWAY, ENVOY_GATEWAY), ("rule-0-match-0", "alice")],
    ),
];

const ENVOY_GATEWAY: &str = "httproute/default/backend/rule/0/match/0/*";

/// The page's rules, each in a file of its own, and its overlays.
fn rules_and_overlays(page: &str) -> (Vec<&str>, Vec<&str>) {
    let files = blocks(page, "yaml").into_iter().filter(|block| block.starts_with("domain:"));
    files.partition(|block| block.contains("requests_per_unit:"))
}

fn start(rules: &[&str], overlays: &[&str]) -> Service {
    let folder = TempDir::new().unwrap();
    let mut command = serve();
    command.args(["--drain", "0s"]);
    for (flag, files) in [("--rules", rules), ("--rules-overlay", overlays)] {
        for (number, text) in files.iter().enumerate() {
            let file = folder.path().join(format!("{number}{flag}.yaml"));
            fs::write(&file, text).unwrap();
            command.arg(flag).arg(file);
        }
    }
    Service::spawn(command, folder)
}

/// What a command prints, without the times, and with `TOKEN` for its token, which later commands use.
fn shown(service: &Service, command: &str, token: &mut String) -> String {
    let binary = Path::new(tollkeeper().get_program()).parent().unwrap().to_owned();
    let path = format!("{}:/usr/bin:/bin", binary.display());
    let command = command.replace("TOKEN", token);
    let mut shell = Command::new("bash");
    shell.args(["-c", &command]).env("PATH", path);
    shell.env("TOLLKEEPER_ADDR", service.grpc.to_string());
    shell.env("TOLLKEEPER_ADMIN_ADDR", service.admin.to_string());
    let (_, text, error) = run(&mut shell);
    let after = text.split_once("hold: ").and_then(|(_, rest)| rest.split_whitespace().next());
    if let Some(printed) = after.filter(|printed| *printed != "none:") {
        *token = printed.to_owned();
    }
    let text = if token.is_empty() { text } else { text.replace(&*token, "TOKEN") };
    without_times(&text) + &error
}

#[test]
fn the_commands_of_the_page_take_holds_and_commit_them() {
    let page = page("budgets.md");
    let service = start(&rules_and_overlays(&page).0, &[]);
    let mut token = String::new();
    let mut commands = 0;
    for console in blocks(&page, "console") {
        for sample in console.split("$ ").skip(1) {
            let (command, expected) = sample.split_once('\n').unwrap();
            assert_eq!(shown(&service, command, &mut token), without_times(expected), "{command}");
            commands += 1;
        }
    }
    assert!(commands > 7, "{commands} commands");
}

#[test]
fn the_page_shows_a_part_of_the_example_of_envoy() {
    let unindented = |text: &str| text.lines().map(str::trim_start).collect::<Vec<_>>().join("\n");
    let page = page("budgets.md");
    let shown = blocks(&page, "yaml").into_iter().find(|block| block.contains("hold.commit"));
    let example = include_str!("../../../examples/envoy/budgets.yaml");
    assert!(unindented(example).contains(unindented(shown.unwrap()).trim_end()));
}

/// Each overlay makes a gateway's limit of 6,000 hold 2,000 for each call.
#[tokio::test]
async fn the_overlays_of_the_page_make_calls_of_gateways_hold() {
    let page = page("budgets.md");
    let (_, overlays) = rules_and_overlays(&page);
    assert_eq!(overlays.len(), OVERLAID.len());
    let service = start(&OVERLAID.map(|(rules, _)| rules), &overlays);
    for (rules, entries) in OVERLAID {
        let domain = rules.trim().lines().next().unwrap().strip_prefix("domain: ").unwrap();
        let ask = async |count| {
            let descriptor = match count {
                0 => descriptor(entries),
                count => hits(descriptor(entries), count),
            };
            let answer = service.ask(request(domain, vec![descriptor])).await.unwrap();
            answer.overall_code().as_str_name()
        };
        assert_eq!(
            [ask(0).await, ask(0).await, ask(0).await],
            ["OK", "OK", "OVER_LIMIT"],
            "{domain}"
        );
        assert_eq!([ask(42).await, ask(0).await], ["OK", "OK"], "{domain}");
    }
}

/// Two calls with one id: the first takes, the second commits.
#[tokio::test]
async fn the_rule_for_agentgateway_holds_by_id() {
    let page = page("budgets.md");
    let service = start(&rules_and_overlays(&page).0, &[]);
    let remaining = async |count| {
        let entries = [("user", "alice"), ("hold.id", "5f1c")];
        let call = request("agents", vec![hits(descriptor(&entries), count)]);
        service.ask(call).await.unwrap();
        let check = request("agents", vec![hits(descriptor(&[("user", "alice")]), 0)]);
        service.ask(check).await.unwrap().statuses[0].limit_remaining
    };
    assert_eq!(
        [remaining(0).await, remaining(42).await, remaining(42).await],
        [998_000, 999_958, 999_958]
    );
}
