//! The manual: its samples run, and its tables agree with the program.

mod api;
mod budgets;
mod clients;
mod docs;
mod getting_started;
mod openapi;
mod prose;
mod proxies;
mod requirements;
mod tables;
