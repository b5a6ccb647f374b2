//! The commands, as a user at a terminal sees them.

use std::io::BufReader;

use crate::support::{prelude::*, sessions::check_sessions};

#[test]
fn each_session_shows_what_its_text_says() {
    check_sessions(include_str!("terminal.txt"));
}

#[test]
fn ctrl_c_at_a_terminal_without_connections_ends_the_service_at_once() {
    const PRESS: &str = "
import os, pty, sys, time
process, terminal = pty.fork()
if process == 0:
    os.execv(sys.argv[1], sys.argv[1:])
shown = b''
while b'listening: ' not in shown:
    shown += os.read(terminal, 4096)
pressed = time.monotonic()
os.write(terminal, b'\\x03')
_, status = os.waitpid(process, 0)
print(os.waitstatus_to_exitcode(status), time.monotonic() - pressed < 60)
";
    let mut command = Command::new(tool("python"));
    command.args(["-c", PRESS]).arg(tollkeeper().get_program());
    command.args(["serve", "--grpc-addr", "127.0.0.1:0", "--http-addr", "127.0.0.1:0"]);
    let (code, stdout, stderr) = run(command.args(["--admin-addr", "off", "--drain", "10m"]));
    assert_eq!((code, stdout.as_str()), (Some(0), "0 True\n"), "{stderr}");
}

#[test]
fn a_setting_without_effect_is_a_warning_in_the_log() {
    let flags = &["--header-limit", "X-Limit", "--store-password-file", "/dev/null"];
    let service = Service::shop().flags(flags).start();
    let log = service.log();
    for warning in [
        "--header-limit has no effect: --headers is not ratelimit or both",
        "--store-password-file has no effect: memory:// takes no password",
    ] {
        assert!(log.contains(warning), "{warning}: {log}");
    }
}

