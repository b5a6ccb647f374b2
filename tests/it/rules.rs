//! Rules: what the program accepts, refuses and warns about, and how rules change while it runs.

mod check;
mod import;
mod reload;
mod rule_tests;
mod schema;
mod shapes;
mod xds;
