//! What tests take from Markdown pages and YAML files: fenced blocks, rows of tables, documents.

use super::prelude::*;

/// A page of docs/.
pub fn page(name: &str) -> String {
    fs::read_to_string(root().join("docs").join(name)).unwrap()
}

/// The fenced blocks of this language.
pub fn blocks<'page>(page: &'page str, language: &str) -> Vec<&'page str> {
    let fence = format!("```{language}\n");
    page.split(&fence).skip(1).map(|rest| rest.split("```").next().unwrap()).collect()
}

/// The documents of a YAML file, as JSON.
pub fn documents(yaml: &str) -> Vec<Value> {
    const TO_JSON: &str =
        "import json, sys, yaml; json.dump(list(yaml.safe_load_all(sys.stdin)), sys.stdout)";
    let mut python = Command::new(tool("python"))
        .args(["-c", TO_JSON])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    python.stdin.take().unwrap().write_all(yaml.as_bytes()).unwrap();
    serde_json::from_slice(&python.wait_with_output().unwrap().stdout).unwrap()
}

/// A row of the table on a gateway's page: what its user writes, and the entry that the service gets.
pub struct DescriptorRow {
    pub written: Value,
    pub key: String,
    pub value: String,
}

/// The table of descriptors on a gateway's page, for the user bob: the requests of the page are alice's.
pub fn descriptors(page: &str) -> Vec<DescriptorRow> {
    let (_, table) = page.split_once(" | entry that tollkeeper gets |\n| --- | --- |\n").unwrap();
    let mut rows = Vec::new();
    for line in table.lines().take_while(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = line.split('`').collect();
        let (key, value) = cells[3].split_once('=').unwrap();
        let written = documents(cells[1]).remove(0);
        rows.push(DescriptorRow { written, key: key.into(), value: value.replace("alice", "bob") });
    }
    assert!(rows.len() > 3, "{} rows", rows.len());
    rows
}

/// The chart's example rules, and one that allows a single hit for the entry of each row. Their windows do not end during a test.
pub fn rules_with(rows: &[DescriptorRow]) -> String {
    let rules = fs::read_to_string(root().join("helm/files/example-rules.yaml")).unwrap();
    assert_eq!(rules.matches("unit: minute").count(), 1);
    let mut rules = rules.replace("unit: minute", "unit: year");
    for DescriptorRow { key, value, .. } in rows {
        let limit = "rate_limit: { unit: year, requests_per_unit: 1 }";
        rules += &format!("  - {{ key: {key}, value: {value}, {limit} }}\n");
    }
    rules
}

/// A request to this host with the headers that all rows need. The header `x-row` selects the route of one row.
pub fn request_of_row(host: &str, row: usize) -> String {
    format!(
        "GET /cart HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\nx-row: {row}\r\nx-user: bob\r\n\
         user: bob\r\nx-plan: gold\r\nx-forwarded-for: 10.0.0.7\r\n\r\n"
    )
}

/// Runs the requests of a gateway's page, and returns the statuses that they and the page show.
pub fn requests(page: &str, gateway: &str) -> (String, String) {
    let curl = blocks(page, "sh").into_iter().find(|block| block.contains("curl ")).unwrap();
    let mut shell = Command::new("bash");
    shell.args(["-c", curl]).env("GATEWAY", gateway).env("no_proxy", "*");
    let (code, shown, error) = run(&mut shell);
    assert_eq!(code, Some(0), "{error}");
    (shown.trim_end().to_owned(), blocks(page, "text")[0].trim_end().to_owned())
}

/// The rows of the table with this header.
#[track_caller]
pub fn rows<'page>(page: &'page str, header: &str) -> Vec<&'page str> {
    let (_, table) = page.split_once(header).unwrap_or_else(|| panic!("no table `{header}`"));
    table.lines().skip(2).take_while(|line| line.starts_with('|')).collect()
}

/// The cells of a row.
pub fn cells(row: &str) -> Vec<&str> {
    row.trim_matches('|').split('|').map(str::trim).collect()
}

/// The parts of a text in backticks.
pub fn names(text: &str) -> Vec<&str> {
    text.split('`').skip(1).step_by(2).collect()
}

/// Compares the rows of a table. With `UPDATE_DOCS=1` the page is rewritten.
#[track_caller]
pub fn check_table(name: &str, header: &str, expected: &[String]) {
    let page = page(name);
    let rows = rows(&page, header);
    if std::env::var_os("UPDATE_DOCS").is_some() {
        let rule = format!(
            "\n{}\n",
            header.split('|').skip(2).map(|_| "| --- ").collect::<String>() + "|"
        );
        let (before, table) = (format!("{header}{rule}"), |rows: &[String]| rows.join("\n"));
        let old: Vec<String> = rows.iter().map(|row| (*row).to_owned()).collect();
        let page = page.replace(&(before.clone() + &table(&old)), &(before + &table(expected)));
        fs::write(root().join("docs").join(name), page).unwrap();
    } else {
        let update = "`UPDATE_DOCS=1 cargo test --test it tables` rewrites it";
        assert_eq!(rows, expected, "docs/{name}: {update}");
    }
}

/// The text without the seconds until a reset and without the windows' starts, which differ from run to
/// run.
pub fn without_times(text: &str) -> String {
    let mut lines = Vec::new();
    for line in text.lines() {
        lines.push(if let Some((before, _)) = line.split_once("resets in ") {
            format!("{before}resets in N")
        } else if let Some((before, _)) = line.split_once("}:") {
            // A counter's key ends with its window's start.
            format!("{before}}}:N")
        } else {
            line.to_owned()
        });
    }
    lines.join("\n")
}
