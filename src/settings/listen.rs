//! Where the service listens, what it serves there, and to whom.

use std::{net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

use super::reader::{
    Setting, SettingReader,
    form::{ADDRESS, ADDRESS_OR_OFF, Custom, OneOf, PATH, SWITCH, WholeNumber, duration, invalid},
};
use crate::{
    authorization::{AdminToken, DomainAccess},
    net::tls::server::{ServerFiles, TlsServer, TlsUse},
    rls::ConnectionBounds,
};

/// Where the service listens, what it serves there, and to whom.
#[derive(Debug, Clone)]
pub struct ListenSettings {
    /// The address of gRPC.
    pub grpc: SocketAddr,
    /// The address of HTTP.
    pub http: SocketAddr,
    /// The address of the admin API, if it is served.
    pub admin: Option<SocketAddr>,
    /// The address of metrics alone, and their path there, if they are served on one.
    pub metrics: Option<(SocketAddr, Arc<str>)>,
    /// The address of `/rlconfig`, if it is served.
    pub debug: Option<SocketAddr>,
    /// What gives each address.
    pub names: ListenNames,
    /// Whether gRPC reflection is served.
    pub reflection: bool,
    /// Bounds on connections to gRPC.
    pub connections: ConnectionBounds,
    /// TLS, if any address speaks it.
    pub tls: Option<Arc<TlsServer>>,
    /// Which addresses speak it.
    pub tls_scope: TlsScope,
    /// The domains of clients, if they are restricted.
    pub access: Option<Arc<DomainAccess>>,
    /// The token of the admin address, if it has one.
    pub admin_token: Option<Arc<AdminToken>>,
}

/// What gives each address, for messages: a flag, a variable or a place in the file.
#[derive(Debug, Clone)]
pub struct ListenNames {
    /// For gRPC.
    pub grpc: String,
    /// For HTTP.
    pub http: String,
    /// For the admin API.
    pub admin: String,
    /// For metrics alone.
    pub metrics: String,
    /// For `/rlconfig`.
    pub debug: String,
}

/// Which addresses speak TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TlsScope {
    /// Those of gRPC, HTTP and the admin API.
    All,
    /// The one of gRPC.
    Grpc,
}

const TLS_SCOPES: OneOf<TlsScope> = OneOf(&[("all", TlsScope::All), ("grpc", TlsScope::Grpc)]);

const GRPC: &str = "grpc-addr";
const HTTP: &str = "http-addr";
const METRICS: &str = "metrics-addr";
const DEBUG: &str = "debug-addr";
const ADMIN: &str = "admin-addr";
const CERTIFICATE: &str = "tls-cert";
const KEY: &str = "tls-key";
const CLIENT_CA: &str = "tls-client-ca";
const DOMAINS: &str = "client-domains";
const TOKEN: &str = "admin-token-file";

impl ListenSettings {
    pub(super) fn read(reader: &mut SettingReader<'_>) -> Self {
        let grpc = Self::read_grpc(reader);
        let http = reader.read(&Setting {
            flag: HTTP,
            form: ADDRESS,
            default: "127.0.0.1:8080",
            help: "Address on which HTTP is served: /json, health, /metrics and /rules",
        });
        let admin = reader.read(&Setting {
            flag: ADMIN,
            form: ADDRESS_OR_OFF,
            default: "127.0.0.1:6070",
            help: "Address on which counters are shown and reset; beyond loopback it needs a token or client certificates",
        });
        let metrics = read_metrics(reader);
        let debug = reader.read(&Setting {
            flag: DEBUG,
            form: ADDRESS_OR_OFF,
            default: "off",
            help: "Address on which /rlconfig is served without TLS: the rules in force, as envoyproxy/ratelimit lists them",
        });
        let reflection = reader.read(&Setting {
            flag: "reflection",
            form: SWITCH,
            default: "off",
            help: "Serve gRPC reflection",
        });
        let connections = read_connections(reader);
        let tls = read_tls(reader);
        let tls_scope = reader.read(&Setting {
            flag: "tls-scope",
            form: TLS_SCOPES,
            default: "all",
            help: "Which addresses speak TLS: all, or only the one of gRPC",
        });
        if tls.is_none() {
            reader.warn_unused("tls-scope", "--tls-cert and --tls-key are not set");
        }
        let access = read_path(
            reader,
            DOMAINS,
            "YAML file with the domains that each client may ask about, by its certificate",
        );
        let admin_token =
            read_path(reader, TOKEN, "File that holds the bearer token of the admin address");
        // Also if TLS has a problem of its own, which is reported already.
        let identified = reader.is_given(CLIENT_CA);
        if access.is_some() && !identified {
            reader.problem(DOMAINS, "needs --tls-client-ca");
        }
        let is_open = admin.is_some_and(|address| !address.ip().is_loopback());
        let admin_identifies = identified && tls_scope == TlsScope::All;
        if is_open && !admin_identifies && admin_token.is_none() {
            let problem =
                "must be a loopback address, unless --admin-token-file or --tls-client-ca is set";
            reader.problem(ADMIN, problem);
        }
        Self {
            grpc,
            http,
            admin,
            metrics,
            debug,
            names: ListenNames {
                grpc: reader.name_of(GRPC),
                http: reader.name_of(HTTP),
                admin: reader.name_of(ADMIN),
                metrics: reader.name_of(METRICS),
                debug: reader.name_of(DEBUG),
            },
            reflection,
            connections,
            tls,
            tls_scope,
            access: load(reader, DOMAINS, access, DomainAccess::load),
            admin_token: load(reader, TOKEN, admin_token, AdminToken::load),
        }
    }
}

