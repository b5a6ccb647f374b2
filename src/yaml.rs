//! YAML that people write by hand: files as trees whose values know their lines, and problems that name them.
//!
//! Only this folder knows the parser. What a key means is left to those that read the tree: rules, settings, the
//! domains of clients, tests of rules.

pub(crate) mod files;
pub(crate) mod json_schema;
pub(crate) mod keys;
pub(crate) mod origin;
pub(crate) mod problem;
pub(crate) mod reader;
pub(crate) mod scalar;
pub(crate) mod tree;

pub(crate) use self::problem::file_name;
pub use self::problem::{Problem, first_lines};
