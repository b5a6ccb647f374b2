//! The layer, around a router of axum and a server of tonic.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::disallowed_methods,
    clippy::indexing_slicing,
    unreachable_pub,
    reason = "a test that panics has failed, which is its purpose"
)]

mod support;

use std::time::Duration;

use axum::{Json, Router, body::Body, response::IntoResponse as _, routing::get};
use http::{HeaderMap, Method, Request, Response, StatusCode, request::Parts};
use support::{Log, connect, patient, service, unique};
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tollkeeper_client::{Client, Descriptor, Fake, Limiter, OnFailure, Options, on};
use tonic::{
    Code, Status,
    transport::{Channel, Server},
};
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};
use tonic_types::StatusExt as _;
use tower::ServiceExt as _;

fn deny() -> Options {
    patient().on_failure(OnFailure::Deny)
}

/// What a request is limited by: the key of a rule, such as `three`.
fn limited_by(key: &str, value: &str) -> Option<Vec<Descriptor>> {
    match key {
        "open" => Some(vec![]),
        "mistake" => Some(vec![Descriptor::default()]),
        "nobody" => None,
        key => Some(vec![on(key, value)]),
    }
}

/// The answer to a request, whose path is the key.
async fn ask(client: &Client, key: &str, value: &str) -> Response<Body> {
    let value = value.to_owned();
    let layer = client.layer(move |request: &Parts| limited_by(&request.uri.path()[1..], &value));
    let router = Router::new().route("/{key}", get(async || "served")).layer(layer);
    let request = Request::get(format!("/{key}")).body(Body::empty()).unwrap();
    router.oneshot(request).await.unwrap()
}

/// The headers of a decision: each that is present, with times as `>0`.
fn headers(headers: &HeaderMap) -> Vec<String> {
    let names = ["ratelimit-limit", "ratelimit-remaining", "ratelimit-reset", "retry-after"];
    let present =
        names.iter().filter_map(|name| Some((*name, headers.get(*name)?.to_str().unwrap())));
    present
        .map(|(name, value)| {
            let is_time = ["ratelimit-reset", "retry-after"].contains(&name);
            let value = if is_time && value.parse::<u64>().unwrap() > 0 { ">0" } else { value };
            format!("{name} {value}")
        })
        .collect()
}

async fn check(client: &Client, key: &str, value: &str, status: u16, expected: &[&str]) {
    let log = Log::start();
    let response = ask(client, key, value).await;
    assert_eq!(response.status(), StatusCode::from_u16(status).unwrap());
    assert_eq!(headers(response.headers()), expected, "{key}");
    let (kind, text) = body(response).await;
    let expected = match status {
        429 => "Too Many Requests\n",
        503 => "Service Unavailable\n",
        500 => "Internal Server Error\n",
        _ => "served",
    };
    assert_eq!((kind.as_str(), text.as_str()), ("text/plain; charset=utf-8", expected));
    let reason = match key {
        "mistake" => {
            "tollkeeper: a request was not served: descriptors[0].entries: must have at least 1 item"
        }
        // A second mistake within a minute is not logged.
        _ => "",
    };
    let lines = log.lines();
    assert!(lines.iter().any(|line| line.contains(reason)) || reason.is_empty(), "{lines:?}");
    assert!(key != "nobody" || lines.is_empty(), "{lines:?}");
}

/// The type of a response, and its text.
async fn body(response: Response<Body>) -> (String, String) {
    let kind = response.headers()["content-type"].to_str().unwrap().to_owned();
    let text = axum::body::to_bytes(response.into_body(), 100).await.unwrap();
    (kind, String::from_utf8(text.to_vec()).unwrap())
}

