//! Our endpoints reject unknown query parameters: an ignored parameter would look as if it had worked.

use std::borrow::Cow;

use axum::http::Request;

use crate::{
    engine::{
        descriptor_syntax,
        request::{self, Descriptor, Hits},
    },
    rls::decode::Bounds,
    text::printable::printable,
};

/// The parameter that may be given more than once: a descriptor.
const REPEATED: &str = "d";

/// What is wrong with a request to an endpoint without parameters, if it has one.
pub(super) fn refused_parameter<B>(request: &Request<B>) -> Option<String> {
    let query = request.uri().query().unwrap_or_default();
    let (name, _) = form_urlencoded::parse(query.as_bytes()).next()?;
    let (name, method, path) = (quoted(&name), request.method(), request.uri().path());
    Some(format!("{name}: {method} {path} takes no parameters"))
}

/// The values of these parameters, percent-decoded: at most one of each, but for [`REPEATED`].
///
/// # Errors
/// A message that names the parameter, for one that is unknown or given twice.
pub(super) fn read<'query, const N: usize>(
    query: Option<&'query str>,
    names: [&str; N],
) -> Result<[Vec<Cow<'query, str>>; N], String> {
    let mut values = [const { Vec::new() }; N];
    for (name, value) in form_urlencoded::parse(query.unwrap_or_default().as_bytes()) {
        let Some((_, given)) = names.iter().zip(&mut values).find(|(known, _)| **known == name)
        else {
            let (name, known) = (quoted(&name), names.map(|known| format!("`{known}`")));
            return Err(match &known[..] {
                [others @ .., last] if !others.is_empty() => {
                    format!("{name}: the parameters are {} and {last}", others.join(", "))
                }
                only => format!("{name}: the only parameter is {}", only.concat()),
            });
        };
        if name != REPEATED && !given.is_empty() {
            return Err(format!("{name}: given twice"));
        }
        given.push(value);
    }
    Ok(values)
}

/// The value of a parameter `limit`: a whole number up to `max`.
///
/// # Errors
/// A message with the bounds.
pub(super) fn limit(given: &[Cow<'_, str>], default: usize, max: usize) -> Result<usize, String> {
    let Some(text) = given.first() else { return Ok(default) };
    let limit = text.parse().ok().filter(|limit| (1..=max).contains(limit));
    limit.ok_or_else(|| format!("limit: must be a whole number from 1 to {max}"))
}

/// Reads which counters are asked for: `domain=D`, and `k=v,k=v` from the parameter of this name.
///
/// # Errors
/// A message that names the parameter, for one that is missing, unknown, malformed or given twice.
pub(super) fn counters(query: Option<&str>, name: &str) -> Result<request::Request, String> {
    let [domain, paths] = read(query, ["domain", name])?;
    asked(domain, name, paths)
}

/// Reads a call: `domain=D`, each descriptor from a parameter `d`, and `hits`, negative for a refund.
///
/// # Errors
/// A message that names the parameter, for one that is missing, unknown or malformed.
pub(super) fn call(query: &str, bounds: Bounds) -> Result<request::Request, String> {
    let [domain, paths, hits] = read(Some(query), ["domain", REPEATED, "hits"])?;
    bounds.check_descriptors(paths.len()).map_err(|refusal| refusal.to_string())?;
    let mut call = asked(domain, REPEATED, paths)?;
    if call.domain.is_empty() {
        return Err("domain: must not be empty".to_owned());
    }
    let most = Hits::MAX;
    let stated = match hits.first().map(|text| text.parse::<i64>()) {
        None => None,
        Some(Ok(hits)) if hits.unsigned_abs() <= most => Some(hits),
        Some(_) => return Err(format!("hits: must be a whole number from -{most} to {most}")),
    };
    for (index, descriptor) in call.descriptors.iter_mut().enumerate() {
        request::check_entries(index, descriptor.entries.len())?;
        descriptor.states_hits = stated.is_some();
        descriptor.hits = match stated.unwrap_or(1) {
            0 => Hits::Check,
            hits if hits < 0 => Hits::Refund(hits.unsigned_abs()),
            hits => Hits::Charge(hits.unsigned_abs()),
        };
    }
    Ok(call)
}

/// The counters of a domain and of these paths, which come from the parameter of this name.
///
/// # Errors
/// A message that names the parameter, for one that is missing or malformed.
pub(super) fn asked(
    mut domain: Vec<Cow<'_, str>>,
    name: &str,
    paths: Vec<Cow<'_, str>>,
) -> Result<request::Request, String> {
    let mut descriptors = Vec::with_capacity(paths.len());
    for path in paths {
        let entries = descriptor_syntax::parse(&path);
        let entries = entries.map_err(|problem| format!("{name}: {problem}"))?;
        let (hits, states_hits, limit) = (Hits::Check, false, None);
        descriptors.push(Descriptor { entries, hits, states_hits, limit });
    }
    if descriptors.is_empty() {
        return Err(format!("{name}: missing, such as {name}=user=alice"));
    }
    let domain = domain.pop().ok_or("domain: missing")?.into_owned();
    Ok(request::Request { domain, descriptors })
}

/// The name of a parameter for a message, not beyond 64 characters.
fn quoted(name: &str) -> String {
    let beginning: String = name.chars().take(64).collect();
    format!("`{}`", printable(beginning.as_bytes()))
}
