//! `POST /json`: decisions for clients without gRPC, with the call's span.

use std::sync::Arc;

use axum::{
    Json,
    extract::{Request, State},
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde_json::json;

use super::{Http, browser};
use crate::{
    net::{grpc::status_name, tls::server::Identity},
    rls::{self, refusal::Refusal},
    store::guard::Arrival,
    telemetry::{CallSpan, in_call},
};

/// 200 or 429 with the answer; 400 for a bad request, 403 for one from a web page, 408 and 413 for one that is
/// too slow or too large; 503 if the store gave no answer, or too many requests are in progress.
pub(super) async fn decide(State(http): State<Http>, request: Request) -> Response {
    let tracer = http.telemetry.tracer();
    let span = tracer.and_then(|tracer| CallSpan::begin(&tracer, request.headers()));
    let Some(span) = span else { return answer(&http, request).await };
    let response = in_call(Arc::clone(&span), answer(&http, request)).await;
    span.end_http(http.scheme, response.status());
    response
}

async fn answer(http: &Http, request: Request) -> Response {
    if browser::is_from_web_page(request.headers()) {
        return refuse(&Refusal::WebPage);
    }
    let client = request.extensions().get::<Identity>().cloned();
    let (body, _slot) = match http.body(request).await {
        Ok(received) => received,
        Err(refusal) => return refuse(&refusal),
    };
    let answer = async {
        let arrival = Arrival::now();
        let decoded = rls::json::request(&body, http.bounds)?;
        http.check_domain(client.as_ref(), &decoded.request.domain)?;
        rls::decide(&http.limiter, &http.headers, decoded, arrival).await
    };
    let answer = match answer.await {
        Ok(answer) => answer,
        Err(refusal) => return refuse(&refusal),
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

pub(super) fn refuse(refusal: &Refusal) -> Response {
    let (code, status) = refusal.codes();
    let error = json!({ "code": status_name(code), "message": refusal.to_string() });
    (status, Json(json!({ "error": error }))).into_response()
}
