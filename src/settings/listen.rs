//! Where the service listens, what it serves there, and to whom.

use std::{net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

use super::{
    form::{ADDRESS, ADDRESS_OR_OFF, Custom, PATH, SWITCH, WholeNumber, duration},
    reader::SettingReader,
    row::Setting,
};
use crate::{
    access::{AdminToken, DomainAccess},
    rls::ConnectionBounds,
    tls::server::{ServerFiles, TlsServer},
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
    /// Whether gRPC reflection is served.
    pub reflection: bool,
    /// Bounds on connections to gRPC.
    pub connections: ConnectionBounds,
    /// TLS of all addresses.
    pub tls: Option<Arc<TlsServer>>,
    /// The domains of clients, if they are restricted.
    pub access: Option<Arc<DomainAccess>>,
    /// The token of the admin address, if it has one.
    pub admin_token: Option<Arc<AdminToken>>,
}

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
            flag: "http-addr",
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
        let reflection = reader.read(&Setting {
            flag: "reflection",
            form: SWITCH,
            default: "off",
            help: "Serve gRPC reflection",
        });
        let connections = read_connections(reader);
        let tls = read_tls(reader);
        let access = read_path(
            reader,
            DOMAINS,
            "YAML file with the domains that each client may ask about, by its certificate",
        );
        let admin_token =
            read_path(reader, TOKEN, "File that holds the bearer token of the admin address");
        let identified = tls.as_ref().is_some_and(|tls| tls.identifies_clients());
        if access.is_some() && !identified {
            reader.problem(DOMAINS, "it needs --tls-client-ca");
        }
        let is_open = admin.is_some_and(|address| !address.ip().is_loopback());
        if is_open && !identified && admin_token.is_none() {
            let problem = "beyond loopback it needs --admin-token-file or --tls-client-ca";
            reader.problem(ADMIN, problem);
        }
        Self {
            grpc,
            http,
            admin,
            reflection,
            connections,
            tls,
            access: load(reader, DOMAINS, access, DomainAccess::load),
            admin_token: load(reader, TOKEN, admin_token, AdminToken::load),
        }
    }
}

impl ListenSettings {
    pub(super) fn read_grpc(reader: &mut SettingReader<'_>) -> SocketAddr {
        reader.read(&Setting {
            flag: "grpc-addr",
            form: ADDRESS,
            default: "127.0.0.1:8081",
            help: "Address on which gRPC is served",
        })
    }

    /// Whether clients need a certificate.
    pub fn identifies_clients(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.identifies_clients())
    }
}

fn read_connections(reader: &mut SettingReader<'_>) -> ConnectionBounds {
    let connections_max = reader.read(&Setting {
        flag: "max-connections",
        form: WholeNumber { min: 1, max: 1_000_000 },
        default: "10000",
        help: "Maximum number of connections to gRPC; further ones are closed at once",
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
    match (certificate, key) {
        (Some(certificate), Some(key)) => {
            let files = ServerFiles { certificate, key, client_ca };
            let loaded = TlsServer::load(files);
            loaded.map(Arc::new).map_err(|problem| reader.problem(CERTIFICATE, &problem)).ok()
        }
        (Some(_), None) => {
            reader.problem(CERTIFICATE, "it needs --tls-key");
            None
        }
        (None, Some(_)) => {
            reader.problem(KEY, "it needs --tls-cert");
            None
        }
        (None, None) => {
            if client_ca.is_some() {
                reader.problem(CLIENT_CA, "it needs --tls-cert and --tls-key");
            }
            None
        }
    }
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
