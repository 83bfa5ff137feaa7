//! What of a configuration is not as the topology says. Pure.

use std::fmt;

use serde::Serialize;
use serde_json::{Map, Value};

use super::room::Copies;

/// One setting that is not as the topology says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// The server's name of it.
    pub field: String,
    /// What the topology says; `null` for the server's default.
    pub wanted: String,
    /// What the server has.
    pub found: String,
    /// What sets it, where people do.
    pub knob: Option<Knob>,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is {}, not {}", self.field, self.found, self.wanted)?;
        match self.knob {
            None => Ok(()),
            Some(knob) => write!(f, " ({}, or {} of a fleet file)", knob.flag(), knob.key()),
        }
    }
}

/// What people say of the streams when they are made, and what follows from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Knob {
    /// The ack deadline.
    AckWait,
    /// How long results are kept, and with them keys and priors.
    ResultTtl,
    /// Servers that keep a copy.
    Replicas,
}

impl Knob {
    /// The flag of it.
    pub const fn flag(self) -> &'static str {
        match self {
            Self::AckWait => "--ack-wait-s",
            Self::ResultTtl => "--result-ttl-s",
            Self::Replicas => "--replicas",
        }
    }

    /// Where it stands in a fleet file.
    pub const fn key(self) -> &'static str {
        match self {
            Self::AckWait => "broker.ack_wait_s",
            Self::ResultTtl => "broker.result_ttl_s",
            Self::Replicas => "broker.replicas",
        }
    }

    /// Of a setting that is set alike wherever it stands: no age, for only what is kept as results is has one that people choose.
    fn of(field: &str) -> Option<Self> {
        match field {
            "ack_wait" => Some(Self::AckWait),
            "num_replicas" => Some(Self::Replicas),
            _ => None,
        }
    }
}

/// The settings of ours that the server tells in nanoseconds.
const DURATIONS: [&str; 4] = [
    "ack_wait",
    "duplicate_window",
    "max_age",
    "subject_delete_marker_ttl",
];

/// A value as people read it.
fn shown(field: &str, value: &Value) -> String {
    match value.as_u64() {
        Some(nanos) if DURATIONS.contains(&field) => duration(nanos),
        _ => value.to_string(),
    }
}

/// In the largest unit in which it is a whole number.
fn duration(nanos: u64) -> String {
    const UNITS: [(u64, &str); 4] = [
        (3_600_000_000_000, "h"),
        (60_000_000_000, "min"),
        (1_000_000_000, "s"),
        (1_000_000, "ms"),
    ];
    let fits = |(unit, _): &&(u64, &str)| nanos.is_multiple_of(*unit);
    match UNITS.iter().find(fits) {
        _ if nanos == 0 => "0 s".to_owned(),
        Some((unit, name)) => format!("{} {name}", nanos / unit),
        None => format!("{nanos} ns"),
    }
}

/// Settings that do not belong to the topology: the server's own notes, and what an operator chooses per site.
const STREAM_FIELDS_FREE: [&str; 8] = [
    "metadata",
    // The list of workers had it once, and the server takes it from no stream. Nothing of ours asks for it.
    "allow_msg_ttl",
    "num_replicas",
    // Follows from the number of replicas.
    "persist_mode",
    "placement",
    "compression",
    "consumer_limits",
    "description",
];
pub(crate) const CONSUMER_FIELDS_FREE: [&str; 4] =
    ["metadata", "num_replicas", "description", "name"];

/// What nobody said about a stream's copies is no difference.
pub(crate) fn stream_fields_free(copies: Copies) -> Vec<&'static str> {
    let mut free = STREAM_FIELDS_FREE.to_vec();
    if copies == Copies::Said {
        free.retain(|field| *field != "num_replicas");
    }
    free
}

pub(crate) fn differences_of(
    wanted: &impl Serialize,
    found: &impl Serialize,
    free: &[&str],
) -> Vec<Difference> {
    differences(&fields(wanted), &fields(found), free)
}

pub(super) fn json(config: &impl Serialize) -> Value {
    serde_json::to_value(config).expect("a configuration is a JSON object")
}

fn fields(config: &impl Serialize) -> Map<String, Value> {
    match json(config) {
        Value::Object(fields) => fields,
        _ => unreachable!("a configuration is a JSON object"),
    }
}

