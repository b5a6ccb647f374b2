//! The samples of pages with requests of `tollkeeper.v1`, in their order on one service. Samples after the first may omit limits.

use crate::support::prelude::*;

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
                    ("spendWithin", field) => *field = "?".into(),
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

/// Without the limits of statuses.
fn without_limits(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.remove("currentLimit");
            fields.values_mut().for_each(without_limits);
        }
        Value::Array(list) => list.iter_mut().for_each(without_limits),
        _ => {}
    }
}

#[test]
fn the_requests_of_the_pages_get_the_answers_that_they_show() {
    get_the_answers_that_it_shows("api.md", 11);
    get_the_answers_that_it_shows("gubernator.md", 1);
}

/// By the first rules of the page.
#[track_caller]
fn get_the_answers_that_it_shows(name: &str, samples_expected: usize) {
    let page = page(name);
    let service = Service::with(blocks(&page, "yaml")[0]).start();
    let mut hold = String::new();
    let samples = blocks(&page, "http");
    assert_eq!(samples.len(), samples_expected);
    for (index, sample) in samples.into_iter().enumerate() {
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
        if index > 0 && !answer.contains("currentLimit") {
            without_limits(&mut found);
        }
        assert_eq!(found, expected, "{sample}");
    }
}
