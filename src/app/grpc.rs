//! The services on the gRPC address: rate limits, health and reflection.

use std::sync::Arc;

use tonic::service::Routes;
use tonic_reflection::server::{Builder, Error};

use crate::{
    edge::health::Health,
    rls::{self, GrpcServices},
};

/// The largest request for reflection, in bytes: it holds a name.
const REFLECTION_BYTES_MAX: usize = 4 << 10;

pub(super) fn services(
    rate_limit: Arc<rls::Service>,
    health: &Health,
    reflection: bool,
) -> Result<GrpcServices, Error> {
    let mut others = Routes::builder();
    others.add_service(health.grpc());
    if reflection {
        let v1 = reflection_builder().build_v1()?;
        let v1alpha = reflection_builder().build_v1alpha()?;
        others.add_service(v1.max_decoding_message_size(REFLECTION_BYTES_MAX));
        others.add_service(v1alpha.max_decoding_message_size(REFLECTION_BYTES_MAX));
    }
    let others = others.routes().prepare();
    Ok(GrpcServices { rate_limit, others })
}

fn reflection_builder<'files>() -> Builder<'files> {
    Builder::configure()
        .register_encoded_file_descriptor_set(rls::FILE_DESCRIPTORS)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
}