/// A field that is absent on one side has its default there, which JSON writes as null, false, 0, "" or not at all.
fn differences(
    wanted: &Map<String, Value>,
    found: &Map<String, Value>,
    free: &[&str],
) -> Vec<Difference> {
    let names = wanted
        .keys()
        .chain(found.keys().filter(|name| !wanted.contains_key(*name)));
    let value = |side: &Map<String, Value>, name: &str| side.get(name).cloned().unwrap_or_default();
    names
        .filter(|name| !free.contains(&name.as_str()))
        .map(|name| (name, value(wanted, name), value(found, name)))
        .filter(|(_, wanted, found)| wanted != found && !(is_default(wanted) && is_default(found)))
        .map(|(name, wanted, found)| Difference {
            field: name.clone(),
            wanted: shown(name, &wanted),
            found: shown(name, &found),
            knob: Knob::of(name),
        })
        .collect()
}

fn is_default(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(value) => !value,
        // The server writes "no limit" as -1 where 0 was asked for.
        Value::Number(value) => matches!(value.as_i64(), Some(0 | -1)),
        Value::String(value) => value.is_empty(),
        Value::Array(value) => value.is_empty(),
        Value::Object(value) => value.is_empty(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(value: &Value) -> Map<String, Value> {
        fields(value)
    }

    #[test]
    fn only_settings_of_the_topology_are_compared() {
        let table = [
            (json!({"max_msgs": 5}), json!({"max_msgs": 5}), vec![]),
            (
                json!({"max_msgs": 5}),
                json!({"max_msgs": 6}),
                vec!["max_msgs"],
            ),
            (json!({"max_msgs": 5}), json!({}), vec!["max_msgs"]),
            (json!({}), json!({"sealed": true}), vec!["sealed"]),
            (
                json!({"max_consumers": 0}),
                json!({"max_consumers": -1, "sealed": false}),
                vec![],
            ),
            (
                json!({}),
                json!({"metadata": {"_nats.ver": "2.15.1"}, "num_replicas": 3}),
                vec![],
            ),
        ];
        for (wanted, found, expected) in table {
            let differences = differences(&object(&wanted), &object(&found), &STREAM_FIELDS_FREE);
            let fields: Vec<&str> = differences
                .iter()
                .map(|difference| difference.field.as_str())
                .collect();
            assert_eq!(fields, expected);
        }
    }

    #[test]
    fn a_duration_is_told_in_a_unit_that_people_read_and_with_what_sets_it() {
        let found = json!({"ack_wait": 15_000_000_000_u64, "max_age": 14_400_000_000_000_u64});
        let wanted = json!({"ack_wait": 1_500_000_000, "max_age": 90_000_000_000_u64});
        let told = differences(&object(&wanted), &object(&found), &[]);
        let told: Vec<_> = told.iter().map(Difference::to_string).collect();
        let expected = [
            "ack_wait is 15 s, not 1500 ms (--ack-wait-s, or broker.ack_wait_s of a fleet file)",
            "max_age is 4 h, not 90 s",
        ];
        assert_eq!(told, expected);
        for (nanos, text) in [
            (0, "0 s"),
            (7, "7 ns"),
            (120_000_000_000, "2 min"),
            (604_800_000_000_000, "168 h"),
        ] {
            assert_eq!(duration(nanos), text);
        }
    }

    #[test]
    fn every_duration_that_we_set_is_one_of_those_told_as_such() {
        let topology = protocol::topology::Topology::new(&"t".parse().expect("allowed"));
        let streams = topology
            .streams()
            .into_iter()
            .map(crate::provision::stream_config);
        let buckets = topology
            .buckets()
            .into_iter()
            .map(crate::provision::bucket_config);
        let consumers = topology.consumers().into_iter();
        let consumers = consumers.map(crate::provision::consumer_config);
        let all = streams.chain(buckets).map(|config| fields(&config));
        // No count or size of ours is as large, and none of our times as short.
        let is_time = |value: &Value| value.as_u64().is_some_and(|n| n >= 1_000_000_000);
        for (name, value) in all.chain(consumers.map(|config| fields(&config))).flatten() {
            let is_size = name.starts_with("max_bytes") || name.starts_with("max_msg");
            let told = DURATIONS.contains(&name.as_str());
            assert!(!is_time(&value) || is_size || told, "{name}: {value}");
        }
    }
}
