//! What is deployed: the chart, the image, packages and the workflows that publish them, gateways, and the programs around the service: Envoy with the shipped configurations,
//! Prometheus, an OpenTelemetry Collector, a browser. `kubernetes.rs` and `envoy_gateway.rs` are binaries of their own.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::disallowed_methods,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    unreachable_pub,
    reason = "a test that panics has failed, which is its purpose"
)]

mod container;
mod examples;
mod gateways;
mod helm;
mod image;
mod monitoring;
mod otel_collector;
mod packages;
mod prometheus;
mod site;
mod status_page;
mod workflows;

#[expect(dead_code, reason = "the other test binaries use the rest")]
#[path = "../support/mod.rs"]
mod support;
