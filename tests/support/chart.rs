//! The chart, as the real helm renders it, with its alerts and its dashboard.

use super::prelude::*;

/// Runs helm in the project's folder; returns stdout, or stderr if helm fails.
pub fn helm(arguments: &[&str]) -> Result<String, String> {
    let mut helm = Command::new(tool("helm"));
    // It ends before its memory matters.
    helm.env("GOGC", "off");
    let output = helm.current_dir(root()).args(arguments).output().unwrap();
    if output.status.success() {
        Ok(String::from_utf8(output.stdout).unwrap())
    } else {
        Err(String::from_utf8(output.stderr).unwrap())
    }
}

/// The rendered objects, as JSON.
pub fn render(arguments: &[&str]) -> Vec<Value> {
    let yaml = helm(&[&["template", "release", "helm"], arguments].concat()).unwrap();
    let mut objects = documents(&yaml);
    objects.retain(|object| !object.is_null());
    objects
}

/// The service's object of a kind, which is not that of the bundled Redis or of a hook.
pub fn object(objects: &[Value], kind: &str) -> Value {
    let ours = |object: &&Value| {
        let name = object["metadata"]["labels"]["app.kubernetes.io/name"].as_str();
        let is_other =
            |name: &str| ["-redis", "-check", "-test"].iter().any(|end| name.ends_with(end));
        object["kind"] == kind && !name.is_some_and(is_other)
    };
    objects.iter().find(ours).unwrap_or_else(|| panic!("no {kind}")).clone()
}

/// The objects of a text of which the schemas refuse something, with the reasons.
pub fn invalid(objects: &str) -> Vec<String> {
    let schemas = root().join("target/tools/schemas/{{ .ResourceKind }}{{ .KindSuffix }}.json");
    let output = Command::new(tool("kubeconform"))
        .args(["-strict", "-output", "json", "-verbose", "-schema-location"])
        .arg(schemas)
        .arg(&*TextFile::new("objects.yaml", objects))
        .stdout(Stdio::piped())
        .output()
        .unwrap();
    let report: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&output.stderr)));
    let resources = report["resources"].as_array().unwrap();
    assert!(!resources.is_empty(), "no objects");
    let invalid = resources.iter().filter(|resource| resource["status"] != "statusValid");
    invalid.map(ToString::to_string).collect()
}

pub fn text(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap()
}

/// The alerts, by name.
pub fn alerts() -> BTreeMap<String, Value> {
    let file = documents(&text("helm/files/alerts.yaml")).remove(0);
    let rules = file["groups"][0]["rules"].as_array().unwrap().clone();
    let named = |rule: Value| (rule["alert"].as_str().unwrap().to_owned(), rule);
    rules.into_iter().map(named).collect()
}

/// The expressions of the dashboard's panels, with values for Grafana's variables.
pub fn queries() -> Vec<String> {
    let dashboard: Value = serde_json::from_str(&text("helm/files/dashboard.json")).unwrap();
    let mut queries = Vec::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        let targets = panel["targets"].as_array().into_iter().flatten();
        for target in targets {
            let query = target["expr"].as_str().unwrap();
            let every = ["$job", "$instance", "$domain", "$rule"];
            let query = query.replace("$__rate_interval", "5m");
            queries.push(every.into_iter().fold(query, |query, name| query.replace(name, ".*")));
        }
    }
    assert!(queries.len() > 20, "{} queries", queries.len());
    queries
}
