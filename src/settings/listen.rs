//! Where the service listens, and what it serves there.

use std::net::SocketAddr;

use super::{
    form::{ADDRESS, ADDRESS_OR_OFF, SWITCH},
    reader::SettingReader,
    row::Setting,
};

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
        }
    }
}
