//! What README.md and docs/ show is what happens.

use std::{fs, path::PathBuf};

use tempfile::TempDir;

use crate::support::{
    root,
    service::{Options, Service, tollkeeper},
    tool,
};

#[path = "../../examples/algorithms/draw.rs"]
mod draw;

fn pages() -> Vec<(PathBuf, String)> {
    let mut pages: Vec<PathBuf> =
        fs::read_dir(root().join("docs")).unwrap().map(|page| page.unwrap().path()).collect();
    pages.retain(|page| page.is_file());
    pages.extend([root().join("README.md"), root().join("ARCHITECTURE.md")]);
    pages.sort();
    pages.into_iter().map(|page| (page.clone(), fs::read_to_string(page).unwrap())).collect()
}

/// The fenced blocks of this language.
fn blocks<'page>(page: &'page str, language: &str) -> Vec<&'page str> {
    let fence = format!("```{language}\n");
    page.split(&fence).skip(1).map(|rest| rest.split("```").next().unwrap()).collect()
}

/// Any number of seconds until the reset is as good as another.
fn without_seconds(text: &str) -> String {
    let line = |line: &str| match (line.split_once("resets in "), line.split_once("}:")) {
        (Some((before, _)), _) => format!("{before}resets in N s"),
        // A key ends with its window's start.
        (None, Some((before, _))) => format!("{before}}}:N"),
        (None, None) => line.to_owned(),
    };
    text.lines().map(line).collect::<Vec<_>>().join("\n")
}

#[test]
fn the_consoles_of_the_pages_show_what_happens() {
    for (page, text) in pages() {
        let rules = include_str!("../../examples/rules.yaml");
        // The samples must not straddle the end of their minute.
        let rules = rules.replace("unit: minute", "unit: year");
        let service = Service::start(Options { rules: &rules, ..Options::default() });
        for console in blocks(&text, "console") {
            for sample in console.split("$ ").skip(1) {
                let (command, expected) = sample.split_once('\n').unwrap();
                let words = command.split(' ').skip(1);
                let output = tollkeeper()
                    .args(words)
                    .current_dir(root())
                    .env("TOLLKEEPER_ADDR", service.grpc.to_string())
                    .env("TOLLKEEPER_ADMIN_ADDR", service.admin.to_string())
                    .output()
                    .unwrap();
                let shown =
                    String::from_utf8(output.stdout).unwrap().replace("per year", "per minute");
                let (shown, expected) = (without_seconds(&shown), without_seconds(expected));
                assert_eq!(shown, expected, "{}: {command}", page.display());
            }
        }
    }
}

#[test]
fn the_pictures_are_what_the_engine_draws() {
    for (name, picture) in draw::pictures() {
        let drawn = fs::read_to_string(root().join("docs/algorithms").join(&name)).unwrap();
        assert!(drawn == picture, "{name}: `cargo run --example algorithms -- draw` draws another");
    }
}

#[test]
fn the_rules_of_the_pages_are_good() {
    let folder = TempDir::new().unwrap();
    let page = |name| fs::read_to_string(root().join("docs").join(name)).unwrap();
    let text = page("rules.md") + &page("algorithms.md");
    for (number, rules) in blocks(&text, "yaml").into_iter().enumerate() {
        let file = folder.path().join(format!("{number}.yaml"));
        fs::write(&file, rules).unwrap();
        let output = tollkeeper().arg("check").arg(&file).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn the_json_schema_is_the_programs_and_every_good_sample_satisfies_it() {
    let schema = fs::read_to_string(root().join("docs/rules.schema.json")).unwrap();
    let printed = tollkeeper().arg("schema").output().unwrap().stdout;
    let fresh = "`tollkeeper schema > docs/rules.schema.json` writes another";
    assert!(schema.as_bytes() == printed, "{fresh}");

    let folder = TempDir::new().unwrap();
    let page = |name| fs::read_to_string(root().join("docs").join(name)).unwrap();
    let text = page("rules.md") + &page("algorithms.md");
    let good = blocks(&text, "yaml").into_iter().map(str::to_owned);
    let example = fs::read_to_string(root().join("examples/rules.yaml")).unwrap();
    let bad = [
        "{}",
        "domain: a\nlimits: []",
        "domain: a\ndescriptors: [{ key: k, rate_limit: { unit: fortnight } }]",
    ];
    for (number, (rules, satisfies)) in good
        .chain([example])
        .map(|rules| (rules, true))
        .chain(bad.map(|rules| (rules.to_owned(), false)))
        .enumerate()
    {
        let file = folder.path().join(format!("{number}.yaml"));
        fs::write(&file, &rules).unwrap();
        let script = "import json, sys, yaml, jsonschema\n\
                      schema = json.load(open(sys.argv[1]))\n\
                      jsonschema.Draft202012Validator.check_schema(schema)\n\
                      jsonschema.validate(yaml.safe_load(open(sys.argv[2])), schema)";
        let output = std::process::Command::new(tool("python"))
            .args(["-c", script])
            .arg(root().join("docs/rules.schema.json"))
            .arg(&file)
            .output()
            .unwrap();
        let told = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.success(), satisfies, "{rules}\n{told}");
        assert!(satisfies || told.contains("ValidationError"), "{told}");
    }
}

#[test]
fn every_flag_is_in_the_page_of_settings() {
    let page = fs::read_to_string(root().join("docs/settings.md")).unwrap();
    let help = tollkeeper().args(["serve", "--help"]).output().unwrap().stdout;
    let help = String::from_utf8(help).unwrap();
    let flags: Vec<&str> =
        help.lines().filter_map(|line| line.trim().strip_prefix("--")?.split(' ').next()).collect();
    assert!(flags.len() > 10, "{help}");
    for flag in flags {
        assert!(page.contains(&format!("`--{flag}`")), "--{flag} is not in docs/settings.md");
    }
}

#[test]
fn links_of_the_pages_lead_somewhere() {
    for (page, text) in pages() {
        for link in text.split("](").skip(1).map(|rest| rest.split(')').next().unwrap()) {
            let target = page.parent().unwrap().join(link);
            assert!(target.exists(), "{}: {link}", page.display());
        }
    }
}

#[test]
fn the_architecture_fits_into_150_lines() {
    let lines = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap().lines().count();
    assert!(lines <= 150, "{lines} lines");
}
