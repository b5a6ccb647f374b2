//! Where the service listens, and what it serves there.

use std::{net::SocketAddr, time::Duration};

use super::{
    form::{ADDRESS, ADDRESS_OR_OFF, Custom, SWITCH, WholeNumber, duration},
    reader::SettingReader,
    row::Setting,
};
use crate::rls::ConnectionBounds;

/// Where the service listens, and what it serves there.
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
}

impl ListenSettings {
    pub(super) fn read(reader: &mut SettingReader<'_>) -> Self {
        Self {
            grpc: reader.read(&Setting {
                flag: "grpc-addr",
                form: ADDRESS,
                default: "127.0.0.1:8081",
                help: "Address on which gRPC is served",
            }),
            http: reader.read(&Setting {
                flag: "http-addr",
                form: ADDRESS,
                default: "127.0.0.1:8080",
                help: "Address on which HTTP is served: /json, health, /metrics and /rules",
            }),
            admin: reader.read(&Setting {
                flag: "admin-addr",
                form: ADDRESS_OR_OFF,
                default: "127.0.0.1:6070",
                help: "Address on which counters are shown and reset, without a password",
            }),
            reflection: reader.read(&Setting {
                flag: "reflection",
                form: SWITCH,
                default: "off",
                help: "Serve gRPC reflection",
            }),
            connections: ConnectionBounds {
                connections_max: reader.read(&Setting {
                    flag: "max-connections",
                    form: WholeNumber { min: 1, max: 1_000_000 },
                    default: "10000",
                    help: "Maximum number of connections to gRPC; further ones are closed at once",
                }),
                age: reader.read(&Setting {
                    flag: "connection-age",
                    form: AGE_OR_OFF,
                    default: "30m",
                    help: "Age at which a client is asked to connect again, give or take a tenth",
                }),
            },
        }
    }
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
