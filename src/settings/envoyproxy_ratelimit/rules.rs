//! Where the rules come from, and how they are applied.

use super::Translator;
use crate::settings::reader::url_parts::{NODE_FORM, host_and_port, is_node, percent_encoded};

const CONFIG_TYPE: &str = "CONFIG_TYPE";
const USE_TLS: &str = "CONFIG_GRPC_XDS_SERVER_USE_TLS";
const SERVER_URL: &str = "CONFIG_GRPC_XDS_SERVER_URL";
const NODE_ID: &str = "CONFIG_GRPC_XDS_NODE_ID";

const HEALTHY: &str = "HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED";
const FORCE_START: &str = "FORCE_START_WITHOUT_INITIAL_CONFIG";

/// The folder of rule files; the first one is for messages.
const OF_FILES: [&str; 3] = ["RUNTIME_ROOT", "RUNTIME_SUBDIRECTORY", "RUNTIME_APPDIRECTORY"];

/// The TLS of a control plane, with our settings.
const TLS: [(&str, &str); 4] = [
    ("rules-tls-cert", "CONFIG_GRPC_XDS_CLIENT_TLS_CERT"),
    ("rules-tls-key", "CONFIG_GRPC_XDS_CLIENT_TLS_KEY"),
    ("rules-tls-ca", "CONFIG_GRPC_XDS_SERVER_TLS_CACERT"),
    ("rules-tls-name", "CONFIG_GRPC_XDS_SERVER_TLS_SAN"),
];

/// How a gRPC client in Go writes that it should resolve the host, which is done in any case.
const RESOLVERS: [&str; 3] = ["dns:///", "passthrough:///", "dns:"];

impl Translator<'_> {
    pub(super) fn rules(&mut self) {
        match self.text(CONFIG_TYPE) {
            Some(kind) if !kind.eq_ignore_ascii_case("FILE") => self.control_plane(),
            None if self.bad.contains(CONFIG_TYPE) => {}
            _ => self.rule_files(),
        }
        self.copy_switch("shadow-mode", "SHADOW_MODE");
        self.copy_switch("quota-mode", "QUOTA_MODE");
        // envoyproxy/ratelimit counts denied calls too, unless this is true.
        const STOPS: &str = "STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT";
        let counts = if self.is_on(STOPS) { "off" } else { "on" };
        self.set("count-denied", &[STOPS], counts);
        self.set("exhausted-checks", &[], "allow");
    }

    fn rule_files(&mut self) {
        let mut folder = self.text(OF_FILES[0]).unwrap_or("/srv/runtime_data/current").to_owned();
        for (name, default) in [(OF_FILES[1], ""), (OF_FILES[2], "config")] {
            // As in Go, a slash at the start does not make it another root.
            let part = self.text(name).unwrap_or(default).trim_matches('/');
            if !part.is_empty() {
                folder = format!("{}/{part}", folder.trim_end_matches('/'));
            }
        }
        self.set("rules", &[&OF_FILES[..], &[CONFIG_TYPE]].concat(), folder);
        if self.is_on(HEALTHY) {
            self.set("ready-needs-rules", &[HEALTHY], "always");
        }
        let why = "CONFIG_TYPE is not GRPC_XDS_SOTW";
        self.warn_all(&[SERVER_URL, NODE_ID, USE_TLS], why);
        self.warn_all(&TLS.map(|(_, name)| name), why);
    }

    fn control_plane(&mut self) {
        let scheme = if self.is_on(USE_TLS) { "xds+tls" } else { "xds" };
        let node = self.text(NODE_ID).unwrap_or("default");
        let written = self.text(SERVER_URL).unwrap_or("localhost:18000");
        let target = RESOLVERS.iter().find_map(|resolver| written.strip_prefix(resolver));
        let target = target.unwrap_or(written);
        let problem = if self.is_given("rules") {
            None
        } else if !is_node(node) {
            Some((NODE_ID, NODE_FORM))
        } else {
            problem_of(target).map(|problem| (SERVER_URL, problem))
        };
        match problem {
            Some((name, problem)) => self.problem(name, problem),
            None => {
                let url = format!("{scheme}://{target}?node={}", percent_encoded(node));
                self.set("rules", &[SERVER_URL, NODE_ID, USE_TLS, CONFIG_TYPE], url);
            }
        }
        let needed = match (self.is_on(HEALTHY), self.is_on(FORCE_START)) {
            (true, _) => "always",
            (false, true) => "off",
            // There, no port opens before the first rules.
            (false, false) => "once",
        };
        self.set("ready-needs-rules", &[HEALTHY, FORCE_START], needed);
        self.copy_if_on(USE_TLS, &TLS);
        self.warn_all(&OF_FILES, "CONFIG_TYPE is GRPC_XDS_SOTW");
    }
}

/// What is wrong with the address of a control plane, if anything. It does not repeat the text.
fn problem_of(target: &str) -> Option<&'static str> {
    match target.split_once("://") {
        Some(("https", _)) => {
            return Some(
                "must be a host and a port, such as localhost:18000, without https://; for TLS set \
                 CONFIG_GRPC_XDS_SERVER_USE_TLS to true",
            );
        }
        Some(_) => {
            return Some("must be a host and a port, such as localhost:18000, without a scheme");
        }
        None => {}
    }
    let is_bad = host_and_port(target).is_none();
    is_bad.then_some("must be a host and a port, such as localhost:18000")
}
