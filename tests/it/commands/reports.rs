//! What commands print for other programs: `--output`, and the files of `init`.

use crate::support::{prelude::*, service::RULES};

const BAD: &str = "domain: a\ndescriptors:\n- { key: x, rate_limit: { unit: moment } }\n";

/// The exit code and stdout of a command in a folder with the bad rules, and tests of which one fails.
fn report(words: &[&str], variables: &[(&str, &str)]) -> (Option<i32>, String) {
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("bad,1.yaml"), BAD).unwrap();
    fs::write(folder.path().join("good.yaml"), RULES).unwrap();
    let tests = "rules: good.yaml\ntests:\n- name: over\n  domain: shop\n  calls:\n  - { descriptors: user=a, expect: OVER_LIMIT }\n";
    fs::write(folder.path().join("a.test.yaml"), tests).unwrap();
    let mut command = tollkeeper();
    command.current_dir(&folder).args(words).envs(variables.iter().copied());
    let (code, stdout, _) = run(&mut command);
    (code, stdout)
}

fn parsed(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[test]
fn problems_are_results_of_sarif_with_their_lines() {
    let (code, stdout) = report(&["check", "-o", "sarif", "bad,1.yaml"], &[]);
    assert_eq!(code, Some(1));
    let report_of_bad = parsed(&stdout);
    assert_eq!(report_of_bad["version"], "2.1.0");
    let result = &report_of_bad["runs"][0]["results"][0];
    assert_eq!(result["level"], "error");
    let place = &result["locations"][0]["physicalLocation"];
    assert_eq!(place["artifactLocation"]["uri"], "bad%2C1.yaml");
    assert_eq!(place["region"], json!({ "startLine": 3, "startColumn": 33 }));
    let rules = &report_of_bad["runs"][0]["tool"]["driver"]["rules"];
    assert_eq!(rules[0]["id"], result["ruleId"]);

    let (code, stdout) = report(&["check", "--output", "sarif", "good.yaml"], &[]);
    assert_eq!((code, &parsed(&stdout)["runs"][0]["results"]), (Some(0), &json!([])));
    let (code, stdout) = report(&["test", "-o", "sarif", "a.test.yaml"], &[]);
    let region =
        &parsed(&stdout)["runs"][0]["results"][0]["locations"][0]["physicalLocation"]["region"];
    assert_eq!((code, &region["startLine"]), (Some(1), &json!(3)));
}

#[test]
fn a_check_is_a_case_of_junit_that_passes_or_has_the_problems_as_errors() {
    let (code, stdout) = report(&["check", "-o", "junit", "bad,1.yaml"], &[]);
    assert_eq!(code, Some(1));
    assert!(
        stdout.contains("errors=\"1\"") && stdout.contains("<error message=\"bad,1.yaml:3:33: "),
        "{stdout}"
    );
    let (code, stdout) = report(&["check", "-o", "junit", "good.yaml"], &[]);
    assert_eq!(code, Some(0));
    assert!(stdout.contains("tests=\"1\" failures=\"0\" errors=\"0\""), "{stdout}");
}

#[test]
fn every_command_that_prints_a_result_prints_it_as_json() {
    let service = Service::shop().start();
    let (grpc, admin) = (service.grpc.to_string(), service.admin.to_string());
    let call = ["call", "-a", &grpc, "-d", "shop", "-n", "1", "user=a", "-o", "json"];
    let explain = ["explain", "-a", &admin, "-d", "shop", "user=a", "-o", "json"];
    for (words, key) in [
        (&call[..], "overallCode"),
        (&["bench", "-a", &grpc, "-d", "shop", "--calls", "1", "user=a", "-o", "json"], "ok"),
        (&explain, "descriptors"),
        (&["healthcheck", "-a", &grpc, "-o", "json"], "status"),
        (&["status", "--addr", &admin, "-o", "json"], "replicas"),
        (&["check", "-o", "json", "examples/rules.yaml"], "rules"),
        (&["test", "-o", "json", "examples"], "passed"),
        (&["version", "-o", "json"], "version"),
    ] {
        let stdout = succeeds(tollkeeper().current_dir(root()).args(words));
        assert!(!parsed(&stdout)[key].is_null(), "{words:?}: {stdout}");
    }
    // The former names.
    for words in [
        &["bench", "--addr", &grpc, "--domain", "shop", "--calls", "1", "user=a", "--json"][..],
        &["check", "--format", "json", "examples/rules.yaml"],
    ] {
        let (_, stdout, _) = run(tollkeeper().current_dir(root()).args(words));
        assert!(parsed(&stdout).is_object(), "{words:?}");
    }
}

#[test]
fn the_files_of_init_pass_its_checks_and_are_never_overwritten() {
    let folder = TempDir::new().unwrap();
    let run_in = |words: &[&str]| run(tollkeeper().current_dir(&folder).args(words));
    let (code, stdout, stderr) = run_in(&["init", "new"]);
    assert_eq!((code, stderr.as_str()), (Some(0), ""));
    assert!(stdout.contains("\nnext: tollkeeper test new/rules && "), "{stdout}");
    assert_eq!(run_in(&["check", "new/rules"]).0, Some(0));
    assert_eq!(run_in(&["test", "new/rules"]).0, Some(0));
    for file in ["compose.yaml", "envoy.yaml", ".github/workflows/rules.yaml"] {
        let text = fs::read_to_string(folder.path().join("new").join(file)).unwrap();
        assert!(!text.contains("examples/") && !text.contains("../"), "{file}: {text}");
    }
    let compose = fs::read_to_string(folder.path().join("new/compose.yaml")).unwrap();
    let image = concat!("image: ghcr.io/tollkeeper/tollkeeper:", env!("CARGO_PKG_VERSION"));
    assert!(compose.contains(image), "{compose}");

    let rules = folder.path().join("new/rules/rules.yaml");
    fs::write(&rules, "mine").unwrap();
    let (code, _, stderr) = run_in(&["init", "new"]);
    assert_eq!(code, Some(1));
    assert_eq!(stderr, "new/rules/rules.yaml: exists; nothing was written\n");
    assert_eq!(fs::read_to_string(rules).unwrap(), "mine");
}
