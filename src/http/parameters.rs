//! Our endpoints reject unknown query parameters: an ignored parameter would look as if it had worked.

use axum::http::Request;

use crate::{
    engine::{
        descriptor_syntax,
        request::{self, Descriptor, Hits},
    },
    text::printable::printable,
};

/// What is wrong with a request to an endpoint without parameters, if it has one.
pub(super) fn refused_parameter<B>(request: &Request<B>) -> Option<String> {
    let query = request.uri().query().unwrap_or_default();
    let (name, _) = form_urlencoded::parse(query.as_bytes()).next()?;
    let (name, method, path) = (quoted(&name), request.method(), request.uri().path());
    Some(format!("{name}: {method} {path} takes no parameters"))
}

/// Reads the query of `/v1/usage`: `domain=D&d=k=v,k=v`, each part percent-encoded; `d` may be repeated.
///
/// # Errors
/// A message that names the parameter, for one that is missing, unknown or malformed, or a second domain.
pub(super) fn usage(query: &str) -> Result<request::Request, String> {
    let (mut domain, mut descriptors) = (None, Vec::new());
    for (name, value) in form_urlencoded::parse(query.as_bytes()) {
        match &*name {
            "domain" if domain.is_none() => domain = Some(value.into_owned()),
            "domain" => return Err("domain: given twice".to_owned()),
            "d" => {
                let entries = descriptor_syntax::parse(&value);
                let entries = entries.map_err(|problem| format!("d: {problem}"))?;
                let (hits, states_hits, limit) = (Hits::Check, false, None);
                descriptors.push(Descriptor { entries, hits, states_hits, limit });
            }
            _ => return Err(format!("{}: the parameters are `domain` and `d`", quoted(&name))),
        }
    }
    if descriptors.is_empty() {
        return Err("d: missing, such as d=user=alice".to_owned());
    }
    Ok(request::Request { domain: domain.ok_or("domain: missing")?, descriptors })
}

/// The name of a parameter for a message, not beyond 64 characters.
pub(super) fn quoted(name: &str) -> String {
    let beginning: String = name.chars().take(64).collect();
    format!("`{}`", printable(beginning.as_bytes()))
}
