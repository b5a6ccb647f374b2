//! What each gateway makes of its manifest for its Envoy, as read in its source: Istio passes patches on as they are; Contour
//! 1.33 (internal/envoy/v3/ratelimit.go), kgateway 2 (trafficpolicy/global_rate_limit_plugin.go and gateway_extension.go) and
//! Emissary 4.1 (envoy/v3/v3ratelimitaction.py and v3httpfilter.py) translate.

use crate::support::prelude::*;

#[derive(Clone, Copy, Debug)]
pub enum Gateway {
    Istio,
    Contour,
    Kgateway,
    Emissary,
}

/// The name that kgateway gives to its filter: its GatewayExtension's is in it.
const FILTER_OF_KGATEWAY: &str = "ratelimit/default/tollkeeper";

impl Gateway {
    /// The name of its page and of its example.
    pub fn name(self) -> &'static str {
        match self {
            Self::Istio => "istio",
            Self::Contour => "contour",
            Self::Kgateway => "kgateway",
            Self::Emissary => "emissary",
        }
    }

    /// The rate limit filter, without the cluster.
    pub fn filter(self, manifests: &Value) -> Value {
        let standard = "envoy.filters.http.ratelimit";
        match self {
            Self::Istio => at(manifests, "/0/spec/configPatches/0/patch/value").clone(),
            Self::Contour => {
                let service = at(manifests, "/2/spec/rateLimitService");
                let timeout = at(manifests, "/0/spec/timeoutPolicy/response");
                let shows_headers = service["enableXRateLimitHeaders"] == true;
                let fails_open = service["failOpen"] == true;
                filter(standard, service, &milliseconds(timeout), !fails_open, shows_headers)
            }
            Self::Kgateway => {
                let limit = at(manifests, "/0/spec/rateLimit");
                let shows_headers = limit["xRateLimitHeaders"] == "DraftVersion03";
                let fails_open = limit["failOpen"] != false;
                let timeout = milliseconds(&limit["timeout"]);
                let mut filter =
                    filter(FILTER_OF_KGATEWAY, limit, &timeout, !fails_open, shows_headers);
                filter["disabled"] = true.into();
                filter
            }
            Self::Emissary => {
                let service = at(manifests, "/0/spec");
                assert_eq!(service["protocol_version"], "v3");
                let timeout = format!("{}ms", service["timeout_ms"]);
                let denies = service["failure_mode_deny"] == true;
                let timeout = milliseconds(&timeout.into());
                let mut filter = filter(standard, service, &timeout, denies, false);
                filter["typed_config"]["request_type"] = "both".into();
                filter
            }
        }
    }

    /// The entries of the manifest's descriptor.
    pub fn entries(self, manifests: &Value) -> Vec<Value> {
        let path = match self {
            Self::Istio => "/1/spec/configPatches/0/patch/value/rate_limits/0/actions",
            Self::Contour => "/1/spec/virtualhost/rateLimitPolicy/global/descriptors/0/entries",
            Self::Kgateway => "/1/spec/rateLimit/global/descriptors/0/entries",
            // Below the domain.
            Self::Emissary => "/1/spec/labels/example/0/by_user",
        };
        at(manifests, path).as_array().unwrap().clone()
    }

    /// The descriptor of these entries.
    pub fn rate_limit(self, entries: &[Value]) -> Value {
        let actions: Vec<Value> = entries.iter().map(|entry| self.action(entry)).collect();
        json!({ "actions": actions })
    }

    fn action(self, entry: &Value) -> Value {
        match self {
            Self::Istio => entry.clone(),
            Self::Contour => action_of_contour(entry),
            Self::Kgateway => action_of_kgateway(entry),
            Self::Emissary => action_of_emissary(entry),
        }
    }

    /// A host with the manifest's descriptor, and with a route for each other one, which the header x-row selects.
    pub fn virtual_host(self, manifest_limit: &Value, rows: &[Value]) -> Value {
        let mut routes = Vec::new();
        for (index, limit) in rows.iter().enumerate() {
            let value = json!({ "exact": index.to_string() });
            let header = json!({ "name": "x-row", "string_match": value });
            let matched = json!({ "prefix": "/", "headers": [header] });
            routes.push(self.route(&matched, limit));
        }
        let everything = json!({ "prefix": "/" });
        match self {
            Self::Istio | Self::Contour => {
                routes.push(json!({ "match": everything, "route": { "cluster": "upstream" } }));
                let limits = json!([manifest_limit]);
                json!({ "name": "all", "domains": ["*"], "routes": routes, "rate_limits": limits })
            }
            Self::Kgateway | Self::Emissary => {
                routes.push(self.route(&everything, manifest_limit));
                json!({ "name": "all", "domains": ["*"], "routes": routes })
            }
        }
    }

    fn route(self, matched: &Value, limit: &Value) -> Value {
        const PER_ROUTE: &str =
            "type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimitPerRoute";
        match self {
            Self::Istio | Self::Contour | Self::Emissary => {
                let action = json!({ "cluster": "upstream", "rate_limits": [limit] });
                json!({ "match": matched, "route": action })
            }
            Self::Kgateway => {
                let limits = json!({ "@type": PER_ROUTE, "rate_limits": [limit] });
                json!({
                    "match": matched, "route": { "cluster": "upstream" },
                    "typed_per_filter_config": { FILTER_OF_KGATEWAY: limits },
                })
            }
        }
    }

    /// The Service that the manifest names: name, namespace and port.
    pub fn address(self, manifests: &Value) -> (String, String, u64) {
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let namespace = || text(at(manifests, "/0/metadata/namespace"));
        match self {
            Self::Istio => {
                let service = "typed_config/rate_limit_service/grpc_service/envoy_grpc";
                let path = format!("/0/spec/configPatches/0/patch/value/{service}/cluster_name");
                let cluster = text(at(manifests, &path));
                // outbound|8081||tollkeeper.default.svc.cluster.local
                let parts: Vec<&str> = cluster.split('|').collect();
                let (name, rest) = parts[3].split_once('.').unwrap();
                let namespace = rest.strip_suffix(".svc.cluster.local").unwrap();
                (name.into(), namespace.into(), parts[1].parse().unwrap())
            }
            Self::Contour => {
                let service = at(manifests, "/0/spec/services/0");
                (text(&service["name"]), namespace(), service["port"].as_u64().unwrap())
            }
            Self::Kgateway => {
                let backend = at(manifests, "/0/spec/rateLimit/grpcService/backendRef");
                (text(&backend["name"]), namespace(), backend["port"].as_u64().unwrap())
            }
            Self::Emissary => {
                let address = text(at(manifests, "/0/spec/service"));
                let (host, port) = address.split_once(':').unwrap();
                let (name, namespace) = host.split_once('.').unwrap();
                (name.into(), namespace.into(), port.parse().unwrap())
            }
        }
    }

    /// The appProtocol that it needs, or the chart's default if it does not look at it.
    pub fn app_protocol(self) -> &'static str {
        match self {
            Self::Istio | Self::Contour | Self::Emissary => "grpc",
            Self::Kgateway => "kubernetes.io/h2c",
        }
    }
}

