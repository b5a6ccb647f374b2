//! `tollkeeper init`: a folder to begin with, of files that the project's own tests run.

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::ExitCode,
};

use super::output::{Ended, failure, say};

/// The files, by their path in the folder.
const FILES: [(&str, &str); 5] = [
    ("rules/rules.yaml", include_str!("../../examples/rules.yaml")),
    ("rules/rules.test.yaml", include_str!("../../examples/rules.test.yaml")),
    ("compose.yaml", include_str!("../../examples/compose/compose.yaml")),
    ("envoy.yaml", include_str!("../../examples/compose/envoy.yaml")),
    (".github/workflows/rules.yaml", include_str!("../../examples/ci/rules.yaml")),
];

/// What the examples have of the repository, and what stands for it elsewhere.
const OUTSIDE: [(&str, &str); 5] = [
    ("    build: ../..\n", ""),
    (" -f examples/compose/compose.yaml", ""),
    (
        "# With `--profile monitoring` before `up`, also Prometheus with the chart's alerts at http://localhost:9090, and Grafana with\n\
         # its dashboard at http://localhost:3000.\n#\n",
        "",
    ),
    ("# examples/envoy/envoy.yaml with the host names of compose.yaml.\n", ""),
    (
        concat!(" tollkeeper:", env!("CARGO_PKG_VERSION")),
        concat!(" ghcr.io/tollkeeper/tollkeeper:", env!("CARGO_PKG_VERSION")),
    ),
];

#[derive(Debug, clap::Args)]
pub(super) struct InitFlags {
    /// Folder, which is made if it does not exist. Files that exist are never overwritten
    #[arg(value_name = "DIR")]
    folder: PathBuf,
}

pub(super) fn main(InitFlags { folder }: &InitFlags) -> Ended {
    let existing = FILES.iter().map(|(name, _)| folder.join(name)).find(|path| path.exists());
    if let Some(path) = existing {
        return Err(failure(format_args!("{}: exists; nothing was written", path.display())));
    }
    for (name, text) in FILES {
        let text = OUTSIDE.iter().fold(text.to_owned(), |text, (from, to)| text.replace(from, to));
        // The monitoring needs files of the chart.
        let text = text.split("\n  prometheus:\n").next().unwrap_or_default();
        let path = folder.join(name);
        write(&path, text).map_err(|error| failure(format_args!("{}: {error}", path.display())))?;
    }
    let names = FILES.map(|(name, _)| name).join(", ");
    let shown = folder.display();
    let next =
        format!("next: tollkeeper test {shown}/rules && tollkeeper serve --rules {shown}/rules");
    Ok(say(&format!("wrote {names} to {shown}\n{next}\n"), ExitCode::SUCCESS))
}

fn write(path: &Path, text: &str) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    io::Write::write_all(&mut fs::File::create_new(path)?, text.as_bytes())
}
