//! A real Chromium without a window, driven over the DevTools protocol: JSON messages that end with a zero byte, through
//! two pipes.

use std::{
    fs::{File, OpenOptions},
    io::BufReader,
};

use base64::{Engine as _, prelude::BASE64_STANDARD};

use super::prelude::*;

/// A browser with one page.
pub struct Browser {
    commands: File,
    answers: BufReader<File>,
    session: Option<String>,
    last_id: u64,
    /// The events since the start, in their order.
    events: Vec<Value>,
    _process: Process,
    _folder: TempDir,
}

impl Browser {
    /// Starts it with an empty page.
    pub fn start() -> Self {
        let folder = TempDir::new().unwrap();
        let [commands, answers] = ["commands", "answers"].map(|name| folder.path().join(name));
        for pipe in [&commands, &answers] {
            assert!(Command::new("mkfifo").arg(pipe).status().unwrap().success());
        }
        // The protocol is spoken through the descriptors 3 and 4. Root, as which some machines run tests, has no sandbox.
        // A browser that hangs is ended, and with it the wait for its answer.
        let script = r#"cd "$0" && exec timeout 300 chromium --headless --no-sandbox --disable-gpu \
            --disable-dev-shm-usage --no-first-run --disable-background-networking --remote-debugging-pipe \
            --user-data-dir="$0/profile" about:blank 3<commands 4>answers"#;
        let mut command = Command::new("sh");
        command.arg("-c").arg(script).arg(folder.path());
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let process = Process::spawn(&mut command);
        // In the order of the shell, since each side waits for the other.
        let commands = OpenOptions::new().write(true).open(commands).unwrap();
        let answers = BufReader::new(File::open(answers).unwrap());
        let mut browser = Self {
            commands,
            answers,
            session: None,
            last_id: 0,
            events: Vec::new(),
            _process: process,
            _folder: folder,
        };
        let target = browser.call("Target.createTarget", json!({ "url": "about:blank" }));
        let target = json!({ "targetId": target["targetId"], "flatten": true });
        let session = browser.call("Target.attachToTarget", target);
        browser.session = Some(session["sessionId"].as_str().unwrap().to_owned());
        for domain in ["Page", "Network", "Log", "Runtime"] {
            browser.call(&format!("{domain}.enable"), json!({}));
        }
        browser
    }

    /// Returns when the page has been loaded.
    pub fn open(&mut self, url: &str) {
        let opened = self.call("Page.navigate", json!({ "url": url }));
        assert_eq!(opened.get("errorText"), None, "{opened}");
        wait_until("the page is loaded", || {
            // Events arrive between the answers to calls, and a page that loads answers none.
            let page = self.session.take();
            self.call("Browser.getVersion", json!({}));
            self.session = page;
            let loaded = |event: &Value| event["method"] == "Page.loadEventFired";
            self.events.iter().any(loaded)
        });
    }

    /// The value of a JavaScript expression.
    #[track_caller]
    pub fn value(&mut self, expression: &str) -> Value {
        let parameters =
            json!({ "expression": expression, "returnByValue": true, "awaitPromise": true });
        let answer = self.call("Runtime.evaluate", parameters);
        assert_eq!(answer.get("exceptionDetails"), None, "{expression}: {answer}");
        answer["result"]["value"].clone()
    }

    /// Waits until a JavaScript expression is true.
    #[track_caller]
    pub fn wait_for(&mut self, expression: &str) {
        wait_until(expression, || self.value(expression) == true);
    }

    /// What a person sees of the page.
    pub fn text(&mut self) -> String {
        self.value("document.body.innerText").as_str().unwrap().to_owned()
    }

    /// Shows the page to a person who prefers this colour scheme, on a screen of this width.
    pub fn view(&mut self, scheme: &str, width: u32) {
        let media = json!([{ "name": "prefers-color-scheme", "value": scheme }]);
        self.call("Emulation.setEmulatedMedia", json!({ "features": media }));
        let screen =
            json!({ "width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 600 });
        self.call("Emulation.setDeviceMetricsOverride", screen);
    }

    /// Writes a picture of the whole page to NAME.png in the folder that the variable `PICTURES` names, if it is set, for a
    /// person to look at.
    pub fn picture(&mut self, name: &str) {
        let Some(folder) = std::env::var_os("PICTURES") else { return };
        let whole = json!({ "captureBeyondViewport": true });
        let picture = self.call("Page.captureScreenshot", whole)["data"].take();
        let picture = BASE64_STANDARD.decode(picture.as_str().unwrap()).unwrap();
        std::fs::write(std::path::Path::new(&folder).join(format!("{name}.png")), picture).unwrap();
    }

    /// Presses a key where the focus is.
    pub fn key(&mut self, key: &str) {
        let text = if key == "Enter" { "\r" } else { key };
        for kind in ["keyDown", "keyUp"] {
            let press =
                json!({ "type": kind, "key": key, "text": text, "windowsVirtualKeyCode": 13 });
            self.call("Input.dispatchKeyEvent", press);
        }
    }

    /// The URLs that the page has asked for.
    pub fn requested_urls(&mut self) -> Vec<String> {
        let requests =
            self.events.iter().filter(|event| event["method"] == "Network.requestWillBeSent");
        requests
            .map(|event| event["params"]["request"]["url"].as_str().unwrap().to_owned())
            .collect()
    }

    /// What the browser complains of: errors of scripts, and violations of the page's policy.
    pub fn complaints(&self) -> Vec<String> {
        let complaints = ["Log.entryAdded", "Runtime.exceptionThrown"];
        let is_complaint = |event: &&Value| complaints.iter().any(|name| event["method"] == *name);
        self.events.iter().filter(is_complaint).map(Value::to_string).collect()
    }

    #[track_caller]
    fn call(&mut self, method: &str, parameters: Value) -> Value {
        self.last_id += 1;
        let mut message = json!({ "id": self.last_id, "method": method, "params": parameters });
        if let Some(session) = &self.session {
            message["sessionId"] = json!(session);
        }
        self.commands.write_all(format!("{message}\0").as_bytes()).unwrap();
        loop {
            let mut received = Vec::new();
            self.answers.read_until(0, &mut received).unwrap();
            received.pop();
            let mut received: Value = serde_json::from_slice(&received).unwrap();
            if received["id"] == self.last_id {
                assert_eq!(received.get("error"), None, "{method}: {received}");
                return received["result"].take();
            }
            self.events.push(received);
        }
    }
}
