//! Where a result comes from, without what is nobody's business: no credentials, no folders of the machine.

use std::{fs, path::Path};

use serde::{Deserialize, Serialize};
use service::without_credentials;

const DAY_MS: u64 = 86_400_000;

/// When, where and how a run was made.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Origin {
    /// What was built, as `--commit` tells it.
    pub(crate) commit: Option<String>,
    /// Of the run's end, in UTC: year, month and day.
    pub(crate) date: String,
    pub(crate) machine: Machine,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Machine {
    pub(crate) cpu: String,
    pub(crate) cores: usize,
}

impl Origin {
    /// Of a run that ends now, on this machine.
    pub(crate) fn here(commit: Option<String>) -> Self {
        Self {
            commit,
            date: date(service::clock::unix_millis() / DAY_MS),
            machine: machine(),
        }
    }
}

/// What was typed, to show: URLs without credentials, and of files outside the current folder only the names.
pub(crate) fn command(arguments: impl Iterator<Item = String>) -> String {
    let mut line = vec!["fresco".to_owned()];
    let mut is_url = false;
    for argument in arguments {
        line.push(match argument.split_once('=') {
            Some((flag, value)) if flag.starts_with("--") => {
                format!("{flag}={}", shown(value, flag == URL_FLAG))
            }
            Some(_) | None => shown(&argument, is_url),
        });
        is_url = argument == URL_FLAG;
    }
    line.join(" ")
}

const URL_FLAG: &str = "--url";

fn shown(value: &str, is_url: bool) -> String {
    if is_url || value.contains("://") {
        return without_credentials(value);
    }
    let path = Path::new(value);
    match path.file_name() {
        Some(name) if path.is_absolute() => name.to_string_lossy().into_owned(),
        Some(_) | None => value.to_owned(),
    }
}

fn machine() -> Machine {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info
        .lines()
        .find_map(|line| line.strip_prefix("model name"));
    let model = model.and_then(|rest| Some(rest.split_once(':')?.1.trim().to_owned()));
    Machine {
        cpu: model.unwrap_or_else(|| "unknown".to_owned()),
        cores: std::thread::available_parallelism().map_or(0, std::num::NonZero::get),
    }
}

/// The date so many days after 1970-01-01. Years begin in March here, so that the leap day is their last, and come in
/// eras of 400 (Hinnant, "chrono-Compatible Low-Level Date Algorithms", `civil_from_days`).
fn date(days: u64) -> String {
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 {
        (month + 3, 0)
    } else {
        (month - 9, 1)
    };
    format!("{:04}-{month:02}-{day:02}", era * 400 + year + next)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_told_without_secrets_and_folders() {
        let typed = "bench run --times /home/me/t.json --out=/tmp/x/out --url http://me:secret@h:1 --name a=b";
        let told = command(typed.split_whitespace().map(str::to_owned));
        let expected = "fresco bench run --times t.json --out=out --url http://h:1 --name a=b";
        assert_eq!(told, expected);
        let typed = "bench run --times infra/t.json --url=me:secret@h:1";
        let told = command(typed.split_whitespace().map(str::to_owned));
        assert_eq!(told, "fresco bench run --times infra/t.json --url=h:1");
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (days, expected) in [
            (0, "1970-01-01"),
            (58, "1970-02-28"),
            (59, "1970-03-01"),
            (11_016, "2000-02-29"),
            (20_088, "2024-12-31"),
            (20_089, "2025-01-01"),
            (47_541, "2100-03-01"),
        ] {
            assert_eq!(date(days), expected, "{days}");
        }
    }
}
