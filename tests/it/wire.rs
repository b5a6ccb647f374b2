//! The wire: gRPC, HTTP and JSON, a stock Envoy, and input that is refused.

mod bad_input;
mod check;
mod conformance;
mod envoy;
pub(crate) mod fuzz;
mod http;
mod quota;
mod v1;
