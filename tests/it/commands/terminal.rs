//! The commands, as a user at a terminal sees them.

use std::io::BufReader;

use crate::support::{prelude::*, redis_server::nobody};

#[test]
fn a_full_stdout_is_reported_and_a_closed_one_is_not() {
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let explain =
        ["explain", "--rules", "examples/rules.yaml", "--domain", "example", "user=alice"];
    for words in [&["check", "examples/rules.yaml"][..], &["test", "examples"], &explain] {
        let mut command = tollkeeper();
        command.current_dir(root()).args(words);
        let output = command.stdout(full.try_clone().unwrap()).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        assert_eq!(stderr, "cannot write to stdout: No space left on device (os error 28)\n");

        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = command.stdout(writer).output().unwrap();
        assert_eq!((output.status.code(), output.stderr.len()), (Some(1), 0));
    }
}

#[test]
fn a_stderr_that_is_full_changes_no_exit_code() {
    let full = || std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let nobody = nobody().to_string();
    let call = ["call", "--addr", &nobody, "--domain", "x", "a=b"];
    for (words, code) in [
        (&["check", "gone.yaml"][..], 1),
        // Writing the output fails, and then the message about that fails.
        (&["check", "examples/rules.yaml"], 1),
        (&["test", "gone.test.yaml"], 1),
        (&["explain", "--domain", "example", "user"], 2),
        (&["serve", "--rules", "gone.yaml"], 2),
        (&["counter", "show", "--domain", "x", "a"], 2),
        (&call, 1),
    ] {
        let mut command = tollkeeper();
        command.current_dir(root()).args(words).stdout(full()).stderr(full());
        assert_eq!(command.status().unwrap().code(), Some(code), "for {words:?}");
    }
}

#[test]
fn serve_reports_problems_of_settings_and_rules_together_and_exits_with_2() {
    let folder = TempDir::new().unwrap();
    std::fs::write(folder.path().join("rules.yaml"), "domain: a\nx: 1\n").unwrap();
    let flags = ["serve", "--grpc-addr", "here", "--drain", "5", "--rules", "rules.yaml"];
    let (code, stdout, stderr) = run(tollkeeper().current_dir(&folder).args(flags));
    assert_eq!((code, stdout.as_str()), (Some(2), ""));
    assert_eq!(
        stderr,
        "--grpc-addr: invalid value `here`: must be an IP address and a port, such as 127.0.0.1:8081\n\
         --drain: invalid value `5`: must be a duration from 0s to 10m; did you mean 5s?\n\
         rules.yaml:2:1: unknown key `x`; allowed here: domain, name, descriptors, defaults, require, require_mode, quota_group, draw, slot_by\n"
    );
}

#[test]
fn a_stray_word_gets_the_usage_of_serve_and_a_path_a_hint() {
    for (words, message) in [
        (
            ["examples", "--shadow-mode"],
            "unexpected argument `examples`; for rules: --rules examples",
        ),
        (
            ["--drain", "15 ms"],
            "unexpected argument `ms`; write a number and its unit without a space, such as 15ms",
        ),
    ] {
        let words = words.iter().flat_map(|words| words.split(' '));
        let (code, stdout, stderr) = run(tollkeeper().current_dir(root()).arg("serve").args(words));
        assert_eq!((code, stdout.as_str()), (Some(2), ""));
        let usage =
            "\n\nUsage: tollkeeper serve [OPTIONS]\n\nFor more information, try '--help'.\n";
        assert_eq!(stderr, format!("error: {message}{usage}"));
    }
}

