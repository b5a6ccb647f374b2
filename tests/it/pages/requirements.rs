//! What `tests/run` says on a machine that lacks programs.

use crate::support::prelude::*;

/// What `tests/run` itself calls before it has found every program that it needs.
const BASICS: [&str; 4] = ["bash", "dirname", "id", "mkdir"];
const NEEDED: [&str; 5] = ["cargo", "cc", "python3", "go", "apt-get"];

/// Makes a folder with these programs of the machine, as the only one in which programs are found.
fn path_with(programs: &[&str]) -> TempDir {
    let folder = TempDir::new().unwrap();
    for program in programs {
        let found = succeeds(Command::new("which").arg(program));
        symlink(found.trim(), folder.path().join(program)).unwrap();
    }
    folder
}

/// The lines of `tests/run` that name a missing program, as a user without privileges.
fn missing(path: &Path) -> Vec<String> {
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-user=1000", "env", &format!("PATH={}", path.display())]);
    let (code, out, error) = run(command.arg("bash").arg(root().join("tests/run")));
    assert_eq!((code, out.as_str()), (Some(1), ""), "{error}");
    error.lines().skip(1).map(str::to_owned).collect()
}

#[test]
fn tests_run_names_each_missing_program_with_the_command_that_installs_it() {
    let nothing = path_with(&BASICS);
    let lines = missing(nothing.path());
    for (program, line) in NEEDED.into_iter().chain(["sudo"]).zip(&lines) {
        let command = if program == "cargo" || program == "go" { "curl -" } else { "apt-get" };
        assert!(line.starts_with(&format!("  {program} (")), "{line}");
        assert!(line.contains(command) || line.contains("docker run"), "{line}");
    }
    assert_eq!(lines.len(), NEEDED.len() + 1, "{lines:?}");

    for absent in NEEDED {
        let others = NEEDED.into_iter().filter(|program| *program != absent);
        let programs: Vec<_> = BASICS.into_iter().chain(others).collect();
        let lines = missing(path_with(&programs).path());
        // Without Redis and without root, sudo is missing as well.
        assert!(lines.len() == 2 && lines[0].starts_with(&format!("  {absent} (")), "{lines:?}");
    }
}

#[test]
fn tests_run_names_the_packages_to_install_where_there_is_no_sudo() {
    let programs: Vec<_> = BASICS.into_iter().chain(NEEDED).collect();
    let lines = missing(path_with(&programs).path());
    assert!(lines[0].starts_with("  sudo (") && lines.len() == 1, "{lines:?}");
    assert!(lines[0].contains("as root: apt-get install curl redis-server chromium"), "{lines:?}");
}
