//! The stores: memory, and Redis as one server, behind Sentinels and as a Cluster.

mod by_key;
mod checks;
mod cluster;
mod failure;
mod group_commit;
mod hold_keys;
mod lost_commits;
mod memory;
mod opening;
mod over_limit_cache;
mod overrides;
mod owed;
mod redis;
mod sentinel;
mod simulated;
mod transport;
mod unsent;
mod upgrade;
mod without_scripts;
mod write_refusals;
