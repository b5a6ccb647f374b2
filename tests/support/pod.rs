//! A pod of the chart as a process of this machine: its volumes are folders, its container is a command.

use super::prelude::*;

/// Where the ConfigMaps and Secrets are.
pub trait Source {
    /// The keys of one, with their texts.
    fn files(&self, kind: &str, name: &str) -> Vec<(String, String)>;
}

/// The process that the kubelet would start for the only container of a pod. `folder` is where the container's mounts
/// are; each port is one that the system chooses.
pub fn command(pod: &Value, source: &impl Source, folder: &Path) -> Command {
    let container = &pod["containers"][0];
    let mut mounts: Vec<(String, PathBuf)> = Vec::new();
    for mount in list(&container["volumeMounts"]) {
        let name = text(&mount["name"]);
        let volume = list(&pod["volumes"]).into_iter().find(|volume| volume["name"] == name);
        let volume = volume.unwrap_or_else(|| panic!("no volume {name}"));
        let place = folder.join(&name);
        fs::create_dir_all(&place).unwrap();
        for (file, content) in contents(&volume, source) {
            fs::write(place.join(file), content).unwrap();
        }
        mounts.push((text(&mount["mountPath"]), place));
    }
    let mut command = tollkeeper();
    for argument in list(&container["args"]) {
        let mut argument = text(&argument);
        for (mount, place) in &mounts {
            argument = argument.replace(mount, place.to_str().unwrap());
        }
        for port in ["[::]:8081", "[::]:8080", "[::]:6070"] {
            argument = argument.replace(port, "127.0.0.1:0");
        }
        command.arg(argument);
    }
    for variable in list(&container["env"]) {
        if let Some(value) = variable["value"].as_str() {
            command.env(text(&variable["name"]), value);
        }
    }
    let listens_to_admin = list(&container["args"]).iter().any(|flag| text(flag).contains("6070"));
    if container["args"][0] == "serve" && !listens_to_admin {
        // The chart leaves this flag at its default, a fixed port on the pod's loopback.
        command.args(["--admin-addr", "127.0.0.1:0"]);
    }
    command
}

/// The files of a volume.
fn contents(volume: &Value, source: &impl Source) -> Vec<(String, String)> {
    if let Some(name) = volume["configMap"]["name"].as_str() {
        return source.files("ConfigMap", name);
    }
    let mut files = Vec::new();
    for part in list(&volume["projected"]["sources"]) {
        let name = text(&part["secret"]["name"]);
        let data = source.files("Secret", &name);
        for item in list(&part["secret"]["items"]) {
            let key = text(&item["key"]);
            match data.iter().find(|(name, _)| *name == key) {
                Some((_, content)) => files.push((text(&item["path"]), content.clone())),
                None => assert_eq!(part["secret"]["optional"], true, "no key {key} in {name}"),
            }
        }
    }
    files
}

fn list(value: &Value) -> Vec<Value> {
    value.as_array().cloned().unwrap_or_default()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_else(|| panic!("no text: {value}")).to_owned()
}
