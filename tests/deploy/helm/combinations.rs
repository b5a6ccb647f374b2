//! The objects of the chart for every combination of three of its switches, judged by the schemas of Kubernetes.

use crate::support::{chart::*, prelude::*};

/// The switches of the chart, as values that turn each on.
const SWITCHES: [&str; 31] = [
    "replicas: 3",
    "autoscaling: { enabled: true, annotations: { a: b } }",
    "podDisruptionBudget: { enabled: false, annotations: { a: b } }",
    "topologySpread: false",
    "topologySpreadConstraints: [{ maxSkew: 2, topologyKey: zone, whenUnsatisfiable: DoNotSchedule }]",
    "networkPolicy: { enabled: true, clients: [{ podSelector: {} }], scrapers: [{ namespaceSelector: {} }] }",
    "serviceAccount: { create: false }",
    "monitoring: { scrape: { kind: ServiceMonitor, namespace: watchers, annotations: { a: b }, tlsConfig: { insecureSkipVerify: true } } }",
    "monitoring: { scrape: { kind: PodMonitor, labels: { a: b }, tlsConfig: { insecureSkipVerify: true } } }",
    "monitoring: { alerts: { enabled: true, extraGroups: [{ name: mine, rules: [{ record: up:sum, expr: sum(up) }] }], namespace: watchers, annotations: { a: b } } }",
    "monitoring: { dashboard: { enabled: true, namespace: watchers, annotations: { grafana_folder: Gateways } } }",
    "priorityClassName: high\nruntimeClassName: gvisor\nschedulerName: mine\nminReadySeconds: 5",
    "service: { headless: false }",
    "service: { type: LoadBalancer, http: true, trafficDistribution: PreferClose, annotations: { a: b }, ipFamilyPolicy: PreferDualStack, ipFamilies: [IPv4, IPv6] }",
    "tls: { secret: cert, certificate: { enabled: true, issuerRef: { name: ca }, duration: 2160h0m0s, renewBefore: 360h, secretTemplate: { labels: { a: b } } }, clientCaSecret: { name: ca } }\nclientDomains: { shop.example: [shop] }\ntest: { clientSecret: client }",
    "admin: { tokenSecret: { name: token }, service: true }\nholds: { keySecret: { name: holds } }\nnetworkPolicy: { adminClients: [{ podSelector: {} }], extraIngress: [{ ports: [{ port: 9 }] }], storePeers: [{ ipBlock: { cidr: 10.0.0.0/8 } }] }",
    "store: { passwordSecret: { name: redis }, sentinel: { user: u, passwordSecret: { name: sentinel } } }",
    "store: { tls: { name: redis, caSecret: { name: ca }, certSecret: { name: client } } }",
    "store: { url: memory://, passwordSecret: null, sentinel: { user: '', passwordSecret: null }, tls: { name: '', caSecret: null, certSecret: null } }\nbundledRedis: { enabled: true }",
    "rulesCheck: { enabled: false }",
    "existingRulesConfigMap: mine",
    "existingRulesConfigMap: ''\ncontrolPlane: { url: 'xds+tls://eg:18001?node=a', tls: { name: eg, caSecret: { name: eg }, certSecret: { name: eg } } }",
    "extraArgs: [--shadow-mode]\nsettings: { workers: 2 }",
    "extraEnv: [{ name: A, value: b }]\nextraEnvFrom: [{ configMapRef: { name: env } }]",
    "extraVolumes: [{ name: more, emptyDir: {} }]\nextraVolumeMounts: [{ name: more, mountPath: /more }]",
    "initContainers: [{ name: before, image: a }]\nextraContainers: [{ name: beside, image: b }]\nlifecycle: { preStop: { sleep: { seconds: 1 } } }",
    "strategy: { type: Recreate, rollingUpdate: null }\nrevisionHistoryLimit: 2\ndnsPolicy: None\ndnsConfig: { nameservers: [10.0.0.1] }\nhostAliases: [{ ip: 10.0.0.2, hostnames: [redis] }]",
    "probes: { startup: { timeoutSeconds: 2 }, liveness: { initialDelaySeconds: 3 }, readiness: { failureThreshold: 4 } }",
    "extraObjects: [{ apiVersion: v1, kind: ConfigMap, metadata: { name: '{{ .Release.Name }}-more' }, data: { a: b } }]",
    "service: { type: NodePort, http: true, nodePorts: { grpc: 30081 }, loadBalancerSourceRanges: [10.0.0.0/8], externalTrafficPolicy: Local }\nautoscaling: { metrics: [{ type: Resource, resource: { name: memory, target: { type: Utilization, averageUtilization: 80 } } }] }\nmonitoring: { scrape: { scrapeTimeout: 5s, relabelings: [{ action: labeldrop, regex: pod }], metricRelabelings: [{ action: drop, regex: go_.*, sourceLabels: [__name__] }] }, alerts: { disabled: [TollkeeperStarved], overrides: { TollkeeperDecisionsLate: { labels: { severity: info } } } } }",
    "commonLabels: { a: b }\npodLabels: { c: d }\npodAnnotations: { e: f }\nnameOverride: limiter\nnamespaceOverride: edge\ncommonAnnotations: { g: h }\ndeploymentAnnotations: { i: j }",
];

