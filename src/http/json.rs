//! `POST /json`: a decision for those who do not speak gRPC.

use axum::{
    Json,
    extract::{Request, State},
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde_json::json;
use tonic::{Code, Status};

use super::{Http, pages};
use crate::{rls, telemetry};

/// 200 or 429 with the answer, 400 for a bad request, 403 for a web page's, 408 and 413 for one that is
/// too slow or too large, 503 where the store gave no answer or too many are under way.
pub(super) async fn decide(State(http): State<Http>, request: Request) -> Response {
    if pages::made_by_page(request.headers()) {
        return refuse(&Status::permission_denied("a web page may not ask this"));
    }
    let (body, _place) = match http.body(request).await {
        Ok(arrived) => arrived,
        Err(refusal) => return refusal,
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
        Code::PermissionDenied => StatusCode::FORBIDDEN,
        _ => StatusCode::SERVICE_UNAVAILABLE,
    };
    let name = telemetry::status_name(status.code());
    let error = json!({ "error": { "code": name, "message": status.message() } });
    (code, Json(error)).into_response()
}
