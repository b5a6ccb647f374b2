//! The certificates of Envoy Gateway, made by its own command: one authority, and a folder for each of its parts.

use crate::support::prelude::*;

/// Each has `tls.crt`, `tls.key` and `ca.crt`.
const FILES: [&str; 3] = ["ca.crt", "tls.crt", "tls.key"];

/// Writes all certificates below `config/certs`.
pub fn generate(config: &Path) {
    let mut certgen = Command::new(tool("envoy-gateway"));
    certgen.args(["certgen", "--local", "--config-home"]).arg(config);
    succeeds(&mut certgen);
}

/// Replaces all certificates by certificates of another authority.
pub fn rotate(config: &Path) {
    let next = tempfile::TempDir::new().unwrap();
    generate(next.path());
    for part in fs::read_dir(next.path().join("certs")).unwrap() {
        let part = part.unwrap();
        for file in FILES {
            let to = config.join("certs").join(part.file_name()).join(file);
            if part.path().join(file).exists() {
                fs::copy(part.path().join(file), to).unwrap();
            }
        }
    }
}

/// The Secret with the certificate of Envoy, as certgen writes it in a cluster.
pub fn secret(folder: &Path) -> String {
    let mut secret =
        "apiVersion: v1\nkind: Secret\nmetadata: {name: envoy, namespace: envoy-gateway-system}\n\
                      type: kubernetes.io/tls\nstringData:\n"
            .to_owned();
    for file in FILES {
        let text = fs::read_to_string(folder.join(file)).unwrap();
        secret += &format!("  {file}: {}\n", serde_json::json!(text));
    }
    secret
}
