//! `tollkeeper override` sets, lists, shows and undoes overrides, and `tollkeeper audit` shows who did.

use crate::support::prelude::*;

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

#[tokio::test]
async fn an_override_is_set_listed_shown_and_undone_and_the_audit_has_both() {
    let service = Service::shop().start();
    let mut client = service.client().await;
    for _ in 0..12 {
        client.should_rate_limit(shop("user=alice")).await.unwrap();
    }
    let tried = prints(&service, &[&SET[..], &["--times", "10", "--dry-run"]].concat());
    assert!(tried.contains(" decisions, ") && !tried.contains("set: "), "{tried}");
    assert_eq!(prints(&service, &["override", "list"]), "no override is in force\n");

    let set = prints(&service, &[&SET[..], &["--times", "10"]].concat());
    let (effect, set) = set.split_once("set: ").unwrap();
    assert!(
        effect.contains("12 decisions, 2 denied; with the override, about 0 denied"),
        "{effect}"
    );
    let (id, rest) = set.split_once(": ").unwrap();
    // 30 min, or a little less on a busy machine.
    let left = rest.strip_prefix("times 10 for user=alice in shop, ").unwrap();
    assert!(left.starts_with("30 min left, until ") || left.starts_with("29 min "), "{set}");
    assert!(left.ends_with(", by 127.0.0.1: INC-42\n"), "{set}");
    let found = prints(&service, &["override", "list", "--domain", "shop", "--text", "inc-42"]);
    assert!(found.starts_with(id) && found.lines().count() == 1, "{found}");
    let other = ["override", "list", "--domain", "mail"];
    assert_eq!(prints(&service, &other), "no override matches\n");
    let shown = prints(&service, &["override", "show", id, "-o", "json"]);
    let shown: Value = serde_json::from_str(&shown).unwrap();
    assert_eq!((&shown["id"], &shown["value"]), (&id.into(), &10.into()));
    let undone = prints(&service, &["override", "undo", id, "--because", "solved"]);
    assert!(undone.starts_with(&format!("ended: {id}: times 10 for user=alice")), "{undone}");
    let (code, _, stderr) = run(&mut command(&service, &["override", "undo", id]));
    assert!(code == Some(1) && stderr.contains("no override in force has this id"), "{stderr}");

    let audit = prints(&service, &["audit"]);
    let lines: Vec<&str> = audit.lines().collect();
    assert_eq!(lines.len(), 3, "the trial changed nothing: {audit}");
    for (line, parts) in lines.iter().zip([
        &["undo override: refused: id: no override in force has this id", id][..],
        &[
            "127.0.0.1  undo override: done; because solved, descriptor user=alice, domain shop",
            id,
            "sets times 10, was_because INC-42",
        ],
        &["127.0.0.1  set override: done", "because INC-42", "sets times 10", "until 20", id],
    ]) {
        assert!(parts.iter().all(|part| line.contains(part)), "{line}: {parts:?}");
        assert!(!line.contains('?') && !line.contains("ends in"), "{line}");
    }
    let found = prints(&service, &["audit", "--text", "inc-42", "--who", "127."]);
    assert_eq!(found, format!("{}\n{}\n", lines[1], lines[2]));
    let json: Value =
        serde_json::from_str(&prints(&service, &["audit", "--limit", "1", "-o", "json"])).unwrap();
    assert_eq!(json["entries"].as_array().unwrap().len(), 1);
    assert!(json["more"].is_string());
}

#[test]
fn what_an_override_does_for_how_long_and_why_are_required() {
    let service = Service::shop().start();
    let (start, end) = (&SET[..5], &SET[5..]);
    for (words, problem) in [
        (SET.to_vec(), "<--limit <N>|--times <N>|--allow|--ban|--shadow>"),
        ([&SET[..], &["--ban", "--allow"]].concat(), "cannot be used with"),
        ([start, &["--ban", "--because", "x"]].concat(), "--for <TIME>"),
        ([start, &["--ban", "--for", "1m"]].concat(), "--because <TEXT>"),
    ] {
        let (code, _, stderr) = run(&mut command(&service, &words));
        assert!(code == Some(2) && stderr.contains(problem), "{words:?}: {stderr}");
    }
    for (words, problem) in [
        ([start, &["--ban", "--for", "31d", "--because", "x"]].concat(), "for: must be a duration"),
        ([&start[..4], &["user"], &["--ban"], end].concat(), "descriptor: "),
        (
            [&["override", "set", "--domain", "mail", "user=a", "--ban"][..], end].concat(),
            "domain: ",
        ),
    ] {
        let (code, _, stderr) = run(&mut command(&service, &words));
        assert!(code == Some(1) && stderr.contains(problem), "{words:?}: {stderr}");
    }
    for words in [&["override", "undo", ""], &["override", "show", "x/y"]] {
        let (code, _, stderr) = run(&mut command(&service, words));
        assert!(code == Some(2) && stderr.contains("ID: must be letters and digits"), "{stderr}");
    }
    assert_eq!(prints(&service, &["override", "list"]), "no override is in force\n");
}

#[test]
fn set_and_undo_name_the_other_override_of_the_target() {
    let service = Service::shop().start();
    let first = prints(&service, &[&SET[..], &["--times", "10"]].concat());
    let (_, first) = first.split_once("set: ").unwrap();
    let (id, _) = first.split_once(':').unwrap();
    let trial = prints(&service, &[&SET[..], &["--ban", "--dry-run"]].concat());
    let second = prints(&service, &[&SET[..], &["--ban"]].concat());
    let named = format!("supersedes: {id}: times 10 for user=alice in shop, ");
    assert!(trial.contains(&named) && second.contains(&named), "{trial}{second}");
    assert!(second.contains(", by 127.0.0.1: INC-42\nset: "), "{second}");
    let (_, second) = second.split_once("\nset: ").unwrap();
    let hidden =
        format!("for user=alice in shop, hidden by {}, ", second.split_once(':').unwrap().0);
    assert_eq!(prints(&service, &["override", "list"]).matches(&hidden).count(), 1);
    let undone = prints(&service, &["override", "undo", second.split_once(':').unwrap().0]);
    assert!(undone.contains(&format!("\nin force again: {id}: times 10 for ")), "{undone}");
    let hinted = prints(
        &service,
        &["override", "set", "--domain", "shop", "usr=a", "--ban", "--for", "1m", "--because", "x"],
    );
    assert!(
        hinted.contains("hint: no rule of the domain has the key usr at this position"),
        "{hinted}"
    );
}

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
