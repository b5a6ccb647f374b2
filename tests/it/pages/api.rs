//! The samples of docs/api.md, in their order on one service.

use serde_json::Value;

use crate::support::{
    pages::{blocks, page},
    service::{Options, Service},
};

/// Without what differs from one run to the next. Remembers the last token.
fn without_times(value: &mut Value, last_hold: &mut String) {
    match value {
        Value::Object(fields) => {
            for (name, field) in fields {
                match (&**name, field) {
                    ("durationUntilReset", field) => {
                        assert!(field.as_str().unwrap().ends_with('s'), "{field}");
                        *field = "?".into();
                    }
                    ("hold", field) => {
                        *last_hold = field.as_str().unwrap().to_owned();
                        *field = "?".into();
                    }
                    (_, field) => without_times(field, last_hold),
                }
            }
        }
        Value::Array(list) => list.iter_mut().for_each(|one| without_times(one, last_hold)),
        _ => {}
    }
}

#[test]
fn the_requests_of_the_page_get_the_answers_that_it_shows() {
    let page = page("api.md");
    let rules = blocks(&page, "yaml")[0].to_owned();
    let service = Service::start(Options { rules: &rules, ..Options::default() });
    let mut hold = String::new();
    let samples = blocks(&page, "http");
    assert_eq!(samples.len(), 5);
    for sample in samples {
        let (request, answer) = sample.split_once("\n\n").unwrap();
        let (head, body) = request.split_once('\n').unwrap_or((request, ""));
        let (method, path) = head.split_once(' ').unwrap();
        let body = body.replace("AQ…", &hold);
        let (status, _, found) = service.exchange(method, path, body.as_bytes());
        let (expected_status, expected) = answer.split_once('\n').unwrap();
        assert_eq!(status.to_string(), expected_status, "{sample}\n{found}");
        let [mut found, mut expected] =
            [&*found, expected].map(|json| serde_json::from_str::<Value>(json).unwrap());
        without_times(&mut expected, &mut String::new());
        without_times(&mut found, &mut hold);
        assert_eq!(found, expected, "{sample}");
    }
}
