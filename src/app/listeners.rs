//! The sockets on which the service listens.

use std::{
    fmt, io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
};

use tokio::net::TcpListener;

use crate::{
    net::tls::server::{TlsServer, TlsUse},
    settings::{Given, ListenSettings},
};

/// The sockets on which the service listens.
pub(super) struct Listeners {
    pub grpc: TcpListener,
    pub http: TcpListener,
    pub admin: Option<TcpListener>,
    pub metrics: Option<TcpListener>,
    pub debug: Option<TcpListener>,
    /// The TLS of gRPC.
    tls: Option<Arc<TlsServer>>,
}

/// The addresses of the sockets, with the ports that the system has chosen.
pub(super) struct Addresses {
    pub grpc: SocketAddr,
    pub http: SocketAddr,
    pub admin: Option<SocketAddr>,
    pub metrics: Option<SocketAddr>,
    pub debug: Option<SocketAddr>,
    /// The flags with which `tollkeeper call` reaches gRPC.
    pub call_flags: String,
}

impl Listeners {
    pub(super) async fn bind(settings: &ListenSettings) -> Result<Self, String> {
        let grpc = bind(&settings.grpc).await?;
        let http = bind(&settings.http).await?;
        let admin = bind_optional(settings.admin.as_ref()).await?;
        let metrics = settings.metrics.as_ref().map(|(address, _)| address);
        let metrics = bind_optional(metrics).await?;
        let debug = bind_optional(settings.debug.as_ref()).await?;
        let tls = settings.tls_of(TlsUse::Grpc);
        Ok(Self { grpc, http, admin, metrics, debug, tls })
    }

    pub(super) fn addresses(&self) -> io::Result<Addresses> {
        let of = |listener: &Option<TcpListener>| {
            listener.as_ref().map(TcpListener::local_addr).transpose()
        };
        Ok(Addresses {
            grpc: self.grpc.local_addr()?,
            http: self.http.local_addr()?,
            admin: of(&self.admin)?,
            metrics: of(&self.metrics)?,
            debug: of(&self.debug)?,
            call_flags: self.call_flags()?,
        })
    }

    /// The files are for the reader to replace.
    fn call_flags(&self) -> io::Result<String> {
        let address = self.grpc.local_addr()?;
        Ok(match &self.tls {
            None => format!("--addr {address}"),
            Some(tls) if tls.identifies_clients() => {
                format!("--addr {address} --tls-ca CA.pem --tls-cert CERT.pem --tls-key KEY.pem")
            }
            Some(_) => format!("--addr {address} --tls-ca CA.pem"),
        })
    }
}

async fn bind_optional(address: Option<&Given<SocketAddr>>) -> Result<Option<TcpListener>, String> {
    match address {
        Some(address) => bind(address).await.map(Some),
        None => Ok(None),
    }
}

async fn bind(given: &Given<SocketAddr>) -> Result<TcpListener, String> {
    let Given { value: address, name } = given;
    let bound = match TcpListener::bind(*address).await {
        // `[::]` stands for all addresses, and a kernel without IPv6 has only the others.
        Err(error) if address.ip() == Ipv6Addr::UNSPECIFIED && has_no_ipv6(&error) => {
            TcpListener::bind((Ipv4Addr::UNSPECIFIED, address.port())).await
        }
        bound => bound,
    };
    bound.map_err(|error| format!("{name} {address}: {error}"))
}

/// Whether a socket could not be created since the kernel has no IPv6. The errors of a kernel that has it are others.
fn has_no_ipv6(error: &io::Error) -> bool {
    !matches!(error.kind(), io::ErrorKind::AddrInUse | io::ErrorKind::PermissionDenied)
}

impl fmt::Display for Addresses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "grpc {}, http {}", self.grpc, self.http)?;
        let others = [("admin", self.admin), ("metrics", self.metrics), ("debug", self.debug)];
        for (name, address) in others {
            if let Some(address) = address {
                write!(f, ", {name} {address}")?;
            }
        }
        Ok(())
    }
}
