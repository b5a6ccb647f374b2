//! The table of values in the chart's README, made from the comments of values.yaml.

use crate::support::prelude::*;

/// The rows of the table: path, default and comment of each value that has a comment, and of those without one that are
/// not part of such a value.
fn rows() -> Vec<String> {
    let text = fs::read_to_string(root().join("helm/values.yaml")).unwrap();
    let defaults = documents(&text).remove(0);
    let mut rows = Vec::new();
    let mut path: Vec<(usize, String)> = Vec::new();
    let mut comment = String::new();
    // Values deeper than this belong to one that has a comment.
    let mut documented_at = usize::MAX;
    for line in text.lines() {
        let content = line.trim_start();
        let indent = line.len() - content.len();
        if indent > documented_at {
            continue;
        }
        documented_at = usize::MAX;
        if let Some(start) = content.strip_prefix("# -- ") {
            start.clone_into(&mut comment);
        } else if let (Some(more), false) = (content.strip_prefix("# "), comment.is_empty()) {
            comment += " ";
            comment += more;
        } else if let Some((key, _)) = content.split_once(':').filter(|_| !content.starts_with('#'))
        {
            path.retain(|(depth, _)| *depth < indent);
            path.push((indent, key.to_owned()));
            let names: Vec<&str> = path.iter().map(|(_, name)| name.as_str()).collect();
            let default = defaults.pointer(&format!("/{}", names.join("/"))).unwrap();
            let is_leaf = default.as_object().is_none_or(serde_json::Map::is_empty);
            if is_leaf || !comment.is_empty() {
                rows.push(format!("| `{}` | {} | {comment} |", names.join("."), shown(default)));
                documented_at = indent;
            }
            comment.clear();
        }
    }
    rows
}

/// A default in a cell.
fn shown(default: &Value) -> String {
    match default {
        Value::String(text) if text.is_empty() => String::new(),
        Value::String(text) => format!("`{text}`"),
        other => format!("`{other}`"),
    }
}

#[test]
fn the_table_of_the_readme_is_that_of_the_comments_in_values_yaml() {
    const HEADER: &str = "| value | default | meaning |\n| --- | --- | --- |\n";
    let file = root().join("helm/README.md");
    let readme = fs::read_to_string(&file).unwrap();
    let (before, _) = readme.split_once(HEADER).expect("the README has a table of values");
    let rows = rows();
    assert!(rows.len() > 90, "{} values found", rows.len());
    let expected = format!("{before}{HEADER}{}\n", rows.join("\n"));
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(&file, expected).unwrap();
    } else {
        assert_eq!(readme, expected, "`UPDATE_DOCS=1 cargo test --test deploy helm` rewrites it");
    }
}
