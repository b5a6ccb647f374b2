//! Values that the chart does not have: Helm's answer is the name of the value that is meant.

use tollkeeper::settings;

use super::{
    refusals::{refusal, refused},
    values_of_flags,
};
use crate::support::{chart::*, prelude::*};

/// The paths of all values in the schema, except what a parent chart may add to `global`.
fn paths(schema: &Value, probe: &Value, at: &str, found: &mut Vec<String>) {
    let schema = if schema["$ref"].is_null() { schema } else { probe };
    for (name, inner) in schema["properties"].as_object().into_iter().flatten() {
        let path = format!("{at}{name}");
        if path != "global" {
            paths(inner, probe, &format!("{path}."), found);
        }
        found.push(path);
    }
}

fn names() -> Vec<String> {
    let schema: Value = serde_json::from_str(&text("helm/values.schema.json")).unwrap();
    let mut names = Vec::new();
    paths(&schema, &schema["definitions"]["probe"], "", &mut names);
    names.sort();
    names
}

fn moved() -> BTreeMap<String, String> {
    serde_json::from_value(documents(&text("helm/files/moved.yaml")).remove(0)).unwrap()
}

#[test]
fn the_names_that_the_templates_know_are_those_of_the_schema() {
    let file = root().join("helm/files/names.txt");
    let expected = names().join("\n") + "\n";
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(&file, expected).unwrap();
    } else {
        let found = fs::read_to_string(&file).unwrap();
        assert_eq!(found, expected, "`UPDATE_DOCS=1 cargo test --test deploy helm` rewrites it");
    }
}

#[test]
fn what_a_moved_name_leads_to_exists_and_no_value_has_that_name() {
    let names = names();
    for (old, new) in moved() {
        assert!(!names.contains(&old), "{old} is a value");
        let target = new.split([',', ' ']).next().unwrap();
        let is_known = names.iter().any(|name| name == target);
        assert!(is_known || ["a", "nothing", "the"].contains(&target), "{old}: {new}");
    }
}

#[test]
fn every_flag_is_a_setting_or_leads_to_its_value() {
    let (names, moved) = (names(), moved());
    let of_template: BTreeMap<String, String> =
        values_of_flags().into_iter().map(|(path, flag)| (flag, path)).collect();
    for row in settings::table() {
        let path = format!("settings.{}", row.flag);
        match moved.get(&path) {
            Some(target) => {
                let expected = of_template.get(row.flag);
                assert!(expected.is_none_or(|expected| target.starts_with(expected)), "{path}");
            }
            None => assert!(names.contains(&path), "{path} is neither a value nor moved"),
        }
    }
}

#[test]
fn names_of_other_charts_and_misspelled_ones_are_answered_with_the_right_name() {
    for (set, answer) in [
        ("replicaCount=3", "replicaCount is not a value of this chart: use replicas"),
        ("redis.enabled=true", "use store.url, or bundledRedis for a trial"),
        ("serviceMonitor.enabled=true", "use monitoring.scrape with kind ServiceMonitor"),
        ("image.registry=ghcr.io", "use image.repository, which begins with the registry"),
        ("settings.shadow_mode=true", "did you mean settings.shadow-mode?"),
        ("settings.decision-budget=1s", "use decisionBudget"),
        ("settings.decision_budget=1s", "use decisionBudget"),
        ("shadowMode=true", "did you mean settings.shadow-mode?"),
        ("replica=2", "did you mean replicas?"),
        ("grpcPort=8081", "did you mean service.grpcPort?"),
        ("store.tls.caSecret.nam=a", "did you mean store.tls.caSecret.name?"),
        ("resources.limit.memory=1Gi", "did you mean resources.limits?"),
        ("bogus=1", "bogus is not a value of this chart; `helm show values` lists them"),
    ] {
        refused(&["--set", set], answer);
    }
    // With the problems of other values, and without a value, which may be a secret.
    let error = refusal(&["--set", "replica=2,redis.password=s3cret,decisionBudget=15"]);
    for part in ["replica is not", "redis is not", "decisionBudget is \"15\""] {
        assert!(error.contains(part), "{error}");
    }
    assert!(!error.contains("s3cret"), "{error}");
}

#[test]
fn a_parent_chart_may_switch_the_chart_and_have_global_values_of_its_own() {
    let folder = TempDir::new().unwrap();
    let parent = folder.path();
    fs::create_dir_all(parent.join("charts")).unwrap();
    let dependency =
        json!({ "name": "tollkeeper", "version": "0.1.0", "condition": "tollkeeper.enabled" });
    let chart = json!({ "apiVersion": "v2", "name": "edge", "version": "1.0.0", "dependencies": [dependency] });
    fs::write(parent.join("Chart.yaml"), chart.to_string()).unwrap();
    let copied = std::process::Command::new("cp")
        .arg("-r")
        .arg(root().join("helm"))
        .arg(parent.join("charts/tollkeeper"))
        .status();
    assert!(copied.unwrap().success());
    let template = |sets: &str| {
        let global = ["--set", "global.storageClass=fast", "--set", sets];
        helm(&[&["template", "release", parent.to_str().unwrap()], &global[..]].concat())
    };
    assert!(template("tollkeeper.enabled=true").unwrap().contains("kind: Deployment"));
    assert!(!template("tollkeeper.enabled=false").unwrap().contains("kind: Deployment"));
    let error = template("tollkeeper.replicaCount=2").unwrap_err();
    assert!(error.contains("use replicas"), "{error}");
    refused(&["--set", "enabled=true"], "enabled is not a value of this chart");
    render(&["--set", "global.storageClass=fast"]);
}
