//! Reads rules from files and folders of YAML, or from a control plane, checks them together, and follows their
//! changes. The YAML itself is read by `yaml`; a rule is found by the engine.

mod compile;
mod hold;
mod json_schema;
mod keys;
mod load;
pub(crate) mod metrics;
mod nested;
mod options;
mod overlay;
mod watch;
mod written;
pub mod xds;

pub(crate) use self::keys::FILE;
pub use self::{
    json_schema::schema_of_rules,
    load::{InForce, load, parse},
    options::{Algorithms, LoadOptions},
    watch::{Loaded, Rules, Watched, watch},
};
