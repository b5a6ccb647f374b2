//! Refusals of the admin address: a status, and a message as JSON.

use axum::{
    Json,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde_json::json;

use crate::{
    audit::RefusalKind, limiter::Undecided, overrides::OverrideError, rls::refusal::Refusal,
    store::StoreError,
};

/// A request that is refused, with the reason, and its kind if the status does not tell. A text alone is a bad request.
#[derive(Debug)]
pub(super) struct Refused(pub(super) StatusCode, pub(super) String, Option<RefusalKind>);

/// Why a request was refused, in the extensions of its answer.
#[derive(Debug, Clone)]
pub(super) struct RefusalReason(pub(super) String);

impl Refused {
    pub(super) fn unauthorized(problem: &str) -> Self {
        Self(StatusCode::UNAUTHORIZED, problem.to_owned(), None)
    }

    pub(super) fn cross_site(problem: &str) -> Self {
        Self(StatusCode::FORBIDDEN, problem.to_owned(), Some(RefusalKind::CrossSite))
    }

    pub(super) fn forbidden(problem: &str) -> Self {
        Self(StatusCode::FORBIDDEN, problem.to_owned(), None)
    }

    pub(super) fn not_found(problem: &str) -> Self {
        Self(StatusCode::NOT_FOUND, problem.to_owned(), None)
    }

    pub(super) const fn conflict(problem: String) -> Self {
        Self(StatusCode::CONFLICT, problem, None)
    }

    pub(super) fn unavailable(problem: impl ToString) -> Self {
        Self(StatusCode::SERVICE_UNAVAILABLE, problem.to_string(), None)
    }

    /// The same with more to say.
    pub(super) fn and(self, more: &str) -> Self {
        Self(self.0, self.1 + more, self.2)
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let mut response = (self.0, Json(json!({ "error": self.1 }))).into_response();
        if self.0 == StatusCode::UNAUTHORIZED {
            let bearer = HeaderValue::from_static("Bearer");
            response.headers_mut().insert(header::WWW_AUTHENTICATE, bearer);
        }
        self.2.and_then(|kind| response.extensions_mut().insert(kind));
        response.extensions_mut().insert(RefusalReason(self.1));
        response
    }
}

impl From<String> for Refused {
    fn from(problem: String) -> Self {
        Self(StatusCode::BAD_REQUEST, problem, None)
    }
}

impl From<Refusal> for Refused {
    fn from(refusal: Refusal) -> Self {
        Self(refusal.codes().1, refusal.to_string(), None)
    }
}

impl From<StoreError> for Refused {
    fn from(error: StoreError) -> Self {
        Self::unavailable(format!("the store gives no answer: {error}"))
    }
}

impl From<Undecided> for Refused {
    fn from(undecided: Undecided) -> Self {
        match undecided {
            Undecided::NoAnswer(error) => error.into(),
            other => Refusal::from(other).into(),
        }
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
        Self(status, error.to_string(), None)
    }
}
