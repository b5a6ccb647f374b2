//! A release of the chart, whose pods the test runs as the kubelet would.

use super::ApiServer;
use crate::support::{pod, prelude::*};

const DEPLOYMENT: &str = "/apis/apps/v1/namespaces/default/deployments/tollkeeper";

/// A release called `tollkeeper`.
pub struct Release<'a> {
    server: &'a ApiServer,
    /// The version of Helm.
    helm: &'a str,
    store: &'a str,
    values: TempDir,
}

/// The process of the Deployment's pod.
pub struct RunningPod {
    pub service: Service,
    volumes: PathBuf,
}

impl RunningPod {
    /// What is left of the limit of a user.
    pub fn left(&self) -> String {
        let address = self.service.grpc.to_string();
        let call = ["call", "--addr", &address, "--domain", "shop", "--hits", "0", "user=a"];
        let out = succeeds(tollkeeper().args(call));
        let (_, left) = out.split_once("user=a: OK, ").unwrap();
        left.split(',').next().unwrap().to_owned()
    }
}

impl<'a> Release<'a> {
    pub fn new(server: &'a ApiServer, helm: &'a str, store: &'a str) -> Self {
        Self { server, helm, store, values: TempDir::new().unwrap() }
    }

    /// Installs or upgrades with these rules and with many of the chart's objects.
    ///
    /// # Errors
    /// What Helm says.
    pub fn apply(&self, action: &str, rules: &str) -> Result<String, String> {
        let values = json!({
            "store": { "url": self.store },
            "rules": { "r.yaml": rules },
            "decisionBudget": "10s",
            "drainSeconds": 0,
            "autoscaling": { "enabled": true },
            "networkPolicy": { "enabled": true, "clients": [{ "podSelector": {} }], "storePorts": [] },
            "admin": { "tokenSecret": { "name": "admin" } },
            "extraEnv": [{ "name": "TOLLKEEPER_NEAR_LIMIT_RATIO", "value": "0.5" }],
            "test": { "domain": "shop" },
        });
        let file = self.values.path().join("values.json");
        fs::write(&file, values.to_string()).unwrap();
        let chart = root().join("helm");
        let (chart, file) = (chart.to_str().unwrap(), file.to_str().unwrap());
        self.helm(&[action, "tollkeeper", chart, "--values", file, "--timeout", "60s"], None)
    }

    /// Runs Helm, and the pods of its hooks meanwhile.
    ///
    /// # Errors
    /// What Helm says.
    pub fn helm(&self, arguments: &[&str], service: Option<&RunningPod>) -> Result<String, String> {
        let ended = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !ended.load(Ordering::Relaxed) {
                    self.run_hooks(service);
                    thread::sleep(Duration::from_millis(100));
                }
            });
            let mut command = Command::new(tool(self.helm));
            let command = command.args(arguments).env("KUBECONFIG", self.server.kubeconfig());
            let (code, out, error) = run(command);
            ended.store(true, Ordering::Relaxed);
            if code == Some(0) { Ok(out) } else { Err(out + &error) }
        })
    }

    /// Runs the pods of Jobs, and pods of `helm test`, that have not run yet, and reports how they ended.
    fn run_hooks(&self, service: Option<&RunningPod>) {
        for (kind, list) in [
            ("job", "/apis/batch/v1/namespaces/default/jobs"),
            ("pod", "/api/v1/namespaces/default/pods"),
        ] {
            // A busy API server may refuse a list; the next round asks again.
            let Some(objects) = self.server.ask("GET", list, None) else { continue };
            for object in objects["items"].as_array().unwrap() {
                let is_waiting = object["status"].get("conditions").is_none();
                let phase = &object["status"]["phase"];
                if is_waiting && (phase.is_null() || phase == "Pending") {
                    let is_job = kind == "job";
                    let pod =
                        if is_job { &object["spec"]["template"]["spec"] } else { &object["spec"] };
                    let succeeded = self.run_pod(pod, service);
                    let name = object["metadata"]["name"].as_str().unwrap();
                    let status = if is_job { job_status(succeeded) } else { pod_status(succeeded) };
                    let (object, status_path) =
                        (format!("{list}/{name}"), format!("{list}/{name}/status"));
                    if let Err(refusal) = self.server.answer("PATCH", &status_path, Some(&status)) {
                        let still = self.server.ask("GET", &object, None);
                        assert_eq!(still, None, "{object} has not been deleted, and {refusal}");
                    }
                }
            }
        }
    }

    /// Runs a pod to its end; its calls to the Service reach the process of the Deployment.
    fn run_pod(&self, pod: &Value, service: Option<&RunningPod>) -> bool {
        let folder = TempDir::new().unwrap();
        let rendered = pod::command(pod, self.server, folder.path());
        let mut command = Command::new(rendered.get_program());
        for argument in rendered.get_args() {
            let argument = argument.to_str().unwrap();
            match service {
                Some(service) => command.arg(
                    argument
                        .replace("tollkeeper.default.svc:8081", &service.service.grpc.to_string()),
                ),
                None => command.arg(argument),
            };
        }
        run(&mut command).0 == Some(0)
    }

    /// Runs the pod of the Deployment that the API server has.
    pub fn start_service(&self) -> RunningPod {
        let folder = TempDir::new().unwrap();
        let volumes = folder.path().to_owned();
        let service = Service::spawn(pod::command(&self.pod(), self.server, &volumes), folder);
        service.wait_until_ready();
        RunningPod { service, volumes }
    }

    /// Writes the volumes of a running pod again, as the kubelet does when their objects change.
    pub fn update_volumes(&self, pod: &RunningPod) {
        pod::command(&self.pod(), self.server, &pod.volumes);
    }

    fn pod(&self) -> Value {
        let deployment = self.server.ask("GET", DEPLOYMENT, None).expect("the Deployment exists");
        deployment["spec"]["template"]["spec"].clone()
    }
}

/// The status of a Job that has ended, as its controller writes it.
fn job_status(succeeded: bool) -> Value {
    let now = "2026-01-01T00:00:00Z";
    let (first, last, count) = if succeeded {
        ("SuccessCriteriaMet", "Complete", "succeeded")
    } else {
        ("FailureTarget", "Failed", "failed")
    };
    let condition = |kind: &str| json!({ "type": kind, "status": "True", "reason": "Test", "lastTransitionTime": now });
    let mut status = json!({ "startTime": now, "conditions": [condition(first), condition(last)] });
    status[count] = json!(1);
    if succeeded {
        status["completionTime"] = json!(now);
    }
    json!({ "status": status })
}

fn pod_status(succeeded: bool) -> Value {
    json!({ "status": { "phase": if succeeded { "Succeeded" } else { "Failed" } } })
}
