//! The keys of a file beside the flags of `fresco up` and the page that lists them.

use std::collections::BTreeSet;

use clap::{Arg, CommandFactory as _, Parser as _};

use super::*;
use crate::args::Cli;

/// What the file takes in this table, as the refusal of a key that it does not take lists them.
fn keys(table: &str) -> Vec<String> {
    let text = match table {
        "" => "unknown = 1\n".to_owned(),
        table => format!("[{table}]\nunknown = 1\n"),
    };
    let error = toml::from_str::<FleetFile>(&text).err();
    let error = error.expect("no such key").to_string();
    let (_, known) = error
        .split_once("expected ")
        .expect("the keys that there are");
    let known = known.split('`').skip(1).step_by(2);
    known.map(str::to_owned).collect()
}

/// All that the file takes.
fn all_keys() -> Vec<String> {
    let tables = [
        "broker",
        "gateway",
        "ar",
        "ar.server",
        "denoisers",
        "pin",
        "probes",
        "start",
        "stop",
    ];
    let mut taken: Vec<String> = keys("");
    for table in tables {
        let keys = keys(table).into_iter();
        taken.extend(keys.map(|key| format!("{table}.{key}")));
    }
    taken.retain(|key| !tables.contains(&key.as_str()));
    taken.sort_unstable();
    taken
}

/// Flags of `fresco up` with a value, and the key that stands for each in the file.
const BY_KEY: [(&str, &str); 20] = [
    ("--engine=native", "engine"),
    ("--model=m", "model"),
    ("--srt-url=http://h:1", "ar.srt_urls"),
    ("--times=t", "times"),
    ("--time-scale=2", "time_scale"),
    ("--faults=f", "faults"),
    ("--denoisers=2", "denoisers.devices"),
    ("--listen=127.0.0.1:0", "gateway.listen"),
    ("--nats-url=nats://h:1", "broker.urls"),
    ("--prefix=p", "prefix"),
    ("--ack-wait-s=15", "broker.ack_wait_s"),
    ("--result-ttl-s=60", "broker.result_ttl_s"),
    ("--device=cpu", "pin.device"),
    ("--dtype=f32", "pin.dtype"),
    ("--admission=batched", "ar.admission"),
    ("--ar-slots-max=8", "ar.slots_max"),
    ("--ar-delay-ms=20", "ar.delay_ms"),
    ("--no-prior-cache", "ar.no_prior_cache"),
    ("--admin-key-file=k", "admin_key_file"),
    ("--tenants=t", "gateway.tenants"),
];

/// Of the command, not of the fleet: they go with `--fleet`.
const BESIDE: [&str; 8] = [
    "--fleet",
    "--data",
    "--nats-server",
    "--url-file",
    "--bin-dir",
    "--cache",
    "--log",
    "--log-format",
];

#[test]
fn every_flag_of_a_fleet_is_a_key_of_its_file_and_goes_with_no_file() {
    let mut command = Cli::command();
    command.build();
    let up = command.find_subcommand("up").expect("there is one");
    let flags = up.get_arguments().filter_map(Arg::get_long);
    let flags = flags
        .filter(|flag| *flag != "help")
        .map(|flag| format!("--{flag}"));
    let named = BY_KEY.iter().filter_map(|(flag, _)| flag.split('=').next());
    let named = named.chain(BESIDE).map(str::to_owned);
    assert_eq!(flags.collect::<BTreeSet<_>>(), named.collect());
    let keys = all_keys();
    for (flag, key) in BY_KEY {
        assert!(keys.iter().any(|taken| taken == key), "{key}");
        let line = ["fresco", "up", "--fleet", "f", flag];
        assert!(Cli::try_parse_from(line).is_err(), "{flag} beside a file");
    }
}

#[test]
fn what_the_ar_batcher_is_told_is_in_the_file() {
    let text = RIGHT.replace(
        "devices = [0, 1]",
        "devices = [0, 1]\ndelay_ms = 35\nno_prior_cache = true",
    );
    let (told, _) = parse(&text, Path::new(""), &args()).expect("a good file");
    assert_eq!((told.ar_delay_ms, told.no_prior_cache), (Some(35), true));
    let (plain, _) = parse(RIGHT, Path::new(""), &args()).expect("a good file");
    assert_eq!((plain.ar_delay_ms, plain.no_prior_cache), (None, false));
}

#[test]
fn the_page_on_configuration_has_every_key_and_no_other() {
    let page = std::fs::read_to_string(repository().join("docs/configuration.md"));
    let page = page.expect("the page is there");
    let (_, page) = page.split_once("## The file of a fleet").expect("its part");
    let (page, _) = page.split_once("## The programs").expect("the next part");
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `"));
    let mut documented: Vec<_> = rows.filter_map(|row| row.split('`').next()).collect();
    documented.sort_unstable();
    assert_eq!(documented, all_keys());
}
