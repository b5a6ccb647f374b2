//! Reads settings one by one: the flag, else the environment variable, else the file, else the default. Collects
//! the rows of all settings, and every problem.

use std::{
    collections::BTreeMap,
    env,
    ffi::{OsStr, OsString},
    path::PathBuf,
};

use super::{
    file::SettingsFile,
    form::{Form, PATH},
    row::{Row, Setting, is_ours, variable},
};

/// The flags of the command line, without their dashes, with their values.
pub type TypedFlags = BTreeMap<&'static str, Vec<OsString>>;

/// The environment variables that are not empty.
#[derive(Debug, Clone, Default)]
pub struct Environment(BTreeMap<String, OsString>);

impl Environment {
    /// The variables of this process.
    #[expect(clippy::disallowed_methods, reason = "the one place that reads the environment")]
    pub fn of_process() -> Self {
        Self::new(
            env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value))),
        )
    }

    /// An environment with these variables. An empty variable counts as unset.
    pub fn new(variables: impl IntoIterator<Item = (String, OsString)>) -> Self {
        Self(variables.into_iter().filter(|(_, value)| !value.is_empty()).collect())
    }

    fn get(&self, name: &str) -> Option<&OsStr> {
        self.0.get(name).map(OsString::as_os_str)
    }

    pub(super) fn text(&self, name: &str) -> Option<&str> {
        self.get(name)?.to_str()
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// The address for `call` and `bench`, if they have no `--addr`.
    pub fn call_addr(&self) -> Option<&str> {
        self.text(CALL_ADDR)
    }

    /// The address for `counter`, if it has no `--addr`.
    pub fn admin_addr(&self) -> Option<&str> {
        self.text(&variable("admin-addr")).filter(|addr| *addr != "off")
    }
}

/// The setting that names the file.
pub const CONFIG: &str = "config";

/// The variable of `call` and `bench`. It is not a setting of the service.
const CALL_ADDR: &str = "TOLLKEEPER_ADDR";

pub(super) struct SettingReader<'a> {
    flags: &'a TypedFlags,
    file: SettingsFile,
    pub environment: &'a Environment,
    pub rows: Vec<Row>,
    pub problems: Vec<String>,
    pub warnings: Vec<String>,
}

impl<'a> SettingReader<'a> {
    pub(super) fn new(flags: &'a TypedFlags, environment: &'a Environment) -> Self {
        let file = SettingsFile::default();
        let (rows, problems, warnings) = Default::default();
        Self { flags, file, environment, rows, problems, warnings }
    }

    /// Reads the file that `--config` names. It is the first setting, since the file may give the others.
    pub(super) fn read_file(&mut self) {
        let path = self.read_optional(&Setting {
            flag: CONFIG,
            form: PATH,
            default: "",
            help: "YAML file with settings by the names of these flags; flags and variables have precedence",
        });
        if let Some(path) = path {
            match SettingsFile::load(&path) {
                Ok(file) => self.file = file,
                Err(problems) => self.problems.extend(problems),
            }
        }
    }

    /// Adds a problem for each setting of the file that does not exist; call it after all were read.
    pub(super) fn refuse_unknown_names(&mut self) {
        let known: Vec<&Row> = self.rows.iter().filter(|row| row.flag != CONFIG).collect();
        self.problems.extend(self.file.problems(&known));
    }

    /// The value, or the default if the setting is unset or bad. A bad value is a problem.
    pub(super) fn read<F: Form>(&mut self, setting: &Setting<F>) -> F::Value {
        match self.read_optional(setting) {
            Some(value) => value,
            None => setting.form.read(setting.default).expect("defaults are good values"),
        }
    }

    /// The value, or `None` if the setting is unset or bad. A bad value is a problem.
    pub(super) fn read_optional<F: Form>(&mut self, setting: &Setting<F>) -> Option<F::Value> {
        self.rows.push(setting.row());
        let (name, value) = self.given(setting.flag)?;
        let read = match value.to_str() {
            Some(text) => setting.form.read(text),
            None => Err("not UTF-8 text".to_owned()),
        };
        read.map_err(|problem| self.problems.push(format!("{name}: {problem}"))).ok()
    }

    /// Files and folders; a variable holds several, separated by `:`, or one text that is `whole`. A file has a list.
    pub(super) fn read_paths(&mut self, row: Row, whole: fn(&str) -> bool) -> Vec<PathBuf> {
        let mut paths: Vec<PathBuf> =
            match (self.flags.get(row.flag), self.environment.get(&row.variable())) {
                (Some(typed), _) => typed.iter().map(PathBuf::from).collect(),
                (None, Some(variable)) if variable.to_str().is_some_and(whole) => {
                    vec![PathBuf::from(variable)]
                }
                (None, Some(variable)) => env::split_paths(variable).collect(),
                (None, None) => self.file.values(row.flag).iter().map(PathBuf::from).collect(),
            };
        if paths.iter().any(|path| path.as_os_str().is_empty()) {
            self.problem(row.flag, "must not be empty");
            paths.retain(|path| !path.as_os_str().is_empty());
        }
        self.rows.push(row);
        paths
    }

    /// The flag, the variable or the place in the file that gives a setting, and its text.
    fn given(&self, flag: &str) -> Option<(String, &OsStr)> {
        if let Some(value) = self.flags.get(flag).and_then(|values| values.last()) {
            return Some((format!("--{flag}"), value));
        }
        let variable = variable(flag);
        if let Some(value) = self.environment.get(&variable) {
            return Some((variable, value));
        }
        self.file.given(flag)
    }

    /// What gives a setting; the flag if nothing does.
    pub(super) fn name_of(&self, flag: &str) -> String {
        self.given(flag).map_or_else(|| format!("--{flag}"), |(name, _)| name)
    }

    /// Adds a problem of a setting that was given.
    pub(super) fn problem(&mut self, flag: &str, problem: &str) {
        let name = self.name_of(flag);
        self.problems.push(format!("{name}: {problem}"));
    }

    /// Warns about a setting that was given and has no effect.
    pub(super) fn warn_unused(&mut self, flag: &str, why: &str) {
        if let Some((name, _)) = self.given(flag) {
            self.warnings.push(format!("{name} has no effect: {why}"));
        }
    }

    /// Warns about variables with the prefix that are not settings.
    pub(super) fn warn_unknown_variables(&mut self) {
        let known: Vec<String> = self.rows.iter().map(Row::variable).collect();
        for name in self.environment.0.keys().filter(|name| is_ours(name)) {
            if name != CALL_ADDR && !known.contains(name) {
                let warning = format!("{name}: no such setting; see tollkeeper serve --help");
                self.warnings.push(warning);
            }
        }
    }
}
