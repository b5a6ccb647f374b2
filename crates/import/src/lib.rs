//! Rules from the files of other services: [`limitador`].
//!
//! What it leaves to others: what the rules mean, which is asked of tollkeeper-rules, and where they are written.

pub mod limitador;
