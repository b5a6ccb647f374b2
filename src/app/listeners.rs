//! The sockets on which the service listens.

use std::{
    fmt, io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
};

use axum::Router;
use tokio::net::{TcpListener, TcpSocket};

use crate::{
    audit::Audit,
    edge::health::Health,
    http::{self, Decisions, History, Reports, admin::Admin},
    net::tls::server::{ListenerTls, TlsServer, TlsUse},
    rls,
    settings::{Given, ListenSettings},
};

/// Connections that wait to be accepted, if the system allows as many.
const ACCEPT_QUEUE: u32 = 4096;

pub(super) struct Listeners {
    pub grpc: TcpListener,
    pub http: TcpListener,
    pub admin: Option<TcpListener>,
    pub metrics: Option<TcpListener>,
    pub debug: Option<TcpListener>,
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

pub(super) struct HttpListener {
    pub name: &'static str,
    pub socket: TcpListener,
    pub tls: ListenerTls,
    pub router: Router,
}

impl Listeners {
    pub(super) fn bind(settings: &ListenSettings) -> Result<Self, String> {
        let grpc = bind(&settings.grpc, settings.receive_buffer)?;
        let http = bind(&settings.http, None)?;
        let admin = bind_optional(settings.admin.as_ref())?;
        let metrics = settings.metrics.as_ref().map(|(address, _)| address);
        let metrics = bind_optional(metrics)?;
        let debug = bind_optional(settings.debug.as_ref())?;
        let tls = settings.tls_of(TlsUse::Grpc);
        Ok(Self { grpc, http, admin, metrics, debug, tls })
    }

    /// The socket of gRPC, and the others with their endpoints.
    pub(super) fn with_endpoints(
        self,
        settings: &ListenSettings,
        service: &Arc<rls::Service>,
        reports: Reports,
        history: Arc<History>,
        health: Health,
        audit: Arc<Audit>,
    ) -> (TcpListener, Vec<HttpListener>) {
        let tls = |listener| ListenerTls::new(settings.tls_of(listener), listener);
        let needs_certificate = settings.identifies_clients(TlsUse::Grpc);
        let is_tls = settings.tls_of(TlsUse::Http).is_some();
        let decisions = |service| Decisions::new(service, needs_certificate, is_tls);
        let router = http::router(decisions(Arc::clone(service)), reports.clone(), health.clone());
        let mut others = vec![("http", self.http, tls(TlsUse::Http), router)];
        if let Some(socket) = self.admin {
            let identifies_clients = settings.identifies_clients(TlsUse::Admin);
            let tokens = settings.admin_tokens.clone();
            // The token says what its holder may do; where callers are not identified, every local user is an operator.
            let is_by_domain = identifies_clients && tokens.is_none();
            let access = service.access.clone().filter(|_| is_by_domain);
            let (decisions, reports) = (decisions(Arc::clone(service)), reports.clone());
            let admin = Admin {
                decisions,
                reports,
                history,
                health,
                audit,
                tokens,
                identifies_clients,
                access,
            };
            others.push(("admin", socket, tls(TlsUse::Admin), http::admin::router(admin)));
        }
        if let (Some(socket), Some((_, path))) = (self.metrics, &settings.metrics) {
            let router = http::metrics_router(reports.clone(), Arc::clone(path));
            others.push(("metrics", socket, ListenerTls::none(), router));
        }
        if let Some(socket) = self.debug {
            others.push(("debug", socket, ListenerTls::none(), http::debug_router(reports)));
        }
        let listener = |(name, socket, tls, router)| HttpListener { name, socket, tls, router };
        (self.grpc, others.into_iter().map(listener).collect())
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

fn bind_optional(address: Option<&Given<SocketAddr>>) -> Result<Option<TcpListener>, String> {
    address.map(|address| bind(address, None)).transpose()
}

fn bind(given: &Given<SocketAddr>, receive_buffer: Option<usize>) -> Result<TcpListener, String> {
    let Given { value: address, name } = given;
    let bound = match listen(*address, receive_buffer) {
        // `[::]` stands for all addresses, and a kernel without IPv6 has only the others.
        Err(error) if address.ip() == Ipv6Addr::UNSPECIFIED && has_no_ipv6(&error) => {
            listen((Ipv4Addr::UNSPECIFIED, address.port()).into(), receive_buffer)
        }
        bound => bound,
    };
    bound.map_err(|error| format!("{name} {address}: {error}"))
}

/// The accepted connections have the receive buffer of their listener.
fn listen(address: SocketAddr, receive_buffer: Option<usize>) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    socket.set_reuseaddr(true)?;
    if let Some(bytes) = receive_buffer {
        socket.set_recv_buffer_size(u32::try_from(bytes).unwrap_or(u32::MAX))?;
    }
    socket.bind(address)?;
    socket.listen(ACCEPT_QUEUE)
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
