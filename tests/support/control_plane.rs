//! A real go-control-plane, whose snapshots a test sets. tests/run builds it from tests/control-plane.

use std::{io::BufReader, process::ChildStdin};

use super::{ads::NODE, prelude::*};

/// A running server.
pub struct ControlPlane {
    pub address: String,
    stdin: ChildStdin,
    events: Arc<Mutex<Vec<Value>>>,
    _process: Process,
}

/// Which go-control-plane.
#[derive(Debug, Clone, Copy)]
pub enum Semantics {
    /// Sends everything on another stream, whatever version it names.
    New,
    /// Is silent on another stream that names its version; before 0.14.
    Old,
}

impl ControlPlane {
    pub fn start(semantics: Semantics) -> Self {
        Self::start_with(semantics, NODE, &[])
    }

    /// For clients with another id.
    pub fn start_for(node: &str) -> Self {
        Self::start_with(Semantics::New, node, &[])
    }

    /// With TLS 1.3, and a client certificate required: the folder has `tls.crt`, `tls.key` and `ca.crt`.
    pub fn start_with_tls(folder: &Path) -> Self {
        Self::start_with(Semantics::New, NODE, &["-certs", folder.to_str().unwrap()])
    }

    fn start_with(semantics: Semantics, node: &str, flags: &[&str]) -> Self {
        let name = match semantics {
            Semantics::New => "control-plane",
            Semantics::Old => "control-plane-0.13",
        };
        let mut command = Command::new(tool(name));
        command.args(["-node", node]).args(flags);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut process = Process(command.spawn().unwrap());
        let lines = BufReader::new(process.0.stdout.take().unwrap()).lines();
        let events = Arc::new(Mutex::new(Vec::new()));
        let list = Arc::clone(&events);
        // It ends with the process.
        thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                list.lock().unwrap().push(serde_json::from_str(&line).unwrap());
            }
        });
        let stdin = process.0.stdin.take().unwrap();
        let mut server = Self { address: String::new(), stdin, events, _process: process };
        server.address = server.wait(0, "listening")["address"].as_str().unwrap().to_owned();
        server
    }

    pub fn url(&self) -> String {
        format!("xds://{}?node={NODE}", self.address)
    }

    /// Sets the snapshot, and returns when it is set.
    #[track_caller]
    pub fn set(&mut self, version: &str, resources: &[Value]) {
        self.set_snapshot(&json!({ "version": version, "resources": resources }));
    }

    /// A snapshot that lacks the type: "no limits", without a version.
    #[track_caller]
    pub fn set_without_the_type(&mut self) {
        self.set_snapshot(&json!({ "version": "" }));
    }

    #[track_caller]
    fn set_snapshot(&mut self, snapshot: &Value) {
        let before = self.events().len();
        self.send(&snapshot.to_string());
        self.wait(before, "set");
    }

    /// Closes the port and every stream, and forgets the snapshot.
    pub fn stop(&mut self) {
        self.send("stop");
        self.send("clear");
    }

    #[track_caller]
    pub fn start_again(&mut self) {
        let before = self.events().len();
        self.send("start");
        self.wait(before, "listening");
    }

    fn send(&mut self, line: &str) {
        writeln!(self.stdin, "{line}").unwrap();
    }

    /// Everything that has happened.
    pub fn events(&self) -> Vec<Value> {
        self.events.lock().unwrap().clone()
    }

    /// The first event of this kind after the first `skipped` ones.
    #[track_caller]
    pub fn wait(&self, skipped: usize, event: &str) -> Value {
        eventually(event, || {
            self.events().into_iter().skip(skipped).find(|found| found["event"] == event)
        })
    }
}
