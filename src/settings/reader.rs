//! Reads settings one by one: the flag, else the environment variable, else the file, else the environment of another
//! program, else the default. Collects the rows of all settings, and every problem. Which settings there are, and what
//! they mean together, is left to the components.

pub(super) mod environment;
mod file;
pub(super) mod form;
pub(super) mod row;
pub(super) mod translated;
pub(super) mod url_parts;

use std::{env, ffi::OsString, iter, path::PathBuf};

use self::{
    environment::{CALL_ADDR, Environment, Given, GivenSetting, TypedFlags},
    file::SettingsFile,
    form::{Arity, Form, PATH, check_path},
    row::{Row, former_name, is_ours, variable},
    translated::Translated,
};
use crate::{text::did_you_mean::hint, yaml::Problem};

pub const CONFIG: &str = "config";

pub(super) struct SettingReader<'a> {
    flags: &'a TypedFlags,
    file: SettingsFile,
    pub environment: &'a Environment,
    /// The settings from the environment of envoyproxy/ratelimit; empty unless it is read.
    pub translated: Translated,
    pub rows: Vec<Row>,
    /// The heading of the settings that are read next.
    pub heading: &'static str,
    /// With line and column if they are in the file.
    pub problems: Vec<(Option<(usize, usize)>, String)>,
    pub warnings: Vec<String>,
}

impl<'a> SettingReader<'a> {
    pub(super) fn new(flags: &'a TypedFlags, environment: &'a Environment) -> Self {
        let (file, translated, rows, problems, warnings) = Default::default();
        let heading = "Settings";
        Self { flags, file, environment, translated, rows, heading, problems, warnings }
    }

    /// This reader, for settings that help lists under `heading`.
    pub(super) fn under(&mut self, heading: &'static str) -> &mut Self {
        self.heading = heading;
        self
    }

    /// Reads the file that `--config` names. It is the first setting, since the file may give the others.
    pub(super) fn read_file(&mut self) {
        let help = "YAML file of settings, named as these flags, which have precedence";
        let path = self.read_path(CONFIG, help);
        if self.flags.get(CONFIG).is_some_and(|paths| paths.len() > 1) {
            self.problem(CONFIG, "given twice; write all settings into one file");
        }
        if let Some(path) = path {
            let problems;
            (self.file, problems) = SettingsFile::read(&path);
            self.add_problems_of_file(problems);
        }
    }

    /// Adds a problem for each setting of the file that does not exist, or has no value.
    pub(super) fn refuse_unknown_names(&mut self, rows: &[Row]) {
        let known: Vec<&Row> = rows.iter().filter(|row| row.flag != CONFIG).collect();
        self.add_problems_of_file(self.file.problems(&known));
    }

    fn add_problems_of_file(&mut self, problems: Vec<Problem>) {
        for problem in problems {
            match problem.location {
                Some(_) => self.problems.push((problem.location, problem.to_string())),
                None => self.problem(CONFIG, &problem.to_string()),
            }
        }
    }

    /// Every problem: of flags and variables, and of the file by line.
    pub(super) fn into_problems(mut self) -> Vec<String> {
        self.problems.sort_by_key(|(location, _)| *location);
        self.problems.into_iter().map(|(_, problem)| problem).collect()
    }

    /// Adds the values of another environment, for settings that nothing else gives.
    pub(super) fn add(&mut self, mut translated: Translated) {
        self.add_problems(std::mem::take(&mut translated.problems));
        self.warnings.append(&mut translated.warnings);
        self.translated = translated;
    }

    /// The value, or the default if the setting is unset or bad. A bad value is a problem.
    pub(super) fn read<F: Form>(
        &mut self,
        flag: &'static str,
        form: F,
        default: &'static str,
        help: &'static str,
    ) -> F::Value {
        let value = self.read_optional(flag, &form, default, help);
        value.unwrap_or_else(|| form.read(default).expect("defaults are good values"))
    }

    /// The value, or the default, and what gives it.
    pub(super) fn read_given<F: Form>(
        &mut self,
        flag: &'static str,
        form: F,
        default: &'static str,
        help: &'static str,
    ) -> Given<F::Value> {
        Given { value: self.read(flag, form, default, help), name: self.name_of(flag) }
    }

    /// The path of a file. It has no default.
    pub(super) fn read_path(&mut self, flag: &'static str, help: &'static str) -> Option<PathBuf> {
        self.read_optional(flag, &PATH, "", help)
    }

    /// The value, or `None` if the setting is unset or bad. A bad value is a problem.
    pub(super) fn read_optional<F: Form>(
        &mut self,
        flag: &'static str,
        form: &F,
        default: &'static str,
        help: &'static str,
    ) -> Option<F::Value> {
        let (value, range, arity) = (form.name(), form.range(), form.arity());
        self.rows.push(Row { flag, value, range, arity, default, help, heading: self.heading });
        let read = match self.given(flag)?.values.last()?.to_str() {
            Some(text) => form.read(text),
            None => Err("not UTF-8 text".to_owned()),
        };
        read.map_err(|problem| self.problem(flag, &problem)).ok()
    }

