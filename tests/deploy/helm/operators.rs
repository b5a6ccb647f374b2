//! The dashboard of the Grafana operator, and what OpenShift assigns.

use crate::support::{chart::*, prelude::*};

/// The objects that the chart makes of these values, of which the schemas refuse none.
fn accepted(values: &str) -> Vec<Value> {
    let objects = render(&["--set", values]);
    let documents: Vec<String> = objects.iter().map(ToString::to_string).collect();
    assert_eq!(invalid(&documents.join("\n---\n")), [""; 0], "{values}");
    objects
}

#[test]
fn the_grafana_operator_gets_the_same_dashboard_as_the_sidecar_of_grafana() {
    let on = "monitoring.dashboard.enabled=true,monitoring.dashboard.kind=";
    let is_dashboard =
        |object: &&Value| object["metadata"]["name"] == "release-tollkeeper-dashboard";
    let dashboard = |kind: &str| {
        let objects = accepted(&format!("{on}{kind},monitoring.dashboard.folder=Gateways"));
        let found = objects.iter().find(is_dashboard).unwrap().clone();
        assert_eq!(found["kind"], kind);
        found
    };
    let spec = &dashboard("GrafanaDashboard")["spec"];
    assert_eq!(spec["json"], dashboard("ConfigMap")["data"]["tollkeeper.json"]);
    let shown: Value = serde_json::from_str(spec["json"].as_str().unwrap()).unwrap();
    let file: Value = serde_json::from_str(&text("helm/files/dashboard.json")).unwrap();
    assert_eq!(shown, file);
    assert_eq!(spec["instanceSelector"], json!({ "matchLabels": { "dashboards": "grafana" } }));
    assert_eq!(
        (&spec["folder"], &spec["allowCrossNamespaceImport"]),
        (&json!("Gateways"), &json!(true))
    );
}

#[test]
fn openshift_assigns_the_users_of_all_pods_where_it_is_found_or_named() {
    let openshift = &["--api-versions", "security.openshift.io/v1"][..];
    let adapt =
        |value: &str| format!("global.compatibility.openshift.adaptSecurityContext={value}");
    let base = "bundledRedis.enabled=true,securityContext.runAsUser=7";
    for (cluster, set, assigns) in [
        (openshift, adapt("auto"), true),
        (&[], adapt("auto"), false),
        (&[], adapt("force"), true),
        (openshift, adapt("disabled"), false),
        // A parent chart may have no opinion.
        (openshift, adapt(""), true),
        (openshift, "global.compatibility=null".to_owned(), true),
    ] {
        let objects = render(&[cluster, &["--set", base, "--set", &set]].concat());
        let pods = super::pods(&objects);
        assert_eq!(pods.len(), 4);
        for (name, pod) in pods {
            let numbers = ["runAsUser", "runAsGroup", "fsGroup"];
            let of_pod = numbers.map(|number| pod["securityContext"].get(number).is_none());
            assert_eq!(of_pod, [assigns; 3], "{set}: {name}");
            assert_eq!(pod["securityContext"]["runAsNonRoot"], true, "{name}");
            let container = &pod["containers"][0]["securityContext"];
            assert_eq!(container.get("runAsUser").is_none(), assigns, "{set}: {name}");
            assert_eq!(container["readOnlyRootFilesystem"], true, "{name}");
        }
    }
}
