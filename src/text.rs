//! Text for people: escaping what comes from outside, and near names.

pub(crate) mod did_you_mean;
pub(crate) mod printable;
