//! Our endpoints reject unknown query parameters: an ignored parameter would look as if it had worked.

use std::mem;

use axum::http::Request;
use percent_encoding::percent_decode_str;

use crate::{
    engine::{
        descriptor_syntax,
        request::{self, Descriptor, Hits},
    },
    rls::decode::Bounds,
    text::printable::printable_start,
};

/// The parameter that may be given more than once: a descriptor.
const REPEATED: &str = "d";

/// Its index among the parameters of a request about counters.
const DESCRIPTORS: usize = 1;

/// What is wrong with a request to an endpoint without parameters, if it has one.
pub(super) fn refused_parameter<B>(request: &Request<B>) -> Option<String> {
    let (name, _) = pairs(request.uri().query()).next()?;
    let (name, method, path) = (quoted(&name), request.method(), request.uri().path());
    Some(format!("{name}: {method} {path} takes no parameters"))
}

/// The values of these parameters: at most one of each, but for [`REPEATED`].
pub(super) fn read<const N: usize>(
    query: Option<&str>,
    names: [&str; N],
) -> Result<[Vec<String>; N], String> {
    texts(names, given(query, names)?)
}

type DescriptorQuery<const N: usize> = ([Vec<String>; N], Vec<Vec<u8>>);

/// Like [`read`], for parameters whose second one has descriptors. Those can have any bytes, and are returned apart.
pub(super) fn read_with_descriptors<const N: usize>(
    query: Option<&str>,
    names: [&str; N],
) -> Result<DescriptorQuery<N>, String> {
    let mut given = given(query, names)?;
    let descriptors = given.get_mut(DESCRIPTORS).map(mem::take).unwrap_or_default();
    Ok((texts(names, given)?, descriptors))
}

fn given<const N: usize>(
    query: Option<&str>,
    names: [&str; N],
) -> Result<[Vec<Vec<u8>>; N], String> {
    let mut values = [const { Vec::new() }; N];
    for (name, value) in pairs(query) {
        let known = names.iter().zip(&mut values).find(|(known, _)| known.as_bytes() == name);
        let Some((name, given)) = known else {
            let (name, known) = (quoted(&name), names.map(|known| format!("`{known}`")));
            return Err(match &known[..] {
                [others @ .., last] if !others.is_empty() => {
                    format!("{name}: the parameters are {} and {last}", others.join(", "))
                }
                only => format!("{name}: the only parameter is {}", only.concat()),
            });
        };
        if *name != REPEATED && !given.is_empty() {
            return Err(format!("{name}: given twice"));
        }
        given.push(value);
    }
    Ok(values)
}

fn texts<const N: usize>(
    names: [&str; N],
    given: [Vec<Vec<u8>>; N],
) -> Result<[Vec<String>; N], String> {
    let mut texts = [const { Vec::new() }; N];
    for ((name, given), texts) in names.iter().zip(given).zip(&mut texts) {
        for value in given {
            texts.push(String::from_utf8(value).map_err(|_| format!("{name}: must be UTF-8"))?);
        }
    }
    Ok(texts)
}

/// The parameters of a query, percent-decoded to their bytes, since text cannot hold bytes that are not UTF-8.
fn pairs(query: Option<&str>) -> impl Iterator<Item = (Vec<u8>, Vec<u8>)> {
    let decode = |part: &str| percent_decode_str(&part.replace('+', " ")).collect();
    let pairs = query.unwrap_or_default().split('&').filter(|pair| !pair.is_empty());
    pairs.map(move |pair| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        (decode(name), decode(value))
    })
}

/// The value of a parameter `limit`: a whole number up to `max`.
pub(super) fn limit(given: &[String], default: usize, max: usize) -> Result<usize, String> {
    let Some(text) = given.first() else { return Ok(default) };
    let limit = text.parse().ok().filter(|limit| (1..=max).contains(limit));
    limit.ok_or_else(|| format!("limit: must be a whole number from 1 to {max}"))
}

/// Reads which counters are asked for: `domain=D`, and `k=v,k=v` from the parameter of this name.
pub(super) fn counters(query: Option<&str>, name: &str) -> Result<request::Request, String> {
    let ([domain, _], paths) = read_with_descriptors(query, ["domain", name])?;
    asked(domain, name, paths)
}

/// Reads a call: `domain=D`, each descriptor from a parameter `d`, and `hits`, negative for a refund.
pub(super) fn call(query: &str, bounds: Bounds) -> Result<request::Request, String> {
    let names = ["domain", REPEATED, "hits"];
    let ([domain, _, hits], paths) = read_with_descriptors(Some(query), names)?;
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
pub(super) fn asked(
    mut domain: Vec<String>,
    name: &str,
    paths: Vec<Vec<u8>>,
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
    let domain = domain.pop().ok_or("domain: missing")?;
    Ok(request::Request { domain, descriptors })
}

/// The name of a parameter for a message, not beyond 64 characters.
fn quoted(name: &[u8]) -> String {
    format!("`{}`", printable_start(name, 64))
}
