//! The workflows of GitHub: their linter accepts them, what they name exists, and they may do no more than they must.

use std::env;

use crate::support::{chart::text, prelude::*};

const VERSION: &str = env!("CARGO_PKG_VERSION");

fn workflows() -> [String; 2] {
    ["test", "release"].map(|name| text(&format!(".github/workflows/{name}.yaml")))
}

/// What the linter finds in a workflow. It would also run the linters of scripts that the machine happens to have.
fn lint(workflow: &str) -> String {
    let file = TextFile::new("workflow.yaml", workflow);
    let mut linter = Command::new(tool("actionlint"));
    run(linter.args(["-no-color", "-shellcheck=", "-pyflakes="]).arg(&*file)).1
}

#[test]
fn the_linter_accepts_the_workflows_and_refuses_a_job_that_waits_for_none() {
    for file in fs::read_dir(root().join(".github/workflows")).unwrap() {
        assert_eq!(lint(&fs::read_to_string(file.unwrap().path()).unwrap()), "");
    }
    let wrong = workflows()[1].replace("needs: [image, macos]", "needs: [image, windows]");
    assert!(lint(&wrong).contains("\"windows\""), "{}", lint(&wrong));
}

/// A stub takes the place of Docker.
#[test]
fn a_release_builds_both_platforms_on_the_same_digests_of_the_base_images() {
    use std::os::unix::fs::PermissionsExt as _;

    let release = documents(&workflows()[1]).remove(0);
    let check = &release["jobs"]["check"];
    let steps = check["steps"].as_array().unwrap();
    let find = steps.iter().find(|step| step["id"] == "bases").unwrap()["run"].as_str().unwrap();
    let folder = TempDir::new().unwrap();
    let (docker, output) = (folder.path().join("docker"), folder.path().join("output"));
    fs::write(&docker, "#!/bin/sh\necho \"sha256:of-${4%%[:@]*}\"\n").unwrap();
    fs::set_permissions(&docker, fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", folder.path().display(), env::var("PATH").unwrap());
    let found = |dockerfile: &str| {
        fs::write(folder.path().join("Dockerfile"), dockerfile).unwrap();
        fs::write(&output, "").unwrap();
        let mut shell = Command::new("bash");
        shell.args(["-e", "-c", find]).env("PATH", &path).env("GITHUB_OUTPUT", &output);
        let (code, _, errors) = run(shell.current_dir(&folder));
        assert_eq!((code, &*errors), (Some(0), ""));
        fs::read_to_string(&output).unwrap()
    };
    let rust = format!("rust:{}-slim-bookworm", env!("CARGO_PKG_RUST_VERSION"));
    let expected = format!(
        "RUST_IMAGE={rust}@sha256:of-rust\nDEBIAN_IMAGE=debian:bookworm-slim@sha256:of-debian\n"
    );
    let dockerfile = text("Dockerfile");
    assert_eq!(found(&dockerfile), expected);
    let pinned = dockerfile.replace("=debian:bookworm-slim", "=debian:bookworm-slim@sha256:old");
    assert_eq!(found(&pinned), expected);

    let outputs = |name: &str| format!("${{{{ steps.bases.outputs.{name} }}}}");
    assert_eq!(check["outputs"]["rust"], outputs("RUST_IMAGE"));
    assert_eq!(check["outputs"]["debian"], outputs("DEBIAN_IMAGE"));
    let image = &release["jobs"]["image"];
    assert_eq!(image["env"]["RUST_IMAGE"], "${{ needs.check.outputs.rust }}");
    assert_eq!(image["env"]["DEBIAN_IMAGE"], "${{ needs.check.outputs.debian }}");
    let image = image.to_string();
    assert_eq!(image.matches("docker buildx build ").count(), 2);
    assert_eq!(image.matches(r#"linux/$ARCH\" \"${bases[@]}\""#).count(), 2);
    assert!(dockerfile.lines().filter(|line| line.starts_with("FROM ")).all(|line| {
        line.contains("$RUST_IMAGE ") || line.contains("$DEBIAN_IMAGE ") || line.contains("scratch")
    }));
}

#[test]
fn the_workflows_name_files_that_exist_and_actions_by_their_commit() {
    let (mut files, mut actions) = (0, 0);
    for workflow in workflows() {
        for word in workflow.split([' ', '\n', '"']) {
            let word = word.trim_start_matches("./");
            let is_file =
                ["image/", "tests/", ".ci/", ".github/"].iter().any(|at| word.starts_with(at));
            if is_file || word.ends_with(".md") || word.ends_with(".toml") {
                assert!(root().join(word).is_file(), "{word}");
                files += 1;
            }
        }
        for action in workflow.lines().filter_map(|line| line.trim().strip_prefix("- uses: ")) {
            let (_, commit) = action.split_once('@').unwrap();
            let (commit, version) = commit.split_once(" # v").expect("a version as a comment");
            let is_commit = commit.len() == 40 && commit.bytes().all(|c| c.is_ascii_hexdigit());
            assert!(is_commit && version.contains('.'), "{action}");
            actions += 1;
        }
    }
    assert!(files >= 7 && actions >= 8, "{files} files, {actions} actions");
}

#[test]
fn only_the_jobs_that_publish_may_write() {
    let [tests, release] = workflows();
    assert!(tests.contains("\npermissions:\n  contents: read\n") && !tests.contains(": write"));
    assert!(release.contains("\npermissions: {}\n"));
    let (mut job, mut found) = ("", Vec::new());
    for line in release.lines() {
        let is_job = line.starts_with("  ") && !line.starts_with("   ");
        if let Some(name) = line.trim().strip_suffix(':').filter(|_| is_job) {
            job = name;
        }
        if let Some(permission) = line.trim().strip_suffix(": write") {
            found.push((job, permission));
        }
    }
    let expected = [
        ("image", "packages"),
        ("registry", "packages"),
        ("registry", "id-token"),
        ("publish", "contents"),
        ("publish", "id-token"),
    ];
    assert_eq!(found, expected);
}

#[test]
fn the_versions_of_a_release_agree() {
    let [tests, release] = workflows();
    let rust = env!("CARGO_PKG_RUST_VERSION");
    assert!(tests.contains(&format!("image: rust:{rust}-bookworm\n")));
    let both = [tests, release].concat();
    let installed = both.matches("rustup toolchain install").count();
    let same = both.matches(&format!("rustup toolchain install {rust} ")).count();
    assert_eq!((installed, same), (4, 4));
    let (_, nfpm) = both.split_once("cmd/nfpm@").unwrap();
    let nfpm = nfpm.lines().next().unwrap();
    assert!(text("tests/run").contains(&format!("NFPM={nfpm}\n")), "{nfpm}");
    let chart = text("helm/Chart.yaml");
    for line in [format!("version: {VERSION}"), format!("appVersion: \"{VERSION}\"")] {
        assert!(chart.lines().any(|found| found == line), "no line `{line}`");
    }
}

#[test]
fn a_release_publishes_the_packages_of_all_languages_but_go_which_has_a_tag() {
    let release = documents(&workflows()[1]).remove(0);
    let jobs = release["jobs"]["packages"]["strategy"]["matrix"]["include"].as_array().unwrap();
    let mut published: Vec<_> =
        jobs.iter().map(|job| job["name"].as_str().unwrap().to_lowercase()).collect();
    let folders = fs::read_dir(root().join("clients")).unwrap();
    let folders = folders.map(|folder| folder.unwrap().file_name().into_string().unwrap());
    let mut folders: Vec<_> =
        folders.filter(|name| name != "conformance" && name != "go").collect();
    published.sort();
    folders.sort();
    assert_eq!(published, folders);
}

#[test]
fn a_release_has_a_tag_for_the_go_module() {
    let repository = env!("CARGO_PKG_REPOSITORY").strip_prefix("https://").unwrap();
    let module = text("clients/go/go.mod");
    let folder = module.lines().next().unwrap().strip_prefix(&format!("module {repository}/"));
    let tag = format!("\"ref=refs/tags/{}/$GITHUB_REF_NAME\"", folder.expect(&module));
    assert!(workflows()[1].contains(&tag), "{tag}");
}

#[test]
fn the_pages_and_the_chart_name_the_image_that_the_workflow_pushes() {
    let repository = env!("CARGO_PKG_REPOSITORY").strip_prefix("https://github.com/").unwrap();
    assert!(workflows()[1].contains("\n  IMAGE: ghcr.io/${{ github.repository }}\n"));
    let image = format!("ghcr.io/{repository}");
    // The workflow replaces it where IMAGE differs.
    let of_chart = text("helm/values.yaml");
    let of_chart: Vec<&str> =
        of_chart.lines().filter_map(|line| line.strip_prefix("  repository: ")).collect();
    assert_eq!(of_chart, [&image]);
    for file in ["README.md", "docs/release.md", "helm/Chart.yaml"] {
        assert!(text(file).contains(&format!("{image}:{VERSION}")), "{file}");
    }
    let chart = format!("oci://{image}/charts/tollkeeper --version {VERSION}");
    assert!(text("docs/release.md").contains(&chart), "{chart}");
}
