//! The messages of the wire, and their clients and servers, compiled from `proto/` at the top of the repository: Envoy's
//! rate limit service, our own ([`v1`]), recorded calls ([`recording`]), and the discovery service ([`xds`]).
//!
//! What it leaves to others: what a message means, and which ones are refused. Only the code of a wire and clients use
//! these types; whatever decides has types of its own.

#![expect(clippy::all, reason = "generated")]

pub mod xds;

// Nested like the packages, since generated code refers to its neighbours by relative paths.
pub mod envoy {
    pub mod config {
        pub mod core {
            pub mod v3 {
                tonic::include_proto!("envoy.config.core.v3");
            }
        }
    }
    pub mod extensions {
        pub mod common {
            pub mod ratelimit {
                pub mod v3 {
                    tonic::include_proto!("envoy.extensions.common.ratelimit.v3");

                    /// Blank, so that no value reaches a log through `{:?}`.
                    impl std::fmt::Debug for rate_limit_descriptor::Entry {
                        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                            f.debug_struct("Entry").finish_non_exhaustive()
                        }
                    }
                }
            }
        }
    }
    pub mod service {
        pub mod rate_limit_quota {
            pub mod v3 {
                tonic::include_proto!("envoy.service.rate_limit_quota.v3");

                /// Blank, so that no value reaches a log through `{:?}`.
                impl std::fmt::Debug for BucketId {
                    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                        f.debug_struct("BucketId").finish_non_exhaustive()
                    }
                }
            }
        }
        pub mod ratelimit {
            pub mod v3 {
                tonic::include_proto!("envoy.service.ratelimit.v3");
            }
        }
    }
    pub mod r#type {
        pub mod v3 {
            tonic::include_proto!("envoy.r#type.v3");
        }
    }
}
pub mod google {
    pub mod rpc {
        tonic::include_proto!("google.rpc");
    }
}
pub mod tollkeeper {
    pub mod recording {
        pub mod v1 {
            tonic::include_proto!("tollkeeper.recording.v1");
        }
    }
    pub mod v1 {
        tonic::include_proto!("tollkeeper.v1");
    }
}

pub use envoy::{
    extensions::common::ratelimit::v3::{
        RateLimitDescriptor,
        rate_limit_descriptor::{Entry, RateLimitOverride},
    },
    service::rate_limit_quota::v3 as quota,
    service::ratelimit::v3::{
        RateLimitRequest, RateLimitResponse, rate_limit_response,
        rate_limit_service_client::RateLimitServiceClient,
    },
    r#type::v3::{RateLimitStrategy, RateLimitUnit, TokenBucket, rate_limit_strategy},
};
pub use tollkeeper::{recording::v1 as recording, v1};

/// The compiled `.proto` files of the services, for reflection.
pub const FILE_DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/services.binpb"));
