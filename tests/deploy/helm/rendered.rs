//! What the chart makes of values: rendered.txt.

use crate::support::{chart::*, prelude::*};

/// A claim begins with `## `, and a line `helm` with flags, in bash, renders the chart. Each line below checks an object, which it names by
/// its kind and, behind `-`, by what follows the name of the release. `no Job-check` says that the object is absent. `Deployment
/// pod.volumes = []` compares the value at a place, `has` looks for an item there, and `lacks` says that a text is not there. `pod` and
/// `container` are those of the template. `valid` says that the schemas accept all objects.
const TEXT: &str = include_str!("rendered.txt");

/// An object, a place in it, how it is compared, and with what.
fn parts(line: &str) -> [&str; 4] {
    let parts: Vec<&str> = line.splitn(4, ' ').collect();
    parts.try_into().unwrap_or_else(|_| panic!("{line}"))
}

fn is_comparison(line: &&str) -> bool {
    !line.is_empty() && !["## ", "helm", "no ", "valid"].iter().any(|word| line.starts_with(word))
}

fn find<'objects>(objects: &'objects [Value], name: &str) -> Option<&'objects Value> {
    let (kind, more) = name.split_at(name.find('-').unwrap_or(name.len()));
    let name = format!("release-tollkeeper{more}");
    objects.iter().find(|object| object["kind"] == kind && object["metadata"]["name"] == *name)
}

fn rendered(flags: &str) -> Vec<Value> {
    let mut bash = Command::new("bash");
    let command = format!("'{}' template release helm {flags}", tool("helm").display());
    let objects = documents(&succeeds(bash.current_dir(root()).args(["-c", &command])));
    objects.into_iter().filter(|object| !object.is_null()).collect()
}

#[test]
fn each_object_has_what_the_text_says() {
    let lines: Vec<&str> = TEXT.split_once("\n## ").unwrap().1.lines().skip(1).collect();
    let expected = lines.iter().copied().filter(is_comparison).map(|line| parts(line)[3]);
    let mut expected = documents(&expected.collect::<Vec<_>>().join("\n---\n")).into_iter();
    let (mut objects, mut failures) = (Vec::new(), String::new());
    let mut flags = "";
    for line in lines {
        let found = if let Some(found) = line.strip_prefix("helm") {
            flags = found;
            objects = rendered(flags);
            continue;
        } else if let Some(name) = line.strip_prefix("no ") {
            let of_kind = |object: &&Value| object["kind"] == *name;
            find(&objects, name).or_else(|| objects.iter().find(of_kind)).cloned()
        } else if line == "valid" {
            let texts: Vec<String> = objects.iter().map(ToString::to_string).collect();
            let refused = invalid(&texts.join("\n---\n"));
            (!refused.is_empty()).then(|| json!(refused))
        } else if is_comparison(&line) {
            let [name, place, comparison, _] = parts(line);
            let expected = expected.next().unwrap();
            let place = format!("/{}", place.replace('.', "/"))
                .replace("/container/", "/pod/containers/0/")
                .replace("/pod/", "/spec/template/spec/");
            let found = find(&objects, name).and_then(|object| object.pointer(&place));
            let found = found.cloned().unwrap_or_default();
            let is_so = match comparison {
                "=" => found == expected,
                "has" => found.as_array().is_some_and(|items| items.contains(&expected)),
                "lacks" => !found.to_string().contains(expected.as_str().unwrap()),
                other => panic!("{other}"),
            };
            (!is_so).then_some(found)
        } else {
            continue;
        };
        if let Some(found) = found {
            failures += &format!("\nhelm{flags}\n{line}\nfound: {found}\n");
        }
    }
    assert!(failures.is_empty(), "{failures}");
    assert!(expected.next().is_none());
}
