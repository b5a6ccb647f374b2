//! The commands, as people and other programs run them.

mod bench;
mod counters;
mod envoyproxy_ratelimit;
mod explain;
mod holds;
mod overrides;
mod replay;
mod reports;
mod status;
mod terminal;
mod top;
mod wrong_peer;
