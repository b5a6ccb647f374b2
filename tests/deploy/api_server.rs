//! A real kube-apiserver with its etcd, on private ports; the helpers that talk to it as an administrator.

pub mod contour;
pub mod release;

use crate::support::{pod::Source, prelude::*, redis_server::free_port};

/// The token of the administrator.
const TOKEN: &str = "administrator";

/// An API server without controllers and kubelets.
pub struct ApiServer {
    port: u16,
    pub folder: TempDir,
    _processes: [Process; 2],
}

impl ApiServer {
    pub fn start() -> Self {
        let folder = TempDir::new().unwrap();
        let file = |name: &str| folder.path().join(name).display().to_string();
        let log = |name: &str| fs::File::create(file(name)).unwrap();
        let (client, peer, port) = (free_port(), free_port(), free_port());
        let url = |port: u16| format!("http://127.0.0.1:{port}");
        let etcd = Process::spawn(
            Command::new(tool("etcd"))
                .args(["--data-dir", &file("etcd"), "--log-level", "error"])
                .args([
                    "--listen-client-urls",
                    &url(client),
                    "--advertise-client-urls",
                    &url(client),
                ])
                .args([
                    "--listen-peer-urls",
                    &url(peer),
                    "--initial-advertise-peer-urls",
                    &url(peer),
                ])
                .args(["--initial-cluster", &format!("default={}", url(peer))])
                .stderr(log("etcd.log")),
        );
        succeeds(Command::new("openssl").args(["genrsa", "-out", &file("accounts.key"), "2048"]));
        fs::write(file("tokens"), format!("{TOKEN},admin,admin,system:masters\n")).unwrap();
        let server = Process::spawn(
            Command::new(tool("kube-apiserver"))
                .args(["--etcd-servers", &url(client), "--cert-dir", &file("certificates")])
                .args(["--bind-address", "127.0.0.1", "--secure-port", &port.to_string()])
                .args(["--service-account-key-file", &file("accounts.key")])
                .args(["--service-account-signing-key-file", &file("accounts.key")])
                .args(["--service-account-issuer", "https://kubernetes.default.svc"])
                .args(["--authorization-mode", "RBAC", "--token-auth-file", &file("tokens")])
                .args(["--service-cluster-ip-range", "10.0.0.0/24"])
                .stderr(log("server.log")),
        );
        let server = Self { port, folder, _processes: [etcd, server] };
        fs::write(server.kubeconfig(), server.access()).unwrap();
        eventually("the API server has its default namespace", || {
            server.ask("GET", "/api/v1/namespaces/default", None)
        });
        // A controller would create it.
        let account = serde_json::json!({ "metadata": { "name": "default" } });
        server.ask("POST", "/api/v1/namespaces/default/serviceaccounts", Some(&account));
        server
    }

    pub fn kubeconfig(&self) -> String {
        self.folder.path().join("kubeconfig").display().to_string()
    }

    /// The kubeconfig of the administrator. The certificate is of the server's own making.
    fn access(&self) -> String {
        serde_json::json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "test",
            "clusters": [{ "name": "test", "cluster": {
                "server": format!("https://127.0.0.1:{}", self.port), "insecure-skip-tls-verify": true,
            } }],
            "users": [{ "name": "admin", "user": { "token": TOKEN } }],
            "contexts": [{ "name": "test", "context": { "cluster": "test", "user": "admin" } }],
        })
        .to_string()
    }

    /// One request; the data of a Secret is decoded. `None` if the server has no such object.
    pub fn ask(&self, method: &str, path: &str, body: Option<&Value>) -> Option<Value> {
        match self.answer(method, path, body) {
            Err(refusal) if method != "GET" => panic!("{method} {path}: {refusal}"),
            answer => answer.ok(),
        }
    }

    /// One request.
    ///
    /// # Errors
    /// What the server says.
    pub fn answer(&self, method: &str, path: &str, body: Option<&Value>) -> Result<Value, String> {
        const ASK: &str = r#"
import base64, json, ssl, sys, urllib.error, urllib.request
method, url, token = sys.argv[1:]
body = sys.stdin.buffer.read()
kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
headers = {"Authorization": "Bearer " + token, "Content-Type": kind}
request = urllib.request.Request(url, body or None, headers, method=method)
try:
    answer = json.load(urllib.request.urlopen(request, context=ssl._create_unverified_context()))
except urllib.error.HTTPError as error:
    sys.exit(error.read().decode())
except urllib.error.URLError as error:
    sys.exit(str(error))
if answer.get("kind") == "Secret":
    answer["data"] = {key: base64.b64decode(text).decode() for key, text in answer["data"].items()}
json.dump(answer, sys.stdout)
"#;
        let mut python = Command::new(tool("python"))
            .args(["-c", ASK, method, &format!("https://127.0.0.1:{}{path}", self.port), TOKEN])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let body = body.map(ToString::to_string).unwrap_or_default();
        python.stdin.take().unwrap().write_all(body.as_bytes()).unwrap();
        let output = python.wait_with_output().unwrap();
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).into_owned());
        }
        Ok(serde_json::from_slice(&output.stdout).unwrap())
    }
}

impl Source for ApiServer {
    fn files(&self, kind: &str, name: &str) -> Vec<(String, String)> {
        let kind = kind.to_lowercase();
        let object = self.ask("GET", &format!("/api/v1/namespaces/default/{kind}s/{name}"), None);
        let object = object.unwrap_or_else(|| panic!("no {kind} {name}"));
        let data = object["data"].as_object().unwrap().iter();
        data.map(|(key, text)| (key.clone(), text.as_str().unwrap().to_owned())).collect()
    }
}