/// What all combinations have: a store that several replicas can share.
const BASE: &str = "store: { url: 'rediss+sentinel://redis.example/main' }";

/// Rows of switches such that any three of them are on and off in all eight ways: the columns of a Hadamard matrix of
/// 32 rows, and their opposites.
fn rows() -> Vec<Vec<&'static str>> {
    let mut rows = Vec::new();
    for opposite in [0, 1] {
        for row in 0..32_usize {
            let is_on = |column: usize| (row & column).count_ones() % 2 == 1 - opposite;
            let switches = SWITCHES.iter().enumerate();
            let on = switches.filter(|(index, _)| is_on(index + 1)).map(|(_, switch)| *switch);
            rows.push(on.collect());
        }
    }
    rows
}

#[test]
fn any_three_switches_are_combined_in_all_ways() {
    let rows: Vec<BTreeSet<&str>> = rows().into_iter().map(BTreeSet::from_iter).collect();
    for (index, first) in SWITCHES.iter().enumerate() {
        for (offset, second) in SWITCHES.iter().enumerate().skip(index + 1) {
            for third in &SWITCHES[offset + 1..] {
                let has = |row: &BTreeSet<&str>| [first, second, third].map(|s| row.contains(s));
                let ways: BTreeSet<_> = rows.iter().map(has).collect();
                assert_eq!(ways.len(), 8, "{first}, {second}, {third}");
            }
        }
    }
}

/// The rendered objects of these rows, each of which passes a strict lint.
fn rendered(rows: &[Vec<&str>]) -> String {
    let folder = TempDir::new().unwrap();
    let mut all = String::new();
    for row in rows {
        let mut arguments = vec!["--strict".to_owned()];
        let switches = [BASE].into_iter().chain(row.iter().copied());
        for (number, switch) in switches.enumerate() {
            let file = folder.path().join(format!("{number}.yaml"));
            fs::write(&file, switch).unwrap();
            arguments.extend(["--values".to_owned(), file.display().to_string()]);
        }
        let flags: Vec<&str> = arguments.iter().map(String::as_str).collect();
        helm(&[&["lint", "helm"], &flags[..]].concat()).unwrap_or_else(|e| panic!("{row:?}: {e}"));
        let rendered = helm(&[&["template", "release", "helm"], &flags[1..]].concat());
        all += &rendered.unwrap_or_else(|error| panic!("{row:?}: {error}"));
        all += "\n---\n";
    }
    all
}

#[test]
fn the_schemas_and_a_strict_lint_accept_every_combination_of_three_switches() {
    let rows = rows();
    let all: String = thread::scope(|scope| {
        let parts: Vec<_> = rows.chunks(16).map(|part| scope.spawn(|| rendered(part))).collect();
        parts.into_iter().map(|part| part.join().unwrap()).collect()
    });
    assert_eq!(invalid(&all), [""; 0]);
    for deployment in all.split("\n---\n").filter(|text| text.contains("\nkind: Deployment\n")) {
        let scales = deployment.contains("\n  replicas: ");
        assert!(scales || all.contains("kind: HorizontalPodAutoscaler"), "{deployment}");
    }
}

#[test]
fn the_schemas_refuse_unknown_fields() {
    for (api, kind) in [
        ("v1", "Service"),
        ("apps/v1", "Deployment"),
        ("monitoring.coreos.com/v1", "ServiceMonitor"),
    ] {
        let text = format!(
            "apiVersion: {api}\nkind: {kind}\nmetadata: {{ name: a }}\nspec: {{ bogus: 1 }}\n"
        );
        let found = invalid(&text).join("\n");
        assert!(found.contains("bogus"), "{kind}: {found}");
    }
}
