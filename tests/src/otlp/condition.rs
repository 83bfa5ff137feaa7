//! The conditions of the collector's filters, as far as ours have them: comparisons with `and` between them.

use std::fs;

use opentelemetry_proto::tonic::common::v1::any_value;
use serde_yaml_ng::Value as Yaml;

use super::Captured;
use crate::dashboards::folder;

/// A filter of the collector's: what one of its conditions holds of is left out.
#[derive(Debug)]
pub struct Filter(Vec<Condition>);

#[derive(Debug)]
struct Condition(Vec<[String; 3]>);

/// A span, as far as conditions look at it.
#[derive(Debug)]
pub struct Seen {
    kind: String,
    name: String,
    failed: bool,
    attributes: Vec<(String, Value)>,
}

/// A value of an attribute, or of a literal.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// There is none.
    Nil,
    /// A whole one.
    Number(i64),
    /// Or the name of a value.
    Text(String),
}

impl From<i64> for Value {
    fn from(number: i64) -> Self {
        Self::Number(number)
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<&Captured> for Seen {
    fn from(captured: &Captured) -> Self {
        let seen = Self::new(captured.kind().as_str_name(), captured.failed());
        let attributes = captured.span.attributes.iter().filter_map(|attribute| {
            let value = match attribute.value.as_ref()?.value.as_ref()? {
                any_value::Value::StringValue(text) => text.as_str().into(),
                any_value::Value::IntValue(number) => Value::Number(*number),
                // No condition of ours asks for another.
                _ => return None,
            };
            Some((attribute.key.clone(), value))
        });
        Self {
            name: captured.name().to_owned(),
            attributes: attributes.collect(),
            ..seen
        }
    }
}

impl Seen {
    /// A span of this kind, as the collector calls it, without a name.
    pub fn new(kind: &str, failed: bool) -> Self {
        Self {
            kind: kind.to_owned(),
            name: String::new(),
            failed,
            attributes: Vec::new(),
        }
    }

    /// The same with this name.
    #[must_use]
    pub fn named(self, name: &str) -> Self {
        let name = name.to_owned();
        Self { name, ..self }
    }

    /// The same with this attribute.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.attributes.push((name.to_owned(), value.into()));
        self
    }

    /// The same with this attribute, where there is one.
    #[must_use]
    pub fn with_some(self, name: &str, value: Option<impl Into<Value>>) -> Self {
        match value {
            Some(value) => self.with(name, value),
            None => self,
        }
    }

    /// What `operand` stands for.
    fn value(&self, operand: &str) -> Value {
        let attribute = operand.strip_prefix("attributes[\"");
        match (attribute, operand) {
            (Some(rest), _) => {
                let name = rest.strip_suffix("\"]").expect("a closed bracket");
                let found = self.attributes.iter().find(|(other, _)| other == name);
                found.map_or(Value::Nil, |(_, value)| value.clone())
            }
            (None, "kind") => self.kind.as_str().into(),
            (None, "name") => self.name.as_str().into(),
            (None, "status.code") if self.failed => "STATUS_CODE_ERROR".into(),
            (None, "status.code") => "STATUS_CODE_UNSET".into(),
            (None, "nil") => Value::Nil,
            (None, literal) => match literal.parse() {
                Ok(number) => Value::Number(number),
                Err(_) => literal.trim_matches('"').into(),
            },
        }
    }
}

impl Filter {
    /// The one of this name in `observability/otel-collector/collector.yml`.
    pub fn shipped(name: &str) -> Self {
        let text = fs::read_to_string(folder().join("otel-collector/collector.yml"));
        let whole: Yaml = serde_yaml_ng::from_str(&text.expect("readable")).expect("YAML");
        let conditions = &whole["processors"][name]["traces"]["span"];
        let conditions = conditions.as_sequence().expect("a list").iter();
        let text = |condition: &Yaml| Condition::parse(condition.as_str().expect("a text"));
        Self(conditions.map(text).collect())
    }

    /// Whether it lets the span go no further.
    pub fn leaves_out(&self, seen: &Seen) -> bool {
        self.0.iter().any(|condition| condition.holds(seen))
    }
}

impl Condition {
    #[track_caller]
    fn parse(text: &str) -> Self {
        let comparisons = text.split(" and ").map(|comparison| {
            // The last one may be a name with a space in it.
            let parts: Vec<_> = comparison.splitn(3, ' ').map(str::to_owned).collect();
            parts.try_into().unwrap_or_else(|_| panic!("{comparison}"))
        });
        Self(comparisons.collect())
    }

    fn holds(&self, seen: &Seen) -> bool {
        self.0.iter().all(|[left, operator, right]| {
            let (left, right) = (seen.value(left), seen.value(right));
            match (&**operator, &left, &right) {
                ("==", ..) => left == right,
                ("!=", ..) => left != right,
                // What is missing is not compared.
                (">=", Value::Number(left), Value::Number(right)) => left >= right,
                ("<", Value::Number(left), Value::Number(right)) => left < right,
                (">=" | "<", ..) => false,
                (other, ..) => panic!("{other}"),
            }
        })
    }
}
