//! Text for people: escaping what comes from outside, near names, and lengths of time.

pub(crate) mod did_you_mean;
pub(crate) mod duration;
pub(crate) mod members;
pub(crate) mod printable;