#[test]
fn with_json_logs_every_line_of_stdout_and_stderr_is_a_json_object() {
    let mut command = serve();
    command.args(["--log-format", "json", "--drain", "0s", "--key-prefix", "unused"]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut process = Process::spawn(&mut command);
    let mut stdout = BufReader::new(process.0.stdout.take().unwrap()).lines();
    let ready = stdout.next().unwrap().unwrap();
    process.signal("TERM");
    assert!(process.0.wait().unwrap().success());
    let ready: serde_json::Value = serde_json::from_str(&ready).unwrap();
    assert_eq!(ready["message"], "tollkeeper ready");
    assert_eq!(ready["domains"], 1);
    let call =
        format!("tollkeeper call --addr {} --domain example", ready["grpc"].as_str().unwrap());
    assert!(ready["try"].as_str().unwrap().starts_with(&call), "{ready}");

    let stderr = BufReader::new(process.0.stderr.take().unwrap()).lines();
    for line in stdout.chain(stderr) {
        let line = line.unwrap();
        let object: serde_json::Value = serde_json::from_str(&line).expect(&line);
        assert!(object["message"].is_string() && object["level"].is_string(), "{line}");
    }
}

#[test]
fn sighup_is_ignored_and_logged() {
    let mut service = Service::shop().start();
    service.process().signal("HUP");
    service.wait_for_log("SIGHUP ignored");
    service.wait_until_ready();
    service.end();
}

#[test]
fn the_version_is_in_the_log_the_metrics_and_the_rules() {
    let (_, printed, _) = run(tollkeeper().arg("--version"));
    let version = printed.trim_end().strip_prefix("tollkeeper ").unwrap();
    let service = Service::shop().start();
    let log = service.log();
    assert!(log.contains(&format!("tollkeeper {version} starts")), "{log}");
    let info = format!("ratelimit_build_info{{version=\"{version}\"}} 1\n");
    service.assert_metric(&info);
    let rules: serde_json::Value = serde_json::from_str(&service.get("/rules")).unwrap();
    assert_eq!(rules["tollkeeper_version"], version);
}

#[test]
fn the_ready_line_has_addresses_store_rules_and_a_call_to_try() {
    let mut command = serve();
    command.stdout(Stdio::piped()).stderr(Stdio::null());
    let mut process = Process::spawn(&mut command);
    let mut line = String::new();
    let mut stdout = BufReader::new(process.0.stdout.take().unwrap());
    stdout.read_line(&mut line).unwrap();
    let middle = ", store memory://, rules examples/rules.yaml (built in) (domains: 1, rules: 4); try: tollkeeper ";
    let (addresses, call) = line.trim_end().split_once(middle).unwrap_or_else(|| panic!("{line}"));
    assert!(addresses.starts_with("tollkeeper ready: grpc 127.0.0.1:"), "{line}");
    let stdout = succeeds(tollkeeper().args(call.split(' ')));
    assert!(stdout.contains("left of 3 per minute"), "the call matches a rule: {stdout}");
}

#[test]
fn a_closed_stdout_does_not_stop_the_service() {
    // The reader closes the pipe before the ready line is written.
    let mut command = serve();
    command.args(["--drain", "0s"]).stdout(Stdio::piped());
    let mut process = {
        command.stderr(Stdio::null());
        Process::spawn(&mut command)
    };
    drop(process.0.stdout.take());
    let began = Instant::now();
    while began.elapsed() < Duration::from_millis(300) {
        assert!(process.0.try_wait().unwrap().is_none(), "it has stopped");
        std::thread::yield_now();
    }
}

#[test]
fn line_ends_in_a_rule_file_or_its_name_add_no_line_to_log_or_output() {
    let folder = TempDir::new().unwrap();
    let rules = folder.path().join("rules");
    std::fs::create_dir(&rules).unwrap();
    let name = "a\nFORGED \x1b[31m.yaml";
    let twice = "domain: shop\ndescriptors: [{ key: \"k\\nFORGED\" }, { key: \"k\\nFORGED\" }]\n";
    std::fs::write(rules.join(name), twice).unwrap();
    let (code, _, stderr) = run(tollkeeper().arg("check").arg(&rules));
    let shown = format!("{}/a\\x0aFORGED \\x1b[31m.yaml", rules.display());
    let problem = format!("{shown}:2:37: `k\\x0aFORGED` is already defined at {shown}:2\n");
    assert_eq!((code, stderr), (Some(1), problem));

    let warned = "domain: shop\ndescriptors: [{ key: k, rate_limit: { unit: day } }]\n";
    std::fs::write(rules.join(name), warned).unwrap();
    let mut command = serve();
    command.arg("--rules").arg(&rules);
    let service = Service::spawn(command, folder);
    let log = service.log();
    assert!(log.contains(&format!("{shown}:2:37: requests_per_unit: missing")), "{log}");
    assert!(!log.lines().any(|line| line.starts_with("FORGED")), "{log}");
    assert_eq!(
        service.get("/rules").matches("x0aFORGED").count(),
        2,
        "in `files` and in `written_at`"
    );
}

#[test]
fn every_shell_gets_completions_and_every_command_a_manual_page() {
    for (shell, start) in
        [("bash", "_tollkeeper()"), ("zsh", "#compdef tollkeeper"), ("fish", "# Print")]
    {
        let (code, stdout, stderr) = run(tollkeeper().args(["completions", shell]));
        assert_eq!((code, stderr.as_str()), (Some(0), ""), "{shell}");
        assert!(stdout.contains(start) && stdout.contains("healthcheck"), "{shell}: {stdout}");
    }
    for (words, name) in [
        (&["man"][..], "tollkeeper"),
        (&["man", "serve"], r"tollkeeper\-serve"),
        (&["man", "counter", "list"], r"tollkeeper\-counter\-list"),
    ] {
        let stdout = succeeds(tollkeeper().args(words));
        assert!(stdout.contains(&format!(".SH NAME\n{name}")), "{stdout}");
    }
    let (code, _, stderr) = run(tollkeeper().args(["man", "count"]));
    assert_eq!(code, Some(2));
    assert!(
        stderr.starts_with("`count`: `tollkeeper` has the commands serve, check, "),
        "{stderr}"
    );
}
