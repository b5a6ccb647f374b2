//! The settings of the file that `--config` names.

use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    path::Path,
};

use super::{form::Arity, row::Row};
use crate::{
    did_you_mean::hint,
    printable::printable,
    rules::{self, WrittenSetting},
};

/// The settings of a file, by name; empty without a file.
#[derive(Debug, Default)]
pub(super) struct SettingsFile(BTreeMap<String, InFile>);

#[derive(Debug)]
struct InFile {
    /// File, line and column of the name.
    location: String,
    values: Vec<OsString>,
}

impl SettingsFile {
    /// Reads a file.
    ///
    /// # Errors
    /// Every problem, with its location.
    pub(super) fn load(path: &Path) -> Result<Self, Vec<String>> {
        match rules::read_settings(path) {
            Ok(written) => Ok(Self::new(written)),
            Err(problems) => Err(problems.iter().map(ToString::to_string).collect()),
        }
    }

    fn new(written: Vec<WrittenSetting>) -> Self {
        let mut settings = BTreeMap::new();
        for WrittenSetting { location, name, values } in written {
            let values = values.into_iter().map(OsString::from).collect();
            settings.insert(name, InFile { location, values });
        }
        Self(settings)
    }

    /// The place that gives a setting, and its text.
    pub(super) fn given(&self, flag: &str) -> Option<(String, &OsStr)> {
        let setting = self.0.get(flag)?;
        Some((format!("{}: {flag}", setting.location), setting.values.last()?))
    }

    /// The values of a setting; none if it is absent.
    pub(super) fn values(&self, flag: &str) -> &[OsString] {
        self.0.get(flag).map_or(&[], |setting| &setting.values)
    }

    /// What is wrong with the names in the file, and with lists for settings that take one value.
    pub(super) fn problems(&self, known: &[&Row]) -> Vec<String> {
        let mut problems = Vec::new();
        for (name, InFile { location, values }) in &self.0 {
            let shown = printable(name.as_bytes());
            match known.iter().find(|row| row.flag == name) {
                None => {
                    let hint = hint(name, known.iter().map(|row| row.flag));
                    problems.push(format!("{location}: unknown setting `{shown}`{hint}"));
                }
                Some(row) if values.len() != 1 && row.arity != Arity::Repeated => {
                    problems.push(format!("{location}: {shown}: must be one value, not a list"));
                }
                Some(_) => {}
            }
        }
        problems
    }
}
