//! Real servers for the tests: each has ports and a folder of its own, and ends with its test.

pub mod ads;
pub mod application;
pub mod backends;
pub mod browser;
pub mod calls;
pub mod certificates;
pub mod charges;
pub mod chart;
pub mod cluster;
pub mod cluster_calls;
pub mod cluster_load;
pub mod config_map;
pub mod control_plane;
pub mod dice;
pub mod envoy;
pub mod fault_proxy;
pub mod fleet;
pub mod hostile;
pub mod http;
pub mod http2;
pub mod model;
pub mod otel_collector;
pub mod otlp;
pub mod overrides;
pub mod pages;
pub mod pod;
pub mod prelude;
pub mod prometheus;
pub mod raw_load;
pub mod redis_server;
pub mod redis_store;
pub mod rows;
pub mod scenarios;
pub mod scrapes;
pub mod secured;
pub mod sentinels;
pub mod service;
pub mod sessions;
pub mod stores;
pub mod windows;

use std::{
    collections::BTreeSet,
    fmt::Display,
    fs,
    io::Write as _,
    ops::Deref,
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, Output, Stdio},
    sync::{LazyLock, Mutex},
    time::{Duration, Instant},
};

use tempfile::TempDir;

/// A tool that `tests/run` has installed.
#[track_caller]
pub fn tool(name: &str) -> PathBuf {
    let tool = root().join("target/tools/bin").join(name);
    assert!(tool.exists(), "{} is missing; tests/run installs it", tool.display());
    tool
}

/// Runs a command to its end, and returns its exit code, stdout and stderr.
pub fn run(command: &mut Command) -> (Option<i32>, String, String) {
    let Output { status, stdout, stderr } = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code(), text(stdout), text(stderr))
}

/// Runs a command, which must succeed, and returns its stdout.
#[track_caller]
pub fn succeeds(command: &mut Command) -> String {
    let (code, out, error) = run(command);
    assert_eq!(code, Some(0), "{command:?}: {out}{error}");
    out
}

/// The root folder of the repository.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The names of what the crates of the service depend on, those in crates/ too: in the tables of their manifests with these
/// prefixes, such as `dev-`.
pub fn dependencies(prefixes: &[&str]) -> BTreeSet<String> {
    let crates = fs::read_dir(root().join("crates")).unwrap();
    let folders = crates.map(|folder| folder.unwrap().path()).chain([root().to_owned()]);
    let mut names = BTreeSet::new();
    for folder in folders {
        let manifest = fs::read_to_string(folder.join("Cargo.toml")).unwrap();
        for prefix in prefixes {
            let table = manifest.split_once(&format!("\n[{prefix}dependencies]\n"));
            let lines = table.map_or("", |(_, table)| table.split("\n[").next().unwrap()).lines();
            names.extend(lines.filter_map(|line| Some(line.split_once(" = ")?.0.to_owned())));
        }
    }
    names
}

/// Runs the command under libfaketime: its variables set the wall clock, and timers are not affected. Its
/// wrapper is not used, since signals would reach the wrapper and not the process.
pub fn fake_clock(command: &mut Command) -> &mut Command {
    let folders = fs::read_dir("/usr/lib").unwrap().map(|folder| folder.unwrap().path());
    let libraries = folders.map(|folder| folder.join("faketime/libfaketimeMT.so.1"));
    let library =
        libraries.into_iter().find(|library| library.exists()).expect("tests/run installs it");
    command.env("LD_PRELOAD", library).env("DONT_FAKE_MONOTONIC", "1")
}

/// A file of a test, which is removed with this value. It stands for the file's path.
pub struct TextFile {
    path: String,
    _folder: TempDir,
}

impl TextFile {
    pub fn new(name: &str, text: impl AsRef<[u8]>) -> Self {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join(name);
        fs::write(&path, text).unwrap();
        Self { path: path.display().to_string(), _folder: folder }
    }
}

impl Deref for TextFile {
    type Target = str;

    fn deref(&self) -> &str {
        &self.path
    }
}

/// A process that ends with its test, also when the test fails, and with the test binary.
pub struct Process(pub Child);

impl Process {
    pub fn spawn(command: &mut Command) -> Self {
        let spawned = command.stdin(Stdio::null()).spawn();
        let process = spawned.unwrap_or_else(|error| panic!("{command:?}: {error}"));
        note("started", process.id());
        Self(process)
    }

    /// Sends a signal, such as `TERM`.
    pub fn signal(&self, name: &str) {
        let id = self.0.id().to_string();
        assert!(Command::new("kill").args(["-s", name, &id]).status().unwrap().success());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
        note("ended", self.0.id());
    }
}

/// A shell that waits for the end of its input, which comes with the end of the test binary, however that ends. Then it ends the
/// processes that were started and not ended, and removes the folders that were made for the whole binary.
const AT_THE_END: &str = r#"
trap '' HUP INT TERM
declare -A processes
folders=()
while read -r what which; do
  case $what in
    started) processes[$which]= ;;
    ended) unset "processes[$which]" ;;
    made) folders+=("$which") ;;
  esac
done
kill -KILL "${!processes[@]}"
rm -rf "${folders[@]}"
"#;

/// Passes to the shell what is left to do [`AT_THE_END`].
pub fn note(what: &str, which: impl Display) {
    static SHELL: LazyLock<Mutex<ChildStdin>> = LazyLock::new(|| {
        let mut shell = Command::new("bash");
        shell.args(["-c", AT_THE_END]).stdin(Stdio::piped()).stderr(Stdio::null());
        Mutex::new(shell.spawn().unwrap().stdin.unwrap())
    });
    writeln!(SHELL.lock().unwrap(), "{what} {which}").unwrap();
}

/// How long a test waits for what comes at some time: after it, it never comes, however busy the machine is.
pub const PATIENCE: Duration = Duration::from_secs(180);

/// Waits until `ready` returns a value; no test depends on how long it takes.
#[track_caller]
pub fn eventually<T>(what: &str, mut ready: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(value) = ready() {
            return value;
        }
        assert!(Instant::now() < deadline, "{what}: not within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Waits until this is so.
#[track_caller]
pub fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    eventually(what, || is_so().then_some(()));
}
