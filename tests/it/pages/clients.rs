//! docs/clients.md: its examples of clients, each run as the page says against the real service, and its other samples.

use std::{
    io::BufReader,
    process::{Child, ChildStdin},
    sync::mpsc::{Receiver, channel},
};

use crate::support::{pages::*, prelude::*};

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
    let service = Service::shop().flags(&["--headers", "ratelimit"]).start();
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
    let _service = Service::shop().flags(&["--grpc-addr", &address]).start();
    wait_until("the client finds the service again", || {
        limiter.ask("user=two").starts_with("allowed, 1 of 2 left")
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

/// The command with the arguments that every client has.
fn command(program: impl AsRef<Path>, arguments: &[&str]) -> Command {
    let mut command = Command::new(program.as_ref());
    command.args(arguments);
    command
}

/// The commands that the page has for an example.
fn commands(language: &str) -> Vec<String> {
    let page = page("clients.md");
    let rows = rows(&page, "| language | package | example | in the folder of the example |");
    let row = rows.into_iter().find(|row| cells(row)[0] == language).unwrap();
    names(cells(row)[3]).into_iter().map(str::to_owned).collect()
}

/// The last of these commands, which runs the example, with another address and domain, and with a deadline.
fn sample(language: &str, address: &str, deadline: u32) -> Command {
    let sample = commands(language).pop().unwrap();
    let words: Vec<_> = sample
        .split(' ')
        .map(|word| match word {
            "localhost:8081" => address,
            "example" => "shop",
            word => word,
        })
        .collect();
    let program = root().join("target/tools/venv/bin").join(words[0]);
    let program = if program.exists() { program } else { words[0].into() };
    let mut command = command(program, &words[1..]);
    command.arg(deadline.to_string());
    command
}

/// An empty folder in which a script has run, with the repository as `$ROOT` and with Python and Node in its path.
#[track_caller]
fn prepared(language: &str, script: &str) -> PathBuf {
    let folder = empty_folder(language);
    let tools = root().join("target/tools/venv/bin");
    let path = format!("{}:{}", tools.display(), std::env::var("PATH").unwrap());
    let mut shell = command("sh", &["-e", "-c", script]);
    succeeds(shell.current_dir(&folder).env("ROOT", root()).env("PATH", path));
    folder
}

#[test]
fn the_request_without_grpc_is_decided() {
    let service = Service::with(include_str!("../../../examples/rules.yaml")).start();
    let page = page("clients.md");
    let [curl] = blocks(&page, "sh")[..] else { panic!("one command") };
    let curl = curl.replace("localhost:8080", &service.http.to_string());
    let answer = succeeds(command("sh", &["-c", &curl]).env("no_proxy", "*"));
    assert!(answer.contains(r#""limitRemaining":9,"#), "{answer}");
}

#[test]
fn the_go_client_limits_and_fails_open() {
    // `go run` compiles for longer than a deadline.
    succeeds(command("go", &["build", "-o", "/dev/null", "."]).current_dir(example("go")));
    check(|address, deadline| {
        let mut client = sample("Go", address, deadline);
        client.current_dir(example("go"));
        client
    });
}

/// The package is installed by the command of the page, into a folder of this test.
#[test]
fn the_python_client_limits_and_fails_open() {
    let script = format!(
        r#"
        mkdir -p clients examples/clients
        cp -r "$ROOT/clients/python" clients
        cp -r "$ROOT/examples/clients/python" examples/clients
        export PIP_TARGET="$PWD/installed" PIP_NO_INDEX=1 PIP_NO_DEPS=1 PIP_NO_BUILD_ISOLATION=0 PIP_QUIET=1
        cd examples/clients/python
        {}
        "#,
        commands("Python")[0]
    );
    let folder = prepared("python", &script);
    check(|address, deadline| {
        let mut client = sample("Python", address, deadline);
        client.current_dir(folder.join("examples/clients/python"));
        client.env("PYTHONPATH", folder.join("installed"));
        client
    });
}

/// The package is linked instead of installed, which would need a registry.
#[test]
fn the_typescript_client_limits_and_fails_open() {
    let script = r#"
        mkdir -p package example/node_modules
        cp -r "$ROOT"/clients/typescript/*.json "$ROOT/clients/typescript/src" package
        cp "$ROOT"/examples/clients/typescript/*.* example
        ln -s "$ROOT/target/tools/typescript/node_modules" package
        ln -s ../../package example/node_modules/tollkeeper
        cd package
        npm run --silent build
        node_modules/.bin/tsc --ignoreConfig --noEmit --strict --module nodenext --target es2023 --types node ../example/main.ts
        "#;
    let folder = prepared("typescript", script);
    check(|address, deadline| {
        let mut client = sample("TypeScript", address, deadline);
        client.current_dir(folder.join("example"));
        client
    });
}

#[test]
fn the_rust_client_limits_and_fails_open() {
    succeeds(
        command(env!("CARGO"), &["build", "--locked", "--example", "client"])
            .current_dir(root())
            .env_remove("RUSTC_BOOTSTRAP"),
    );
    let program = Path::new(env!("CARGO_BIN_EXE_tollkeeper")).with_file_name("examples/client");
    check(|address, deadline| command(&program, &[address, "shop", &deadline.to_string()]));
}

/// The package that it uses is installed from its folder first.
#[test]
#[ignore = "needs a JDK and Maven; tests/java installs them and runs it"]
fn the_java_client_limits_and_fails_open() {
    let folder = empty_folder("java");
    for copied in ["clients/java", "examples/clients/java"] {
        let parent = folder.join(copied).parent().unwrap().to_owned();
        fs::create_dir_all(&parent).unwrap();
        let source = root().join(copied);
        succeeds(command("cp", &["-r"]).args([source, parent]));
    }
    symlink(root().join("proto"), folder.join("proto")).unwrap();
    let project = folder.join("examples/clients/java");
    let package = ["-f", "../../../clients/java", "-pl", "client", "-am", "install", "-DskipTests"];
    for arguments in [&package[..], &["compile"]] {
        let maven = ["--batch-mode", "--quiet", "--offline"];
        succeeds(command("mvn", &maven).args(arguments).current_dir(&project));
    }
    check(|address, deadline| {
        let mut client = command("java", &["-cp", "target/classes:target/lib/*", "Main"]);
        client.args([address, "shop", &deadline.to_string()]).current_dir(&project);
        client
    });
}
