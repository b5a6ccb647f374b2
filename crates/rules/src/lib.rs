//! Rules as people and control planes write them: reads files and folders of YAML, or the resources of a control plane
//! ([`xds`]), checks them together, compiles them to the engine's rule set, and follows their changes. If new rules have
//! a problem, the last good ones stay.
//!
//! What it leaves to others: the YAML itself; finding the rule of a descriptor, which is the engine's; and where the
//! files or the control plane are, which the settings say.

mod compile;
mod hold;
mod json_schema;
mod keys;
mod load;
pub mod metrics;
mod nested;
mod options;
mod overlay;
mod watch;
mod written;
pub mod xds;

pub use self::{
    json_schema::schema_of_rules,
    keys::{FILE, LIMITS_MAX},
    load::{InForce, load, parse},
    options::{Algorithms, LoadOptions},
    watch::{Loaded, Rules, Watched, watch},
    written::limit_name,
};
