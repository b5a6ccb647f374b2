//! The service in the place of envoyproxy/ratelimit in a real Envoy Gateway: policies in files, rules over its xDS with mutual
//! TLS, and real requests through the real Envoy that it configures. A test binary of its own, since Envoy Gateway takes
//! minutes to build: `tests/envoy-gateway` builds and runs it.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::disallowed_methods,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    dead_code,
    unreachable_pub,
    reason = "a test that panics has failed; the other test binary uses the rest of `support`"
)]

mod gateway;
#[path = "../support/mod.rs"]
mod support;
