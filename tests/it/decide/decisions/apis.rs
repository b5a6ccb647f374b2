//! The calls of the tables by other APIs than Envoy's.

use tollkeeper_proto::v1::{Call, DecideRequest, tollkeeper_client::TollkeeperClient};

use crate::support::prelude::*;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Api {
    Envoy,
    Json,
    /// `tollkeeper.v1`.
    V1,
    /// `/check`.
    Check,
}

/// The most hits that our own APIs take.
const HITS_MAX: u64 = (1 << 53) - 1;

impl Api {
    /// Whether a call with these descriptors can be made by it.
    pub fn can_send(self, descriptors: &[RateLimitDescriptor]) -> bool {
        let mut entries = descriptors.iter().flat_map(|one| &one.entries);
        let has_hits =
            |one: &RateLimitDescriptor| one.hits_addend.is_none_or(|hits| hits <= HITS_MAX);
        match self {
            Self::Envoy => true,
            Self::Json => entries
                .all(|one| str::from_utf8(&one.key).is_ok() && str::from_utf8(&one.value).is_ok()),
            Self::V1 => descriptors.iter().all(has_hits),
            // It has one number of hits for all, and at most as much as a line of a request.
            Self::Check => {
                entries.all(|one| one.value.len() < 1000)
                    && descriptors.iter().all(|one| {
                        let is_plain =
                            one.limit.is_none() && !one.is_negative_hits && !one.entries.is_empty();
                        is_plain && has_hits(one) && one.hits_addend == descriptors[0].hits_addend
                    })
            }
        }
    }

    /// The code of the answer to a call.
    pub async fn code(self, service: &Service, call: &RateLimitRequest) -> String {
        let code = match self {
            Self::Envoy => service.ask(call.clone()).await.unwrap().overall_code(),
            Self::Json => {
                let (status, _, body) =
                    service.exchange("POST", "/json", json(call).to_string().as_bytes());
                let body: Value = serde_json::from_str(&body).unwrap();
                let code = Code::from_str_name(body["overallCode"].as_str().unwrap()).unwrap();
                assert_eq!(status, if code == Code::Ok { 200 } else { 429 });
                code
            }
            Self::V1 => {
                let hits = (call.hits_addend > 0).then_some(call.hits_addend.into());
                let descriptors = call.descriptors.clone();
                let calls = vec![Call { descriptors, hits, ..Call::default() }];
                let request = DecideRequest { domain: call.domain.clone(), calls };
                let mut client = TollkeeperClient::new(service.channel().await);
                let verdict = client.decide(request).await.unwrap().into_inner().verdicts.remove(0);
                assert_eq!(verdict.error, None, "{call:?}");
                return verdict.code().as_str_name().to_owned();
            }
            Self::Check => match service.exchange("POST", &query(call), b"").0 {
                200 => Code::Ok,
                429 => Code::OverLimit,
                other => panic!("{other}: {call:?}"),
            },
        };
        code.as_str_name().to_owned()
    }
}

fn json(call: &RateLimitRequest) -> Value {
    let text = |bytes: &[u8]| str::from_utf8(bytes).unwrap().to_owned();
    let descriptors = call.descriptors.iter().map(|one| {
        let entries = one.entries.iter();
        let entries = entries.map(|one| json!({ "key": text(&one.key), "value": text(&one.value) }));
        let limit = one.limit.as_ref().map(|limit| {
            let (requests, multiplier) = (limit.requests_per_unit, limit.unit_multiplier);
            json!({ "requestsPerUnit": requests, "unit": limit.unit, "unitMultiplier": multiplier })
        });
        let hits = one.hits_addend.map(|hits| hits.to_string());
        json!({ "entries": entries.collect::<Value>(), "limit": limit, "hitsAddend": hits, "isNegativeHits": one.is_negative_hits })
    });
    json!({ "domain": call.domain, "hitsAddend": call.hits_addend, "descriptors": descriptors.collect::<Value>() })
}

/// The path and query of a `/check`.
fn query(call: &RateLimitRequest) -> String {
    let escaped =
        |bytes: &[u8]| bytes.iter().map(|byte| format!("%5Cx{byte:02x}")).collect::<String>();
    let mut query = format!("/check?domain={}", call.domain);
    for one in &call.descriptors {
        let entries =
            one.entries.iter().map(|one| format!("{}={}", escaped(&one.key), escaped(&one.value)));
        query += &format!("&d={}", entries.collect::<Vec<_>>().join(","));
    }
    let hits = call.descriptors[0]
        .hits_addend
        .or((call.hits_addend > 0).then_some(call.hits_addend.into()));
    hits.map_or(query.clone(), |hits| format!("{query}&hits={hits}"))
}
