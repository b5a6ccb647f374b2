//! A client's connection: its socket, its HTTP/2, its age, and which one is closed for a new one.

pub(crate) mod age;
pub(crate) mod header_blocks;
pub(crate) mod serve;
pub(crate) mod slots;
pub(crate) mod socket;