fn at<'tree>(tree: &'tree Value, path: &str) -> &'tree Value {
    tree.pointer(path).unwrap_or_else(|| panic!("no {path}"))
}

/// A duration as Envoy writes it, from one such as `20ms`.
fn milliseconds(text: &Value) -> String {
    let number: u64 = text.as_str().unwrap().strip_suffix("ms").unwrap().parse().unwrap();
    format!("{}.{:03}s", number / 1000, number % 1000)
}

fn filter(name: &str, source: &Value, timeout: &str, denies: bool, shows_headers: bool) -> Value {
    let mut config = json!({
        "@type": "type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimit",
        "domain": source["domain"], "timeout": timeout, "failure_mode_deny": denies,
    });
    if shows_headers {
        config["enable_x_ratelimit_headers"] = "DRAFT_VERSION_03".into();
    }
    json!({ "name": name, "typed_config": config })
}

fn action_of_contour(entry: &Value) -> Value {
    let (kind, fields) = entry.as_object().unwrap().iter().next().unwrap();
    match kind.as_str() {
        "requestHeader" => json!({ "request_headers": {
            "header_name": fields["headerName"], "descriptor_key": fields["descriptorKey"],
        } }),
        "remoteAddress" => json!({ "remote_address": {} }),
        "genericKey" => {
            let key = fields["key"].as_str().unwrap_or_default();
            let value = &fields["value"];
            json!({ "generic_key": { "descriptor_key": key, "descriptor_value": value } })
        }
        "requestHeaderValueMatch" => {
            let header = &fields["headers"][0];
            let headers =
                json!([{ "name": header["name"], "string_match": { "exact": header["exact"] } }]);
            json!({ "header_value_match": {
                "descriptor_value": fields["value"], "expect_match": true, "headers": headers,
            } })
        }
        other => panic!("{other}"),
    }
}

fn action_of_kgateway(entry: &Value) -> Value {
    let by_header = |name: &str, key: &str| json!({ "request_headers": { "header_name": name, "descriptor_key": key } });
    match entry["type"].as_str().unwrap() {
        "Header" => {
            let name = entry["header"].as_str().unwrap();
            by_header(name, name)
        }
        "Path" => by_header(":path", "path"),
        "RemoteAddress" => json!({ "remote_address": {} }),
        "Generic" => {
            let generic = &entry["generic"];
            let value = &generic["value"];
            json!({ "generic_key": { "descriptor_key": generic["key"], "descriptor_value": value } })
        }
        other => panic!("{other}"),
    }
}

fn action_of_emissary(entry: &Value) -> Value {
    let (kind, fields) = entry.as_object().unwrap().iter().next().unwrap();
    match kind.as_str() {
        "request_headers" => json!({ "request_headers": {
            "header_name": fields["header_name"], "descriptor_key": fields["key"],
        } }),
        "remote_address" => json!({ "remote_address": {} }),
        "generic_key" => {
            let key = fields["key"].as_str().unwrap_or("generic_key");
            let value = &fields["value"];
            json!({ "generic_key": { "descriptor_key": key, "descriptor_value": value } })
        }
        other => panic!("{other}"),
    }
}
