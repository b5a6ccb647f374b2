//! Reads rules from files and folders of YAML, or from a control plane, checks them together, and follows their
//! changes.
//!
//! Nothing outside this folder knows YAML.

pub mod cases;
mod clients;
mod compile;
mod files;
mod json_schema;
mod keys;

pub mod limitador;
mod load;
mod options;
mod origin;
mod problem;
mod reader;
mod scalar;
mod schema;
mod settings_file;
mod watch;

pub mod xds;
mod yaml;

pub use clients::{ClientDomains, EVERY_DOMAIN};
pub use json_schema::{schema_of_rules, schema_of_tests};
pub use load::{InForce, load, parse};
pub use options::{Algorithms, LoadOptions};
pub(crate) use problem::file_name;
pub use problem::{Problem, first_lines};
pub use settings_file::{WrittenSetting, WrittenSettings, read_settings};
pub use watch::{Loaded, Rules, Watched, watch};
