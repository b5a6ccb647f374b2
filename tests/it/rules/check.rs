//! `tollkeeper check`: what it warns about, reads and reports. `wire/bad_input/rule_files.txt` has the texts that it refuses.

use crate::support::{prelude::*, sessions::check_sessions};

#[test]
fn each_session_of_check_shows_what_its_text_says() {
    check_sessions(include_str!("check.txt"));
}

#[test]
fn alias_bombs_and_deep_nesting_are_refused() {
    let mut bomb = "domain: a\nx0: &x0 [a,a,a,a,a,a,a,a,a,a]\n".to_owned();
    for level in 1..10 {
        let below = format!("*x{},", level - 1).repeat(10);
        bomb += &format!("x{level}: &x{level} [{below}]\n");
    }
    let folder = TempDir::new().unwrap();
    let (open, close) = ("[".repeat(110), "]".repeat(110));
    let mut nest = format!("domain: a\nk0: &k0 {open}x{close}\n");
    for level in 1..200 {
        nest += &format!("k{level}: &k{level} {open}*k{}{close}\n", level - 1);
    }
    let anchors: String = (0..100).map(|level| format!("&b{level} [")).collect();
    let kept = format!("domain: a\nx: {anchors}{}0{}", "0,".repeat(100_000), "]".repeat(100));
    let deep = format!("domain: a\ndescriptors: {}", "[".repeat(10_000));
    let long = format!("domain: a\nx: &x {}\ny: [{}]", "x".repeat(1 << 20), "*x,".repeat(1000));
    for text in [bomb, nest, kept, deep, long] {
        std::fs::write(folder.path().join("rules.yaml"), text).unwrap();
        let (code, _, stderr) =
            run(tollkeeper().current_dir(&folder).args(["check", "rules.yaml"]));
        assert_eq!(code, Some(1));
        let bounds =
            ["more than 1000000 nodes", "recursion limit exceeded", "nested deeper than 128"];
        assert!(bounds.iter().any(|bound| stderr.contains(bound)), "{stderr}");
    }
}

#[test]
fn the_overlays_of_the_pages_match_rules_as_the_gateways_send_them() {
    let quota = "domain: ai-gateway-quota\ndescriptors: [{ key: backend_name, value: default/openai, descriptors: [{ key: model_name_override, value: gpt, quota_mode: true, rate_limit: { unit: day, requests_per_unit: 5000 } }] }]";
    let route = "httproute/default/backend/rule/0/match/0/*";
    let policy = format!(
        "domain: default/eg/http\ndescriptors: [{{ key: '{route}', value: '{route}', descriptors: [{{ key: rule-0-match-0, rate_limit: {{ unit: hour, requests_per_unit: 3 }} }}] }}]"
    );
    let quota_path = "backend_name=default/openai,model_name_override=gpt";
    let policy_path = format!("{route}={route},rule-0-match-0=alice");
    for (name, rules, domain, path, expected) in [
        (
            "ai-gateway.md",
            quota,
            "ai-gateway-quota",
            quota_path,
            "5000000 per day by fixed_window (quota, on_store_failure local",
        ),
        (
            "rules.md",
            quota,
            "ai-gateway-quota",
            quota_path,
            "5000000 per day by sliding_window (quota",
        ),
        (
            "envoy-gateway.md",
            &policy,
            "default/eg/http",
            &policy_path,
            "3 per hour by first_hit_window (enforced, on_store_failure deny",
        ),
    ] {
        let (folder, page) = (TempDir::new().unwrap(), page(name));
        let overlay = blocks(&page, "text").into_iter().find(|block| block.starts_with("domain:"));
        std::fs::write(folder.path().join("rules.yaml"), rules).unwrap();
        std::fs::write(folder.path().join("overlay.yaml"), overlay.unwrap()).unwrap();
        let run = |args: &[&str]| {
            run(tollkeeper()
                .current_dir(&folder)
                .args(args)
                .args(["--rules-overlay", "overlay.yaml"]))
        };
        let (code, _, warnings) = run(&["check", "rules.yaml"]);
        assert_eq!((code, warnings.as_str()), (Some(0), ""), "{name}");
        let (_, explained, _) =
            run(&["explain", "--rules", "rules.yaml", "--domain", domain, path]);
        assert!(explained.contains(expected), "{name}: {explained}");
    }
}
