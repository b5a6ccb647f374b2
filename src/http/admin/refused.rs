//! Refusals of the admin address: a status, and a message as JSON.

use axum::{
    Json,
    http::StatusCode,
    response::{IntoResponse as _, Response},
};
use serde_json::json;

use crate::authorization::ForbiddenDomain;

pub(super) fn forbidden(problem: ForbiddenDomain) -> Response {
    refuse(StatusCode::FORBIDDEN, &problem.to_string())
}

pub(super) fn refuse(code: StatusCode, message: &str) -> Response {
    (code, Json(json!({ "error": message }))).into_response()
}
