//! Overrides, by the admin address.

use super::prelude::*;

/// Sets an override for `descriptor` in the domain `shop`; `action` has one of `limit`, `times` and `action`.
#[track_caller]
pub fn set(service: &Service, descriptor: &str, action: Value) -> Value {
    set_for(service, descriptor, action, "10m")
}

#[track_caller]
pub fn set_for(service: &Service, descriptor: &str, action: Value, lasts: &str) -> Value {
    let (status, mut answer) = try_set(service, descriptor, action, lasts);
    assert_eq!(status, 200, "{answer}");
    answer["override"].take()
}

pub fn try_set(service: &Service, descriptor: &str, action: Value, lasts: &str) -> (u16, Value) {
    try_set_in(service, "shop", descriptor, action, lasts)
}

pub fn try_set_in(
    service: &Service,
    domain: &str,
    descriptor: &str,
    action: Value,
    lasts: &str,
) -> (u16, Value) {
    let mut body = json!({
        "domain": domain, "descriptor": descriptor, "for": lasts, "because": "INC-42",
    });
    body.as_object_mut().unwrap().extend(action.as_object().unwrap().clone());
    send(service, "POST", "/overrides", &body.to_string())
}

pub fn send(service: &Service, method: &str, path: &str, body: &str) -> (u16, Value) {
    let (status, _, body) = service.exchange_at(service.admin, method, path, body.as_bytes());
    (status, serde_json::from_str(&body).unwrap_or_else(|error| panic!("{error}: {body}")))
}

/// The answer of `GET /overrides` with this query.
#[track_caller]
pub fn list(service: &Service, query: &str) -> Value {
    let (status, answer) = send(service, "GET", &format!("/overrides{query}"), "");
    assert_eq!(status, 200, "{answer}");
    answer
}

#[track_caller]
pub fn end(service: &Service, set: &Value) {
    let (status, answer) =
        send(service, "DELETE", &format!("/overrides/{}", set["id"].as_str().unwrap()), "");
    assert_eq!(status, 200, "{answer}");
}
