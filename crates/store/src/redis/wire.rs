//! What goes over the wire to one Redis server: its address and login, a connection, commands and replies in RESP, what
//! the server says of itself, and the hash slot of a key.
//!
//! Nothing here knows calls or scripts, and nothing decides whether a server is usable: `node` does.

pub(super) mod connection;
pub mod endpoint;
pub(super) mod hash_slot;
pub mod password;
pub(super) mod query_connection;
pub mod resp;
pub mod server_info;
