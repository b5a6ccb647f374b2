//! A file of settings: a YAML mapping from the names of flags to values. Which names exist and which values are allowed
//! is for `settings/` to say.

use std::path::Path;

use super::{
    files,
    problem::Problem,
    yaml::{self, Content, YamlNode},
};

/// One setting of a file, as written.
#[derive(Debug)]
pub struct WrittenSetting {
    /// Where its name is, as file, line and column.
    pub location: String,
    /// Its name, such as `grpc-addr`.
    pub name: String,
    /// Its values: several if it is a list.
    pub values: Vec<String>,
}

/// Reads a file of settings.
///
/// # Errors
/// Every problem, with file, line and column.
pub fn read_settings(path: &Path) -> Result<Vec<WrittenSetting>, Vec<Problem>> {
    let source = files::read(path).map_err(|problem| vec![problem])?;
    parse(&source.name, &source.text)
}

fn parse(file: &str, text: &str) -> Result<Vec<WrittenSetting>, Vec<Problem>> {
    let (root, errors) = yaml::parse(text);
    let errors = errors.into_iter().map(|(location, message)| Problem::at(file, location, message));
    let mut problems: Vec<Problem> = errors.collect();
    let mut settings: Vec<WrittenSetting> = Vec::new();
    for (key, value) in root.as_ref().map_or(&[][..], |root| pairs(file, root, &mut problems)) {
        let Some(name) = key.name() else {
            problems.push(Problem::at(file, key.location, "the name of a setting must be text"));
            continue;
        };
        if settings.iter().any(|setting| setting.name == name) {
            problems.push(Problem::at(file, key.location, format!("{name}: duplicate setting")));
        }
        if value.is_null() {
            let message = format!("{name}: has no value; write one, or remove the setting");
            problems.push(Problem::at(file, key.location, message));
            continue;
        }
        let Some(values) = texts(value).filter(|values| !values.is_empty()) else {
            let message = format!("{name}: must be text, or a list of texts");
            problems.push(Problem::at(file, value.location, message));
            continue;
        };
        let (line, column) = key.location;
        let location = format!("{file}:{line}:{column}");
        settings.push(WrittenSetting { location, name: name.to_owned(), values });
    }
    if problems.is_empty() { Ok(settings) } else { Err(problems) }
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

fn texts(value: &YamlNode) -> Option<Vec<String>> {
    match &value.content {
        Content::Scalar(text, _) => Some(vec![text.clone()]),
        Content::List(items) => items.iter().map(|item| item.name().map(str::to_owned)).collect(),
        Content::Map(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Vec<String>, Vec<String>> {
        let shown = |setting: WrittenSetting| {
            format!("{} {}={}", setting.location, setting.name, setting.values.join("+"))
        };
        match parse("s.yaml", text) {
            Ok(settings) => Ok(settings.into_iter().map(shown).collect()),
            Err(problems) => Err(problems.iter().map(ToString::to_string).collect()),
        }
    }

    #[test]
    fn values_are_read_as_written() {
        let text = "drain: 5s\nshadow-mode: on\nworkers: 010\nrules: [a, 'b c']\n";
        let expected = [
            "s.yaml:1:1 drain=5s",
            "s.yaml:2:1 shadow-mode=on",
            "s.yaml:3:1 workers=010",
            "s.yaml:4:1 rules=a+b c",
        ];
        assert_eq!(read(text).unwrap(), expected);
        assert_eq!(read("# nothing\n").unwrap(), [""; 0]);
    }

    #[test]
    fn every_problem_is_reported_with_its_location() {
        let text =
            "drain: 5s\ndrain: 6s\nlog: { level: info }\n[a]: b\nstore:\nrules: []\nconfig: ~\n";
        let expected = [
            "s.yaml:2:1: drain: duplicate setting",
            "s.yaml:3:6: log: must be text, or a list of texts",
            "s.yaml:4:1: the name of a setting must be text",
            "s.yaml:5:1: store: has no value; write one, or remove the setting",
            "s.yaml:6:8: rules: must be text, or a list of texts",
            "s.yaml:7:1: config: has no value; write one, or remove the setting",
        ];
        assert_eq!(read(text).unwrap_err(), expected);
        let message = "s.yaml:1:1: must be a mapping from settings to values, such as `drain: 5s`";
        assert_eq!(read("- drain").unwrap_err(), [message]);
    }
}
