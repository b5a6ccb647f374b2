//! Addresses, and TLS of gRPC.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    time::Duration,
};

use super::{Translator, go, variable::host};
use crate::settings::reader::{form::spelled, row};

const ADDRESS_FORM: &str = "must be an IP address and a port, or a colon and a port, such as :9090";

const AGES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(24 * 3600));

/// The TLS of gRPC, with our settings.
const TLS: [(&str, &str); 3] = [
    ("tls-cert", "GRPC_SERVER_TLS_CERT"),
    ("tls-key", "GRPC_SERVER_TLS_KEY"),
    ("tls-client-ca", "GRPC_CLIENT_TLS_CACERT"),
];

impl Translator<'_> {
    pub(super) fn listeners(&mut self) {
        for (flag, host, port, default) in [
            ("grpc-addr", "GRPC_HOST", "GRPC_PORT", 8081),
            ("http-addr", "HOST", "PORT", 8080),
            ("debug-addr", "DEBUG_HOST", "DEBUG_PORT", 6070),
        ] {
            let address = SocketAddr::new(self.host(host), self.port(port).unwrap_or(default));
            let is_host = self.text(port).is_none() && self.text(host).is_some();
            let variables = if is_host { [host, port] } else { [port, host] };
            self.set(flag, &variables, address.to_string());
        }
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
        // The old service has TLS for gRPC alone, and its probes and scrapers rely on that.
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
        let variables = ["PROMETHEUS_ADDR", "USE_PROMETHEUS"];
        match address {
            Some(address) => self.set("metrics-addr", &variables, address.to_string()),
            None if self.is_given("metrics-addr") => self.set("metrics-addr", &variables, "off"),
            None => {
                self.problem("PROMETHEUS_ADDR", &format!("invalid value `{text}`: {ADDRESS_FORM}"));
            }
        }
        self.copy("metrics-path", "PROMETHEUS_PATH");
        self.set("metrics-compat", &["USE_PROMETHEUS"], "envoyproxy");
    }
}
