//! The wire: gRPC, HTTP and JSON, a stock Envoy, and input that is refused.

mod bad_input;
mod conformance;
mod envoy;
mod fuzz;
mod http;
mod v1;
