//! What tests take from Markdown pages and YAML files: fenced blocks, rows of tables, documents.

use std::{
    fs,
    io::Write as _,
    process::{Command, Stdio},
};

use serde_json::Value;

use super::{root, run, tool};

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
