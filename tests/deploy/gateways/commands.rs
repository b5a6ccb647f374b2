//! The commands of the pages about gateways: run in their order by programs that stand in for kubectl, helm and curl, and that
//! refuse what would fail, or would change what the reader already has. And the other parts of these pages that are copied.

use crate::support::{pages::names, prelude::*};

const PAGES: [&str; 6] =
    ["istio.md", "contour.md", "kgateway.md", "emissary.md", "envoy-gateway.md", "ai-gateway.md"];

/// The folder of a reader: a checkout, and the programs that stand in for theirs.
fn desk() -> TempDir {
    let folder = TempDir::new().unwrap();
    let programs = folder.path().join("bin");
    fs::create_dir(&programs).unwrap();
    let stub = root().join("tests/deploy/gateways/stub.py");
    for name in ["kubectl", "helm", "curl"] {
        let script = format!(
            "#!/bin/sh\nexec '{}' -c 'import sys; sys.argv = sys.argv[1:]; exec(open(\"{}\").read())' {name} \"$@\"\n",
            tool("python").display(),
            stub.display()
        );
        fs::write(programs.join(name), script).unwrap();
        succeeds(Command::new("chmod").arg("+x").arg(programs.join(name)));
    }
    symlink(tollkeeper().get_program(), programs.join("tollkeeper")).unwrap();
    for name in ["examples", "helm"] {
        symlink(root().join(name), folder.path().join(name)).unwrap();
    }
    // The rules that the page about Emissary checks.
    fs::create_dir_all(folder.path().join("your/config")).unwrap();
    symlink(root().join("examples/compose/rules"), folder.path().join("your/config/folder"))
        .unwrap();
    folder
}

/// Runs commands as one session of a shell; returns its exit code and what it has printed.
fn session(folder: &Path, commands: &str) -> (Option<i32>, String) {
    let path = format!("{}:/usr/bin:/bin", folder.join("bin").display());
    let mut shell = Command::new("bash");
    shell.args(["-euo", "pipefail", "-c", commands]).current_dir(folder);
    let (code, output, errors) = run(shell.env("PATH", path).env("STUB_STATE", folder));
    (code, output + &errors)
}

#[test]
fn the_commands_of_each_page_run_in_order_and_leave_the_cluster_as_it_was() {
    let text = page("gateways.md");
    let switch = blocks(&text, "sh").join("\n");
    let install = "helm install tollkeeper ./helm";
    let switch = format!("{install}\n{switch}\nhelm uninstall tollkeeper");
    let pages = PAGES.map(|name| (name, blocks(&page(name), "sh").join("\n")));
    for (name, commands) in pages.into_iter().chain([("gateways.md", switch)]) {
        let folder = desk();
        let (code, output) = session(folder.path(), &commands);
        assert_eq!(code, Some(0), "{name}: {output}");
        let state = fs::read_to_string(folder.path().join("state.json")).unwrap();
        let state: Value = serde_json::from_str(&state).unwrap();
        assert_eq!(state["releases"].as_object().unwrap().len(), 1, "{name}: {state}");
        let objects = state["objects"].as_array().unwrap().iter().map(|it| it.as_str().unwrap());
        let remaining: Vec<&str> = objects.filter(|object| object.contains('@')).collect();
        assert!(remaining.is_empty(), "{name}: {remaining:?}");
    }
}

#[test]
fn commands_that_would_fail_or_harm_a_cluster_are_noticed() {
    for (commands, problem) in [
        ("kubectl apply -f examples/gateways/absent.yaml", "No such file"),
        ("helm install t ./helm; helm install t ./helm", "cannot re-use a name"),
        ("helm upgrade tollkeeper ./helm", "no release tollkeeper"),
        ("helm upgrade eg oci://x --version v1.9.1 --reuse-values", "changes the version"),
        ("helm upgrade eg oci://x --version v1.9.0", "changes the version or the values"),
        ("kubectl apply -f examples/gateways/contour-configuration.yaml", "replaces the reader's"),
        ("kubectl delete -f examples/gateways/base.yaml", "which the page has not made"),
        ("kubectl rollout undo deployment/absent", "no deployment/absent"),
        ("kubectl apply --forced -f examples/gateways/base.yaml", "unknown option --forced"),
        ("curl \"${GATEWAY:-}\"", "GATEWAY is not set"),
    ] {
        let (code, output) = session(desk().path(), commands);
        assert!(code != Some(0) && output.contains(problem), "{commands}: {output}");
    }
}

#[test]
fn the_page_of_envoy_gateway_shows_the_examples() {
    let example = |name: &str| root().join(format!("examples/gateways/envoy-gateway-{name}.yaml"));
    let expected = ["values", "policy"].map(|name| fs::read_to_string(example(name)).unwrap());
    assert_eq!(blocks(&page("envoy-gateway.md"), "yaml"), expected);
}

#[test]
fn the_filters_for_the_gateway_api_differ_from_the_classic_ones_only_in_their_target() {
    let example =
        |name| documents(&fs::read_to_string(root().join("examples/gateways").join(name)).unwrap());
    let without_target = |mut filter: Value| {
        let spec = filter["spec"].as_object_mut().unwrap();
        let target = [spec.remove("targetRefs"), spec.remove("workloadSelector")];
        assert_eq!(target.iter().flatten().count(), 1);
        filter["metadata"].as_object_mut().unwrap().remove("namespace");
        filter
    };
    let filters = |name| example(name).into_iter().map(without_target).collect::<Vec<_>>();
    assert_eq!(filters("istio-gateway-api.yaml"), filters("istio.yaml"));
}

#[test]
fn the_queries_that_compare_denials_are_valid_and_read_metrics_that_exist() {
    let text = page("gateways.md");
    let queries = blocks(&text, "promql");
    assert_eq!(queries.len(), 2);
    let metrics = page("observability.md");
    for query in queries {
        let indented = query.trim_end().replace('\n', "\n      ");
        let rules =
            format!("groups:\n- name: g\n  rules:\n  - alert: A\n    expr: |\n      {indented}\n");
        let file = TextFile::new("rules.yaml", rules);
        succeeds(Command::new(tool("promtool")).args(["check", "rules", &file]));
        let words = query.split(|char: char| !char.is_alphanumeric() && char != '_');
        let read: Vec<&str> = words.filter(|word| word.starts_with("ratelimit_")).collect();
        assert!(!read.is_empty());
        for name in read {
            assert!(names(&metrics).contains(&name), "{name}");
        }
    }
}
