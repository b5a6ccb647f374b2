//! Our endpoints reject unknown query parameters: an ignored parameter would look as if it had worked.

use axum::http::Request;

use crate::text::printable::printable;

/// What is wrong with a request to an endpoint without parameters, if it has one.
pub(super) fn refused_parameter<B>(request: &Request<B>) -> Option<String> {
    let query = request.uri().query().unwrap_or_default();
    let (name, _) = form_urlencoded::parse(query.as_bytes()).next()?;
    let (name, method, path) = (quoted(&name), request.method(), request.uri().path());
    Some(format!("{name}: {method} {path} takes no parameters"))
}

/// The name of a parameter for a message, not beyond 64 characters.
pub(super) fn quoted(name: &str) -> String {
    let beginning: String = name.chars().take(64).collect();
    format!("`{}`", printable(beginning.as_bytes()))
}
