//! A program's part of `docs/configuration.md`, made from what clap knows of its flags, so that the page says what the
//! program takes. Prometheus makes its pages of flags so too.

use std::{error::Error, ffi::OsString, fmt::Write};

use clap::{Arg, Command, Parser, error::ErrorKind};

/// Alone on a command line it makes a program print its part of the page. In no help: who writes the page needs it.
const FLAG: &str = "--print-reference";

const HEAD: &str = "| flag | environment | default | takes | means |\n|------|-------------|---------|-------|-------|\n";

/// Values that a flag with a rule refuses, and tells its rule by.
const BAD_VALUES: [&str; 4] = ["?", "-1", "0", "9223372036854775807"];

/// The command line, as [`Parser::parse`] reads it.
pub fn parse<P: Parser>() -> P {
    if std::env::args_os().skip(1).eq([OsString::from(FLAG)]) {
        let command = P::command();
        let page = reference(&command);
        // The page is another help: clap prints it and ends the process, whatever else is required.
        command.override_help(page).get_matches_from(["", "--help"]);
    }
    P::parse()
}

/// The program's section, with one below it for each subcommand.
fn reference(command: &Command) -> String {
    let mut page = String::new();
    section(command, command.get_name(), "##", &mut page);
    page
}

fn section(command: &Command, path: &str, heading: &str, page: &mut String) {
    let about = command.get_about().map(ToString::to_string);
    let about = about.unwrap_or_default();
    let flags = command.get_arguments().filter(|arg| !arg.is_hide_set());
    let rows: String = flags.map(|arg| row(command, arg)).collect();
    let table = if rows.is_empty() {
        String::new()
    } else {
        format!("\n{HEAD}{rows}")
    };
    let written = write!(page, "\n{heading} {path}\n\n{about}\n{table}");
    debug_assert!(written.is_ok(), "writing to a string cannot fail");
    let shown = command.get_subcommands().filter(|sub| !sub.is_hide_set());
    for sub in shown {
        section(sub, &format!("{path} {}", sub.get_name()), "###", page);
    }
}

fn row(command: &Command, arg: &Arg) -> String {
    let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
    let (help, default_in_words) = match help
        .strip_suffix(']')
        .and_then(|h| h.rsplit_once(" [default: "))
    {
        Some((help, default)) => (help.to_owned(), Some(default.to_owned())),
        None => (help, None),
    };
    let environment = arg.get_env().map(|name| code(&name.to_string_lossy()));
    let cells = [
        code(&name(arg)),
        environment.unwrap_or_default(),
        default(arg).or(default_in_words).unwrap_or_default(),
        takes(command, arg).unwrap_or_default(),
        help,
    ];
    let cells = cells.map(|cell| cell.replace('|', "\\|"));
    format!("| {} |\n", cells.join(" | "))
}

fn code(text: &str) -> String {
    format!("`{text}`")
}

/// `--flag VALUE`, `-f VALUE` or `VALUE`; `VALUE…` where several are taken.
fn name(arg: &Arg) -> String {
    let flag = match (arg.get_long(), arg.get_short()) {
        (Some(long), _) => Some(format!("--{long}")),
        (None, Some(short)) => Some(format!("-{short}")),
        (None, None) => None,
    };
    let value = arg.get_action().takes_values().then(|| {
        let names = arg.get_value_names().unwrap_or_default().join(" ");
        let several = arg.get_value_delimiter().is_some() && !names.ends_with('…');
        format!("{names}{}", if several { "…" } else { "" })
    });
    [flag, value]
        .into_iter()
        .flatten()
        .collect::<Vec<_>>()
        .join(" ")
}

fn default(arg: &Arg) -> Option<String> {
    if arg.is_required_set() {
        return Some("required".to_owned());
    }
    let values = arg.get_default_values().iter();
    let values: Vec<_> = values.map(|value| value.to_string_lossy()).collect();
    let shown = arg.get_action().takes_values() && !values.is_empty();
    shown.then(|| code(&values.join(",")))
}

/// The values there are, or the rule they keep.
fn takes(command: &Command, arg: &Arg) -> Option<String> {
    if !arg.get_action().takes_values() {
        return None;
    }
    let values = arg
        .get_possible_values()
        .into_iter()
        .filter(|value| !value.is_hide_set());
    let values = values.map(|value| match value.get_help() {
        Some(help) => format!("{}: {help}", code(value.get_name())),
        None => code(value.get_name()),
    });
    let values: Vec<_> = values.collect();
    if values.is_empty() {
        let refusals = BAD_VALUES
            .into_iter()
            .filter_map(|bad| refusal(command, arg, bad));
        refusals.into_iter().find_map(|refusal| rule(&refusal))
    } else {
        Some(values.join("; "))
    }
}

