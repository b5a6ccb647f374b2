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

use axum::{Router, body::Body, middleware::Next, routing::get};
use http::{Request, StatusCode};
use support::{connect, patient, service, unique};
use tollkeeper_client::{
    Call, Client, Commit, Error, Fake, Limiter, OnFailure, Options, Tls, Unit, on,
};
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
        let client = Client::new("localhost:8081", Options::new("example"))?;
        client.close().await;
    }
    let histogram = Histogram::default();
    let calls = histogram.clone();
    let options = Options::new("example")
        .timeout(Duration::from_millis(20))
        .on_failure(OnFailure::by(|_error, descriptors| descriptors[0].get("login").is_none()))
        .on_call(move |method, elapsed, outcome| {
            calls.with_label_values(&[method, outcome]).observe(elapsed.as_secs_f64());
        });
    let gone = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let client = connect(&gone.to_string(), options.timeout(Duration::from_secs(10)));
    assert!(!client.decide(on("login", "a")).await?.allowed);
    assert!(client.decide(on("user", "a")).await?.allowed);
    assert!(histogram.0.lock().unwrap()["decide UNAVAILABLE"] > 0.0);
    let user = "a";
    let strict =
        client.with(|options| options.timeout(Duration::from_secs(1)).on_failure(OnFailure::Deny));
    let decision = strict.decide(on("login", user)).await?;
    assert!(!decision.allowed);
    Ok(())
}

async fn handler(client: &Client, user: &str) -> Result<StatusCode, Error> {
    let decision = client.decide(on("user", user)).await?;
    if decision.failed() && !decision.allowed {
        return Ok(StatusCode::SERVICE_UNAVAILABLE);
    }
    if !decision.allowed {
        return Ok(StatusCode::TOO_MANY_REQUESTS);
    }
    Ok(StatusCode::OK)
}

