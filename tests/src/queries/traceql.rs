//! An evaluator of TraceQL over captured spans, for what our dashboards and pages ask. What it does not know it says;
//! no Tempo runs here, so that its meaning is that of Tempo's documentation.

use std::collections::{BTreeMap, BTreeSet};

use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value};

use super::grammar::{Node, NotUnderstood, anchored};
use crate::otlp::{Captured, Tree, value};

/// The spans of a trace that a search found.
#[derive(Debug)]
pub struct Found {
    /// The trace's id in hexadecimal digits.
    pub trace: String,
    /// In the order of their starts.
    pub spans: Vec<Captured>,
    /// The attributes that the search selected, in its order, with the values that its spans have.
    pub selected: Vec<(String, BTreeSet<String>)>,
}

/// The durations of the spans of each group of a metrics query, and the quantiles that it asks for.
#[derive(Debug, Default)]
pub struct Group {
    /// Spans in it.
    pub count: usize,
    /// In the order in which they are asked for. Tempo estimates them from buckets; these are exact.
    pub quantiles: Vec<f64>,
}

type Result<T> = std::result::Result<T, NotUnderstood>;

/// What a search finds, by trace.
pub fn search(query: &Node, captured: &[Captured]) -> Result<Vec<Found>> {
    let (filter, last) = pipeline(query)?;
    let selected = match last {
        Some(stage) => select_arguments(stage)?,
        None => Vec::new(),
    };
    let mut all = Vec::new();
    for (trace, tree) in Tree::all(captured) {
        let spans = spans_of(filter, &tree)?;
        if spans.is_empty() {
            continue;
        }
        let spans: Vec<_> = spans.into_iter().map(|at| tree.spans[at].clone()).collect();
        let mut values = Vec::new();
        for field in &selected {
            let shown = spans.iter().map(|span| field_of(field, span));
            let shown: Result<Vec<_>> = shown.collect();
            let shown = shown?.into_iter().filter_map(|value| value.shown());
            values.push((field.text.clone(), shown.collect()));
        }
        all.push(Found {
            trace,
            spans,
            selected: values,
        });
    }
    Ok(all)
}

/// What a metrics query finds over all the time there is: the values that it groups by → the spans there.
pub fn metrics(query: &Node, captured: &[Captured]) -> Result<BTreeMap<Vec<String>, Group>> {
    let (filter, last) = pipeline(query)?;
    let stage = last.ok_or_else(|| NotUnderstood::of(query))?;
    let operation = below(stage, &["SpansetPipeline", "MetricsOperation"])?;
    let operation = only(operation)?;
    let quantiles = match operation.name.as_str() {
        "MetricsOperationQuantile" => quantiles(&operation.children[0])?,
        "MetricsOperationBasic" => match operation.children[0].text.as_str() {
            "rate" | "count_over_time" => Vec::new(),
            _ => return Err(NotUnderstood::of(operation)),
        },
        _ => return Err(NotUnderstood::of(operation)),
    };
    let by = match &operation.children[1..] {
        [] => Vec::new(),
        [group] if group.name == "GroupOperation" => group.children.iter().collect(),
        _ => return Err(NotUnderstood::of(operation)),
    };
    let mut durations: BTreeMap<Vec<String>, Vec<f64>> = BTreeMap::new();
    for (_, tree) in Tree::all(captured) {
        for at in spans_of(filter, &tree)? {
            let span = &tree.spans[at];
            let values: Result<Vec<_>> = by.iter().map(|field| field_of(field, span)).collect();
            let values = values?.into_iter();
            // A span that lacks what is grouped by is in a group of its own.
            let key = values.map(|value| value.shown().unwrap_or_else(|| "nil".to_owned()));
            durations
                .entry(key.collect())
                .or_default()
                .push(span.seconds());
        }
    }
    let group = |mut seconds: Vec<f64>| {
        seconds.sort_by(f64::total_cmp);
        Group {
            count: seconds.len(),
            quantiles: quantiles.iter().map(|q| nearest(&seconds, *q)).collect(),
        }
    };
    let groups = durations.into_iter();
    Ok(groups.map(|(key, seconds)| (key, group(seconds))).collect())
}

/// What filters, and the stage behind the last `|`.
fn pipeline(query: &Node) -> Result<(&Node, Option<&Node>)> {
    let whole = below(query, &["SpansetPipelineExpression"])?;
    match &whole.children[..] {
        [filter, pipe, stage] if pipe.name == "Pipe" => Ok((filter, Some(stage))),
        _ => Ok((whole, None)),
    }
}

