//! The flags of `serve`, made from the table of settings.

use std::{ffi::OsString, path::Path};

use clap::{
    Arg, ArgAction, ArgMatches, Args, Command, Error, FromArgMatches, ValueEnum, error::ErrorKind,
    value_parser,
};

use crate::{
    settings::{self, Arity, Row, TypedFlags},
    text::printable::printable,
};

/// The flags of `serve`, as typed.
#[derive(Debug, Default)]
pub(in crate::cli) struct ServeFlags {
    pub settings: TypedFlags,
    /// Where settings and rules apply that are checked without starting the service.
    pub check: Option<CheckScope>,
}

/// Where settings and rules apply that are checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(in crate::cli) enum CheckScope {
    /// On this machine.
    Here,
    /// On another machine, which may have files that do not exist on this one.
    Elsewhere,
}

impl Args for ServeFlags {
    fn augment_args(command: Command) -> Command {
        let command = command.args(settings::table().into_iter().map(argument));
        let help = "Check all settings and rules, report every problem, and exit with 0, or with 2 if there is a problem; \
            with `=elsewhere`, files that do not exist, apart from rules, are only warnings";
        let check = Arg::new(CHECK).long(CHECK).help(help).value_parser(value_parser!(CheckScope));
        let check = check.num_args(0..=1).require_equals(true).default_missing_value("here");
        command.arg(check).arg(Arg::new(STRAY).num_args(0..).hide(true))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

/// The only flag that does not set anything.
const CHECK: &str = "check";

/// Words that belong to no flag. They are read only to refuse them with a hint.
const STRAY: &str = "stray";

fn argument(row: Row) -> Arg {
    let argument = Arg::new(row.flag)
        .long(row.flag)
        .aliases(settings::former_name(row.flag))
        .help(row.description())
        .help_heading(row.heading)
        .value_parser(value_parser!(OsString))
        // `-1` is a bad value of the setting, not an unknown flag.
        .allow_negative_numbers(true);
    let name = row.value;
    match row.arity {
        // Given twice, it is refused: the settings of one of the files would be ignored.
        Arity::Single if row.flag == settings::CONFIG => {
            argument.value_name(name).action(ArgAction::Append)
        }
        Arity::Single => argument.value_name(name),
        Arity::Repeated => argument.value_name(name).action(ArgAction::Append),
        Arity::Switch => argument
            .value_name(name)
            .num_args(0..=1)
            .require_equals(true)
            .default_missing_value("on"),
    }
}

impl FromArgMatches for ServeFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        if let Some(word) = matches.get_one::<String>(STRAY) {
            // The usage in the error is the one of this command.
            let command = Command::new("serve").bin_name("tollkeeper serve");
            let kind = ErrorKind::UnknownArgument;
            return Err(Self::augment_args(command).error(kind, refusal(word)));
        }
        let mut flags = TypedFlags::new();
        for row in settings::table() {
            if let Some(values) = matches.get_many::<OsString>(row.flag) {
                flags.insert(row.flag, values.cloned().collect());
            }
        }
        Ok(Self { settings: flags, check: matches.get_one(CHECK).copied() })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

fn refusal(word: &str) -> String {
    let shown = printable(word.as_bytes());
    let hint = match word {
        "on" | "off" | "true" | "false" => {
            format!("; a flag that needs no value takes one after `=`: --FLAG={word}")
        }
        "yes" | "no" => {
            "; a flag that needs no value takes on or off after `=`: --FLAG=on".to_owned()
        }
        "ms" | "s" | "m" | "h" | "KiB" | "MiB" => {
            format!("; write a number and its unit without a space, such as 15{word}")
        }
        _ if Path::new(word).exists() => format!("; for rules: --rules {shown}"),
        _ => String::new(),
    };
    format!("unexpected argument `{shown}`{hint}")
}