impl ListenSettings {
    pub(super) fn read_grpc(reader: &mut SettingReader<'_>) -> SocketAddr {
        reader.read(&Setting {
            flag: GRPC,
            form: ADDRESS,
            default: "127.0.0.1:8081",
            help: "Address on which gRPC is served",
        })
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

fn read_metrics(reader: &mut SettingReader<'_>) -> Option<(SocketAddr, Arc<str>)> {
    let address = reader.read(&Setting {
        flag: METRICS,
        form: ADDRESS_OR_OFF,
        default: "off",
        help: "Further address on which metrics are served, without TLS",
    });
    let path = reader.read(&Setting {
        flag: "metrics-path",
        form: URL_PATH,
        default: "/metrics",
        help: "Path of the metrics on --metrics-addr",
    });
    if address.is_none() {
        reader.warn_unused("metrics-path", "--metrics-addr is off");
    }
    address.map(|address| (address, path.into()))
}

const URL_PATH: Custom<String> = Custom { name: "PATH", read: url_path };

fn url_path(text: &str) -> Result<String, String> {
    let is_visible = text.bytes().all(|byte| byte.is_ascii_graphic() && !b"?#".contains(&byte));
    if text.starts_with('/') && text.len() <= 256 && is_visible {
        Ok(text.to_owned())
    } else {
        Err(invalid(text, "a path such as /metrics, of at most 256 visible ASCII characters"))
    }
}

fn read_connections(reader: &mut SettingReader<'_>) -> ConnectionBounds {
    let connections_max = reader.read(&Setting {
        flag: "max-connections",
        form: WholeNumber { min: 1, max: 1_000_000 },
        default: "10000",
        help: "Maximum number of connections to gRPC; for a further one, one without calls is closed",
    });
    let age = reader.read(&Setting {
        flag: "connection-age",
        form: AGE_OR_OFF,
        default: "30m",
        help: "Age at which a gRPC client is asked to connect again, give or take a tenth",
    });
    ConnectionBounds { connections_max, age }
}

fn read_tls(reader: &mut SettingReader<'_>) -> Option<Arc<TlsServer>> {
    let certificate =
        read_path(reader, CERTIFICATE, "PEM file with the service's certificate and its chain");
    let key = read_path(reader, KEY, "PEM file with the key of the service's certificate");
    let client_ca = read_path(
        reader,
        CLIENT_CA,
        "PEM file with the CAs of clients, which then need a certificate",
    );
    reader.check_pair(CERTIFICATE, KEY);
    if client_ca.is_some() && certificate.is_none() && key.is_none() {
        reader.problem_needs(CLIENT_CA, &[CERTIFICATE, KEY]);
    }
    let files = ServerFiles { certificate: certificate?, key: key?, client_ca };
    let loaded = TlsServer::load(files);
    loaded.map(Arc::new).map_err(|problem| reader.problem(CERTIFICATE, &problem)).ok()
}

fn read_path(
    reader: &mut SettingReader<'_>,
    flag: &'static str,
    help: &'static str,
) -> Option<PathBuf> {
    reader.read_optional(&Setting { flag, form: PATH, default: "", help })
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

/// The age of a connection, or `off`.
const AGE_OR_OFF: Custom<Option<Duration>> = Custom { name: "TIME|off", read: age_or_off };

fn age_or_off(text: &str) -> Result<Option<Duration>, String> {
    const MIN: Duration = Duration::from_secs(1);
    const MAX: Duration = Duration::from_secs(24 * 3600);
    match text {
        "off" => Ok(None),
        _ => duration(text, MIN, MAX)
            .map(Some)
            .map_err(|problem| format!("invalid value `{text}`: {problem}, or off")),
    }
}
