//! What Helm shows after an installation, and the commands in it.

use super::Files;
use crate::support::{ads::FakeAds, chart::*, pod, prelude::*};

fn notes(arguments: &[&str]) -> String {
    let install = ["install", "release", "helm", "--dry-run=client"];
    let output = helm(&[&install, arguments].concat()).unwrap();
    output.split_once("\nNOTES:\n").expect("notes").1.to_owned()
}

/// What the pod of `helm test` prints when it calls this service.
fn call_of_helm_test(service: &Service, arguments: &[&str]) -> String {
    let folder = TempDir::new().unwrap();
    let objects = render(arguments);
    let test = objects.iter().find(|object| object["kind"] == "Pod").unwrap();
    let command = pod::command(&test["spec"], &Files::of(&objects), folder.path());
    let here = format!("--addr={}", service.grpc);
    let arguments = command.get_args().map(|argument| argument.to_str().unwrap());
    let arguments = arguments.map(|argument| match argument {
        "--addr=release-tollkeeper.default.svc:8081" => here.as_str(),
        other => other,
    });
    let mut call = Command::new(command.get_program());
    succeeds(call.args(arguments.collect::<Vec<_>>()))
}

#[test]
fn the_next_command_of_the_notes_calls_the_service() {
    let notes = notes(&[]);
    assert!(notes.contains("helm test release --namespace default --logs"), "{notes}");
    assert!(!notes.contains("control plane") && !notes.contains("no limit"), "{notes}");
    let service = Service::shop().ready();
    assert!(call_of_helm_test(&service, &[]).starts_with("OK"));
}

#[test]
fn with_a_control_plane_the_notes_say_how_to_see_its_rules() {
    let ads = FakeAds::start();
    let url = format!("controlPlane.url={}", ads.url());
    let notes = notes(&["--set", &url]);
    for text in [
        ads.url().as_str(),
        "kubectl --namespace default logs deployment/release-tollkeeper\n",
        "helm test release --namespace default --logs",
        "set test.domain and test.descriptor to values that a rule has",
    ] {
        assert!(notes.contains(text), "{text}: {notes}");
    }

    let mut command = serve();
    command.args(["--decision-budget", "10s", "--drain", "0s", "--rules", &ads.url()]);
    let service = Service::spawn(command, TempDir::new().unwrap());
    ads.request();
    let limit = json!({ "unit": "YEAR", "requestsPerUnit": 5 });
    let descriptors = json!([{ "key": "user", "rateLimit": limit }]);
    ads.respond(
        "v1",
        "n1",
        &[json!({ "name": "a", "domain": "shop", "descriptors": descriptors })],
    );
    let quoted: Vec<&str> = notes.split('"').skip(1).step_by(2).collect();
    let [connected, loaded, without] = quoted[..] else { panic!("{quoted:?}") };
    for line in [connected, loaded] {
        service.wait_for_log(line);
    }
    let asked = call_of_helm_test(&service, &["--set", &url]);
    assert!(asked.contains(without), "{asked}");
    let domain = ["--set", &url, "--set", "test.domain=shop"];
    assert!(call_of_helm_test(&service, &domain).contains("5 left of 5 per year"));
}

#[test]
fn where_helm_test_has_no_certificate_the_notes_name_the_value_that_it_needs() {
    let needs = ["--set", "tls.secret=cert,tls.clientCaSecret.name=ca"];
    let without = notes(&needs);
    assert!(!without.contains("helm test release"), "{without}");
    assert!(without.contains("test.clientSecret"), "{without}");
    let with = notes(&[&needs[..], &["--set", "test.clientSecret=client"]].concat());
    assert!(with.contains("helm test release --namespace default --logs"), "{with}");
    assert!(!with.contains("test.clientSecret"), "{with}");
}

#[test]
fn the_notes_name_the_descriptor_that_helm_test_asks_for() {
    let own = [
        "--set",
        r"rules.shop\.yaml=domain: shop",
        "--set",
        "test.domain=shop,test.descriptor=plan=free",
    ];
    let notes = notes(&own);
    assert!(notes.contains("plan=free in the domain shop:"), "{notes}");
    assert!(notes.contains("\"no limit\" in its answer"), "{notes}");
}

#[test]
fn what_the_notes_link_to_exists_and_the_status_page_is_where_they_say() {
    let notes = notes(&[]);
    let links: Vec<&str> = notes
        .lines()
        .filter_map(|line| line.trim().split_once("/main/docs/"))
        .map(|(_, page)| page)
        .collect();
    assert_eq!(links, ["envoy.md", "gateways.md"]);
    for page in links {
        assert!(root().join("docs").join(page).is_file(), "{page}");
    }
    let longest = notes.lines().map(str::len).max().unwrap();
    assert!(longest < 140, "a line of {longest} characters");
    let port = "port-forward deployment/release-tollkeeper 6070";
    assert!(notes.contains(port), "{notes}");
    let admin = tollkeeper::settings::table().into_iter().find(|row| row.flag == "admin-addr");
    assert!(admin.unwrap().default.ends_with(":6070"));
}
