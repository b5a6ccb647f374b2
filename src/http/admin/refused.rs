//! Refusals of the admin address: a status, and a message as JSON.

use axum::{
    Json,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use serde_json::json;

use crate::{overrides::OverrideError, rls::refusal::Refusal, store::StoreError};

/// A request that is refused, with the reason. A text alone is a bad request.
#[derive(Debug)]
pub(super) struct Refused(pub(super) StatusCode, pub(super) String);

/// Why a request was refused, in the extensions of its answer.
#[derive(Debug, Clone)]
pub(super) struct RefusalReason(pub(super) String);

impl Refused {
    pub(super) fn forbidden(problem: &str) -> Self {
        Self(StatusCode::FORBIDDEN, problem.to_owned())
    }

    pub(super) fn not_found(problem: &str) -> Self {
        Self(StatusCode::NOT_FOUND, problem.to_owned())
    }

    pub(super) fn unavailable(problem: impl ToString) -> Self {
        Self(StatusCode::SERVICE_UNAVAILABLE, problem.to_string())
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let mut response = (self.0, Json(json!({ "error": self.1 }))).into_response();
        response.extensions_mut().insert(RefusalReason(self.1));
        response
    }
}

impl From<String> for Refused {
    fn from(problem: String) -> Self {
        Self(StatusCode::BAD_REQUEST, problem)
    }
}

impl From<Refusal> for Refused {
    fn from(refusal: Refusal) -> Self {
        Self(refusal.codes().1, refusal.to_string())
    }
}

impl From<StoreError> for Refused {
    fn from(error: StoreError) -> Self {
        Self::unavailable(format!("the store gives no answer: {error}"))
    }
}

impl From<OverrideError> for Refused {
    fn from(error: OverrideError) -> Self {
        let status = match error {
            OverrideError::Full => StatusCode::CONFLICT,
            OverrideError::Unknown | OverrideError::Ended => StatusCode::NOT_FOUND,
            OverrideError::Unchanged(_) | OverrideError::Unsure(_) => {
                StatusCode::SERVICE_UNAVAILABLE
            }
        };
        Self(status, error.to_string())
    }
}
