//! The rights of clients.

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Right {
    Decide,
    Read,
    /// Change counters, overrides and the log filter on the admin address.
    Change,
}
