//! Where the service listens, what it serves there, and to whom.

use std::{net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

use super::reader::{
    SettingReader,
    environment::Given,
    form::{ADDRESS, OneOf, OrOff, SWITCH, Size, Time, WholeNumber},
};
use crate::{
    authorization::{AdminTokens, DomainAccess},
    net::tls::server::{ServerFiles, TlsServer, TlsUse},
    rls::ConnectionBounds,
};

#[derive(Debug, Clone)]
pub struct ListenSettings {
    pub grpc: Given<SocketAddr>,
    pub http: Given<SocketAddr>,
    /// The address of the admin API, if it is served.
    pub admin: Option<Given<SocketAddr>>,
    /// The address of metrics alone, and their path there, as envoyproxy/ratelimit has them.
    pub metrics: Option<(Given<SocketAddr>, Arc<str>)>,
    /// The address of `/rlconfig`, as envoyproxy/ratelimit has it.
    pub debug: Option<Given<SocketAddr>>,
    pub reflection: bool,
    /// The system's receive buffer of each connection to gRPC, in bytes; `None` leaves it to the system.
    pub receive_buffer: Option<usize>,
    pub connections: ConnectionBounds,
    pub tls: Option<Arc<TlsServer>>,
    pub tls_scope: TlsScope,
    /// The domains of clients, if they are restricted.
    pub access: Option<Arc<DomainAccess>>,
    /// The tokens of the admin address, if it has any.
    pub admin_tokens: Option<Arc<AdminTokens>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TlsScope {
    /// The addresses of gRPC, HTTP and the admin API.
    All,
    Grpc,
}

const TLS_SCOPES: OneOf<TlsScope> = OneOf(&[("all", TlsScope::All), ("grpc", TlsScope::Grpc)]);

const AGE: Time = Time(Duration::from_secs(1)..=Duration::from_secs(24 * 3600));

const ADMIN: &str = "admin-addr";
const CERTIFICATE: &str = "tls-cert";
const KEY: &str = "tls-key";
const CLIENT_CA: &str = "tls-client-ca";
const DOMAINS: &str = "client-domains";
const TOKEN: &str = "admin-token-file";

impl ListenSettings {
    #[rustfmt::skip]
    pub(super) fn read(reader: &mut SettingReader<'_>) -> Self {
        let grpc = Self::read_grpc(reader);
        let http = reader.read_given("http-addr", ADDRESS, "127.0.0.1:8080", "Address of HTTP");
        let admin = reader.read_given(ADMIN, OrOff(ADDRESS), "127.0.0.1:6070", "Address for operators; beyond loopback with a token or client certificates");
        let admin = admin.value.map(|value| Given { value, name: admin.name });
        let reflection = reader.read("reflection", SWITCH, "off", "Serve gRPC reflection");
        let receive_buffer = reader.read("grpc-receive-buffer", OrOff(Size(64 << 10..=64 << 20)), "1MiB", "Receive buffer of a gRPC connection, for debits of an Envoy that ends");
        let connections = ConnectionBounds {
            connections_max: reader.read("max-connections", WholeNumber(1..=1_000_000), "10000", "Maximum number of connections to each address"),
            age: reader.read("connection-age", OrOff(AGE), "30m", "Age at which gRPC clients must reconnect, give or take 10 %"),
        };
        let tls = read_tls(reader);
        let tls_scope = reader.read("tls-scope", TLS_SCOPES, "all", "Addresses with TLS: all, or gRPC only");
        if tls.is_none() {
            reader.warn_unused("tls-scope", "--tls-cert and --tls-key are not set");
        }
        let access = reader.read_path(DOMAINS, "YAML file with the domains of each client certificate");
        let admin_tokens = reader.read_path(TOKEN, "File with the bearer tokens of the admin address: one, or a line NAME TOKEN for each");
        // Also if TLS has a problem of its own, which is reported already.
        let identified = reader.is_given(CLIENT_CA);
        if access.is_some() && !identified {
            reader.problem(DOMAINS, "needs --tls-client-ca");
        }
        let is_open = admin.as_ref().is_some_and(|admin| !admin.value.ip().is_loopback());
        let admin_identifies = identified && tls_scope == TlsScope::All;
        if is_open && !admin_identifies && admin_tokens.is_none() {
            reader.problem(ADMIN, "must be a loopback address, unless --admin-token-file or --tls-client-ca is set");
        }
        let metrics = reader.translated.metrics.take();
        let debug = reader.translated.debug.take();
        let of_metrics = metrics.as_ref().map(|(given, _)| given);
        let http_and_admin = [("http-addr", Some(&http)), (ADMIN, admin.as_ref())];
        let others = http_and_admin.into_iter().chain([("", of_metrics), ("", debug.as_ref())]);
        let mut taken = vec![&grpc];
        for (flag, given) in others.filter_map(|(flag, given)| Some((flag, given?))) {
            let is_same = |other: &&&Given<SocketAddr>| {
                other.value == given.value && other.value.port() != 0
            };
            if let Some(other) = taken.iter().find(is_same) {
                let location = reader.given(flag).and_then(|given| given.location);
                let problem = format!("{}: same address as {}", given.name, other.name);
                reader.problems.push((location, problem));
            }
            taken.push(given);
        }
        Self {
            grpc,
            http,
            admin,
            metrics,
            debug,
            reflection,
            receive_buffer,
            connections,
            tls,
            tls_scope,
            access: load(reader, DOMAINS, access, DomainAccess::load),
            admin_tokens: load(reader, TOKEN, admin_tokens, AdminTokens::load),
        }
    }

    pub(super) fn read_grpc(reader: &mut SettingReader<'_>) -> Given<SocketAddr> {
        reader.read_given("grpc-addr", ADDRESS, "127.0.0.1:8081", "Address of gRPC")
    }

    /// The TLS of an address, if it speaks TLS.
    pub fn tls_of(&self, listener: TlsUse) -> Option<Arc<TlsServer>> {
        match (self.tls_scope, listener) {
            (TlsScope::All, _) | (TlsScope::Grpc, TlsUse::Grpc) => self.tls.clone(),
            (TlsScope::Grpc, TlsUse::Http | TlsUse::Admin) => None,
        }
    }

    /// Whether an address identifies its clients by their certificates.
    pub fn identifies_clients(&self, listener: TlsUse) -> bool {
        self.tls_of(listener).is_some_and(|tls| tls.identifies_clients())
    }
}

#[rustfmt::skip]
fn read_tls(reader: &mut SettingReader<'_>) -> Option<Arc<TlsServer>> {
    let certificate = reader.read_path(CERTIFICATE, "PEM file with the service's certificate and chain");
    let key = reader.read_path(KEY, "PEM file with the service's key");
    let client_ca = reader.read_path(CLIENT_CA, "PEM file with the CAs of clients, which need a certificate");
    reader.check_pair(CERTIFICATE, KEY);
    if client_ca.is_some() && certificate.is_none() && key.is_none() {
        reader.problem_needs(CLIENT_CA, &[CERTIFICATE, KEY]);
    }
    let files = ServerFiles { certificate: certificate?, key: key?, client_ca };
    let loaded = TlsServer::load(files);
    loaded.map(Arc::new).map_err(|problem| reader.problem(CERTIFICATE, &problem)).ok()
}

/// Loads the file of a setting. What is wrong with it is a problem.
fn load<T>(
    reader: &mut SettingReader<'_>,
    flag: &'static str,
    path: Option<PathBuf>,
    load: fn(PathBuf) -> Result<T, String>,
) -> Option<Arc<T>> {
    let loaded = load(path?);
    loaded.map(Arc::new).map_err(|problem| reader.problem(flag, &problem)).ok()
}
