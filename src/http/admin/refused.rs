//! Refusals of the admin address: a status, and a message as JSON.

use axum::{
    Json,
    http::StatusCode,
    response::{IntoResponse as _, Response},
};
use serde_json::json;

pub(super) fn forbidden(problem: String) -> Response {
    refuse(StatusCode::FORBIDDEN, &problem)
}

/// Why a request was refused, in the extensions of its answer.
#[derive(Debug, Clone)]
pub(super) struct RefusalReason(pub(super) String);

pub(super) fn refuse(code: StatusCode, message: &str) -> Response {
    let mut response = (code, Json(json!({ "error": message }))).into_response();
    response.extensions_mut().insert(RefusalReason(message.to_owned()));
    response
}
