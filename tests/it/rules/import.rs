//! `tollkeeper import limitador`: what it prints, and that the rules decide as limitador does.

use crate::support::{prelude::*, run_with_input};

const LIMITS: &str = "examples/limitador/limits.yaml";

fn import(words: &[&str]) -> (Option<i32>, String, String) {
    run(tollkeeper().current_dir(root()).args(["import", "limitador"]).args(words))
}

/// The rules of `limits`, as a service that decides by them.
fn serve(limits: &str) -> Service {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("limits.yaml");
    fs::write(&file, limits).unwrap();
    let (code, rules, stderr) = import(&[file.to_str().unwrap(), "--partial"]);
    assert_eq!(code, Some(0), "{stderr}");
    let rules_file = folder.path().join("rules.yaml");
    fs::write(&rules_file, &rules).unwrap();
    succeeds(tollkeeper().args(["check", "--strict"]).arg(&rules_file));
    Service::with(&rules).start()
}

/// Makes a call several times, and returns how many of them pass.
async fn passed(service: &Service, descriptors: &[&[(&str, &str)]], calls: usize) -> usize {
    let mut passed = 0;
    for _ in 0..calls {
        let descriptors = descriptors.iter().map(|entries| descriptor(entries)).collect();
        let answer = service.ask(request("shop", descriptors)).await.unwrap();
        passed += usize::from(answer.overall_code == 1);
    }
    passed
}

/// The example with windows that do not end during the test.
fn long_limits() -> String {
    let limits = fs::read_to_string(root().join(LIMITS)).unwrap();
    limits
        .replace("seconds: 10\n", "seconds: 31536000\n")
        .replace("seconds: 60\n", "seconds: 31536000\n")
}

#[tokio::test]
async fn the_imported_rules_deny_the_calls_that_limitador_would_limit() {
    let service = serve(&long_limits());
    let always = [("generic_key", "every_call")];
    let post = |user| [("req.method", "POST"), ("user_id", user)];
    let get = |path| [("req.method", "GET"), ("req.path", path)];
    // Three an hour for each user, and batch is one of them, although it may make five.
    for user in ["alice", "bob", "batch"] {
        assert_eq!(passed(&service, &[&always, &post(user)], 9).await, 3, "{user}");
    }
    assert_eq!(
        passed(&service, &[&always, &[("req.method", "PUT"), ("user_id", "eve")]], 9).await,
        9
    );
    // Four for all paths together, except one that is not limited.
    assert_eq!(passed(&service, &[&always, &get("/json")], 9).await, 9);
    assert_eq!(passed(&service, &[&always, &get("/a")], 3).await, 3);
    assert_eq!(passed(&service, &[&always, &get("/b")], 3).await, 1);
    assert_eq!(passed(&service, &[&always, &get("/c")], 3).await, 0);
}

/// All limits that apply to a call have room for it, or none is charged.
#[tokio::test]
async fn a_call_that_one_limit_denies_is_not_counted_for_the_others() {
    let service = serve(
        "
- { namespace: shop, max_value: 5, seconds: 31536000, conditions: [], variables: [] }
- { namespace: shop, max_value: 2, seconds: 31536000, conditions: [], variables: ['descriptors[0].user'] }
",
    );
    let always = [("generic_key", "every_call")];
    assert_eq!(passed(&service, &[&always, &[("user", "alice")]], 9).await, 2);
    assert_eq!(passed(&service, &[&always], 9).await, 3);
    assert_eq!(passed(&service, &[&always, &[("user", "bob")]], 9).await, 0);
}

#[test]
fn a_limit_that_rules_cannot_express_is_reported_with_its_location_and_no_rules_are_printed() {
    let refusal = "examples/limitador/limits.yaml:33:7: `descriptors[0]['req.path'].startsWith('/admin')` is more than \
                   comparisons of entries with texts (==, != and &&); let Envoy decide it, send the result as an entry, \
                   and compare that\n";
    let (code, stdout, stderr) = import(&[LIMITS]);
    assert_eq!((code, stdout.as_str()), (Some(1), ""));
    let hint = "no rules are printed; with --partial, the rules for the other limits are\n";
    assert_eq!(stderr, format!("{refusal}{hint}"));

    let (code, stdout, stderr) = import(&[LIMITS, "--partial"]);
    assert_eq!((code, stderr.as_str()), (Some(0), refusal));
    assert!(stdout.ends_with(&format!("# Not imported:\n#   {refusal}")), "{stdout}");
    assert_eq!(import(&[LIMITS, "--partial"]).1, stdout);
}

#[test]
fn a_file_of_several_namespaces_needs_a_choice_and_a_bad_file_is_reported() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("l.yaml");
    let file = file.to_str().unwrap();
    let limit = |namespace| {
        format!(
            "- {{ namespace: {namespace}, max_value: 1, seconds: 1, conditions: [], variables: ['descriptors[0].x'] }}\n"
        )
    };
    fs::write(file, limit("b") + &limit("a")).unwrap();
    let (code, stdout, stderr) = import(&[file]);
    assert_eq!((code, stdout.as_str()), (Some(1), ""));
    let expected = "1:1: the limits have several namespaces, and a rule file has one domain; --namespace must be one of: \
                    a, b\n";
    assert_eq!(stderr, format!("{file}:{expected}"));
    let (code, stdout, stderr) = import(&[file, "--namespace", "a", "--order", "y,x"]);
    let warning = "warning: --order: no translated limit has the key `y`; did you mean `x`?\n";
    assert_eq!((code, stderr.as_str()), (Some(0), warning));
    assert!(stdout.contains("\ndomain: a\n"), "{stdout}");

    for (text, expected) in
        [("a: [", "2:1: not YAML: "), ("kind: Limitador", "1:1: this is a Kubernetes Limitador; ")]
    {
        fs::write(file, text).unwrap();
        let (code, stdout, stderr) = import(&[file]);
        assert_eq!((code, stdout.as_str()), (Some(1), ""));
        assert!(stderr.starts_with(&format!("{file}:{expected}")), "{stderr}");
    }
    let (code, _, stderr) = import(&["gone.yaml"]);
    assert_eq!(
        (code, stderr.as_str()),
        (Some(1), "gone.yaml: No such file or directory (os error 2)\n")
    );
    assert_eq!(import(&[]).0, Some(2));
}

#[test]
fn limits_are_read_from_standard_input() {
    let limits = fs::read_to_string(root().join(LIMITS)).unwrap();
    let (code, stdout, stderr) =
        run_with_input(tollkeeper().args(["import", "limitador", "-", "--partial"]), &limits);
    assert_eq!(code, Some(0), "{stderr}");
    assert!(stderr.starts_with("standard input:33:7: "), "{stderr}");
    assert_eq!(stdout.replace("standard input", LIMITS), import(&[LIMITS, "--partial"]).1);
}

#[test]
fn limits_that_are_all_refused_give_no_rules_with_partial_either() {
    let limits = "- { namespace: '', max_value: 1, seconds: 1, conditions: [], variables: [] }\n";
    let (code, stdout, stderr) =
        run_with_input(tollkeeper().args(["import", "limitador", "-", "--partial"]), limits);
    let expected = "standard input:1:16: namespace: must not be empty\n\
                    standard input: no limit can be translated, and a rule file needs at least one\n";
    assert_eq!((code, stdout.as_str(), stderr.as_str()), (Some(1), "", expected));
}
