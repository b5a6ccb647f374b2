//! Without a network: the service is a fake.

use axum::{body::Body, extract::connect_info::MockConnectInfo, http::request::Builder};
use tollkeeper_client::Fake;
use tower::ServiceExt as _;

use super::*;

#[tokio::test]
async fn logins_and_reports_are_limited() {
    let fake = Fake::default();
    fake.limit(on("route", "/login").and("user", "alice"), 5);
    fake.limit(on("user", "alice"), 1);
    let limits = fake.client(Options::new("shop")).unwrap();
    let peer = SocketAddr::from(([192, 0, 2, 1], 1234));
    let shop = routes(&limits).layer(MockConnectInfo(peer));
    let code = async |request: Builder, body| {
        let request = request.body(Body::from(body)).unwrap();
        shop.clone().oneshot(request).await.unwrap().status().as_u16()
    };
    let form = "application/x-www-form-urlencoded";
    let guess = async || {
        let request = Request::post("/login").header("content-type", form);
        code(request, "user=alice&password=guess").await
    };
    let report = async || {
        code(Request::get("/reports").header(AUTHORIZATION, "bearer key-of-alice"), "").await
    };
    for expected in [401, 401, 401, 401, 401, 429] {
        assert_eq!(guess().await, expected);
    }
    let post = Request::post("/reports").header(AUTHORIZATION, "Bearer key-of-alice");
    assert_eq!(code(post, "").await, 405);
    assert_eq!((report().await, report().await), (200, 429));
    fake.fail(Some("UNAVAILABLE"));
    assert_eq!((guess().await, report().await), (503, 200));
}
