//! Rule files in the shapes that other projects write, each with the limits that its calls meet, as with envoyproxy/ratelimit.

use std::{fs, path::PathBuf};

use tollkeeper::{
    engine::{
        descriptor_syntax,
        plan::Plan,
        request::{Descriptor, Hits, Request},
        rule::Mode,
    },
    rules::{self, LoadOptions},
};

/// Begins the line of a call, below the file: its descriptor, and the limits that it meets, or why the file is refused.
const CALL: &str = ">> ";

#[test]
fn files_as_others_write_them_have_the_meaning_that_they_have_there() {
    let folder = tempfile::TempDir::new().unwrap();
    let path = folder.path().join("rules.yaml");
    let table = include_str!("shapes.txt");
    for shape in table.split("\n[").skip(1) {
        let (name, rest) = shape.split_once("]\n").unwrap();
        let lines = rest.split_inclusive('\n');
        let (calls, file): (Vec<_>, Vec<_>) = lines.partition(|line| line.starts_with(CALL));
        fs::write(&path, file.concat()).unwrap();
        assert!(!calls.is_empty(), "{name}");
        for call in calls {
            let (descriptor, expected) = call.trim_end()[CALL.len()..].split_once(" -> ").unwrap();
            assert_eq!(met(&path, descriptor), expected, "{name}: {descriptor}");
        }
    }
}

/// The limits that a call with this descriptor meets by a file, or the first problem of the file.
fn met(path: &PathBuf, descriptor: &str) -> String {
    let loaded = match rules::load(std::slice::from_ref(path), &[], LoadOptions::default()) {
        Ok(loaded) => loaded,
        Err(problems) => return format!("refused: {}", problems[0].message),
    };
    let descriptors = descriptor
        .split(' ')
        .map(|text| Descriptor::new(descriptor_syntax::parse(text).unwrap(), Hits::Charge(1)));
    let domain = loaded.rules.domains()[0].name.to_string();
    let plan = Plan::draw(&loaded.rules, &Request { domain, descriptors: descriptors.collect() });
    let limits = plan.charges.iter().map(|charge| {
        let limit = &charge.counter.limit;
        match limit.mode {
            Mode::Enforced => limit.to_string(),
            Mode::Shadow => format!("{limit} in shadow"),
            Mode::Quota => format!("{limit} as a quota"),
        }
    });
    let limits: Vec<String> = limits.collect();
    if limits.is_empty() { "none".to_owned() } else { limits.join(", ") }
}