/// Down a chain of only children of these names.
fn below<'a>(node: &'a Node, names: &[&str]) -> Result<&'a Node> {
    names.iter().try_fold(node, |node, name| {
        let child = only(node)?;
        (child.name == *name)
            .then_some(child)
            .ok_or_else(|| NotUnderstood::of(child))
    })
}

fn only(node: &Node) -> Result<&Node> {
    match &node.children[..] {
        [child] => Ok(child),
        _ => Err(NotUnderstood::of(node)),
    }
}

fn select_arguments(stage: &Node) -> Result<Vec<&Node>> {
    let arguments = below(stage, &["SpansetPipeline", "SelectOperation"])?;
    let mut fields = Vec::new();
    let mut open = vec![only(arguments)?];
    while let Some(node) = open.pop() {
        match node.name.as_str() {
            "SelectArgs" => open.extend(node.children.iter().rev()),
            "FieldExpression" => fields.push(node),
            _ => return Err(NotUnderstood::of(node)),
        }
    }
    Ok(fields)
}

fn quantiles(arguments: &Node) -> Result<Vec<f64>> {
    let [what, numbers @ ..] = &arguments.children[..] else {
        return Err(NotUnderstood::of(arguments));
    };
    if what.text != "duration" {
        return Err(NotUnderstood::of(what));
    }
    let number = |node: &Node| node.text.parse().map_err(|_| NotUnderstood::of(node));
    numbers.iter().map(number).collect()
}

/// By the nearest rank.
fn nearest(sorted: &[f64], quantile: f64) -> f64 {
    let rank = (quantile * sorted.len() as f64).ceil();
    let at = (1..=sorted.len()).take_while(|at| *at as f64 <= rank);
    sorted[at.last().unwrap_or(1) - 1]
}

/// Which spans of a trace match, by their places in the tree.
fn spans_of(node: &Node, tree: &Tree) -> Result<Vec<usize>> {
    match (node.name.as_str(), &node.children[..]) {
        ("SpansetPipelineExpression" | "SpansetPipeline" | "WrappedSpansetPipeline", [inner]) => {
            spans_of(inner, tree)
        }
        ("SpansetPipelineExpression", [left, operator, right]) => {
            let (left, right) = (spans_of(left, tree)?, spans_of(right, tree)?);
            combined(operator, &left, right, tree)
        }
        ("SpansetFilter", []) => Ok((0..tree.spans.len()).collect()),
        ("SpansetFilter", [condition]) => {
            let mut found = Vec::new();
            for (at, span) in tree.spans.iter().enumerate() {
                if holds(condition, span)? {
                    found.push(at);
                }
            }
            Ok(found)
        }
        _ => Err(NotUnderstood::of(node)),
    }
}

fn combined(operator: &Node, left: &[usize], right: Vec<usize>, tree: &Tree) -> Result<Vec<usize>> {
    let union = || left.iter().copied().chain(right.iter().copied());
    let union = || union().collect::<BTreeSet<_>>().into_iter().collect();
    let is_left = |span: &Captured| left.iter().any(|at| tree.spans[*at].span == span.span);
    match operator.name.as_str() {
        "Or" => Ok(union()),
        "And" if left.is_empty() || right.is_empty() => Ok(Vec::new()),
        "And" => Ok(union()),
        "Desc" => {
            let below = |at: &usize| tree.ancestors(&tree.spans[*at]).into_iter().any(is_left);
            Ok(right.into_iter().filter(below).collect())
        }
        "Gt" => {
            let child = |at: &usize| tree.parent(&tree.spans[*at]).is_some_and(is_left);
            Ok(right.into_iter().filter(child).collect())
        }
        _ => Err(NotUnderstood::of(operator)),
    }
}

/// Whether a condition holds for one span.
fn holds(node: &Node, span: &Captured) -> Result<bool> {
    match &node.children[..] {
        [inner] if inner.name == "FieldExpression" => holds(inner, span),
        [left, operator, right] => match operator.name.as_str() {
            "And" => Ok(holds(left, span)? && holds(right, span)?),
            "Or" => Ok(holds(left, span)? || holds(right, span)?),
            "FieldOp" => compare(node, span),
            _ => Err(NotUnderstood::of(node)),
        },
        _ => Err(NotUnderstood::of(node)),
    }
}

