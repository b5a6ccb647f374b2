//! Addresses, and TLS of gRPC.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    time::Duration,
};

use super::{Translator, go, variable::host};
use crate::{
    settings::reader::{environment::Given, form::invalid, row},
    text::duration::spelled,
};

const AGES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(24 * 3600));

/// The TLS of gRPC, with our settings.
const TLS: [(&str, &str); 3] = [
    ("tls-cert", "GRPC_SERVER_TLS_CERT"),
    ("tls-key", "GRPC_SERVER_TLS_KEY"),
    ("tls-client-ca", "GRPC_CLIENT_TLS_CACERT"),
];

impl Translator<'_> {
    pub(super) fn listeners(&mut self) {
        for (flag, host, port, default) in
            [("grpc-addr", "GRPC_HOST", "GRPC_PORT", 8081), ("http-addr", "HOST", "PORT", 8080)]
        {
            let (address, variables) = self.address(host, port, default);
            self.set(flag, &variables, address.to_string());
        }
        let (value, [name, _]) = self.address("DEBUG_HOST", "DEBUG_PORT", 6070);
        self.out.debug = Some(Given { value, name: name.to_owned() });
        // It would need a token on the address of the old debug port.
        self.set("admin-addr", &[], "off");
        if self.text("GRPC_UDS").is_some() {
            match (self.given)("grpc-addr") {
                Some(ours) => self.warn("GRPC_UDS", &format!("{ours} is set")),
                None => self.problem(
                    "GRPC_UDS",
                    "not supported: gRPC is served on TCP only; set GRPC_HOST and GRPC_PORT",
                ),
            }
        }
        self.connection_age();
        self.tls();
        self.metrics_address();
    }

    fn connection_age(&mut self) {
        const NAMES: (&str, &str) = ("connection-age", "GRPC_MAX_CONNECTION_AGE");
        let Some(age) = self.text(NAMES.1).and_then(go::duration) else { return };
        let age = match age {
            Duration::ZERO => "off".to_owned(),
            age => self.clamp(NAMES, age, AGES, spelled),
        };
        self.set(NAMES.0, &[NAMES.1], age);
    }

    /// An address, and the variables that give it; the first one is for messages.
    fn address(
        &self,
        host: &'static str,
        port: &'static str,
        default: u16,
    ) -> (SocketAddr, [&'static str; 2]) {
        let address = SocketAddr::new(self.host(host), self.port(port).unwrap_or(default));
        let is_host = self.text(port).is_none() && self.text(host).is_some();
        (address, if is_host { [host, port] } else { [port, host] })
    }

    fn host(&self, name: &'static str) -> IpAddr {
        self.text(name).and_then(host).unwrap_or(Ipv4Addr::UNSPECIFIED.into())
    }

    fn port(&self, name: &'static str) -> Option<u16> {
        self.text(name)?.parse().ok()
    }

    fn tls(&mut self) {
        const SWITCH: &str = "GRPC_SERVER_USE_TLS";
        self.copy_if_on(SWITCH, &TLS);
        if !self.is_on(SWITCH) {
            return self.warn("GRPC_CLIENT_TLS_SAN", "GRPC_SERVER_USE_TLS is not true");
        }
        // envoyproxy/ratelimit has TLS for gRPC alone, and its probes and scrapers rely on that.
        self.set("tls-scope", &[SWITCH], "grpc");
        // If some of them are given, those are named instead.
        if TLS.iter().all(|(flag, name)| self.text(name).is_none() && !self.is_given(flag)) {
            let [(_, certificate), (_, key), _] = TLS;
            self.problem(SWITCH, &format!("needs {certificate} and {key}"));
        }
        if self.text("GRPC_CLIENT_TLS_SAN").is_none() {
            return;
        }
        // Without this check any client of the CA would be let in.
        match (self.given)("client-domains") {
            Some(ours) => {
                self.warn("GRPC_CLIENT_TLS_SAN", &format!("{ours} says which clients may ask"));
            }
            None => {
                let instead = row::variable("client-domains");
                let problem =
                    format!("not supported: set {instead} to a file with the names of clients");
                self.problem("GRPC_CLIENT_TLS_SAN", &problem);
            }
        }
    }

    fn metrics_address(&mut self) {
        if !self.is_on("USE_PROMETHEUS") {
            let names = ["PROMETHEUS_ADDR", "PROMETHEUS_PATH"];
            return self.warn_all(&names, "USE_PROMETHEUS is not true");
        }
        let text = self.text("PROMETHEUS_ADDR").unwrap_or(":9090");
        let address = text.rsplit_once(':').and_then(|(name, port)| {
            let host = if name.is_empty() { Some(self.host("HOST")) } else { host(name) };
            Some(SocketAddr::new(host?, port.parse().ok()?))
        });
        let path = self.text("PROMETHEUS_PATH").unwrap_or("/metrics");
        if !is_url_path(path) {
            self.problem("PROMETHEUS_PATH", &invalid(path, PATH_FORM));
        }
        match address {
            Some(value) => {
                let given = Given { value, name: "PROMETHEUS_ADDR".to_owned() };
                self.out.metrics = Some((given, path.into()));
            }
            None => {
                let form = "an IP address and a port, or a colon and a port, such as :9090";
                self.problem("PROMETHEUS_ADDR", &invalid(text, form));
            }
        }
        self.set("metrics-compat", &[], "envoyproxy");
    }
}

const PATH_FORM: &str = "a path such as /metrics, of at most 256 visible ASCII characters";

fn is_url_path(text: &str) -> bool {
    let is_visible = text.bytes().all(|byte| byte.is_ascii_graphic() && !b"?#".contains(&byte));
    text.starts_with('/') && text.len() <= 256 && is_visible
}
