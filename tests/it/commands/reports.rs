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
fn problems_and_failed_tests_are_annotations_on_github() {
    let annotation = "::error file=bad%2C1.yaml,line=3,col=33::unit: must be one of: second, ";
    let (code, stdout) = report(&["check", "-o", "github", "bad,1.yaml"], &[]);
    assert_eq!(code, Some(1));
    assert!(stdout.starts_with(annotation), "{stdout}");
    let on_github = [("GITHUB_ACTIONS", "true")];
    assert_eq!(report(&["check", "bad,1.yaml"], &on_github), (code, stdout));

    let (code, stdout) = report(&["test", "a.test.yaml"], &on_github);
    assert_eq!(code, Some(1));
    assert!(stdout.starts_with("::error file=a.test.yaml,line=3,col="), "{stdout}");
    assert!(stdout.contains("::over: a.test.yaml:6:5, at 0s: user=a%0A"), "{stdout}");
    assert!(stdout.ends_with("0 passed, 1 failed\n"), "{stdout}");
    let (code, stdout) = report(&["check", "good.yaml"], &on_github);
    assert_eq!((code, stdout.starts_with("ok: ")), (Some(0), true), "{stdout}");
    let (_, stdout) = report(&["check", "-o", "text", "bad,1.yaml"], &on_github);
    assert_eq!(stdout, "");
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
fn a_call_without_a_limit_is_pointed_out_and_fails_if_a_limit_is_required() {
    let service = Service::shop().start();
    let addr = service.grpc.to_string();
    let call = |words: &[&str]| {
        let command = ["call", "--addr", &addr, "--domain", "shop"];
        run(tollkeeper().args(command).args(words))
    };
    let (code, stdout, stderr) = call(&["usre=a"]);
    assert_eq!((code, stdout.as_str()), (Some(0), "OK\n  usre=a: OK, no limit\n"));
    assert!(
        stderr.starts_with("warning: no limit applies to a descriptor; `tollkeeper explain`"),
        "{stderr}"
    );
    assert_eq!(call(&["--require-limit", "usre=a"]).0, Some(1));
    let (code, _, stderr) = call(&["--require-limit", "user=a"]);
    assert_eq!((code, stderr.as_str()), (Some(0), ""));
}

#[test]
fn serve_checks_all_settings_and_rules_without_starting() {
    let check = |words: &[&str]| {
        run(tollkeeper().current_dir(root()).args(["serve", "--check"]).args(words))
    };
    let (code, stdout, stderr) =
        check(&["--rules", "examples/rules.yaml", "--store", "redis://127.0.0.1:1"]);
    assert_eq!((code, stderr.as_str()), (Some(0), ""));
    assert_eq!(stdout, "ok: the settings, and 4 rules in 1 domain\n");
    let (code, stdout, stderr) = check(&["--drain", "x", "--rules", "gone.yaml"]);
    assert_eq!((code, stdout.as_str(), stderr.lines().count()), (Some(2), "", 2), "{stderr}");
    let (code, _, stderr) = check(&["--store", "memory://", "--replicas", "3"]);
    assert_eq!(code, Some(0));
    assert!(stderr.starts_with("warning: --replicas has no effect"), "{stderr}");
}

#[test]
fn settings_of_another_machine_may_name_files_that_do_not_exist_on_this_one() {
    let check = |check: &str, words: &[&str]| {
        run(tollkeeper().current_dir(root()).args(["serve", check]).args(words))
    };
    let files = ["--tls-cert=gone.crt", "--tls-key=gone.key", "--hold-key-file=gone.keys"];
    let rules = ["--rules=examples/rules.yaml"];
    let all = [&files[..], &rules].concat();
    assert_eq!(check("--check", &all).0, Some(2));
    let (code, stdout, stderr) = check("--check=elsewhere", &all);
    assert_eq!((code, stderr.lines().count()), (Some(0), 2), "{stderr}");
    assert!(stderr.starts_with("warning: --tls-cert: gone.crt: No such file"), "{stderr}");
    assert_eq!(stdout, "ok: the settings, and 4 rules in 1 domain\n");
    // Rules are never absent, and other problems remain.
    let (code, _, stderr) =
        check("--check=elsewhere", &["--rules=gone.yaml", "--tls-cert=gone.crt"]);
    assert_eq!((code, stderr.lines().count()), (Some(2), 2), "{stderr}");
    assert!(stderr.contains("gone.yaml") && stderr.contains("needs --tls-key"), "{stderr}");
    assert_eq!(check("--check=nowhere", &all).0, Some(2));
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

#[test]
fn a_terminal_shows_the_line_of_a_problem_with_a_caret() {
    const IN_TERMINAL: &str = "import pty, sys; pty.spawn(sys.argv[1:])";
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("bad.yaml"), BAD).unwrap();
    let mut terminal = Command::new(tool("python"));
    terminal.args(["-c", IN_TERMINAL, "env", "NO_COLOR=1"]).arg(tollkeeper().get_program());
    let (_, stdout, _) = run(terminal.current_dir(&folder).args(["check", "bad.yaml"]));
    let shown = stdout.replace('\r', "");
    let expected =
        "error: unit: must be one of: second, minute, hour, day, week, month, year; not `moment`
 --> bad.yaml:3:33
  |
3 | - { key: x, rate_limit: { unit: moment } }
  |                                 ^
";
    assert!(shown.contains(expected), "{shown}");
}
