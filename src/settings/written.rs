//! A file of settings: a YAML mapping from the names of flags to values. Which names exist and which values are allowed
//! is for `settings/` to say.

use std::path::Path;

use crate::yaml::{
    Problem, files,
    tree::{self, Content, Location, YamlNode},
};

/// The settings of a file, and what is wrong with its form.
#[derive(Debug, Default)]
pub(crate) struct WrittenSettings {
    /// The settings, in the order of the file.
    pub settings: Vec<WrittenSetting>,
    /// The problems that concern no single value.
    pub problems: Vec<Problem>,
}

/// One setting of a file, as written.
#[derive(Debug)]
pub(crate) struct WrittenSetting {
    /// Its name, such as `grpc-addr`.
    pub name: String,
    /// The values, several if it is a list, or what is wrong with their form.
    pub values: Result<Vec<String>, Problem>,
    file: String,
    location: Location,
}

impl WrittenSetting {
    /// A problem at the setting's name.
    pub(crate) fn problem(&self, message: impl Into<String>) -> Problem {
        Problem::at(&self.file, self.location, message)
    }
}

/// Reads a file of settings, as far as it can be read.
pub(crate) fn read_settings(path: &Path) -> WrittenSettings {
    match files::read(path) {
        Ok(source) => parse(&source.name, &source.text),
        Err(problem) => WrittenSettings { settings: Vec::new(), problems: vec![problem] },
    }
}

fn parse(file: &str, text: &str) -> WrittenSettings {
    let (root, errors) = tree::parse(text);
    let errors = errors.into_iter().map(|(location, message)| Problem::at(file, location, message));
    let mut problems: Vec<Problem> = errors.collect();
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
    WrittenSettings { settings, problems }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Vec<String> {
        let WrittenSettings { settings, problems } = parse("s.yaml", text);
        let mut shown = Vec::new();
        for setting in settings {
            shown.push(match &setting.values {
                Ok(values) => {
                    setting.problem(format!("{}={}", setting.name, values.join("+"))).to_string()
                }
                Err(problem) => problem.to_string(),
            });
        }
        shown.extend(problems.iter().map(ToString::to_string));
        shown
    }

    #[test]
    fn values_are_read_as_written() {
        let text = "drain: 5s\nshadow-mode: on\nworkers: 010\nrules: [a, 'b c']\n";
        let expected = [
            "s.yaml:1:1: drain=5s",
            "s.yaml:2:1: shadow-mode=on",
            "s.yaml:3:1: workers=010",
            "s.yaml:4:1: rules=a+b c",
        ];
        assert_eq!(read(text), expected);
        assert_eq!(read("# nothing\n"), [""; 0]);
    }

    #[test]
    fn the_settings_beside_a_problem_are_read() {
        let text =
            "drain: 5s\ndrain: 6s\nlog: { level: info }\n[a]: b\nstore:\nrules: []\n---\nb: c\n";
        let expected = [
            "s.yaml:1:1: drain=5s",
            "s.yaml:3:6: log: must be a value, not a mapping",
            "s.yaml:5:1: store: has no value; write one, or remove the setting",
            "s.yaml:6:8: rules: the list must not be empty; write a value, or remove the setting",
            "s.yaml:7:1: one YAML document per file; move this one into its own file",
            "s.yaml:2:1: drain: duplicate setting",
            "s.yaml:4:1: the name of a setting must be text",
        ];
        assert_eq!(read(text), expected);
    }
}
