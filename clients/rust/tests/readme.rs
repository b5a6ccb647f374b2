//! The code of the README, which is run here, apart from its indentation.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::indexing_slicing,
    unreachable_pub,
    reason = "a test that panics has failed, which is its purpose"
)]

mod support;

use std::{
    collections::BTreeMap,
    env, fs,
    path::Path,
    process::Command,
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{Router, body::Body, routing::get};
use http::{Request, StatusCode};
use support::{connect, patient, service, unique};
use tollkeeper_client::{Call, Client, Error, OnFailure, Options, Tls, on};
use tonic::transport::Server;
use tower::ServiceExt as _;

/// The code blocks of the README in a language.
fn snippets(language: &str) -> Vec<String> {
    let text = fs::read_to_string("README.md").unwrap();
    let fence = format!("```{language}\n");
    let blocks = text.split(&fence).skip(1);
    blocks.map(|block| block.split("```").next().unwrap().to_owned()).collect()
}

/// Without what rustfmt does: spaces between words, and commas at ends of lists.
fn words(code: &str) -> String {
    let code: String = code.split_whitespace().collect();
    code.replace(",)", ")").replace(",]", "]").replace(",}", "}")
}

#[test]
fn every_snippet_is_run_here() {
    let code = words(&fs::read_to_string("tests/readme.rs").unwrap());
    let snippets = snippets("rust");
    assert!(snippets.len() >= 8, "{} snippets", snippets.len());
    for snippet in snippets {
        assert!(code.contains(&words(&snippet)), "tests/readme.rs lacks\n{snippet}");
    }
}

/// It is not compiled here, since that takes a minute.
#[test]
fn the_package_is_added_from_its_folder_without_the_service() {
    let folder = tempfile::tempdir().unwrap();
    let repository = Path::new("../..").canonicalize().unwrap();
    std::os::unix::fs::symlink(&repository, folder.path().join("tollkeeper")).unwrap();
    let cargo = env::var("CARGO").unwrap();
    let script = format!(
        "alias cargo='{cargo} --offline'\ncargo new --quiet service\ncd service\n\
         cp ../tollkeeper/Cargo.lock .\n{}cargo tree --all-features --edges normal --prefix none",
        snippets("sh")[0]
    );
    let mut command = Command::new("sh");
    command.args(["-e", "-c", &script]).current_dir(folder.path());
    let output = command.output().unwrap();
    let tree = String::from_utf8(output.stdout).unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    let has = |name: &str| tree.lines().any(|line| line.starts_with(&format!("{name} v")));
    assert!(
        has("tollkeeper-client") && has("tokio-rustls") && has("tower-layer"),
        "{tree}{errors}"
    );
    assert!(!has("tollkeeper") && !has("protox"), "{tree}");
}

/// Stands for a histogram of Prometheus.
#[derive(Clone, Default)]
struct Histogram(Arc<Mutex<BTreeMap<String, f64>>>);

struct Series(Histogram, String);

impl Histogram {
    fn with_label_values(&self, labels: &[&str]) -> Series {
        Series(self.clone(), labels.join(" "))
    }
}

impl Series {
    fn observe(&self, seconds: f64) {
        self.0.0.lock().unwrap().insert(self.1.clone(), seconds);
    }
}

#[tokio::test]
async fn the_client_and_its_options() -> Result<(), Error> {
    {
        let client = Client::new("localhost:8081", "example", Options::default())?;
        client.flush().await;
    }
    let histogram = Histogram::default();
    let calls = histogram.clone();
    let options = Options {
        timeout: Duration::from_millis(20),
        on_failure: OnFailure::by(|_error, descriptors| descriptors[0].entries[0].key != b"login"),
        on_call: Some(Arc::new(move |method, elapsed, outcome| {
            calls.with_label_values(&[method, outcome]).observe(elapsed.as_secs_f64());
        })),
        ..Options::default()
    };
    let gone = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let client = connect(&gone.to_string(), Options { timeout: patient().timeout, ..options });
    assert!(!client.decide(on("login", "a")).await?.allowed);
    assert!(client.decide(on("user", "a")).await?.allowed);
    assert!(histogram.0.lock().unwrap()["decide UNAVAILABLE"] > 0.0);
    Ok(())
}

async fn handler(client: &Client, user: &str) -> Result<StatusCode, Error> {
    let decision = client.decide(on("user", user)).await?;
    if !decision.allowed {
        return Ok(StatusCode::TOO_MANY_REQUESTS);
    }
    Ok(StatusCode::OK)
}

#[tokio::test]
async fn a_429_in_three_lines() -> Result<(), Error> {
    let Some(address) = service("TOLLKEEPER_ADDR") else { return Ok(()) };
    let (client, user) = (connect(&address, patient()), unique());
    assert_eq!(handler(&client, &user).await?, StatusCode::OK);
    client.debit(1000, on("user", user.as_str())).await?;
    assert_eq!(handler(&client, &user).await?, StatusCode::TOO_MANY_REQUESTS);
    Ok(())
}

#[tokio::test]
async fn a_batch() -> Result<(), Error> {
    let Some(address) = service("TOLLKEEPER_ADDR") else { return Ok(()) };
    let client = connect(&address, patient());
    let decisions = client
        .decide_all([
            Call::take(3, on("user", "alice")),
            Call::debit(200, on("user", "bob")),
            Call::check(on("user", "carol")),
        ])
        .await?;
    let summary: Vec<_> = decisions.iter().map(|it| (it.allowed, it.failed())).collect();
    assert_eq!(summary, [(true, false); 3]);
    Ok(())
}

async fn ask(question: &str) -> Result<u64, Error> {
    Ok(if question == "why" { 42 } else { 0 })
}

async fn work(client: &Client, user: &str) -> Result<StatusCode, Error> {
    let question = "why";
    let hold = client.hold(400, on("user", user)).await?;
    if !hold.allowed() {
        return Ok(StatusCode::TOO_MANY_REQUESTS);
    }
    let tokens = ask(question).await?;
    hold.commit(tokens).await?;
    Ok(StatusCode::OK)
}

#[tokio::test]
async fn a_hold_is_committed_on_the_way_out() -> Result<(), Error> {
    let Some(address) = service("TOLLKEEPER_ADDR") else { return Ok(()) };
    let (client, user) = (connect(&address, patient()), unique());
    for _ in 0..15 {
        assert_eq!(work(&client, &user).await?, StatusCode::OK);
    }
    assert_eq!(client.read(on("user", user.as_str())).await?.statuses[0].used, Some(15 * 42));
    // A hold of 400 beside 630 of 1,000.
    assert_eq!(work(&client, &user).await?, StatusCode::TOO_MANY_REQUESTS);
    Ok(())
}

#[tokio::test]
async fn middleware() {
    let Some(address) = service("TOLLKEEPER_ADDR") else { return };
    let client = connect(&address, patient());
    let router = Router::new().route("/{*path}", get(async || "served"));
    let router = router.layer(client.layer(|request| {
        match (request.uri.path(), request.headers.get("x-user")) {
            ("/healthz", _) | (_, None) => vec![],
            (_, Some(user)) => vec![on("user", user.as_bytes())],
        }
    }));
    let server = Server::builder().layer(client.layer(|call| vec![on("method", call.uri.path())]));
    drop(server);
    for (path, limit) in [("/healthz", None), ("/page", Some("1000"))] {
        let request = Request::get(path).header("x-user", unique()).body(Body::empty()).unwrap();
        let response = router.clone().oneshot(request).await.unwrap();
        let header = response.headers().get("ratelimit-limit").map(|it| it.to_str().unwrap());
        assert_eq!((response.status(), header), (StatusCode::OK, limit));
    }
}

#[tokio::test]
async fn tls() -> Result<(), Error> {
    let Some(address) = service("TOLLKEEPER_TLS_ADDR") else { return Ok(()) };
    let tls = Tls {
        ca: Some("ca.pem".into()),
        cert: Some("client.pem".into()),
        key: Some("client.key".into()),
        server_name: Some("localhost".into()),
    };
    let absent =
        Client::new(&address, "conformance", Options { tls: Some(tls.clone()), ..patient() });
    assert!(absent.err().unwrap().to_string().starts_with("ca: ca.pem: "));
    let file = |variable| Some(env::var_os(variable).unwrap().into());
    let (ca, cert, key) = (file("TOLLKEEPER_CA"), file("TOLLKEEPER_CERT"), file("TOLLKEEPER_KEY"));
    let half = Tls { key: None, ca: ca.clone(), cert: cert.clone(), ..tls.clone() };
    let half = Client::new(&address, "conformance", Options { tls: Some(half), ..patient() });
    assert_eq!(half.err().unwrap().to_string(), "cert, key: must be given together");
    let client =
        connect(&address, Options { tls: Some(Tls { ca, cert, key, ..tls }), ..patient() });
    let decision = client.decide(on("three", unique())).await?;
    assert!(decision.allowed && !decision.failed(), "{decision:?}");
    Ok(())
}
