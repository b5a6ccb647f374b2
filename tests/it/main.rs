//! The integration tests, in one binary, because linking is the expensive step.
//!
//! A new test goes to the module of its claim: about a decision to `decisions`, about the traffic with Redis
//! to `redis`, about hostile input to `bad_input`, and so on. Code that several modules use is in `support`.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::disallowed_methods,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    missing_docs,
    unreachable_pub,
    reason = "a test that panics has failed, which is its purpose"
)]

mod algorithms;
mod architecture;
mod bad_input;
mod bench;
mod check;
mod checks;
mod clean_exit;
mod clients;
mod clocks;
mod cluster;
mod collector_causes;
mod commands;
mod conformance;
mod container;
mod corrupt_counters;
mod counters;
mod decisions;
mod docs;
mod edge;
mod envoy;
mod exactness;
mod explain;
mod failure;
mod faults;
mod fuzz;
mod gateways;
mod getting_started;
mod give_back;
mod group_commit;
mod helm;
mod http;
mod image;
mod import;
mod incumbent;
mod invented;
mod logs;
mod memory;
mod metrics;
mod migrating;
mod model;
mod modes;
mod monitoring;
mod opening;
mod otel_collector;
mod over_limit_cache;
mod parts;
mod peer_gone;
mod prometheus;
mod redis;
mod reload;
mod requirements;
mod rule_tests;
mod schema;
mod sentinel;
mod slow_connects;
mod starved;
mod status_page;
mod steps;
mod support;
mod surge;
mod tables;
mod telemetry;
mod tls;
mod top;
mod topologies;
mod traces;
mod transport;
mod unsent;
mod without_scripts;
mod words;
mod write_refusals;
mod wrong_peer;
mod xds;
