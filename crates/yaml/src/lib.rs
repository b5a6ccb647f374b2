//! YAML that people write by hand: files as trees whose values know their lines ([`tree`]), mappings that are read by
//! tables of their keys ([`reader`]), the JSON Schemas of these tables, and problems that name file and line.
//!
//! What it leaves to others: what a key means, to those that read the trees: rules, their tests, settings, the domains of
//! clients, limits of other services.

pub mod files;
pub mod json_schema;
pub mod keys;
pub mod origin;
pub mod problem;
pub mod reader;
pub mod scalar;
pub mod tree;

pub use self::problem::{Problem, file_name, first_lines};
