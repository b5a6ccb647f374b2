//! Tells requests that a web page makes in somebody's browser, which may reach addresses that its author
//! may not. A browser says where a request comes from, and no page can change that.

use std::net::{IpAddr, SocketAddr};

use axum::http::{HeaderMap, HeaderValue, header};

/// Whether a page made this request. What a person types into a browser is not a page's.
pub(super) fn made_by_page(headers: &HeaderMap) -> bool {
    let mut sites = headers.get_all("sec-fetch-site").iter();
    headers.contains_key(header::ORIGIN) || sites.any(|site| site != "none")
}

/// Whether every `Host` is an IP address or `localhost`. Any other name may be one that a page's author
/// resolves as it suits them, so that to the browser our answers are the page's own (DNS rebinding). Browsers
/// always send one; other clients need not.
pub(super) fn host_is_no_name(headers: &HeaderMap) -> bool {
    headers.get_all(header::HOST).iter().all(is_no_name)
}

fn is_no_name(host: &HeaderValue) -> bool {
    let Ok(host) = host.to_str() else { return false };
    if host.parse::<SocketAddr>().is_ok() || host.parse::<IpAddr>().is_ok() {
        return true;
    }
    let without_port = match host.rsplit_once(':') {
        Some((name, port)) if port.parse::<u16>().is_ok() => name,
        _ => host,
    };
    let in_brackets = without_port.strip_prefix('[').and_then(|it| it.strip_suffix(']'));
    in_brackets.is_some_and(|it| it.parse::<IpAddr>().is_ok())
        || without_port.eq_ignore_ascii_case("localhost")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(host: &'static str, expected: bool) {
        assert_eq!(is_no_name(&HeaderValue::from_static(host)), expected, "{host}");
    }

    #[test]
    fn an_address_or_localhost_is_no_name() {
        for host in ["127.0.0.1", "127.0.0.1:6070", "10.1.2.3:80", "[::1]", "[::1]:6070", "::1"] {
            check(host, true);
        }
        for host in ["localhost", "localhost:6070", "LOCALHOST:1"] {
            check(host, true);
        }
    }

    #[test]
    fn what_somebody_else_may_resolve_is_a_name() {
        for host in ["evil.example", "evil.example:6070", "localhost.evil.example", "a.localhost"] {
            check(host, false);
        }
        for host in
            ["", ":6070", "127.0.0.1.evil.example", "127.0.0.1:x", "[evil]:1", "localhost:99999"]
        {
            check(host, false);
        }
    }
}
