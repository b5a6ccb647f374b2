//! The settings of the file that `--config` names.

use std::ffi::OsStr;

use super::{environment::GivenSetting, form::Arity, row::Row, written::WrittenSetting};
use crate::{text::did_you_mean::hint, yaml::Problem};

/// The settings of a file; empty without a file.
#[derive(Debug, Default)]
pub(super) struct SettingsFile(pub Vec<WrittenSetting>);

impl SettingsFile {
    pub(super) fn given(&self, flag: &str) -> Option<GivenSetting<'_>> {
        let value = OsStr::new(self.values(flag).last()?);
        let name = self.find(flag)?.problem(flag);
        Some(GivenSetting { location: name.location, name: name.to_string(), value })
    }

    /// The values of a setting; none if it is absent, or their form is bad.
    pub(super) fn values(&self, flag: &str) -> &[String] {
        match self.find(flag).map(|setting| &setting.values) {
            Some(Ok(values)) => values,
            Some(Err(_)) | None => &[],
        }
    }

    fn find(&self, flag: &str) -> Option<&WrittenSetting> {
        self.0.iter().find(|setting| setting.name == flag)
    }

    /// What is wrong with the names in the file, and with the forms of values.
    pub(super) fn problems(&self, known: &[&Row]) -> Vec<Problem> {
        let mut problems = Vec::new();
        for setting in &self.0 {
            let name = &setting.name;
            match (known.iter().find(|row| row.flag == name), &setting.values) {
                (None, _) => {
                    let hint = hint(name, known.iter().map(|row| row.flag));
                    problems.push(setting.problem(format!("unknown setting `{name}`{hint}")));
                }
                (Some(_), Err(problem)) => problems.push(problem.clone()),
                (Some(row), Ok(values)) if values.len() != 1 && row.arity != Arity::Repeated => {
                    problems
                        .push(setting.problem(format!("{name}: must be one value, not a list")));
                }
                (Some(_), Ok(_)) => {}
            }
        }
        problems
    }
}
