//! Where the rules come from, and how they are applied.

use std::path::Path;

use super::{Translator, percent_encoded};

/// The variables of a control plane, which have no effect with files.
const OF_CONTROL_PLANE: [&str; 3] =
    ["CONFIG_GRPC_XDS_SERVER_URL", "CONFIG_GRPC_XDS_NODE_ID", "CONFIG_GRPC_XDS_SERVER_USE_TLS"];

/// The variables of the TLS of a control plane, with our settings.
const TLS: [(&str, &str); 4] = [
    ("rules-tls-cert", "CONFIG_GRPC_XDS_CLIENT_TLS_CERT"),
    ("rules-tls-key", "CONFIG_GRPC_XDS_CLIENT_TLS_KEY"),
    ("rules-tls-ca", "CONFIG_GRPC_XDS_SERVER_TLS_CACERT"),
    ("rules-tls-name", "CONFIG_GRPC_XDS_SERVER_TLS_SAN"),
];

impl Translator<'_> {
    pub(super) fn rules(&mut self) {
        let config = self.text("CONFIG_TYPE").unwrap_or("FILE");
        if config.eq_ignore_ascii_case("FILE") {
            self.rule_files();
        } else {
            self.control_plane();
        }
        self.copy_switch("shadow-mode", "SHADOW_MODE");
        self.copy_switch("quota-mode", "QUOTA_MODE");
        // It always charges, unless it is told to stop at the limit.
        let stops = self.is_on("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT");
        let counts = if stops { "off" } else { "on" };
        self.set("count-denied", "STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", counts);
        self.set("exhausted-looks", "STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", "allow");
    }

    fn rule_files(&mut self) {
        let root = self.text("RUNTIME_ROOT").unwrap_or("/srv/runtime_data/current");
        let folder = Path::new(root)
            .join(self.text("RUNTIME_SUBDIRECTORY").unwrap_or(""))
            .join(self.text("RUNTIME_APPDIRECTORY").unwrap_or("config"));
        self.set("rules", "RUNTIME_ROOT", folder);
        let why = "CONFIG_TYPE is not GRPC_XDS_SOTW";
        self.warn_all(&OF_CONTROL_PLANE, why);
        self.warn_all(&TLS.map(|(_, name)| name), why);
    }

    fn control_plane(&mut self) {
        let target = self.text("CONFIG_GRPC_XDS_SERVER_URL").unwrap_or("localhost:18000");
        // How a gRPC client in Go writes that the host is to be resolved, as it is anyway.
        let target = target.trim_start_matches("dns:///");
        let node = percent_encoded(self.text("CONFIG_GRPC_XDS_NODE_ID").unwrap_or("default"));
        let is_tls = self.is_on("CONFIG_GRPC_XDS_SERVER_USE_TLS");
        let scheme = if is_tls { "xds+tls" } else { "xds" };
        let url = format!("{scheme}://{target}?node={node}");
        self.set("rules", "CONFIG_GRPC_XDS_SERVER_URL", url);
        if is_tls {
            for (flag, name) in TLS {
                self.copy(flag, name);
            }
        } else {
            let names = TLS.map(|(_, name)| name);
            self.warn_all(&names, "CONFIG_GRPC_XDS_SERVER_USE_TLS is not true");
        }
        let names = ["RUNTIME_ROOT", "RUNTIME_SUBDIRECTORY", "RUNTIME_APPDIRECTORY"];
        self.warn_all(&names, "CONFIG_TYPE is GRPC_XDS_SOTW");
    }
}
