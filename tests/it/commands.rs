//! The commands, as people and other programs run them.

mod bench;
mod counters;
mod explain;
mod incumbent;
mod terminal;
mod top;
mod wrong_peer;
