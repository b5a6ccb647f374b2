//! The keys as tables of aligned columns.

use crate::top_keys::{TopKey, TopReport};

/// Said below keys that are not descriptors.
const DIGESTS: &str = "
Keys without `=` are digests. Commands take them in place of descriptors; `tollkeeper counter list` and the setting --top-keys values show values.
";

/// Starts the line of a key that is over its limit, and of one that is near it.
pub(super) const OVER: char = '!';
pub(super) const NEAR: char = '~';

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TextWidth {
    Whole,
    /// They are cut, so that a line fits on most screens.
    Cut,
}

impl TextWidth {
    fn fit(self, text: &str, longest: usize) -> String {
        if self == Self::Whole || text.chars().count() <= longest {
            return text.to_owned();
        }
        let start: String = text.chars().take(longest.saturating_sub(1)).collect();
        format!("{start}…")
    }
}

/// The first `rows` keys of each list.
pub(super) fn describe(
    report: &TopReport,
    replicas: usize,
    rows: usize,
    width: TextWidth,
) -> String {
    let whose =
        if replicas == 1 { "this replica".to_owned() } else { format!("{replicas} replicas") };
    let mut text = format!("decisions of {whose} in the last {:.0} s\n", report.seconds.max(1.0));
    for (title, empty, keys) in [
        ("hottest keys", "no decisions yet", &report.hottest),
        ("most denied keys", "no key was denied", &report.denied),
        ("keys nearest to their limit", "no key is near its limit", &report.nearest),
        ("keys most often over a shadow limit", "", &report.shadow),
        ("keys most often denied by the candidate alone", "", &report.newly_denied),
        ("keys most often admitted by the candidate alone", "", &report.newly_admitted),
    ] {
        if keys.is_empty() && empty.is_empty() {
            continue;
        }
        text += &format!("\n{title}\n");
        match keys.as_slice() {
            [] => text += &format!("  {empty}\n"),
            keys => push_table(&mut text, report.seconds, keys.iter().take(rows), width),
        }
    }
    if report.hottest.iter().any(|key| !key.key.contains('=')) {
        text += DIGESTS;
    }
    text
}

fn push_table<'report>(
    text: &mut String,
    seconds: f64,
    keys: impl Iterator<Item = &'report TopKey>,
    width: TextWidth,
) {
    let head = ["per s", "count", "remaining", "held", "limit", "domain", "rule", "key"];
    let (mut rows, mut marks) = (vec![head.map(str::to_owned)], vec![' ']);
    for key in keys {
        rows.push(cells(key, seconds, width));
        marks.push(if width == TextWidth::Cut { mark(key) } else { ' ' });
    }
    if rows.iter().skip(1).all(|[_, _, _, held, ..]| held.is_empty()) {
        rows.iter_mut().for_each(|[_, _, _, held, ..]| held.clear());
    }
    let widths: [usize; 8] = std::array::from_fn(|column| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    });
    for (row, mark) in rows.iter().zip(marks) {
        let mut line = String::new();
        for (column, (cell, width)) in row.iter().zip(widths).enumerate() {
            line += &match column {
                // No limit of the list holds hits.
                3 if width == 0 => String::new(),
                0 => format!("{mark} {cell:>width$}"),
                1..=3 => format!("  {cell:>width$}"),
                _ => format!("  {cell:<width$}"),
            };
        }
        *text += line.trim_end();
        text.push('\n');
    }
}

/// The mark of a key on a screen: [`OVER`] without remaining hits, [`NEAR`] with a fifth of them at most.
fn mark(key: &TopKey) -> char {
    match key.remaining {
        0 => OVER,
        remaining if remaining <= key.capacity / 5 => NEAR,
        _ => ' ',
    }
}

