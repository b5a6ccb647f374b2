//! The applications in examples/applications: their own tests, and the session that their pages show, with a real service.

use super::path;
use crate::support::{prelude::*, service::*};

const GUESS: &[u8] = b"user=alice&password=guess";

/// Runs `./try install`, `./try test` and `./try serve` in the folder, and compares answers with the page's, and with
/// what it says of a service that has stopped.
#[track_caller]
fn answers_as_its_page_shows(folder: &str) {
    let rules = include_str!("../../../examples/applications/rules.yaml");
    assert_eq!(rules.matches("unit: minute").count(), 3);
    // No window ends during the test.
    let rules = rules.replace("unit: minute", "unit: year");
    let service = Service::with(&rules).start();
    let folder = root().join("examples/applications").join(folder);
    let scratch = TempDir::new().unwrap();
    let step = |step| {
        let mut command = Command::new(folder.join("try"));
        command
            .arg(step)
            .env("PATH", path())
            .env("SCRATCH", scratch.path())
            .env("TOLLKEEPER", service.grpc.to_string())
            .env_remove("RUSTC_BOOTSTRAP");
        command
    };
    for name in ["install", "test"] {
        succeeds(&mut step(name));
    }

    let address = nobody();
    let mut serve = step("serve");
    serve.env("PORT", address.port().to_string());
    let log = scratch.path().join("log");
    let file = fs::File::create(&log).unwrap();
    let mut application = Process::spawn(serve.stdout(file.try_clone().unwrap()).stderr(file));
    let form = ("content-type", "application/x-www-form-urlencoded");
    eventually("the application listens, and its client is connected", || {
        TcpStream::connect(address).ok()?;
        assert_eq!(exchange(address, "GET", "/healthz", b"").0, 200);
        let stranger = b"user=bob&password=guess";
        (exchange_with(address, "POST", "/login", &[form], stranger).0 == 401).then_some(())
    });
    let page = fs::read_to_string(folder.join("README.md")).unwrap();
    let key = ("authorization", "Bearer key-of-alice");
    let guess = |_| exchange_with(address, "POST", "/login", &[form], GUESS).0;
    let report = |_| exchange_with(address, "GET", "/reports", &[key], b"").0;
    let guesses: Vec<_> = (0..6).map(guess).collect();
    let reports: Vec<_> = (0..11).map(report).collect();
    for (answers, allowed) in [(guesses, 401), (reports, 200)] {
        let shown: String = answers.iter().map(|code| format!("{code}\n")).collect();
        let expected = format!("{allowed}\n").repeat(answers.len() - 1) + "429\n";
        assert_eq!(shown, expected);
        assert!(page.contains(&format!("\n{shown}")), "the page lacks\n{shown}");
    }

    drop(service);
    assert_eq!((guess(0), report(0)), (503, 200), "the service has stopped");
    wait_until("the application logs that the service is away", || {
        fs::read_to_string(&log).unwrap().contains(" had no answer and ")
    });
    application.signal("TERM");
    eventually("the application ends", || application.0.try_wait().unwrap());
}

#[test]
fn the_go_application_answers_as_its_page_shows() {
    answers_as_its_page_shows("nethttp");
}

#[test]
fn the_python_application_answers_as_its_page_shows() {
    answers_as_its_page_shows("fastapi");
}

#[test]
fn the_typescript_application_answers_as_its_page_shows() {
    answers_as_its_page_shows("express");
}

#[test]
#[ignore = "needs a JDK and Maven; tests/java installs them and runs it"]
fn the_java_application_answers_as_its_page_shows() {
    answers_as_its_page_shows("spring-boot");
}

#[test]
fn the_rust_application_answers_as_its_page_shows() {
    answers_as_its_page_shows("axum");
}
