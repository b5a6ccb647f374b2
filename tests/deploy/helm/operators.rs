//! Objects that operators of the cluster act on: KEDA, cert-manager and the Grafana operator; and what OpenShift assigns.

use super::refusals::refused;
use crate::support::{chart::*, prelude::*};

/// The objects that the chart makes of these values, of which the schemas refuse none.
fn accepted(values: &str) -> Vec<Value> {
    let objects = render(&["--set", values]);
    let documents: Vec<String> = objects.iter().map(ToString::to_string).collect();
    assert_eq!(invalid(&documents.join("\n---\n")), [""; 0], "{values}");
    objects
}

const KEDA: &str = "store.url=redis://r,autoscaling.enabled=true,autoscaling.keda.enabled=true";

#[test]
fn keda_scales_by_the_cpu_and_further_triggers_instead_of_an_autoscaler() {
    let trigger = "autoscaling.keda.triggers[0].type=cron,autoscaling.keda.triggers[0].metadata.timezone=Etc/UTC";
    let objects = accepted(&format!("{KEDA},{trigger}"));
    assert!(!objects.iter().any(|object| object["kind"] == "HorizontalPodAutoscaler"));
    let deployment = object(&objects, "Deployment");
    assert_eq!(deployment["spec"].get("replicas"), None);
    let spec = &object(&objects, "ScaledObject")["spec"];
    assert_eq!(spec["scaleTargetRef"]["name"], deployment["metadata"]["name"]);
    assert_eq!((&spec["minReplicaCount"], &spec["maxReplicaCount"]), (&json!(2), &json!(10)));
    let cpu = json!({ "type": "cpu", "metricType": "Utilization", "metadata": { "value": "70" } });
    let cron = json!({ "type": "cron", "metadata": { "timezone": "Etc/UTC" } });
    assert_eq!(spec["triggers"], json!([cpu, cron]));
    let behavior = &spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"];
    assert_eq!(behavior["scaleDown"]["stabilizationWindowSeconds"], 300);

    refused(&["--set", "autoscaling.keda.enabled=true"], "needs autoscaling.enabled");
    let metrics = "autoscaling.metrics[0].type=Resource";
    refused(&["--set", KEDA, "--set", metrics], "with KEDA, use autoscaling.keda.triggers");
    refused(&["--set", trigger], "autoscaling.keda.triggers needs autoscaling.keda.enabled");
}

#[test]
fn cert_manager_issues_the_certificate_that_pods_mount_for_the_names_of_the_services() {
    let on = "tls.certificate.enabled=true,tls.certificate.issuerRef.name=ca,tls.certificate.issuerRef.kind=ClusterIssuer";
    let more = "tls.secret=cert,tls.certificate.dnsNames[0]=limits.example,tls.certificate.duration=2160h,namespaceOverride=edge,clusterDomain=own.example";
    let objects = accepted(&format!("{on},{more}"));
    let spec = &object(&objects, "Certificate")["spec"];
    assert_eq!((&spec["secretName"], &spec["duration"]), (&json!("cert"), &json!("2160h")));
    assert_eq!(spec["issuerRef"], json!({ "name": "ca", "kind": "ClusterIssuer" }));
    let names = spec["dnsNames"].as_array().unwrap();
    for name in [
        "release-tollkeeper.edge.svc",
        "release-tollkeeper-headless.edge.svc.own.example",
        "release-tollkeeper-admin",
        "limits.example",
    ] {
        assert!(names.contains(&name.into()), "{name}: {names:?}");
    }
    let pod = &object(&objects, "Deployment")["spec"]["template"]["spec"];
    let volumes = pod["volumes"].as_array().unwrap();
    let mounted = volumes.iter().find(|volume| volume["name"] == "secrets").unwrap();
    assert_eq!(mounted["projected"]["sources"][0]["secret"]["name"], "cert");

    refused(&["--set", on], "tls.certificate needs tls.secret");
    let without = "tls.secret=cert,tls.certificate.enabled=true";
    refused(&["--set", without], "tls.certificate needs tls.certificate.issuerRef.name");
    let other = format!("{on},tls.secret=cert,tls.certKey=server.pem");
    refused(&["--set", &other], "\"server.pem\", but cert-manager writes tls.crt");
    let days = format!("{on},tls.secret=cert,tls.certificate.duration=90d");
    refused(&["--set", &days], "is \"90d\", and must be a duration such as 2160h");
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
