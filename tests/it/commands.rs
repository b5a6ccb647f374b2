//! The commands, as a person at a terminal meets them.

use std::{
    io::{BufRead as _, BufReader},
    net::TcpListener,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use tempfile::TempDir;

use crate::support::{
    Process, root, run,
    service::{Options, Service, serve, tollkeeper},
    tool,
};

#[test]
fn a_stdout_that_is_full_is_told_and_one_that_is_closed_is_not() {
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let explain = ["explain", "--domain", "example", "user=alice"];
    for words in [&["check", "examples/rules.yaml"][..], &["test", "examples"], &explain] {
        let mut command = tollkeeper();
        command.current_dir(root()).args(words);
        let output = command.stdout(full.try_clone().unwrap()).output().unwrap();
        let told = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{told}");
        assert_eq!(told, "stdout: No space left on device (os error 28)\n");

        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = command.stdout(writer).output().unwrap();
        assert_eq!((output.status.code(), output.stderr.len()), (Some(1), 0));
    }
}

#[test]
fn a_stderr_that_is_full_changes_no_exit_code() {
    let full = || std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let call = ["call", "--addr", "127.0.0.1:1", "--domain", "x", "a=b"];
    for (words, code) in [
        (&["check", "gone.yaml"][..], 1),
        // Its answer fails first, and then so does the message that says so.
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
fn serve_tells_problems_of_settings_and_rules_together_and_exits_with_2() {
    let folder = TempDir::new().unwrap();
    std::fs::write(folder.path().join("rules.yaml"), "domain: a\nx: 1\n").unwrap();
    let flags = ["serve", "--grpc-addr", "here", "--drain", "5", "--rules", "rules.yaml"];
    let (code, stdout, stderr) = run(tollkeeper().current_dir(&folder).args(flags));
    assert_eq!((code, stdout.as_str()), (Some(2), ""));
    assert_eq!(
        stderr,
        "--grpc-addr: `here` is no IP address and port, such as 127.0.0.1:8081\n\
         --drain: `5` is no time from 0ns to 600s, such as 15ms, 5s or 2m\n\
         rules.yaml:2:1: unknown key `x`; allowed here: domain, descriptors\n"
    );
}

#[test]
fn unknown_flags_exit_with_2() {
    for flags in [&["serve", "--grpc-port", "1"][..], &["bogus"], &["check"], &["call"]] {
        assert_eq!(run(tollkeeper().args(flags)).0, Some(2), "for {flags:?}");
    }
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
}

#[test]
fn when_ready_one_line_tells_addresses_store_rules_and_a_call_to_try() {
    let mut command = serve();
    command.stdout(Stdio::piped()).stderr(Stdio::null());
    let mut process = Process::spawn(&mut command);
    let mut line = String::new();
    let mut stdout = BufReader::new(process.0.stdout.take().unwrap());
    stdout.read_line(&mut line).unwrap();
    let middle = ", store memory://, rules examples/rules.yaml (built in); try: tollkeeper ";
    let (addresses, call) = line.trim_end().split_once(middle).unwrap_or_else(|| panic!("{line}"));
    assert!(addresses.starts_with("tollkeeper ready: grpc 127.0.0.1:"), "{line}");
    let (code, stdout, stderr) = run(tollkeeper().args(call.split(' ')));
    assert_eq!(code, Some(0), "{stdout}{stderr}");
    assert!(stdout.contains("left of 3 per minute"), "the call meets a rule: {stdout}");
}

#[test]
fn a_closed_stdout_is_no_reason_to_stop() {
    // Nobody reads the ready line: `Service` gives the program no stdout to speak of, and here the
    // reader goes away before it is written.
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
fn call_tells_the_decision_by_its_exit_code() {
    let service = Service::start(Options::default());
    let addr = service.grpc.to_string();
    let call = |flags: &[&str]| {
        let flags = [&["call", "--addr", &addr, "--domain", "shop"], flags].concat();
        let (code, stdout, stderr) = run(tollkeeper().args(flags));
        // Only the year knows how many seconds are left of it.
        let words = stdout
            .split(' ')
            .map(|word| if word.parse::<u64>().is_ok_and(|it| it > 1000) { "N" } else { word });
        (code, words.collect::<Vec<_>>().join(" ") + &stderr)
    };
    let ok = |left: &str| {
        (Some(0), format!("OK\n  user=two: OK, {left} left of 2 per year, resets in N s\n"))
    };
    assert_eq!(call(&["user=two"]), ok("1"));
    assert_eq!(call(&["user=two", "--hits", "0"]), ok("1"));
    assert_eq!(call(&["user=two"]), ok("0"));
    let over = "OVER_LIMIT\n  user=two: OVER_LIMIT, 0 left of 2 per year, resets in N s\n";
    assert_eq!(call(&["user=two"]), (Some(3), over.to_owned()));
    assert_eq!(call(&["user=two", "--hits", "-2"]), ok("2"));
    assert_eq!(call(&["free=x"]), (Some(0), "OK\n  free=x: OK, unlimited\n".to_owned()));
    assert_eq!(call(&["x=y"]), (Some(0), "OK\n  x=y: OK, no limit\n".to_owned()));
    let problem = "user: an entry is written key=value\n";
    assert_eq!(call(&["user"]), (Some(2), problem.to_owned()));
}

#[test]
fn call_tells_an_error_by_its_exit_code() {
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let flags = ["call", "--addr", &nobody, "--domain", "shop", "user=a"];
    let (code, stdout, stderr) = run(tollkeeper().args(flags));
    assert_eq!((code, stdout.as_str()), (Some(1), ""));
    assert!(stderr.contains("refused"), "{stderr}");

    let service = Service::start(Options::default());
    let flags = ["call", "--addr", &service.grpc.to_string(), "--domain", "", "user=a"];
    let (code, _, stderr) = run(tollkeeper().args(flags));
    assert_eq!(code, Some(1));
    assert!(stderr.ends_with(": INVALID_ARGUMENT: domain: must not be empty\n"), "{stderr}");
}

#[test]
fn log_lines_are_coloured_only_on_a_terminal_and_never_with_no_color() {
    // It logs a warning and ends, for the address is taken. Python gives it a terminal of its own.
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
    let asked = log(&mut in_terminal);
    assert!(!asked.contains('\x1b'), "{asked:?}");
}
