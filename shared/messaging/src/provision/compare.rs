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
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is {}, not {}", self.field, self.found, self.wanted)
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
            wanted: wanted.to_string(),
            found: found.to_string(),
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
}