#[test]
fn problems_of_a_settings_file_are_in_the_order_of_its_lines() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("settings.yaml");
    let lines = [
        "log-format: yaml",
        "rules: gone.yaml",
        "bogus: 1",
        "tls-cert: gone.pem",
        "drain: soon",
        "grpc-addr: nowhere",
        "admin-token-file: gone.token",
        "replicas: 0",
    ];
    std::fs::write(&file, lines.join("\n") + "\n").unwrap();
    let (code, _, stderr) = run(tollkeeper().args(["serve", "--config"]).arg(&file));
    assert_eq!(code, Some(2), "{stderr}");
    let number =
        |line: &str| line.split(':').nth(1).and_then(|number| number.parse::<usize>().ok());
    let mut reported: Vec<_> = stderr.lines().filter_map(number).collect();
    assert!(reported.is_sorted(), "{stderr}");
    reported.dedup();
    assert!(reported.len() >= 6, "{stderr}");
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
fn a_switch_that_is_off_on_the_command_line_overrides_a_variable_that_is_on() {
    let folder = TempDir::new().unwrap();
    let rules =
        "domain: d\ndescriptors: [{ key: k, rate_limit: { unit: day, algorithm: sliding_log } }]";
    std::fs::write(folder.path().join("rules.yaml"), rules).unwrap();
    // With valid settings it goes on to listen, and exits with 1, since its address is taken.
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let start = |flags: &[&str]| {
        let mut command = serve();
        command.current_dir(&folder).env("TOLLKEEPER_COUNT_DENIED", "true");
        command.args(["--rules", "rules.yaml", "--grpc-addr", &address]).args(flags);
        run(&mut command).0
    };
    assert_eq!(start(&[]), Some(2), "a sliding_log cannot count denied calls");
    assert_eq!(start(&["--count-denied=false"]), Some(1));
    assert_eq!(start(&["--count-denied", "--count-denied=off"]), Some(1), "the last one wins");
    assert_eq!(start(&["--count-denied=off", "--count-denied"]), Some(2));
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
fn an_address_in_use_ends_the_program_with_1() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    for flag in ["--grpc-addr", "--http-addr", "--admin-addr"] {
        // The later of two flags wins.
        let (code, stdout, stderr) = run(serve().args([flag, &address]));
        assert_eq!((code, stdout.as_str()), (Some(1), ""));
        assert!(stderr.contains(&format!("{flag} {address}: Address already in use")), "{stderr}");
    }
    let mut command = tollkeeper();
    command.env("TOLLKEEPER_GRPC_ADDR", &address);
    let stderr = run(&mut command).2;
    let expected = format!("TOLLKEEPER_GRPC_ADDR {address}: Address already in use");
    assert!(stderr.contains(&expected), "{stderr}");
}