/// What clap says of a bad value: it shows the rule to nobody otherwise.
fn refusal(command: &Command, arg: &Arg, value: &str) -> Option<String> {
    let flag = match (arg.get_long(), arg.get_short()) {
        (Some(long), _) => format!("--{long}={value}"),
        (None, Some(short)) => format!("-{short}={value}"),
        (None, None) => value.to_owned(),
    };
    let line = match arg.is_positional() {
        true => vec!["", "--", &flag],
        false => vec!["", &flag],
    };
    let error = command.clone().try_get_matches_from(line).err()?;
    let refused = error.kind() == ErrorKind::ValueValidation;
    refused.then(|| error.source().map(ToString::to_string))?
}

/// `-1 is not in 1..=10` → `1 to 10`; `not a number above 0` → `a number above 0`.
fn rule(refusal: &str) -> Option<String> {
    // Larger ends are those of the type and not of the flag.
    const DIGITS_MAX: usize = 7;
    let behind = || Some(refusal.split_once(" not ")?.1);
    let rule = refusal.strip_prefix("not ").or_else(behind)?;
    let Some((low, high)) = rule
        .strip_prefix("in ")
        .and_then(|range| range.split_once(".."))
    else {
        return Some(rule.to_owned());
    };
    let high = high.trim_start_matches('=');
    let bounded = high.len() <= DIGITS_MAX;
    Some(if bounded {
        format!("{low} to {high}")
    } else {
        format!("{low} or more")
    })
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[derive(Debug, Clone, Copy, clap::ValueEnum)]
    enum Engine {
        /// The model
        Native,
        /// No model
        Replay,
    }

    /// Paints
    #[derive(Debug, Parser)]
    #[command(name = "paint", version)]
    struct Paint {
        /// Where; several
        #[arg(
            long = "url",
            env = "PAINT_URL",
            value_name = "URL",
            value_delimiter = ',',
            default_value = "http://a"
        )]
        urls: Vec<String>,
        /// Who
        #[arg(long, value_enum, default_value_t = Engine::Native)]
        engine: Engine,
        /// How many | which [default: the engine's]
        #[arg(short, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=9))]
        n: Option<u16>,
        /// At least one
        #[arg(long, value_name = "N", default_value_t = 7, value_parser = clap::value_parser!(u64).range(1..))]
        rows_max: u64,
        /// How long
        #[arg(long, value_name = "SECONDS", required = true, value_parser = crate::some_seconds)]
        time: std::time::Duration,
        /// Loudly
        #[arg(long)]
        loud: bool,
        /// Of keys
        #[arg(long, value_name = "FILE", value_parser = unreadable)]
        file: Option<String>,
        /// For us
        #[arg(long, hide = true)]
        secret: Option<String>,
        #[command(subcommand)]
        what: What,
    }

    fn unreadable(_: &str) -> Result<String, String> {
        Err("cannot be read".to_owned())
    }

    #[derive(Debug, clap::Subcommand)]
    enum What {
        /// Paints one
        One {
            /// Which
            id: protocol::JobId,
        },
        /// Paints none
        #[command(hide = true)]
        None,
    }

    #[test]
    fn a_page_has_each_flag_with_all_that_clap_knows_of_it() {
        let wanted = "
## paint

Paints

| flag | environment | default | takes | means |
|------|-------------|---------|-------|-------|
| `--url URL…` | `PAINT_URL` | `http://a` |  | Where; several |
| `--engine ENGINE` |  | `native` | `native`: The model; `replay`: No model | Who |
| `-n N` |  | the engine's | 1 to 9 | How many \\| which |
| `--rows-max N` |  | `7` | 1 or more | At least one |
| `--time SECONDS` |  | required | a number of seconds above 0 | How long |
| `--loud` |  |  |  | Loudly |
| `--file FILE` |  |  |  | Of keys |

### paint one

Paints one

| flag | environment | default | takes | means |
|------|-------------|---------|-------|-------|
| `ID` |  | required | 32 lowercase hexadecimal digits | Which |
";
        assert_eq!(reference(&Paint::command()), wanted);
    }
}
