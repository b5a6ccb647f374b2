//! Recognizes requests that a web page makes in a user's browser, which may reach addresses that the page's
//! author cannot. The browser's headers name the origin of a request, and no page can change them.

use std::net::{IpAddr, SocketAddr};

use axum::http::{HeaderMap, HeaderValue, header};

/// Whether a web page made this request. An address that a person enters does not count as a page.
pub(super) fn is_from_web_page(headers: &HeaderMap) -> bool {
    let mut sites = headers.get_all("sec-fetch-site").iter();
    headers.contains_key(header::ORIGIN) || sites.any(|site| site != "none")
}

/// Whether a web page of another origin than this one made this request. A browser adds `Origin` to all requests of a page
/// but those that read from its own origin.
pub(super) fn is_from_other_origin(headers: &HeaderMap) -> bool {
    let mut sites = headers.get_all("sec-fetch-site").iter();
    let mut origins = headers.get_all(header::ORIGIN).iter();
    origins.any(|origin| !is_own(origin, headers))
        || sites.any(|site| site != "none" && site != "same-origin")
}

fn is_own(origin: &HeaderValue, headers: &HeaderMap) -> bool {
    let origin = origin.as_bytes();
    let origin = origin.strip_prefix(b"http://").or_else(|| origin.strip_prefix(b"https://"));
    let mut hosts = headers.get_all(header::HOST).iter();
    origin.is_some() && origin == hosts.next().map(HeaderValue::as_bytes) && hosts.next().is_none()
}

/// Whether every `Host` is an IP address or `localhost`. A page's author could make any other name resolve to
/// our address, so that the browser takes our answers for the page's own (DNS rebinding). Browsers always
/// send `Host`; other clients may omit it.
pub(super) fn host_is_ip_or_localhost(headers: &HeaderMap) -> bool {
    headers.get_all(header::HOST).iter().all(is_ip_or_localhost)
}

fn is_ip_or_localhost(host: &HeaderValue) -> bool {
    let Ok(host) = host.to_str() else { return false };
    if host.parse::<SocketAddr>().is_ok() || host.parse::<IpAddr>().is_ok() {
        return true;
    }
    let without_port = match host.rsplit_once(':') {
        Some((name, port)) if port.parse::<u16>().is_ok() => name,
        _ => host,
    };
    let in_brackets = without_port.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    in_brackets.is_some_and(|address| address.parse::<IpAddr>().is_ok())
        || without_port.eq_ignore_ascii_case("localhost")
}
