//! The conditions of the collector's filters, as far as ours have them: comparisons with `and` between them.

/// One of them.
#[derive(Debug)]
pub(super) struct Condition(Vec<[String; 3]>);

/// A span, as far as conditions look at it.
#[derive(Debug)]
pub(super) struct Seen {
    kind: &'static str,
    failed: bool,
    attributes: Vec<(&'static str, Value)>,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Value {
    Nil,
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

impl Seen {
    pub(super) fn new(kind: &'static str, failed: bool) -> Self {
        Self {
            kind,
            failed,
            attributes: Vec::new(),
        }
    }

    pub(super) fn with(mut self, name: &'static str, value: impl Into<Value>) -> Self {
        self.attributes.push((name, value.into()));
        self
    }

    pub(super) fn with_some(self, name: &'static str, value: Option<impl Into<Value>>) -> Self {
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
                let name = rest.strip_suffix("\"]").unwrap();
                let found = self.attributes.iter().find(|(other, _)| *other == name);
                found.map_or(Value::Nil, |(_, value)| value.clone())
            }
            (None, "kind") => self.kind.into(),
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

impl Condition {
    #[track_caller]
    pub(super) fn parse(text: &str) -> Self {
        let comparisons = text.split(" and ").map(|comparison| {
            let parts: Vec<_> = comparison.split(' ').map(str::to_owned).collect();
            parts.try_into().unwrap_or_else(|_| panic!("{comparison}"))
        });
        Self(comparisons.collect())
    }

    pub(super) fn holds(&self, seen: &Seen) -> bool {
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
