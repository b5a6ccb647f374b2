//! The clients in examples/clients, each built and run as its README says, against the real service.

use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    net::TcpListener,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, Stdio},
    sync::mpsc::{Receiver, channel},
    time::Duration,
};

use crate::support::{
    eventually,
    pages::blocks,
    root, run,
    service::{Options, Service},
    tool,
};

/// Long enough for a busy test machine, in milliseconds.
const PATIENT: u32 = 30_000;
const SHORT: u32 = 200;

/// A running client, which asks about each line that it is given.
struct Client {
    process: Child,
    questions: ChildStdin,
    answers: Receiver<String>,
}

impl Client {
    fn start(command: &mut Command) -> Self {
        let spawned = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut process = spawned.unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let questions = process.stdin.take().unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let (sender, answers) = channel();
        // It ends when the client does.
        std::thread::spawn(move || {
            lines.map_while(Result::ok).try_for_each(|line| sender.send(line))
        });
        Self { process, questions, answers }
    }

    /// Waits at most twice as long as any deadline of these tests: a client without one fails.
    #[track_caller]
    fn ask(&mut self, descriptor: &str) -> String {
        writeln!(self.questions, "{descriptor}").unwrap();
        let answer = self.answers.recv_timeout(Duration::from_secs(60));
        answer.expect("the client answers within its deadline")
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The verdict, with what is left, and the headers by name.
fn verdict_and_headers(answer: &str) -> (&str, Vec<(&str, &str)>) {
    let (verdict, headers) = answer.split_once("; ").unwrap_or((answer, ""));
    let (verdict, reset) = verdict.split_once(", resets in ").expect(answer);
    let seconds: u64 = reset.strip_suffix(" s").expect(answer).parse().expect(answer);
    assert!((1..=366 * 86_400).contains(&seconds), "{answer}");
    let mut headers: Vec<_> = headers.split("; ").filter_map(|it| it.split_once(": ")).collect();
    headers.sort_unstable();
    (verdict, headers)
}

/// Two calls pass and the third is denied, with headers and on one connection; the client decides by itself while the
/// service is down, and finds it again.
#[track_caller]
fn limits_fails_open_and_finds_the_service_again(client: impl Fn(&str, u32) -> Command) {
    let service =
        Service::start(Options { flags: &["--headers", "ratelimit"], ..Options::default() });
    let address = service.grpc.to_string();
    let mut limiter = Client::start(&mut client(&address, PATIENT));
    for left in ["1", "0"] {
        let answer = limiter.ask("user=two");
        let (verdict, headers) = verdict_and_headers(&answer);
        assert_eq!(verdict, format!("allowed, {left} of 2 left"));
        assert_eq!(headers[..2], [("RateLimit-Limit", "2"), ("RateLimit-Remaining", left)]);
        assert_eq!(headers[2].0, "RateLimit-Reset");
    }
    let answer = limiter.ask("user=two");
    let (verdict, headers) = verdict_and_headers(&answer);
    assert_eq!(verdict, "denied, 0 of 2 left");
    let names: Vec<_> = headers.iter().map(|(name, _)| *name).collect();
    assert_eq!(names, ["RateLimit-Limit", "RateLimit-Remaining", "RateLimit-Reset", "Retry-After"]);
    assert_eq!(limiter.ask("no=rule"), "allowed, no limit");
    let metrics = service.get("/metrics");
    let connections = metrics.lines().find(|line| {
        line.starts_with("ratelimit_connections{") && line.contains("listener=\"grpc\"")
    });
    assert!(connections.is_some_and(|line| line.ends_with(" 1")), "{connections:?}");

    drop(service);
    assert_eq!(limiter.ask("user=two"), "allowed, no answer");
    let flags = &["--grpc-addr", &address];
    let _service = Service::start(Options { flags, ..Options::default() });
    eventually("the client finds the service again", || {
        limiter.ask("user=two").starts_with("allowed, 1 of 2 left").then_some(())
    });
}

/// It accepts connections and never answers, so that only a deadline ends a call.
#[track_caller]
fn answers_within_its_deadline(client: impl Fn(&str, u32) -> Command) {
    let black_hole = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = black_hole.local_addr().unwrap().to_string();
    let mut limiter = Client::start(&mut client(&address, SHORT));
    assert_eq!([(); 3].map(|()| limiter.ask("user=two")), ["allowed, no answer"; 3]);
}

#[track_caller]
fn check(client: impl Fn(&str, u32) -> Command) {
    limits_fails_open_and_finds_the_service_again(&client);
    answers_within_its_deadline(&client);
}

fn example(language: &str) -> PathBuf {
    root().join("examples/clients").join(language)
}

/// An empty folder in which a client is built.
fn empty_folder(language: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("clients").join(language);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    folder
}

#[track_caller]
fn build(command: &mut Command) {
    let (code, output, errors) = run(command);
    assert_eq!(code, Some(0), "{command:?}: {output}{errors}");
}

/// The command with the arguments that every client has.
fn command(program: impl AsRef<Path>, arguments: &[&str]) -> Command {
    let mut command = Command::new(program.as_ref());
    command.args(arguments);
    command
}

#[test]
fn the_go_client_limits_and_fails_open() {
    let program = empty_folder("go").join("client");
    build(command("go", &["build", "-o", program.to_str().unwrap()]).current_dir(example("go")));
    check(|address, deadline| command(&program, &[address, "shop", &deadline.to_string()]));
}

/// Its modules are made by the commands of the page.
#[test]
fn the_python_client_limits_and_fails_open() {
    let folder = empty_folder("python");
    let copy = folder.join("examples/clients/python");
    fs::create_dir_all(&copy).unwrap();
    for file in ["main.py", "rate_limit.py", "requirements.txt"] {
        fs::copy(example("python").join(file), copy.join(file)).unwrap();
    }
    symlink(root().join("proto"), folder.join("proto")).unwrap();
    let page = fs::read_to_string(root().join("docs/clients.md")).unwrap();
    let python = root().join("target/tools/venv/bin");
    let path = format!("{}:{}", python.display(), std::env::var("PATH").unwrap());
    let commands = blocks(&page, "sh")[0];
    build(command("sh", &["-e", "-c", commands]).current_dir(&folder).env("PATH", path));
    check(|address, deadline| {
        let main = copy.join("main.py");
        let mut client = command(tool("python"), &[main.to_str().unwrap(), address, "shop"]);
        client.arg(deadline.to_string()).env("PYTHONPATH", copy.join("generated"));
        client
    });
}

#[test]
fn the_node_client_limits_and_fails_open() {
    let packages = root().join("target/tools/node/node_modules");
    let node = root().join("target/tools/venv/bin/node");
    assert!(packages.exists() && node.exists(), "tests/run installs them");
    let main = example("node").join("main.js");
    let protos = root().join("proto");
    let protos = protos.to_str().unwrap();
    check(|address, deadline| {
        let mut client = command(&node, &[main.to_str().unwrap(), address, "shop", protos]);
        client.arg(deadline.to_string()).env("NODE_PATH", &packages);
        client
    });
}

#[test]
fn the_rust_client_limits_and_fails_open() {
    build(
        command(env!("CARGO"), &["build", "--locked", "--example", "client"])
            .current_dir(root())
            .env_remove("RUSTC_BOOTSTRAP"),
    );
    let program = Path::new(env!("CARGO_BIN_EXE_tollkeeper")).with_file_name("examples/client");
    check(|address, deadline| command(&program, &[address, "shop", &deadline.to_string()]));
}

#[test]
#[ignore = "needs a JDK and Maven; tests/java installs them and runs it"]
fn the_java_client_limits_and_fails_open() {
    let folder = empty_folder("java");
    let source = example("java");
    build(&mut command("cp", &["-r", source.to_str().unwrap(), folder.to_str().unwrap()]));
    let project = folder.join("java");
    build(command("mvn", &["--batch-mode", "--quiet", "compile"]).current_dir(&project));
    check(|address, deadline| {
        let mut client = command("java", &["-cp", "target/classes:target/lib/*", "Main"]);
        client.args([address, "shop", &deadline.to_string()]).current_dir(&project);
        client
    });
}
