//! `tollkeeper import limitador`: what it prints, and that the rules decide as limitador does.

use crate::support::{prelude::*, sessions::check_sessions};

#[test]
fn each_session_of_import_shows_what_its_text_says() {
    check_sessions(include_str!("import.txt"));
}

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
