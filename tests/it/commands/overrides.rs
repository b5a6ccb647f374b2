//! `tollkeeper override` sets, lists, shows and undoes overrides, and `tollkeeper audit` shows who did.

use crate::support::{prelude::*, sessions::check_sessions};

#[test]
fn each_session_of_overrides_shows_what_its_text_says() {
    check_sessions(include_str!("overrides.txt"));
}

fn command(service: &Service, words: &[&str]) -> Command {
    let mut command = tollkeeper();
    command.args(words).args(["--addr", &service.admin.to_string()]);
    command
}

/// What a command prints that succeeds.
#[track_caller]
fn prints(service: &Service, words: &[&str]) -> String {
    let (code, stdout, stderr) = run(&mut command(service, words));
    assert_eq!((code, stderr.as_str()), (Some(0), ""), "{words:?}");
    stdout
}

const SET: [&str; 9] =
    ["override", "set", "--domain", "shop", "user=alice", "--for", "30m", "--because", "INC-42"];

/// Runs a command at a terminal, and types `answer` when it asks.
fn at_a_terminal(service: &Service, words: &[&str], answer: &str) -> String {
    let script = "import os, pty, sys\n\
        pid, fd = pty.fork()\n\
        if pid == 0: os.execv(sys.argv[2], sys.argv[2:])\n\
        seen, typed = b'', False\n\
        while True:\n \
            try: part = os.read(fd, 4096)\n \
            except OSError: break\n \
            if not part: break\n \
            seen += part\n \
            if b'[y/N]' in seen and not typed: os.write(fd, sys.argv[1].encode() + b'\\n'); typed = True\n\
        os.waitpid(pid, 0)\n\
        sys.stdout.write(seen.decode())\n";
    let command = command(service, words);
    let mut python = Command::new(tool("python"));
    python.args(["-c", script, answer]).arg(command.get_program()).args(command.get_args());
    succeeds(&mut python)
}

#[test]
fn at_a_terminal_set_shows_the_effect_and_asks() {
    let service = Service::shop().start();
    let ban = [&SET[..], &["--ban"]].concat();
    let refused = at_a_terminal(&service, &ban, "n");
    assert!(refused.contains(" decisions, ") && refused.contains("nothing was set"), "{refused}");
    assert_eq!(prints(&service, &["override", "list"]), "no override is in force\n");
    assert!(at_a_terminal(&service, &ban, "y").contains("set: "));
    let sure = at_a_terminal(&service, &[&ban[..], &["--yes"]].concat(), "");
    assert!(sure.contains("set: ") && !sure.contains("[y/N]"), "{sure}");
    assert_eq!(prints(&service, &["override", "list"]).lines().count(), 2);
}
