//! The empty handler: what gRPC costs in Rust before anything is decided. Served by tonic's own server
//! and generated code.

use envoy_types::pb::envoy::service::ratelimit::v3::{
    RateLimitRequest, RateLimitResponse,
    rate_limit_response::{Code, DescriptorStatus},
    rate_limit_service_server::{RateLimitService, RateLimitServiceServer},
};
use tonic::{Request, Response, Status, service::Routes};

struct Empty;

#[tonic::async_trait]
impl RateLimitService for Empty {
    async fn should_rate_limit(
        &self,
        _: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        let status = DescriptorStatus { code: Code::Ok.into(), ..Default::default() };
        let overall_code = Code::Ok.into();
        Ok(Response::new(RateLimitResponse {
            overall_code,
            statuses: vec![status],
            ..Default::default()
        }))
    }
}

pub(crate) fn routes() -> Routes {
    Routes::new(RateLimitServiceServer::new(Empty))
}
