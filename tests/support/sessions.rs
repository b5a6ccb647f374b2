//! Sessions at a terminal as text. `## ` and a claim begin a session, and `=== NAME` a file in its folder; files above the first session
//! are in all folders. `@ service FLAGS` starts a service, by its `rules.yaml` if it has one, which its commands ask. `$ ` begins a
//! command of bash. The lines below a command are what it prints to its standard output. Lines with `! ` are its standard error, and a
//! line with `? ` is its exit code, unless that is 0. In them, `…` stands for any text of a line, and alone in a line for any lines. Times
//! and addresses of the service differ from run to run, so they have names.

use super::{
    pages::without_times,
    prelude::*,
    service::{RULES, command_of},
};

/// A file or a command, with the lines below it.
type Part<'text> = (&'text str, Vec<&'text str>);

struct Session<'text> {
    claim: &'text str,
    files: Vec<Part<'text>>,
    flags: Option<&'text str>,
    commands: Vec<Part<'text>>,
}

impl<'text> Session<'text> {
    fn new(text: &'text str, shared_files: &[Part<'text>]) -> Self {
        let (claim, text) = text.split_once('\n').unwrap();
        let (mut files, mut flags, mut commands) = (shared_files.to_vec(), None, Vec::new());
        for line in text.trim_end().lines() {
            if let Some(name) = line.strip_prefix("=== ") {
                files.push((name, Vec::new()));
            } else if let Some(found) = line.strip_prefix("@ service") {
                flags = Some(found);
            } else if let Some(command) = line.strip_prefix("$ ") {
                commands.push((command, Vec::new()));
            } else {
                let parts = if commands.is_empty() { &mut files } else { &mut commands };
                parts.last_mut().expect(claim).1.push(line);
            }
        }
        assert!(!commands.is_empty(), "{claim}: no command");
        Self { claim, files, flags, commands }
    }

    fn service(&self) -> Option<Service> {
        let flags: Vec<&str> = self.flags?.split_whitespace().collect();
        let rules = self.files.iter().rfind(|(name, _)| *name == "rules.yaml");
        let rules = rules.map_or(RULES.to_owned(), |(_, lines)| lines.join("\n"));
        Some(Service::with(&rules).flags(&flags).ready())
    }

    /// What each command shows, in the form of the text.
    fn shown(&self) -> Vec<Vec<String>> {
        let [folder, results] = [(); 2].map(|()| TempDir::new().unwrap());
        for (name, lines) in &self.files {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, lines.join("\n") + "\n").unwrap();
        }
        let programs = Path::new(env!("CARGO_BIN_EXE_tollkeeper")).parent().unwrap();
        let mut bash = command_of(Path::new("bash"));
        bash.env("PATH", format!("{}:{}", programs.display(), std::env::var("PATH").unwrap()));
        bash.current_dir(&folder).env("RESULTS", results.path()).env("ROOT", root());
        let mut named = Vec::new();
        let service = self.service();
        if let Some(Service { grpc, http, admin, rules, .. }) = &service {
            for (name, address) in [("GRPC", grpc), ("HTTP", http), ("ADMIN", admin)] {
                bash.env(name, address.to_string());
                named.push((address.to_string(), format!("${name}")));
            }
            bash.env("TOLLKEEPER_ADDR", grpc.to_string());
            bash.env("TOLLKEEPER_ADMIN_ADDR", admin.to_string());
            named.push((rules.display().to_string(), "rules.yaml".to_owned()));
        }
        let commands = self.commands.iter().enumerate().map(|(number, (command, _))| {
            let file = |what| format!("$RESULTS/{number}.{what}");
            let (out, err, code) = (file("out"), file("err"), file("code"));
            format!("{{ {command}\n}} >{out} 2>{err}; echo $? >{code}\n")
        });
        succeeds(bash.args(["-o", "pipefail", "-c", &commands.collect::<String>()]));
        let read = |number: usize, what: &str| {
            let file = results.path().join(format!("{number}.{what}"));
            let text = fs::read_to_string(file).unwrap();
            let text = named.iter().fold(text, |text, (value, name)| text.replace(value, name));
            without_times(&text)
        };
        let of_command = |number| {
            let mut lines: Vec<_> = read(number, "out").lines().map(str::to_owned).collect();
            lines.extend(
                read(number, "err").lines().map(|line| format!("! {line}").trim_end().to_owned()),
            );
            let code = read(number, "code");
            lines.extend((code != "0").then(|| format!("? {code}")));
            lines
        };
        (0..self.commands.len()).map(of_command).collect()
    }
}

/// Whether these lines are those that are expected.
fn fit(shown: &[String], expected: &[&str]) -> bool {
    match (shown, expected) {
        ([], []) => true,
        (_, ["…", rest @ ..]) => (0..=shown.len()).any(|count| fit(&shown[count..], rest)),
        ([line, shown @ ..], [expected, rest @ ..]) => fits(line, expected) && fit(shown, rest),
        _ => false,
    }
}

/// The same of one line.
fn fits(line: &str, expected: &str) -> bool {
    let Some((start, end)) = expected.split_once('…') else { return line == expected };
    let Some(rest) = line.strip_prefix(start) else { return false };
    rest.char_indices().any(|(index, _)| fits(&rest[index..], end)) || end.is_empty()
}

/// The files above the first session of a text.
fn shared_files(text: &str) -> Vec<Part<'_>> {
    let before = text.split("\n## ").next().unwrap();
    let files = before.split("\n=== ").skip(1).map(|file| file.split_once('\n').unwrap());
    files.map(|(name, text)| (name, text.trim_end().lines().collect())).collect()
}

/// One of them.
pub fn shared_file(text: &str, name: &str) -> String {
    let files = shared_files(text);
    files.into_iter().find(|(other, _)| *other == name).expect(name).1.join("\n")
}

/// Runs the sessions of a text, and reports all commands that show something else than the text.
#[track_caller]
pub fn check_sessions(text: &str) {
    let shared = shared_files(text);
    let mut failures = String::new();
    assert!(text.contains("\n## "), "no session");
    for session in text.split("\n## ").skip(1).map(|text| Session::new(text, &shared)) {
        for ((command, expected), shown) in session.commands.iter().zip(session.shown()) {
            if !fit(&shown, expected) {
                failures += &format!("\n{}\n$ {command}\n{}\n", session.claim, shown.join("\n"));
            }
        }
    }
    assert!(failures.is_empty(), "these show something else:\n{failures}");
}
