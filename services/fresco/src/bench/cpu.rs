//! Processor time of a fleet's processes, by role, as the kernel counts it.

use std::{collections::BTreeMap, fs, path::Path, time::Duration};

/// The kernel tells clock ticks of 10 ms on every Linux (`USER_HZ`), whatever it counts with.
const TICK: Duration = Duration::from_millis(10);

/// Role → processor time since the start of its processes. The programs' names are the roles; `client` is this process.
pub(crate) type CpuTimes = BTreeMap<String, Duration>;

/// Of this process and, if it started a fleet, of `supervisor` and its children.
pub(crate) fn times(supervisor: Option<u32>) -> CpuTimes {
    let mut times = CpuTimes::new();
    let mut add = |role: &str, used: Duration| *times.entry(role.to_owned()).or_default() += used;
    if let Some(own) = process("self") {
        add("client", own.used);
    }
    let Some(supervisor) = supervisor else {
        return times;
    };
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let id = entry.file_name();
        let Some((id, process)) = id.to_str().and_then(|id| Some((id, process(id)?))) else {
            continue;
        };
        if id.parse() == Ok(supervisor) {
            add("supervisor", process.used);
        } else if process.parent == supervisor {
            add(&program(id), process.used);
        }
    }
    times
}

/// Milliseconds between `before` and `after` for each of so many requests.
pub(crate) fn ms_per_request(
    before: &CpuTimes,
    after: &CpuTimes,
    requests: usize,
) -> BTreeMap<String, f64> {
    let each = |(role, after): (&String, &Duration)| {
        let used = after.saturating_sub(before.get(role).copied().unwrap_or_default());
        (role.clone(), used.as_secs_f64() * 1_000.0 / requests as f64)
    };
    after.iter().map(each).collect()
}

struct Process {
    parent: u32,
    used: Duration,
}

/// None when it has ended.
fn process(id: &str) -> Option<Process> {
    parse(&fs::read_to_string(format!("/proc/{id}/stat")).ok()?)
}

/// `proc(5)`: the name in parentheses may hold anything; after it come the state, the parent, and as the 12th and 13th
/// the ticks in user and kernel mode.
fn parse(stat: &str) -> Option<Process> {
    let (_, fields) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = fields.split_whitespace().collect();
    let ticks = |place: usize| fields.get(place)?.parse::<u32>().ok();
    Some(Process {
        parent: fields.get(1)?.parse().ok()?,
        used: TICK * (ticks(11)? + ticks(12)?),
    })
}

/// The name of its program without ours.
fn program(id: &str) -> String {
    let line = fs::read(format!("/proc/{id}/cmdline")).unwrap_or_default();
    let first = line.split(|byte| *byte == 0).next().unwrap_or_default();
    let name = String::from_utf8_lossy(first).into_owned();
    let name = Path::new(&name).file_name();
    let name = name.unwrap_or_default().to_string_lossy();
    name.strip_prefix("fresco-").unwrap_or(&name).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_hold_anything() {
        let stat = "7 (a) b) S 3 7 7 0 -1 4194560 9 9 9 9 250 50 0 0 20 0 4 0";
        let process = parse(stat).expect("a line of the kernel");
        assert_eq!((process.parent, process.used), (3, Duration::from_secs(3)));
        assert!(parse("7 (a").is_none());
    }

    #[test]
    fn this_process_has_used_some_time() {
        let before = times(None);
        assert_eq!(before.keys().collect::<Vec<_>>(), ["client"]);
        let mut after = before.clone();
        *after.get_mut("client").expect("this process") += Duration::from_millis(300);
        assert_eq!(ms_per_request(&before, &after, 100)["client"], 3.0);
    }
}
