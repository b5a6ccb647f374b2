//! Rules from the files of other services: [`limitador`].
//!
//! What it leaves to others: what the rules mean, which is asked of tollkeeper-rules, and where they are written.

#![cfg_attr(
    test,
    allow(
        clippy::unwrap_used,
        clippy::panic,
        clippy::indexing_slicing,
        clippy::cast_possible_wrap,
        reason = "a test that panics has failed, which is its purpose"
    )
)]

pub mod limitador;
