//! The environment of another program in our terms.

use std::{collections::BTreeMap, ffi::OsString, net::SocketAddr, sync::Arc};

use super::environment::Given;
use crate::store::redis::wire::endpoint::AclUser;

/// Our settings, and what has no setting, from the environment of another program.
#[derive(Default)]
pub(crate) struct Translated {
    pub settings: BTreeMap<&'static str, TranslatedValue>,
    /// The variables of settings that messages about each other name.
    pub variables: BTreeMap<&'static str, &'static str>,
    /// The address of metrics alone, and their path there.
    pub metrics: Option<(Given<SocketAddr>, Arc<str>)>,
    /// The address of `/rlconfig`.
    pub debug: Option<Given<SocketAddr>>,
    /// The standard variables of OpenTelemetry that follow.
    pub otel: Vec<(String, OsString)>,
    /// What describes this service in spans.
    pub resource: Vec<(&'static str, String)>,
    /// The login at Redis, unless its URL has one.
    pub login: Option<Login>,
    pub sentinel_login: Option<Login>,
    pub problems: Vec<String>,
    pub warnings: Vec<String>,
}

pub(crate) struct TranslatedValue {
    /// The variables that it comes from; the first one is for messages.
    pub variables: Vec<&'static str>,
    /// As it is written for our flag.
    pub value: OsString,
}

/// A user, if there is one, and a password.
pub(crate) struct Login {
    pub user: Option<AclUser>,
    pub password: String,
}
