//! A Redis server, as far as the service uses one: held to the real ones by the step-by-step tests.
//!
//! `database` has the keys, `commands` what is done to them, `scripts` the Lua that does it, `cluster` which node of a Redis
//! Cluster has which, `sentinel` who names its master, `reply` the answers, `server` sessions and what a server says of itself.

pub mod client;
pub mod cluster;
pub mod commands;
pub mod database;
pub mod reply;
pub mod scripts;
pub mod sentinel;
pub mod server;
