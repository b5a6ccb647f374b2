//! `tollkeeper completions` and `tollkeeper man`: made from the flags themselves.

use std::process::ExitCode;

use clap::Command;
use clap_complete::Shell;
use clap_mangen::Man;

use super::output::{Ended, failure, say, usage};

#[derive(Debug, clap::Args)]
pub(super) struct CompletionFlags {
    /// Shell that completes the commands and flags
    #[arg(value_parser = clap::value_parser!(Shell), value_name = "SHELL", ignore_case = true)]
    shell: Shell,
}

#[derive(Debug, clap::Args)]
pub(super) struct ManFlags {
    /// Command whose page is printed, such as `serve` or `counter list`; without one, the page of the program
    command: Vec<String>,
}

pub(super) fn completions(flags: &CompletionFlags, mut program: Command) -> ExitCode {
    let mut script = Vec::new();
    clap_complete::generate(flags.shell, &mut program, "tollkeeper", &mut script);
    say(&String::from_utf8_lossy(&script), ExitCode::SUCCESS)
}

pub(super) fn man(flags: &ManFlags, program: Command) -> Ended {
    let (mut command, mut name) = (program, "tollkeeper".to_owned());
    command.build();
    for word in &flags.command {
        let Some(found) = command.find_subcommand(word) else {
            let known: Vec<&str> = command.get_subcommands().map(Command::get_name).collect();
            let known = known.join(", ");
            return Err(usage(format_args!("`{word}`: `{name}` has the commands {known}")));
        };
        name = format!("{name}-{}", found.get_name());
        command = found.clone();
    }
    let mut page = Vec::new();
    Man::new(command.name(name)).render(&mut page).map_err(failure)?;
    Ok(say(&String::from_utf8_lossy(&page), ExitCode::SUCCESS))
}