#[tokio::test]
async fn the_layer_of_a_limiter_decides_hot_keys_in_the_process() {
    let fake = Fake::default();
    fake.limit(on("user", "a"), 1 << 40);
    let limiter = Limiter::new(&fake.client(deny()).unwrap());
    let layer = limiter.layer(|_: &Parts| vec![on("user", "a")]);
    let router = Router::new().route("/", get(async || "served")).layer(layer);
    let mut before = usize::MAX;
    while fake.calls().len() != before {
        before = fake.calls().len();
        let request = Request::get("/").body(Body::empty()).unwrap();
        let response = router.clone().oneshot(request).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(response.headers()["ratelimit-limit"], (1_u64 << 40).to_string().as_str());
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn the_application_makes_the_body_of_a_denial() {
    let fake = Fake::default();
    let client = fake.client(deny()).unwrap();
    fake.deny(on("user", "a"));
    let layer = client.layer(|_: &Parts| vec![on("user", "a")]).denied(|decision| {
        let mut response = Json(decision.limit).into_response();
        if decision.failed() {
            *response.status_mut() = StatusCode::IM_A_TEAPOT;
        }
        response
    });
    let router = Router::new().route("/", get(async || "served")).layer(layer);
    let ask = async || {
        router.clone().oneshot(Request::get("/").body(Body::empty()).unwrap()).await.unwrap()
    };
    let denied = ask().await;
    assert_eq!(
        (denied.status(), &denied.headers()["retry-after"]),
        (StatusCode::TOO_MANY_REQUESTS, &"60".parse().unwrap())
    );
    assert_eq!(body(denied).await, ("application/json".to_owned(), "0".to_owned()));
    fake.fail(Some("UNAVAILABLE"));
    assert_eq!(ask().await.status(), StatusCode::IM_A_TEAPOT);
}

#[tokio::test]
async fn only_a_call_of_grpc_is_denied_by_a_status_of_grpc() {
    let fake = Fake::default();
    fake.deny(on("user", "a"));
    let layer = fake.client(deny()).unwrap().layer(|_: &Parts| vec![on("user", "a")]);
    let layer = layer.denied(|_| StatusCode::TOO_MANY_REQUESTS.into_response());
    let router = Router::new().fallback(async || "served").layer(layer);
    for (method, kind, status) in [
        (Method::POST, "application/grpc", StatusCode::OK),
        (Method::POST, "application/grpc+proto", StatusCode::OK),
        (Method::POST, "application/grpc;charset=utf-8", StatusCode::OK),
        (Method::POST, "application/grpc-web-text", StatusCode::OK),
        (Method::POST, "application/grpcX", StatusCode::TOO_MANY_REQUESTS),
        (Method::POST, "application/json", StatusCode::TOO_MANY_REQUESTS),
        (Method::GET, "application/grpc", StatusCode::TOO_MANY_REQUESTS),
    ] {
        let request = Request::builder().method(&method).header("content-type", kind);
        let denied = router.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
        assert_eq!(denied.status(), status, "{method} {kind}");
        assert_eq!(denied.headers().contains_key("grpc-status"), status == StatusCode::OK);
    }
}

#[tokio::test]
async fn a_denied_request_gets_429_and_the_headers() {
    let Some(address) = service("TOLLKEEPER_ADDR") else { return };
    let (client, run) = (connect(&address, deny()), unique());
    for remaining in ["2", "1", "0"] {
        let remaining = format!("ratelimit-remaining {remaining}");
        let expected = ["ratelimit-limit 3", &remaining, "ratelimit-reset >0"];
        check(&client, "three", &run, 200, &expected).await;
    }
    let denied =
        ["ratelimit-limit 3", "ratelimit-remaining 0", "ratelimit-reset >0", "retry-after >0"];
    check(&client, "three", &run, 429, &denied).await;
    let banned =
        ["ratelimit-limit 0", "ratelimit-remaining 0", "ratelimit-reset >0", "retry-after >0"];
    check(&client, "banned", &run, 429, &banned).await;
    for key in ["free", "open"] {
        check(&client, key, &run, 200, &[]).await;
    }
    for key in ["mistake", "nobody"] {
        check(&client, key, &run, 500, &[]).await;
    }
}

#[tokio::test]
async fn without_a_service_on_failure_decides_requests() {
    let gone = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().to_string();
    check(&connect(&gone, patient()), "three", "a", 200, &[]).await;
    check(&connect(&gone, deny()), "three", "a", 503, &[]).await;
}

#[tokio::test]
async fn a_request_that_the_service_refuses_as_too_large_is_denied() {
    let fake = Fake::default();
    fake.fail(Some("OUT_OF_RANGE"));
    check(&fake.client(patient()).unwrap(), "three", "a", 429, &[]).await;
}

/// A client of a server of tonic, whose calls are limited by their method.
async fn health(client: &Client, key: &'static str, run: &str) -> HealthClient<Channel> {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let run = run.to_owned();
    let descriptors =
        move |request: &Parts| limited_by(key, &format!("{run}{}", request.uri.path()));
    let (_, service) = tonic_health::server::health_reporter();
    let server = Server::builder().layer(client.layer(descriptors)).add_service(service);
    tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
    let channel = Channel::builder(format!("http://{address}").parse().unwrap());
    HealthClient::new(channel.connect().await.unwrap())
}

/// Makes a call and a stream. Each returns its headers, or its error.
async fn calls(server: &mut HealthClient<Channel>) -> [Result<HeaderMap, Status>; 2] {
    let unary = server.check(HealthCheckRequest::default()).await;
    let stream = server.watch(HealthCheckRequest::default()).await;
    [
        unary.map(|response| response.metadata().clone().into_headers()),
        stream.map(|response| response.metadata().clone().into_headers()),
    ]
}

#[tokio::test]
async fn a_denied_grpc_call_gets_resource_exhausted() {
    let Some(address) = service("TOLLKEEPER_ADDR") else { return };
    let client = connect(&address, deny());
    let mut server = health(&client, "three", &unique()).await;
    for remaining in ["2", "1", "0"] {
        let remaining = format!("ratelimit-remaining {remaining}");
        for answer in calls(&mut server).await {
            let expected = ["ratelimit-limit 3", &remaining, "ratelimit-reset >0"];
            assert_eq!(headers(&answer.unwrap()), expected);
        }
    }
    for answer in calls(&mut server).await {
        let denial = answer.unwrap_err();
        assert_eq!(
            (denial.code(), denial.message()),
            (Code::ResourceExhausted, "Too Many Requests")
        );
        let pause = denial.get_details_retry_info().unwrap().retry_delay.unwrap();
        assert!(pause >= Duration::from_secs(1), "{pause:?}");
        let found = headers(&denial.metadata().clone().into_headers());
        assert_eq!(found[1..], ["ratelimit-remaining 0", "ratelimit-reset >0", "retry-after >0"]);
    }
    for answer in calls(&mut health(&client, "open", "").await).await {
        assert_eq!(headers(&answer.unwrap()), [""; 0]);
    }
    for answer in calls(&mut health(&client, "mistake", "").await).await {
        let mistake = answer.unwrap_err();
        assert_eq!((mistake.code(), mistake.message()), (Code::Internal, "Internal Server Error"));
    }
}

#[tokio::test]
async fn without_a_service_on_failure_decides_grpc_calls() {
    let gone = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().to_string();
    for answer in calls(&mut health(&connect(&gone, deny()), "three", "a").await).await {
        assert_eq!(answer.unwrap_err().code(), Code::Unavailable);
    }
    for answer in calls(&mut health(&connect(&gone, patient()), "three", "a").await).await {
        answer.unwrap();
    }
}