    /// Files and folders; a variable holds several, separated by `:`, or one text that is `whole`. A file has a list.
    pub(super) fn read_paths(
        &mut self,
        flag: &'static str,
        (value, whole): (&str, fn(&str) -> bool),
        default: &'static str,
        help: &'static str,
    ) -> Given<Vec<PathBuf>> {
        let (value, range, arity) = (value.to_owned(), None, Arity::Repeated);
        self.rows.push(Row { flag, value, range, arity, default, help, heading: self.heading });
        let name = self.name_of(flag);
        let given = self.given(flag).map_or_else(Vec::new, |given| given.values);
        let given: Vec<PathBuf> = match *given {
            [list] if name == variable(flag) && !list.to_str().is_some_and(whole) => {
                env::split_paths(list).collect()
            }
            _ => given.into_iter().map(PathBuf::from).collect(),
        };
        let mut paths = Vec::new();
        for path in given {
            match check_path(&path) {
                Ok(()) => paths.push(path),
                Err(problem) => self.problem(flag, problem),
            }
        }
        Given { value: paths, name }
    }

    pub(super) fn given(&self, flag: &str) -> Option<GivenSetting<'_>> {
        let outside = |name, values| Some(GivenSetting { name, values, location: None });
        if let Some(values) = self.flags.get(flag) {
            return outside(format!("--{flag}"), values.iter().map(OsString::as_os_str).collect());
        }
        let names = || iter::once(flag).chain(former_name(flag));
        for variable in names().map(variable) {
            if let Some(value) = self.environment.get(&variable) {
                return outside(variable, vec![value]);
            }
        }
        if let Some(given) = names().find_map(|name| self.file.given(name)) {
            return Some(given);
        }
        let value = self.translated.settings.get(flag)?;
        let variable = value.variables.first().copied().unwrap_or("--compat");
        outside(variable.to_owned(), vec![&value.value])
    }

    /// Whether a setting is given, be its value good or bad.
    pub(super) fn is_given(&self, flag: &str) -> bool {
        self.given(flag).is_some()
    }

    /// Whether a variable of envoyproxy/ratelimit gives this setting of TLS, whose meaning then applies.
    pub(super) fn is_of_envoyproxy_ratelimit(&self, flag: &str) -> bool {
        let variable = self.translated.variables.get(flag);
        variable.is_some_and(|variable| self.name_of(flag) == *variable)
    }

    /// What gives a setting; the flag if nothing does.
    fn name_of(&self, flag: &str) -> String {
        self.given(flag).map_or_else(|| format!("--{flag}"), |given| given.name)
    }

    /// Adds a problem of a setting that was given.
    pub(super) fn problem(&mut self, flag: &str, problem: &str) {
        let location = self.given(flag).and_then(|given| given.location);
        self.problems.push((location, format!("{}: {problem}", self.name_of(flag))));
    }

    /// Adds problems of variables that are not ours.
    pub(super) fn add_problems(&mut self, problems: Vec<String>) {
        self.problems.extend(problems.into_iter().map(|problem| (None, problem)));
    }

    /// Adds a problem if only one of two settings is given, which need each other.
    pub(super) fn check_pair(&mut self, one: &str, other: &str) {
        self.check_needs(one, other);
        self.check_needs(other, one);
    }

    /// Adds a problem if one setting is given and another is not, which it needs.
    pub(super) fn check_needs(&mut self, given: &str, missing: &str) {
        if self.is_given(given) && !self.is_given(missing) {
            self.problem_needs(given, &[missing]);
        }
    }

    /// Adds the problem that a setting that was given needs others. They are named as this one is: by their variables of
    /// envoyproxy/ratelimit if it is given by one of those, else by their flags.
    pub(super) fn problem_needs(&mut self, flag: &str, missing: &[&str]) {
        let is_variable = self.is_of_envoyproxy_ratelimit(flag);
        let name = |flag: &&str| match self.translated.variables.get(flag) {
            Some(variable) if is_variable => (*variable).to_owned(),
            _ => format!("--{flag}"),
        };
        let names: Vec<String> = missing.iter().map(name).collect();
        self.problem(flag, &format!("needs {}", names.join(" and ")));
    }

    /// Warns about a setting that was given and has no effect.
    pub(super) fn warn_unused(&mut self, flag: &str, why: &str) {
        if let Some(GivenSetting { name, .. }) = self.given(flag) {
            self.warnings.push(format!("{name} has no effect: {why}"));
        }
    }

    /// Warns about variables with the prefix that are not settings.
    pub(super) fn warn_unknown_variables(&mut self) {
        let former = self.rows.iter().filter_map(|row| former_name(row.flag)).map(variable);
        let known: Vec<String> = self.rows.iter().map(Row::variable).chain(former).collect();
        for name in self.environment.names().filter(|name| is_ours(name)) {
            if name != CALL_ADDR && !known.iter().any(|known| known == name) {
                let hint = hint(name, known.iter().map(String::as_str));
                let hint = if hint.is_empty() { "; see tollkeeper serve --help" } else { &hint };
                self.warnings.push(format!("{name}: no such setting{hint}"));
            }
        }
    }
}