#[test]
fn a_service_without_an_admin_address_is_not_asked_at_the_default_one() {
    let counter = ["counter", "show", "--domain", "shop", "user=a"];
    for words in [&["top", "--once"][..], &counter] {
        let mut command = tollkeeper();
        command.args(words).env("TOLLKEEPER_ADMIN_ADDR", "off");
        let problem =
            "TOLLKEEPER_ADMIN_ADDR is off; give the address of a service by --addr\n".to_owned();
        assert_eq!(run(&mut command), (Some(2), String::new(), problem));
    }
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
fn the_exit_code_of_call_is_the_decision() {
    let service = Service::shop().start();
    let addr = service.grpc.to_string();
    let call = |flags: &[&str]| {
        let flags = [&["call", "--addr", &addr, "--domain", "shop"], flags].concat();
        let (code, stdout, stderr) = run(tollkeeper().args(flags));
        (code, without_resets(&stdout) + &stderr)
    };
    let ok = |left: &str| {
        (Some(0), format!("OK\n  user=two: OK, {left} left of 2 per year, resets in N\n"))
    };
    assert_eq!(call(&["user=two"]), ok("1"));
    assert_eq!(call(&["user=two", "--hits", "0"]), ok("1"));
    assert_eq!(call(&["user=two"]), ok("0"));
    let over = "OVER_LIMIT\n  user=two: OVER_LIMIT, 0 left of 2 per year, resets in N\n";
    assert_eq!(call(&["user=two"]), (Some(3), over.to_owned()));
    assert_eq!(call(&["user=two", "--hits", "-2"]), ok("2"));
    assert_eq!(call(&["free=x"]), (Some(0), "OK\n  free=x: OK, unlimited\n".to_owned()));
    let problem = "user: must be key=value\n";
    assert_eq!(call(&["user"]), (Some(2), problem.to_owned()));
}

/// The text with N for each number over 1000: the seconds until the year ends differ from run to run.
fn without_resets(text: &str) -> String {
    let lines = text.lines().map(|line| match line.split_once("resets in ") {
        Some((before, _)) => format!("{before}resets in N\n"),
        None => format!("{line}\n"),
    });
    lines.collect()
}

/// A terminal would interpret them, and a line end could forge a line of output.
#[test]
fn call_escapes_control_characters_of_its_arguments() {
    let service = Service::shop().start();
    let addr = service.grpc.to_string();
    let call = |addr: &str, descriptor: &str| {
        run(tollkeeper().args(["call", "--addr", addr, "--domain", "shop", descriptor]))
    };
    let (code, stdout, stderr) = call(&addr, "other=\x1b[31mx\nOVER_LIMIT");
    let expected = "OK\n  other=\\x1b[31mx\\x0aOVER_LIMIT: OK, no limit\n";
    assert_eq!((code, stdout.as_str()), (Some(0), expected));
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    let (code, _, stderr) = call(&addr, "\x1b[31m");
    let expected = "\\x1b[31m: must be key=value\n";
    assert_eq!((code, stderr.as_str()), (Some(2), expected));
    let (code, _, stderr) = call("\x1b[31m\n", "user=x");
    let expected = "--addr: `\\x1b[31m\\x0a` is not HOST:PORT, such as 127.0.0.1:8081\n";
    assert_eq!((code, stderr.as_str()), (Some(2), expected));
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
fn the_exit_code_of_call_on_an_error_is_1() {
    let gone = nobody().to_string();
    let flags = ["call", "--addr", &gone, "--domain", "shop", "user=a"];
    let (code, stdout, stderr) = run(tollkeeper().args(flags));
    assert_eq!((code, stdout.as_str()), (Some(1), ""));
    assert!(stderr.contains("refused"), "{stderr}");

    let service = Service::shop().start();
    let flags = ["call", "--addr", &service.grpc.to_string(), "--domain", "", "user=a"];
    let (code, _, stderr) = run(tollkeeper().args(flags));
    assert_eq!(code, Some(1));
    assert!(stderr.ends_with(": INVALID_ARGUMENT: domain: must not be empty\n"), "{stderr}");
}

#[test]
fn clients_suggest_the_address_that_was_probably_meant() {
    let call = &["call"][..];
    for (command, addr, hint) in [
        (call, "http://localhost:8081", "; did you mean localhost:8081?"),
        (&["bench"], "localhost", "; did you mean localhost:8081?"),
        (&["counter", "show"], "localhost", "; did you mean localhost:6070?"),
        (call, "grpc://localhost/", "; did you mean localhost:8081?"),
        (call, "localhost:", "; did you mean localhost:8081?"),
        (call, "[::1]", "; did you mean [::1]:8081?"),
        (call, "127.0.0.1:8081/json", "; did you mean 127.0.0.1:8081?"),
        (call, "::1", ", such as 127.0.0.1:8081"),
        (call, "localhost:x", ", such as 127.0.0.1:8081"),
        (call, "localhost:65536", ", such as 127.0.0.1:8081"),
        (call, ":8081", ", such as 127.0.0.1:8081"),
        (call, "a b", ", such as 127.0.0.1:8081"),
        (call, "user@host:1", ", such as 127.0.0.1:8081"),
    ] {
        let flags = ["--addr", addr, "--domain", "d", "k=v"];
        let (code, stdout, stderr) = run(tollkeeper().args(command).args(flags));
        assert_eq!((code, stdout.as_str()), (Some(2), ""));
        assert_eq!(stderr, format!("--addr: `{addr}` is not HOST:PORT{hint}\n"));
    }
}

#[test]
fn a_call_to_the_http_address_asks_whether_it_is_the_grpc_address() {
    let service = Service::shop().start();
    let http = service.http.to_string();
    let flags = ["call", "--addr", &http, "--domain", "shop", "user=a"];
    let (code, stdout, stderr) = run(tollkeeper().args(flags));
    assert_eq!((code, stdout.as_str()), (Some(1), ""));
    let cause =
        format!("{http}: the server ended the connection instead of speaking HTTP/2 (gRPC)");
    assert!(stderr.starts_with(&cause), "{stderr}");
    assert!(
        stderr.contains("; is this the gRPC address of a service? Default: 127.0.0.1:8081"),
        "{stderr}"
    );

    let grpc = service.grpc.to_string();
    let flags = ["counter", "show", "--addr", &grpc, "--domain", "shop", "user=a"];
    let (code, _, stderr) = run(tollkeeper().args(flags));
    assert_eq!(code, Some(1));
    assert!(
        stderr.contains("is this the admin address of a service? Default: 127.0.0.1:6070"),
        "{stderr}"
    );
}

#[test]
fn log_lines_are_coloured_only_on_a_terminal_and_never_with_no_color() {
    // The service logs a warning and exits, since its address is taken. Python runs it on a terminal.
    const IN_TERMINAL: &str = "import pty, sys; pty.spawn(sys.argv[1:])";
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let flags = ["serve", "--grpc-addr", &taken.local_addr().unwrap().to_string()];
    let log = |command: &mut Command| {
        let (_, stdout, stderr) =
            run(command.args(flags).env("TOLLKEEPER_BOGUS", "1").env_remove("NO_COLOR"));
        let log = stdout + &stderr;
        assert!(log.contains("TOLLKEEPER_BOGUS: no such setting"), "{log}");
        log
    };
    let plain = log(&mut tollkeeper());
    assert!(!plain.contains('\x1b'), "{plain:?}");
    let mut in_terminal = Command::new(tool("python"));
    in_terminal.args(["-c", IN_TERMINAL]).arg(tollkeeper().get_program());
    let coloured = log(&mut in_terminal);
    assert!(coloured.contains('\x1b'), "{coloured:?}");
    let mut in_terminal = Command::new(tool("python"));
    in_terminal.args(["-c", IN_TERMINAL, "env", "NO_COLOR=1"]).arg(tollkeeper().get_program());
    let without_color = log(&mut in_terminal);
    assert!(!without_color.contains('\x1b'), "{without_color:?}");
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
