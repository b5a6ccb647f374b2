//! The empty handler: what gRPC costs in Rust before anything is decided. tonic's own server and
//! generated code, on tokio's usual runtime.

use std::net::SocketAddr;

use envoy_types::pb::envoy::service::ratelimit::v3::{
    RateLimitRequest, RateLimitResponse,
    rate_limit_response::{Code, DescriptorStatus},
    rate_limit_service_server::{RateLimitService, RateLimitServiceServer},
};
use tonic::{
    Request, Response, Status,
    transport::{Server, server::TcpIncoming},
};

use crate::Result;

struct Empty;

#[tonic::async_trait]
impl RateLimitService for Empty {
    async fn should_rate_limit(
        &self,
        _: Request<RateLimitRequest>,
    ) -> std::result::Result<Response<RateLimitResponse>, Status> {
        let status = DescriptorStatus { code: Code::Ok.into(), ..Default::default() };
        let overall_code = Code::Ok.into();
        Ok(Response::new(RateLimitResponse {
            overall_code,
            statuses: vec![status],
            ..Default::default()
        }))
    }
}

/// Serves until it is killed, and tells where as tollkeeper does.
pub(crate) fn serve() -> Result<()> {
    tokio::runtime::Runtime::new()?.block_on(async {
        let incoming = TcpIncoming::bind(SocketAddr::from(([127, 0, 0, 1], 0)))?;
        let incoming = incoming.with_nodelay(Some(true));
        println!("empty handler ready: grpc {},", incoming.local_addr()?);
        let service = RateLimitServiceServer::new(Empty);
        Ok(Server::builder().add_service(service).serve_with_incoming(incoming).await?)
    })
}
