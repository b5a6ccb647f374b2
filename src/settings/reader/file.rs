//! The file that `--config` names: a YAML mapping from the names of flags to values. Which values are allowed is for the
//! components to say.

use std::{ffi::OsStr, path::Path};

use super::{
    environment::GivenSetting,
    form::Arity,
    row::{Row, former_name},
};
use crate::{
    text::did_you_mean::hint,
    yaml::{
        Problem, files,
        tree::{self, Content, Location, YamlNode},
    },
};

/// The settings of a file, in its order; empty without a file.
#[derive(Debug, Default)]
pub(super) struct SettingsFile(Vec<WrittenSetting>);

#[derive(Debug)]
struct WrittenSetting {
    /// Its name, such as `grpc-addr`.
    name: String,
    /// The values, several if it is a list, or what is wrong with their form.
    values: Result<Vec<String>, Problem>,
    file: String,
    location: Location,
}

impl WrittenSetting {
    fn problem(&self, message: impl Into<String>) -> Problem {
        Problem::at(&self.file, self.location, message)
    }
}

impl SettingsFile {
    /// Reads a file, as far as it can be read; also returns the problems that concern no single value.
    pub(super) fn read(path: &Path) -> (Self, Vec<Problem>) {
        match files::read(path) {
            Ok(source) => Self::parse(&source.name, &source.text),
            Err(problem) => (Self::default(), vec![problem]),
        }
    }

    fn parse(file: &str, text: &str) -> (Self, Vec<Problem>) {
        let (root, errors) = tree::parse(text);
        let errors =
            errors.into_iter().map(|(location, message)| Problem::at(file, location, message));
        let mut problems: Vec<Problem> = errors.collect();
        if root.as_ref().is_some_and(|root| root.get("domain").is_some()) {
            let message = "this is a rule file, not a file of settings; give it by --rules";
            return (Self::default(), vec![Problem::at(file, (1, 1), message)]);
        }
        let mut settings: Vec<WrittenSetting> = Vec::new();
        for (key, value) in root.as_ref().map_or(&[][..], |root| pairs(file, root, &mut problems)) {
            let location = key.location;
            let Some(name) = key.name().map(str::to_owned) else {
                problems.push(Problem::at(file, location, "the name of a setting must be text"));
                continue;
            };
            if settings.iter().any(|setting| setting.name == name) {
                problems.push(Problem::at(file, location, format!("{name}: duplicate setting")));
                continue;
            }
            let values = values(key, value).map_err(|(location, problem)| {
                Problem::at(file, location, format!("{name}: {problem}"))
            });
            settings.push(WrittenSetting { name, values, file: file.to_owned(), location });
        }
        (Self(settings), problems)
    }

    /// What gives a setting; nothing if its form is bad.
    pub(super) fn given(&self, flag: &str) -> Option<GivenSetting<'_>> {
        let setting = self.0.iter().find(|setting| setting.name == flag)?;
        let values = setting.values.as_ref().ok()?.iter().map(OsStr::new).collect();
        let name = setting.problem(flag);
        Some(GivenSetting { location: name.location, name: name.to_string(), values })
    }

    /// What is wrong with the names in the file, and with the forms of values.
    pub(super) fn problems(&self, known: &[&Row]) -> Vec<Problem> {
        let mut problems = Vec::new();
        for setting in &self.0 {
            let name = &setting.name;
            let is_named = |row: &&&Row| row.flag == name || former_name(row.flag) == Some(name);
            match (known.iter().find(is_named), &setting.values) {
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

fn pairs<'node>(
    file: &str,
    root: &'node YamlNode,
    problems: &mut Vec<Problem>,
) -> &'node [(YamlNode, YamlNode)] {
    match &root.content {
        Content::Map(pairs) => pairs,
        Content::Scalar(..) | Content::List(_) => {
            let message = "must be a mapping from settings to values, such as `drain: 5s`";
            problems.push(Problem::at(file, root.location, message));
            &[]
        }
    }
}

/// The values of a setting, or what is wrong with them, and where.
fn values(name: &YamlNode, value: &YamlNode) -> Result<Vec<String>, (Location, &'static str)> {
    let items = match &value.content {
        _ if value.is_null() => {
            return Err((name.location, "has no value; write one, or remove the setting"));
        }
        Content::Scalar(text, _) => return Ok(vec![text.clone()]),
        Content::Map(_) => return Err((value.location, "must be a value, not a mapping")),
        Content::List(items) => items,
    };
    if items.is_empty() {
        let problem = "the list must not be empty; write a value, or remove the setting";
        return Err((value.location, problem));
    }
    let mut values = Vec::new();
    for item in items {
        let problem = "each item of the list must be a value; write one, or remove the item";
        values.push(item.text().ok_or((item.location, problem))?.to_owned());
    }
    Ok(values)
}
