//! Where the rules come from: files, or a control plane with its URL and TLS.

use std::{path::PathBuf, sync::Arc, time::Duration};

use crate::{
    net::tls::client::{TlsAdvice, TlsClient},
    rules::xds::XdsTarget,
    settings::{
        reader::{
            SettingReader,
            environment::Given,
            url_parts::{NODE_FORM, decoded, is_node, read_host},
        },
        tls::TlsSettings,
    },
    store::redis::wire::endpoint::Address,
};

#[derive(Debug, Clone)]
pub enum RuleSource {
    /// Files and folders; empty for the shipped example.
    Files(Vec<PathBuf>),
    ControlPlane(Arc<XdsTarget>),
}

const RULES: &str = "rules";

const TLS: [&str; 4] = ["rules-tls-ca", "rules-tls-cert", "rules-tls-key", "rules-tls-name"];

const ADVICE: TlsAdvice = TlsAdvice {
    files: "the TLS files of the control plane",
    trust: "set --rules-tls-ca to its CA (with --compat, CONFIG_GRPC_XDS_SERVER_TLS_CACERT)",
    name: "connect to one of its names, or set --rules-tls-name",
    plain: "use xds:// in --rules",
};

/// Upper bound on a TLS handshake. No call waits for it.
const HANDSHAKE_WITHIN: Duration = Duration::from_secs(5);

impl RuleSource {
    pub(super) fn read(reader: &mut SettingReader<'_>) -> Given<Self> {
        let help = "Rule file or folder; repeatable; in the variable, separate paths with `:`. Or a control plane: xds://host:port?node=ID, with TLS xds+tls://";
        let form = ("PATH|URL", is_url as fn(&str) -> bool);
        let Given { value: paths, name } =
            reader.read_paths(RULES, form, "the shipped example", help);
        let tls = TlsSettings::read(reader, TLS);
        Given { value: Self::of(reader, paths, tls), name }
    }

    fn of(reader: &mut SettingReader<'_>, paths: Vec<PathBuf>, tls: TlsSettings) -> Self {
        let Some(url) = paths.iter().find_map(|path| path.to_str().filter(|path| is_url(path)))
        else {
            tls.warn_unused(reader, "the rules come from files");
            return Self::Files(paths);
        };
        if paths.len() > 1 {
            reader.problem(RULES, "a control plane sends all rules: give its URL alone");
        }
        match read_url(url) {
            Ok((target, false)) => {
                tls.warn_unused(reader, "only xds+tls:// uses TLS");
                Self::ControlPlane(Arc::new(target))
            }
            Ok((target, true)) => {
                let tls = tls.client(reader, RULES, |files, name| {
                    TlsClient::new(files, name, &ADVICE)
                        .with_handshake_within(HANDSHAKE_WITHIN)
                        .speaking(b"h2")
                });
                Self::ControlPlane(Arc::new(XdsTarget { tls: Some(tls), ..target }))
            }
            Err(problem) => {
                reader.problem(RULES, &problem);
                Self::Files(Vec::new())
            }
        }
    }
}

/// Whether a value of `--rules` is a URL and not a path. A scheme that is not a control plane's is refused later.
fn is_url(text: &str) -> bool {
    let is_scheme =
        |text: &str| text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'+');
    text.starts_with("xds+") || text.split_once("://").is_some_and(|(scheme, _)| is_scheme(scheme))
}

const FORM: &str = "xds://host:port?node=ID";

/// Reads a URL: a control plane without TLS, and whether it has TLS.
fn read_url(text: &str) -> Result<(XdsTarget, bool), String> {
    let (is_tls, rest) = match text.split_once("://") {
        Some(("xds", rest)) => (false, rest),
        Some(("xds+tls", rest)) => (true, rest),
        _ => return Err(format!("the scheme must be xds or xds+tls: {FORM}")),
    };
    if rest.contains('#') {
        return Err("the URL of a control plane has no part after `#`".to_owned());
    }
    let (location, query) = rest.split_once('?').unwrap_or((rest, ""));
    if location.contains('@') {
        return Err(format!("a control plane takes no user or password: {FORM}"));
    }
    if location.contains('/') {
        return Err(format!("the URL of a control plane has no path: {FORM}"));
    }
    let (host, port) = match read_host(location, 0).map_err(str::to_owned)? {
        Address::Tcp { host, port: port @ 1.. } => (host, port),
        Address::Tcp { .. } | Address::Unix(_) => {
            return Err(format!("the port is missing: {FORM}"));
        }
    };
    let node = read_node(query)?;
    Ok((XdsTarget { host, port, node, tls: None }, is_tls))
}

fn read_node(query: &str) -> Result<String, String> {
    let mut node = None;
    for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
        match parameter.split_once('=') {
            Some(("node", id)) if node.is_none() => node = Some(decoded(id, "node")?),
            Some(("node", _)) => return Err("node: specified more than once".to_owned()),
            _ => {
                return Err(
                    "unknown parameter: the URL of a control plane takes only node".to_owned()
                );
            }
        }
    }
    let known = "the id by which the control plane knows this service, such as envoy-ratelimit";
    match node {
        Some(id) if id.is_empty() => Err(format!("node: must not be empty; it is {known}")),
        Some(id) if !is_node(&id) => Err(format!("node: {NODE_FORM}")),
        Some(id) => Ok(id),
        None => Err(format!("node: missing; it is {known}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: Result<&str, &str>) {
        let read = read_url(text).map(|(target, is_tls)| format!("{target} {is_tls}"));
        match (&read, expected) {
            (Ok(read), Ok(expected)) => assert_eq!(read, expected, "{text}"),
            (Err(problem), Err(expected)) => {
                assert!(problem.contains(expected), "{text}: {problem}");
            }
            _ => panic!("{text}: {read:?}"),
        }
    }

    #[test]
    fn a_url_has_host_port_and_node() {
        check("xds://h:18001?node=a", Ok("xds://h:18001?node=a false"));
        check("xds+tls://eg.ns.svc:1?node=a%26b", Ok("xds://eg.ns.svc:1?node=a&b true"));
        check("xds://[::1]:18002?node=a", Ok("xds://[::1]:18002?node=a false"));
    }

    #[test]
    fn the_problem_of_a_bad_url_names_the_part() {
        for (text, expected) in [
            ("xds+ssl://h:1?node=a", "the scheme must be xds or xds+tls"),
            ("xds+tls:h", "the scheme must be"),
            ("XDS://h:1?node=a", "the scheme must be"),
            ("http://h:1?node=a", "the scheme must be"),
            ("xds://?node=a", "the host is missing"),
            ("xds://:1?node=a", "the host is missing"),
            ("xds://h?node=a", "the port is missing"),
            ("xds://h:0?node=a", "the port must be a number from 1 to 65535"),
            ("xds://h:65536?node=a", "the port must be"),
            ("xds://::1:18001?node=a", "the host is missing"),
            ("xds://fe80::1:18001?node=a", "write an IPv6 address in brackets"),
            ("xds://u:p@h:1?node=a", "takes no user or password"),
            ("xds://h:1/path?node=a", "has no path"),
            ("xds://h:1?node=a#b", "no part after `#`"),
            ("xds://h:1", "node: missing"),
            ("xds://h:1?", "node: missing"),
            ("xds://h:1?node=", "node: must not be empty"),
            ("xds://h:1?node=a&node=b", "node: specified more than once"),
            ("xds://h:1?node=%0a", "without control characters"),
            ("xds://h:1?node=%zz", "two hex digits must follow a `%` in the node"),
            ("xds://h:1?cluster=a", "takes only node"),
        ] {
            check(text, Err(expected));
        }
    }
}
