//! Addresses, and TLS of gRPC.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use super::{Translator, go, variable::host};
use crate::settings::row;

const ADDRESS_FORM: &str = "must be an IP address and a port, or a colon and a port, such as :9090";

impl Translator<'_> {
    pub(super) fn listeners(&mut self) {
        for (flag, host, port, default) in [
            ("grpc-addr", "GRPC_HOST", "GRPC_PORT", 8081),
            ("http-addr", "HOST", "PORT", 8080),
            ("debug-addr", "DEBUG_HOST", "DEBUG_PORT", 6070),
        ] {
            let address = SocketAddr::new(self.host(host), self.port(port).unwrap_or(default));
            let is_host = self.text(port).is_none() && self.text(host).is_some();
            self.set(flag, if is_host { host } else { port }, address.to_string());
        }
        // It would need a token on the address of the old debug port.
        self.set("admin-addr", "DEBUG_PORT", "off");
        if self.text("GRPC_UDS").is_some() {
            let problem = "not supported: gRPC is served on TCP only; set GRPC_HOST and GRPC_PORT";
            self.problem("GRPC_UDS", problem);
        }
        if let Some(age) = self.text("GRPC_MAX_CONNECTION_AGE").and_then(go::duration) {
            let age =
                if age.is_zero() { "off".to_owned() } else { format!("{}ms", age.as_millis()) };
            self.set("connection-age", "GRPC_MAX_CONNECTION_AGE", age);
        }
        self.tls();
        self.metrics_address();
    }

    fn host(&self, name: &'static str) -> IpAddr {
        self.text(name).and_then(host).unwrap_or(Ipv4Addr::UNSPECIFIED.into())
    }

    fn port(&self, name: &'static str) -> Option<u16> {
        self.text(name)?.parse().ok()
    }

    fn tls(&mut self) {
        const FILES: [(&str, &str); 3] = [
            ("tls-cert", "GRPC_SERVER_TLS_CERT"),
            ("tls-key", "GRPC_SERVER_TLS_KEY"),
            ("tls-client-ca", "GRPC_CLIENT_TLS_CACERT"),
        ];
        if !self.is_on("GRPC_SERVER_USE_TLS") {
            let names = FILES.map(|(_, name)| name);
            self.warn_all(&names, "GRPC_SERVER_USE_TLS is not true");
            self.warn("GRPC_CLIENT_TLS_SAN", "GRPC_SERVER_USE_TLS is not true");
            return;
        }
        for (flag, name) in FILES {
            self.copy(flag, name);
        }
        // The old service has TLS for gRPC alone, and its probes and scrapers rely on that.
        self.set("tls-scope", "GRPC_SERVER_USE_TLS", "grpc");
        for (flag, name) in FILES.into_iter().take(2) {
            if self.text(name).is_none() && !self.is_given(flag) {
                self.problem("GRPC_SERVER_USE_TLS", &format!("it needs {name}"));
            }
        }
        if self.text("GRPC_CLIENT_TLS_SAN").is_none() {
            return;
        }
        // Without this check any client of the CA would be let in.
        let instead = row::variable("client-domains");
        if self.is_given("client-domains") {
            self.warn("GRPC_CLIENT_TLS_SAN", &format!("{instead} says which clients may ask"));
        } else {
            let problem =
                format!("not supported: set {instead} to a file with the names of clients");
            self.problem("GRPC_CLIENT_TLS_SAN", &problem);
        }
    }

    /// Whether one of our own flags or variables gives a setting.
    fn is_given(&self, flag: &'static str) -> bool {
        self.flags.contains_key(flag) || self.environment.text(&row::variable(flag)).is_some()
    }

    fn metrics_address(&mut self) {
        if !self.is_on("USE_PROMETHEUS") {
            let names = ["PROMETHEUS_ADDR", "PROMETHEUS_PATH"];
            return self.warn_all(&names, "USE_PROMETHEUS is not true");
        }
        let text = self.text("PROMETHEUS_ADDR").unwrap_or(":9090");
        let address = match text.strip_prefix(':') {
            Some(port) => port.parse().ok().map(|port| SocketAddr::new(self.host("HOST"), port)),
            None => text.parse().ok(),
        };
        match address {
            Some(address) => self.set("metrics-addr", "PROMETHEUS_ADDR", address.to_string()),
            None => {
                self.problem("PROMETHEUS_ADDR", &format!("invalid value `{text}`: {ADDRESS_FORM}"));
            }
        }
        self.copy("metrics-path", "PROMETHEUS_PATH");
        self.set("metrics-compat", "USE_PROMETHEUS", "envoyproxy");
    }
}
