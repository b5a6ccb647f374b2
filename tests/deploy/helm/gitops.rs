//! The page about Argo CD and Flux: its samples name this chart, and the chart accepts their values.

use crate::support::{chart::*, prelude::*};

/// The objects that the chart makes of the values in a sample.
fn rendered(values: &Value) -> Vec<Value> {
    render(&["--values", &TextFile::new("values.yaml", values.to_string())])
}

#[test]
fn the_samples_install_this_version_of_the_chart_with_values_that_it_accepts() {
    let page = page("gitops.md");
    let samples = blocks(&page, "yaml");
    let objects: Vec<Value> = samples.iter().flat_map(|sample| documents(sample)).collect();
    let [application, repository, release] = &objects[..] else { panic!("{objects:?}") };
    let chart = documents(&text("helm/Chart.yaml")).remove(0);

    let source = &application["spec"]["source"];
    assert_eq!((&source["chart"], &source["targetRevision"]), (&chart["name"], &chart["version"]));
    let url = format!("oci://{}/tollkeeper", source["repoURL"].as_str().unwrap());
    let published = &repository["spec"];
    assert_eq!((&published["url"], &published["ref"]["tag"]), (&url.into(), &chart["version"]));
    assert_eq!(release["spec"]["chartRef"]["name"], repository["metadata"]["name"]);
    assert!(crate::support::pages::page("release.md").contains(published["url"].as_str().unwrap()));

    for values in [&source["helm"]["valuesObject"], &release["spec"]["values"]] {
        let deployment = object(&rendered(values), "Deployment");
        assert_eq!(deployment["spec"]["replicas"], 3);
    }
    // Flux gives the Job its time.
    let job = render(&[]).into_iter().find(|object| object["kind"] == "Job").unwrap();
    assert!(page.contains(&format!("the {} s of the Job", job["spec"]["activeDeadlineSeconds"])));
    assert_eq!(release["spec"]["timeout"], "5m");
}

#[test]
fn argo_cd_and_flux_accept_the_samples() {
    let page = page("gitops.md");
    let samples = blocks(&page, "yaml");
    assert_eq!(invalid(&samples.join("\n---\n")), [""; 0]);
    let found = invalid(&samples[0].replace("releaseName", "release")).join("\n");
    assert!(found.contains("'release' not allowed"), "{found}");
}

#[test]
fn the_command_of_the_page_renders_no_hook_and_names_the_namespace() {
    let page = page("gitops.md");
    let command = blocks(&page, "sh")[0].replace("\\\n", " ");
    let command = command.lines().find(|line| line.starts_with("helm template")).unwrap();
    let (command, _) = command.split_once(" | kubectl apply -f -").unwrap();
    let arguments: Vec<&str> = command.split_whitespace().skip(1).collect();
    let arguments = arguments.into_iter().map(|argument| match argument {
        "./helm" => "helm",
        "values.yaml" => "helm/values-production.yaml",
        other => other,
    });
    let objects = documents(&helm(&arguments.collect::<Vec<_>>()).unwrap());
    assert!(objects.len() > 8, "{} objects", objects.len());
    for object in objects.iter().filter(|object| !object.is_null()) {
        assert!(!["Job", "Pod"].contains(&object["kind"].as_str().unwrap()), "{object}");
        assert_eq!(object["metadata"]["namespace"], "tollkeeper", "{object}");
    }
}
