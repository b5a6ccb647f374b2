//! Which server has which counters. A single server, and the one that Sentinels name, have all of them; on a
//! cluster each server has the counters of some hash slots.
//!
//! The servers are found (`discovery`, `sentinel`, `cluster`) and entered into the `directory`, whose present state is a
//! `map`; the loss of a `failover` is estimated. Calls are led to their servers (`route`): in parts if several
//! have their counters (`reservation`), alone if a hash slot has moved (`redirect`), later if they were kept (`resend`).
//! Keys that no counter has are read and written `by_key`.

pub mod by_key;
pub(super) mod cluster;
pub(super) mod directory;
pub mod discovery;
pub(super) mod failover;
pub(super) mod map;
pub(super) mod redirect;
pub(super) mod resend;
pub(super) mod reservation;
pub(super) mod route;
pub mod sentinel;
pub(super) mod wrong_modes;
