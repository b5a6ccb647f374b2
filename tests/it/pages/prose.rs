//! The documents, by the prose linter Vale with the rules of docs/site/styles: spelling, and the field's standard words.

use crate::support::prelude::*;

/// What Vale finds in files and folders, a line each: file, line, column, rule and message.
fn found(places: &[&Path]) -> Vec<String> {
    let mut vale = Command::new(tool("vale"));
    vale.current_dir(root()).args(["--no-global", "--config=docs/.vale.ini"]);
    let (code, output, errors) = run(vale.args(["--output=line", "--glob=*.md"]).args(places));
    assert!(code.is_some_and(|code| code < 2) && errors.is_empty(), "{code:?}: {output}{errors}");
    output.lines().map(str::to_owned).collect()
}

#[test]
fn the_documents_follow_the_rules_of_prose() {
    let mut places =
        ["docs", "examples/applications", "helm/README.md"].map(PathBuf::from).to_vec();
    let entries = fs::read_dir(root()).unwrap().map(|entry| entry.unwrap().file_name());
    places
        .extend(entries.map(PathBuf::from).filter(|file| file.extension() == Some("md".as_ref())));
    for client in ["conformance", "go", "java", "python", "rust", "typescript"] {
        places.push(Path::new("clients").join(client).join("README.md"));
    }
    let found = found(&places.iter().map(AsRef::as_ref).collect::<Vec<_>>());
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn each_rule_of_prose_finds_what_it_is_about() {
    for (text, rule) in
        [("It takes the most processor time.", "Field"), ("`processor time` is code.", "")]
    {
        let page = TextFile::new("page.md", format!("# A page\n\n{text}\n"));
        let found = found(&[Path::new(&*page)]);
        let rules: Vec<bool> =
            found.iter().map(|line| line.contains(&format!(":Tollkeeper.{rule}:"))).collect();
        assert_eq!(rules, if rule.is_empty() { vec![] } else { vec![true] }, "{text}: {found:?}");
    }
}
