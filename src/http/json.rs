//! `POST /json`: a decision for those who do not speak gRPC.

use std::time::Duration;

use axum::{
    Json,
    body::Bytes,
    extract::{FromRequest as _, Request, State},
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde_json::json;
use tokio::time;
use tonic::{Code, Status};

use super::Http;
use crate::{rls, telemetry};

/// How long a body may take to arrive.
const BODY_WITHIN: Duration = Duration::from_secs(10);

/// 200 or 429 with the answer, 400 for a bad request, 408 and 413 for one that is too slow or too
/// large, 503 where the store gave no answer.
pub(super) async fn decide(State(http): State<Http>, request: Request) -> Response {
    let body = match time::timeout(BODY_WITHIN, Bytes::from_request(request, &http)).await {
        Ok(Ok(body)) => body,
        Ok(Err(rejection)) => return rejection.into_response(),
        Err(_) => return StatusCode::REQUEST_TIMEOUT.into_response(),
    };
    let decided = match rls::json::request(&body, http.bounds) {
        Ok(decoded) => rls::decide(&http.limiter, &http.headers, decoded).await,
        Err(status) => Err(status),
    };
    let answer = match decided {
        Ok(answer) => answer,
        Err(status) => return refuse(&status),
    };
    let body = Json(rls::json::response(&answer));
    match rls::json::retry_after(&answer) {
        None => body.into_response(),
        Some(seconds) => {
            let retry_after = [(header::RETRY_AFTER, HeaderValue::from(seconds))];
            (StatusCode::TOO_MANY_REQUESTS, retry_after, body).into_response()
        }
    }
}

fn refuse(status: &Status) -> Response {
    let code = match status.code() {
        Code::InvalidArgument => StatusCode::BAD_REQUEST,
        _ => StatusCode::SERVICE_UNAVAILABLE,
    };
    let name = telemetry::status_name(status.code());
    let error = json!({ "error": { "code": name, "message": status.message() } });
    (code, Json(error)).into_response()
}
