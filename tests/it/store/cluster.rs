//! A Redis Cluster as the store: promises "exactly the limit" and "all or nothing" on several nodes, slots that move, failovers, a dead shard, and
//! what operators see of it. The scenarios of `decisions.rs` run on a cluster too.
//!
//! `FAILOVERS` and `MOVED_SLOTS` make the tests under load longer; docs/internals/reliability.md has the commands.

mod exact;
mod late_parts;
mod moved_slots;
mod operation;
mod refusals;
mod shards;