/// What a field of a span is, or what a query compares it with.
#[derive(Debug, PartialEq, PartialOrd)]
enum Value {
    Nil,
    Text(String),
    Number(f64),
    Seconds(f64),
    /// Of `status` and `kind`.
    Word(String),
}

impl Value {
    fn shown(&self) -> Option<String> {
        match self {
            Self::Nil => None,
            Self::Text(text) | Self::Word(text) => Some(text.clone()),
            Self::Number(number) | Self::Seconds(number) => Some(number.to_string()),
        }
    }
}

fn compare(node: &Node, span: &Captured) -> Result<bool> {
    let [left, operator, right] = &node.children[..] else {
        return Err(NotUnderstood::of(node));
    };
    let (left, right) = (field_of(left, span)?, field_of(right, span)?);
    // What a span lacks is neither equal nor different.
    if left == Value::Nil || right == Value::Nil {
        return Ok(false);
    }
    if std::mem::discriminant(&left) != std::mem::discriminant(&right) {
        return Err(NotUnderstood::of(node));
    }
    let matches = || match (&left, &right) {
        (Value::Text(text), Value::Text(pattern)) => {
            anchored(pattern).map(|pattern| pattern.is_match(text))
        }
        _ => Err(NotUnderstood::of(node)),
    };
    match operator.text.as_str() {
        "=" => Ok(left == right),
        "!=" => Ok(left != right),
        _ if matches!(left, Value::Word(_)) => Err(NotUnderstood::of(node)),
        "<" => Ok(left < right),
        "<=" => Ok(left <= right),
        ">" => Ok(left > right),
        ">=" => Ok(left >= right),
        "=~" => matches(),
        "!~" => matches().map(|matches| !matches),
        _ => Err(NotUnderstood::of(operator)),
    }
}

fn field_of(node: &Node, span: &Captured) -> Result<Value> {
    let inner = match node.name.as_str() {
        "FieldExpression" => only(node)?,
        _ => node,
    };
    match (inner.name.as_str(), &inner.shape()[..]) {
        ("Static", []) => Ok(Value::Word(inner.text.clone())),
        ("Static", ["String"]) => Ok(Value::Text(inner.children[0].unquoted()?)),
        ("Static", ["Integer" | "Float"]) => inner
            .text
            .parse()
            .map(Value::Number)
            .map_err(|_| NotUnderstood::of(inner)),
        ("Static", ["Duration"]) => seconds(inner).map(Value::Seconds),
        ("AttributeField", ["Span", "Identifier"]) => {
            attribute(&span.span.attributes, &inner.children[1])
        }
        ("AttributeField", ["Resource", "Identifier"]) => {
            attribute(&span.resource, &inner.children[1])
        }
        ("IntrinsicField", []) => intrinsic(inner, span),
        _ => Err(NotUnderstood::of(inner)),
    }
}

fn attribute(attributes: &[KeyValue], name: &Node) -> Result<Value> {
    use any_value::Value as Of;
    match value(attributes, &name.text) {
        None => Ok(Value::Nil),
        Some(Of::StringValue(text)) => Ok(Value::Text(text.clone())),
        // Attempts and counts are small.
        Some(Of::IntValue(number)) => Ok(Value::Number(*number as f64)),
        Some(Of::DoubleValue(number)) => Ok(Value::Number(*number)),
        Some(_) => Err(NotUnderstood::of(name)),
    }
}

fn intrinsic(field: &Node, span: &Captured) -> Result<Value> {
    match field.text.as_str() {
        "name" => Ok(Value::Text(span.name().to_owned())),
        "duration" => Ok(Value::Seconds(span.seconds())),
        "status" => {
            let status = span.span.status.as_ref().map(|status| status.code());
            let status = status.unwrap_or_default().as_str_name();
            let status = status.replace("STATUS_CODE_", "");
            Ok(Value::Word(status.to_lowercase()))
        }
        "kind" => {
            let kind = span.kind().as_str_name().replace("SPAN_KIND_", "");
            Ok(Value::Word(kind.to_lowercase()))
        }
        _ => Err(NotUnderstood::of(field)),
    }
}

/// `1.5s`, `200ms`, `10m`.
fn seconds(node: &Node) -> Result<f64> {
    let text = node.text.as_str();
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let factor = match &text[digits.len()..] {
        "ms" => 0.001,
        "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        _ => return Err(NotUnderstood::of(node)),
    };
    let number: f64 = digits.parse().map_err(|_| NotUnderstood::of(node))?;
    Ok(number * factor)
}