#[tokio::test]
async fn a_unit_test() -> Result<(), Error> {
    let fake = Fake::default();
    let client = fake.client(Options::new("example"))?;
    fake.limit(on("user", "bob"), 1);
    assert_eq!(handler(&client, "bob").await?, StatusCode::OK);
    assert_eq!(handler(&client, "bob").await?, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(fake.calls()[0], Call::from(on("user", "bob")));
    client.commit(Commit::new("hold", 42)).await?;
    assert_eq!(fake.commits(), [Commit::new("hold", 42)]);
    Ok(())
}

#[tokio::test]
async fn a_429_in_three_lines() -> Result<(), Error> {
    let Some(address) = service("TOLLKEEPER_ADDR") else { return Ok(()) };
    let (client, user) = (connect(&address, patient()), unique());
    assert_eq!(handler(&client, &user).await?, StatusCode::OK);
    client.decide(Call::debit(1000, on("user", user.as_str()))).await?;
    assert_eq!(handler(&client, &user).await?, StatusCode::TOO_MANY_REQUESTS);
    Ok(())
}

#[tokio::test]
async fn a_batch() -> Result<(), Error> {
    let Some(address) = service("TOLLKEEPER_ADDR") else { return Ok(()) };
    let client = connect(&address, patient());
    let decisions = client
        .decide_all([
            Call::take(3, on("user", "alice")).once("order 1742"),
            Call::part(100, on("user", "bob")),
            Call::debit(200, on("user", "bob")),
            Call::refund(2, on("user", "bob")),
            Call::check(on("user", "carol")),
            Call::read(on("user", "carol")),
            Call::from(on("user", "dave").limit(100, 1, Unit::Hour)),
        ])
        .await?;
    let summary: Vec<_> = decisions.iter().map(|it| (it.allowed, it.failed())).collect();
    assert_eq!(summary, [(true, false); 7]);
    assert_eq!((decisions[1].hits, decisions[6].limit), (100, Some(100)));
    assert_eq!(decisions[6].statuses[0].limit.as_ref().unwrap().unit, Some(Unit::Hour));
    Ok(())
}

async fn ask(question: &str) -> Result<u64, Error> {
    Ok(if question == "why" { 42 } else { 0 })
}

async fn work(client: &Client, user: &str) -> Result<StatusCode, Error> {
    let question = "why";
    let hold = client.hold(Call::take(400, on("user", user))).await?;
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
    let used = async || client.decide(Call::read(on("user", user.as_str()))).await;
    assert_eq!(used().await?.statuses[0].used, Some(15 * 42));
    // A hold of 400 beside 630 of 1,000.
    assert_eq!(work(&client, &user).await?, StatusCode::TOO_MANY_REQUESTS);
    let user = unique();
    assert_eq!(long_work(&client, &user, 100).await?, StatusCode::OK);
    // 100 is used of the first hold, and 400 of the second, which ends without a number.
    assert_eq!(long_work(&client, &user, 200).await?, StatusCode::TOO_MANY_REQUESTS);
    Ok(())
}

async fn long_work(client: &Client, user: &str, used: u64) -> Result<StatusCode, Error> {
    let mut hold = client.hold(Call::take(400, on("user", user))).await?;
    if !hold.renew(used, Call::take(400, on("user", user))).await?.allowed {
        return Ok(StatusCode::TOO_MANY_REQUESTS);
    }
    drop(hold);
    client.flush().await;
    Ok(StatusCode::OK)
}

#[tokio::test]
async fn decisions_in_the_process() -> Result<(), Error> {
    let Some(address) = service("TOLLKEEPER_ADDR") else { return Ok(()) };
    let (client, tenant) = (connect(&address, patient()), unique());
    let limiter = Limiter::new(&client);
    let tenant = tenant.as_str();
    let decision = limiter.decide(on("tenant", tenant)).await?;
    assert!(decision.allowed && !decision.failed(), "{decision:?}");
    let call = limiter.prepare(on("tenant", tenant))?;
    let decision = call.decide().await?;
    assert!(decision.allowed && !decision.failed(), "{decision:?}");
    Ok(())
}

/// What authentication knows of a request.
#[derive(Clone)]
struct User(String);

#[tokio::test]
async fn middleware() {
    let Some(address) = service("TOLLKEEPER_ADDR") else { return };
    let client = connect(&address, patient());
    let router = Router::new().route("/{*path}", get(async || "served"));
    let authentication =
        axum::middleware::from_fn(async |mut request: axum::extract::Request, next: Next| {
            if let Some(user) = request.headers().get("authorization") {
                let user = User(user.to_str().unwrap().to_owned());
                request.extensions_mut().insert(user);
            }
            next.run(request).await
        });
    let limits = client.layer(|request| {
        if request.uri.path() == "/healthz" {
            return Some(vec![]);
        }
        let user: &User = request.extensions.get()?;
        Some(vec![on("user", user.0.as_str())])
    });
    let router = router.layer(limits).layer(authentication);
    let server = Server::builder().layer(client.layer(|call| vec![on("method", call.uri.path())]));
    drop(server);
    let (alice, limit) = (unique(), Some("1000"));
    for (path, user, status, limit) in [
        ("/healthz", None, StatusCode::OK, None),
        ("/page", Some(&alice), StatusCode::OK, limit),
        ("/page", None, StatusCode::INTERNAL_SERVER_ERROR, None),
    ] {
        let mut request = Request::get(path);
        if let Some(user) = user {
            request = request.header("authorization", user);
        }
        let response = router.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
        let header = response.headers().get("ratelimit-limit").map(|it| it.to_str().unwrap());
        assert_eq!((response.status(), header), (status, limit));
    }
}

#[tokio::test]
async fn a_trace() -> Result<(), Error> {
    let requests = Arc::new(Mutex::new(0));
    let traceparent = {
        let requests = Arc::clone(&requests);
        move || {
            *requests.lock().unwrap() += 1;
            "00-1-2-01".parse().unwrap()
        }
    };
    let options = Options::new("example");
    let options = options.metadata(move |metadata| {
        metadata.insert("traceparent", traceparent());
    });
    Fake::default().client(options)?.decide(on("user", "a")).await?;
    assert_eq!(*requests.lock().unwrap(), 1);
    Ok(())
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
    let absent = Client::new(&address, patient().tls(tls.clone()));
    assert!(absent.err().unwrap().to_string().starts_with("ca: ca.pem: "));
    let file = |variable| Some(env::var_os(variable).unwrap().into());
    let (ca, cert, key) = (file("TOLLKEEPER_CA"), file("TOLLKEEPER_CERT"), file("TOLLKEEPER_KEY"));
    let half = Tls { key: None, ca: ca.clone(), cert: cert.clone(), ..tls.clone() };
    let half = Client::new(&address, patient().tls(half));
    assert_eq!(half.err().unwrap().to_string(), "cert, key: must be given together");
    let client = connect(&address, patient().tls(Tls { ca, cert, key, ..tls }));
    let decision = client.decide(on("three", unique())).await?;
    assert!(decision.allowed && !decision.failed(), "{decision:?}");
    Ok(())
}
