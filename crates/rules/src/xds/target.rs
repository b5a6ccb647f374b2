//! Which control plane to use, and as which node.

use std::{fmt, sync::Arc};

use tollkeeper_base::net::tls::client::TlsClient;

/// A control plane, and the node as which the service subscribes. `Display` writes it as its URL.
#[derive(Debug, Clone)]
pub struct XdsTarget {
    /// Host name or IP address, without brackets.
    pub host: String,
    pub port: u16,
    /// The node's id, by which the control plane finds the rules.
    pub node: String,
    /// With TLS, how its certificate is verified, and how to identify ourselves.
    pub tls: Option<Arc<TlsClient>>,
}

impl XdsTarget {
    pub fn authority(&self) -> String {
        let is_ipv6 = self.host.contains(':');
        let (open, close) = if is_ipv6 { ("[", "]") } else { ("", "") };
        format!("{open}{}{close}:{}", self.host, self.port)
    }
}

impl fmt::Display for XdsTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tls = if self.tls.is_some() { "+tls" } else { "" };
        write!(f, "xds{tls}://{}?node={}", self.authority(), self.node)
    }
}
