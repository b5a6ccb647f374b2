//! A small shop whose logins and reports are limited by ../rules.yaml.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::{env, error::Error, io, time::Duration};

use axum::extract::{ConnectInfo, Extension, Form, Request, State};
use axum::http::{StatusCode, header::AUTHORIZATION, header::WWW_AUTHENTICATE};
use axum::middleware::{Next, from_fn};
use axum::response::{AppendHeaders, IntoResponse, Response};
use axum::{Router, routing::get, routing::post};
use serde::Deserialize;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tollkeeper_client::{Client, Decision, OnFailure, Options, on};

#[cfg(test)]
mod tests;

/// Who the authentication has found.
#[derive(Clone)]
struct User(&'static str);

#[derive(Deserialize)]
struct Login {
    user: String,
    password: String,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    // It shows when the service does not answer.
    tracing_subscriber::fmt().with_writer(io::stderr).init();
    let setting = |name, default: &str| env::var(name).unwrap_or_else(|_| default.to_owned());
    // A second: it is better to wait than to deny a login, or to let a report pass, since an answer was late.
    let options = Options::new("shop").timeout(Duration::from_secs(1));
    let limits = Client::new(&setting("TOLLKEEPER", "localhost:8081"), options)?;
    let listener = TcpListener::bind(format!("127.0.0.1:{}", setting("PORT", "8000"))).await?;
    let service = routes(&limits).into_make_service_with_connect_info::<SocketAddr>();
    let mut terminate = signal(SignalKind::terminate())?;
    let terminated = async move { _ = terminate.recv().await };
    axum::serve(listener, service).with_graceful_shutdown(terminated).await?;
    Ok(())
}

fn routes(limits: &Client) -> Router {
    let by_user = limits.layer(|request| {
        let user: &User = request.extensions.get()?;
        Some(vec![on("user", user.0)])
    });
    let denying = limits.with(|options| options.on_failure(OnFailure::Deny));
    Router::new()
        .route("/login", post(login))
        .route("/reports", get(report).route_layer(by_user).route_layer(from_fn(authenticate)))
        .route("/healthz", get(async || "ok\n"))
        .with_state(denying)
}

/// The form is in the body, which no layer sees: the handler asks by itself.
async fn login(
    State(limits): State<Client>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    Form(Login { user, password }): Form<Login>,
) -> Response {
    // The caller chooses the name, so its length has a bound.
    let name = user.as_bytes().get(..100).unwrap_or(user.as_bytes());
    let by_user = on("route", "/login").and("user", name);
    let by_address = on("route", "/login").and("address", address(peer.ip()));
    match limits.decide([by_user, by_address]).await {
        Ok(decision) if !decision.allowed => denied(&decision),
        Ok(_) if (&*user, &*password) == ("alice", "correct-horse") => "welcome\n".into_response(),
        Ok(_) => (StatusCode::UNAUTHORIZED, "wrong user or password\n").into_response(),
        // A mistake in this program.
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

/// A client with IPv6 has all addresses of a network of 64 bits.
fn address(peer: IpAddr) -> String {
    match peer.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from(u128::from(address) >> 64 << 64).to_string(),
        address => address.to_string(),
    }
}

fn denied(decision: &Decision) -> Response {
    let code = if decision.failed() {
        StatusCode::SERVICE_UNAVAILABLE
    } else {
        StatusCode::TOO_MANY_REQUESTS
    };
    let headers = decision.headers().into_iter();
    let headers = headers.map(|(name, value)| (name, value.to_string()));
    (code, AppendHeaders(headers), "try again later\n").into_response()
}

async fn authenticate(mut request: Request, next: Next) -> Response {
    let header = request.headers().get(AUTHORIZATION).and_then(|it| it.to_str().ok());
    let key = header.and_then(|it| it.split_once(' '));
    let Some((_, "key-of-alice")) = key.filter(|(it, _)| it.eq_ignore_ascii_case("bearer")) else {
        return (StatusCode::UNAUTHORIZED, [(WWW_AUTHENTICATE, "Bearer")]).into_response();
    };
    request.extensions_mut().insert(User("alice"));
    next.run(request).await
}

async fn report(Extension(user): Extension<User>) -> String {
    format!("the report of {}\n", user.0)
}
