//! Envoys in front of the replicas: with the configuration of examples/envoy/budgets.yaml, and as Envoy AI Gateway configures them.

use crate::support::{envoy::*, prelude::*};

const ANY: &str = "socket_address: { address: 127.0.0.1, port_value: 0 }";

/// The Envoy of the manual. The model server also gets the token of the hold, so that it can repeat the commit.
pub fn own(replicas: &[SocketAddr], model: SocketAddr, timeout: &str) -> Envoy {
    let route = "route: { cluster: model, timeout: 0s }\n";
    let token = "                request_headers_to_add:
                - header: { key: x-hold, value: \"%DYNAMIC_METADATA(envoy.filters.http.ratelimit:hold)%\" }
";
    let config = replace(
        &example("envoy/budgets.yaml"),
        &[
            (route, 1, &format!("{route}{token}")),
            ("timeout: 1s", 1, &format!("timeout: {timeout}")),
        ],
    );
    run(&config, replicas, model)
}

/// The Envoy of a QuotaPolicy. Calls that fail on a starved test machine must not pass for streams that were admitted.
pub fn ai_gateway(replicas: &[SocketAddr], model: SocketAddr) -> Envoy {
    let deny = ("failure_mode_deny: false", 1, "failure_mode_deny: true");
    let config =
        replace(include_str!("ai_gateway.yaml"), &[("timeout: 5s", 1, "timeout: 30s"), deny]);
    run(&config, replicas, model)
}

fn run(config: &str, replicas: &[SocketAddr], model: SocketAddr) -> Envoy {
    let endpoint = |address: &SocketAddr| {
        format!(
            "endpoint: {{ address: {{ socket_address: {{ address: 127.0.0.1, port_value: {} }} }} }}",
            address.port()
        )
    };
    let service: SocketAddr = "127.0.0.1:8081".parse().unwrap();
    let each = replicas.iter().map(endpoint).collect::<Vec<_>>().join("\n        - ");
    let config = replace(
        config,
        &[
            ("socket_address: { address: 127.0.0.1, port_value: 9901 }", 1, ANY),
            ("socket_address: { address: 127.0.0.1, port_value: 10000 }", 1, ANY),
            (&endpoint(&service), 1, &each),
            ("port_value: 8000", 1, &format!("port_value: {}", model.port())),
        ],
    );
    Envoy::run(&config, TempDir::new().unwrap())
}