fn cells(key: &TopKey, seconds: f64, width: TextWidth) -> [String; 8] {
    #[expect(clippy::cast_precision_loss, reason = "two digits are shown")]
    let per_second = key.count as f64 / seconds.max(1.0);
    let count = match key.error {
        0 => key.count.to_string(),
        error => format!("{}-{}", key.count.saturating_sub(error), key.count),
    };
    let [domain, rule, shown] = [(&key.domain, 16), (&key.rule, 24), (&key.key, 40)]
        .map(|(text, longest)| width.fit(text, longest));
    [
        format!("{per_second:.1}"),
        count,
        match key.credit {
            None | Some(0) => key.remaining.to_string(),
            Some(credit) => format!("{} ({credit} credit)", key.remaining),
        },
        key.held.map(|held| held.to_string()).unwrap_or_default(),
        match &key.directive {
            Some(directive) => format!("{} (override: {directive})", key.limit),
            None => key.limit.clone(),
        },
        domain,
        rule,
        shown,
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(domain: &str, count: u64, error: u64, remaining: u64) -> TopKey {
        TopKey {
            hits: 0,
            domain: domain.into(),
            rule: "path=/login|user".into(),
            key: "00f3a1b2c4d5e6f7".into(),
            count,
            error,
            remaining,
            held: None,
            credit: None,
            capacity: 100,
            limit: "100 per minute".into(),
            algorithm: "fixed_window".into(),
            directive: None,
            counter: None,
        }
    }

    #[test]
    fn numbers_are_aligned_to_the_right_and_texts_to_the_left() {
        let hottest = vec![key("shop", 12_000, 5, 7), key("a-long-domain", 30, 0, 100)];
        let report = TopReport { seconds: 40.0, hottest, ..TopReport::default() };
        let expected = "\
decisions of this replica in the last 40 s

hottest keys
  per s        count  remaining  limit           domain         rule              key
  300.0  11995-12000          7  100 per minute  shop           path=/login|user  00f3a1b2c4d5e6f7
    0.8           30        100  100 per minute  a-long-domain  path=/login|user  00f3a1b2c4d5e6f7

most denied keys
  no key was denied

keys nearest to their limit
  no key is near its limit
";
        assert_eq!(describe(&report, 1, 5, TextWidth::Whole), expected.to_owned() + DIGESTS);
        assert_eq!(describe(&report, 1, 1, TextWidth::Whole).matches("00f3").count(), 1);
    }

    #[test]
    fn held_hits_have_a_column_where_a_limit_holds() {
        let held = TopKey { held: Some(20), ..key("shop", 30, 0, 7) };
        let hottest = vec![held, key("shop", 30, 0, 100)];
        let report = TopReport { seconds: 40.0, hottest, ..TopReport::default() };
        let text = describe(&report, 1, 5, TextWidth::Whole);
        let columns: Vec<_> = text.lines().skip(3).take(3).map(|line| &line[14..45]).collect();
        let expected = [
            "  remaining  held  limit         ",
            "          7    20  100 per minute",
            "        100        100 per minute",
        ];
        assert_eq!(columns, expected.map(|line| &line[..31]));
    }

    #[test]
    fn credit_is_shown_as_a_part_of_what_remains() {
        let hottest = vec![TopKey { credit: Some(3), ..key("shop", 30, 0, 7) }];
        let report = TopReport { seconds: 40.0, hottest, ..TopReport::default() };
        let text = describe(&report, 2, 5, TextWidth::Whole);
        assert!(text.contains("     30  7 (3 credit)  100 per minute"), "{text}");
    }

    #[test]
    fn on_a_screen_long_texts_are_cut_and_keys_over_or_near_their_limit_are_marked() {
        let hottest = [0, 20, 21].map(|remaining| key("a-very-long-domain", 1, 0, remaining));
        let hottest = hottest.to_vec();
        let report = TopReport { seconds: 40.0, hottest, ..TopReport::default() };
        let text = describe(&report, 1, 5, TextWidth::Cut);
        assert!(text.contains("  a-very-long-dom…  path"), "{text}");
        let starts: Vec<_> = text.lines().skip(4).take(3).map(|line| &line[..4]).collect();
        assert_eq!(starts, ["!   ", "~   ", "    "]);
        assert!(!describe(&report, 1, 5, TextWidth::Whole).contains(['!', '~']));
    }
}
