//! What settings are read from: the flags as they were typed, and the environment; and what gives one.

use std::{
    collections::BTreeMap,
    env,
    ffi::{OsStr, OsString},
};

use super::row::variable;

/// The flags of the command line, without their dashes, with their values.
pub type TypedFlags = BTreeMap<&'static str, Vec<OsString>>;

/// The environment variables that are not empty.
#[derive(Debug, Clone, Default)]
pub struct Environment(BTreeMap<String, OsString>);

impl Environment {
    #[expect(clippy::disallowed_methods, reason = "the one place that reads the environment")]
    pub fn of_process() -> Self {
        Self::new(
            env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value))),
        )
    }

    /// An environment with these variables. An empty variable counts as unset.
    pub fn new<N: Into<String>, V: Into<OsString>>(
        variables: impl IntoIterator<Item = (N, V)>,
    ) -> Self {
        let variables = variables.into_iter().map(|(name, value)| (name.into(), value.into()));
        Self(variables.filter(|(_, value)| !value.is_empty()).collect())
    }

    /// Whether it switches the mode of envoyproxy/ratelimit off.
    pub fn has_no_compat(&self) -> bool {
        self.text(&variable(COMPAT)) == Some(NO_COMPAT)
    }

    /// This environment, for a program that is run by the name of envoyproxy/ratelimit's.
    #[must_use]
    pub fn of_envoyproxy_ratelimit(mut self) -> Self {
        self.0.entry(variable(COMPAT)).or_insert_with(|| ENVOYPROXY_RATELIMIT.into());
        self
    }

    /// This environment, with other values of some variables.
    pub(crate) fn with(&self, others: &[(String, OsString)]) -> Self {
        let mut variables = self.0.clone();
        variables.extend(others.iter().cloned());
        Self(variables)
    }

    pub(crate) fn get(&self, name: &str) -> Option<&OsStr> {
        self.0.get(name).map(OsString::as_os_str)
    }

    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        self.get(name)?.to_str()
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// Whether a workflow of GitHub Actions runs this process.
    pub fn is_github_actions(&self) -> bool {
        self.text("GITHUB_ACTIONS") == Some("true")
    }

    /// Whether a terminal may be written to in color: <https://no-color.org>.
    pub fn wants_color(&self) -> bool {
        self.get("NO_COLOR").is_none() && self.text("TERM") != Some("dumb")
    }

    /// The address for `call` and `bench`, if they have no `--addr`.
    pub fn call_addr(&self) -> Option<&str> {
        self.text(CALL_ADDR)
    }

    /// The address for `counter` and `top`, or `off`, if they have no `--addr`.
    pub fn admin_addr(&self) -> Option<&str> {
        self.text(&variable("admin-addr"))
    }
}

/// A value, and the name of what gives it, for messages: a flag, a variable or a location in the file.
#[derive(Debug, Clone)]
pub struct Given<T> {
    pub value: T,
    /// Such as `--store`.
    pub name: String,
}

pub(in crate::settings) struct GivenSetting<'a> {
    /// The flag, the variable, the location in the file or the variable of envoyproxy/ratelimit.
    pub name: String,
    /// The last one counts, unless the setting is a list.
    pub values: Vec<&'a OsStr>,
    /// Line and column in the file.
    pub location: Option<(usize, usize)>,
}

/// The setting that says whose environment is read too.
pub(crate) const COMPAT: &str = "compat";

pub(crate) const NO_COMPAT: &str = "none";

pub(crate) const ENVOYPROXY_RATELIMIT: &str = "envoyproxy-ratelimit";

/// The variable of `call` and `bench`. It is not a setting of the service.
pub(super) const CALL_ADDR: &str = "TOLLKEEPER_ADDR";
