//! `tollkeeper healthcheck`: requests a service's gRPC health, for probes that run a command in the container.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::PathBuf,
    process::ExitCode,
    sync::Arc,
};

use serde_json::json;
use tonic_health::pb::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};

use super::{
    address,
    channel::{self, ADDR_DEFAULT},
    output::{Ended, Failed, OutputFlag, failure, say, usage},
    tls::TlsFlags,
};
use crate::{
    net::{
        grpc::{self, GrpcMethod},
        tls::client::TlsClient,
    },
    settings::{self, Environment, TypedFlags},
};

const CHECK: GrpcMethod =
    GrpcMethod { service: "health service", name: "grpc.health.v1.Health/Check" };

#[derive(Debug, clap::Args)]
pub(super) struct HealthcheckFlags {
    /// gRPC address of the service; by default the one of `serve` with the same variables and file
    #[arg(short, long, value_name = "HOST:PORT")]
    addr: Option<String>,
    /// YAML file with the settings of the service [env: TOLLKEEPER_CONFIG]
    #[arg(long, value_name = "PATH", conflicts_with = "addr")]
    config: Option<PathBuf>,
    /// Service to query; empty for the server as a whole
    #[arg(long, value_name = "NAME", default_value = grpc::SERVICE)]
    service: String,
    #[command(flatten)]
    tls: TlsFlags,
    #[command(flatten)]
    output: OutputFlag,
}

pub(super) fn main(flags: &HealthcheckFlags, environment: &Environment) -> Ended {
    let (addr, tls) = flags.target(environment)?;
    let request = HealthCheckRequest { service: flags.service.clone() };
    let answer = channel::ask(&addr, tls, &CHECK, async |channel| {
        HealthClient::new(channel).check(request).await
    });
    let answer = answer.map_err(failure)?;
    let is_serving = answer.status() == ServingStatus::Serving;
    let name = answer.status().as_str_name();
    let text = flags.output.write(|| format!("{name}\n"), &json!({ "status": name }));
    Ok(say(&text, if is_serving { ExitCode::SUCCESS } else { ExitCode::FAILURE }))
}

impl HealthcheckFlags {
    /// The address, and how to connect to it.
    fn target(
        &self,
        environment: &Environment,
    ) -> Result<(String, Option<Arc<TlsClient>>), Failed> {
        let addr = match &self.addr {
            Some(addr) => {
                address::check("--addr", addr, ADDR_DEFAULT).map_err(usage)?;
                addr.clone()
            }
            None => self.own_address(environment).map_err(Failed::usage)?.to_string(),
        };
        let tls = self.tls.client(b"h2", None).map_err(usage)?;
        Ok((addr, tls.map(Arc::new)))
    }

    /// The address of a service with the same settings, from inside its container.
    fn own_address(&self, environment: &Environment) -> Result<SocketAddr, Vec<String>> {
        let mut flags = TypedFlags::new();
        if let Some(path) = &self.config {
            flags.insert(settings::CONFIG, vec![path.into()]);
        }
        settings::grpc_address(&flags, environment).map(reachable)
    }
}

/// An address at which a listener can be reached: one on all addresses of the host, also `[::]`, has loopback too.
fn reachable(mut listener: SocketAddr) -> SocketAddr {
    if listener.ip().is_unspecified() {
        listener.set_ip(IpAddr::V4(Ipv4Addr::LOCALHOST));
    }
    listener
}
