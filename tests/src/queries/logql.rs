//! An evaluator of LogQL over captured log lines, for what our dashboards and links ask: stream selectors, line filters,
//! `json`, label filters, and counts of lines over all the time there is. What it does not know it says; no Loki runs
//! here.

use std::collections::BTreeMap;

use serde_json::Value;

use super::grammar::{Node, NotUnderstood, anchored};

/// A line and the labels of its stream.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Line {
    /// What a shipper gave it.
    pub labels: BTreeMap<String, String>,
    /// As it was written.
    pub text: String,
}

type Result<T> = std::result::Result<T, NotUnderstood>;

/// What a log query finds, with the labels that its parsers added.
pub fn search(query: &Node, lines: &[Line]) -> Result<Vec<Line>> {
    let expression = only(only(query, "Expr")?, "LogExpr")?;
    found(expression, lines)
}

/// How many lines each group of a query has, that sums or only counts.
pub fn counts(query: &Node, lines: &[Line]) -> Result<BTreeMap<Vec<String>, usize>> {
    let metric = only(only(query, "Expr")?, "MetricExpr")?;
    let sum = only(metric, "VectorAggregationExpr")?;
    let (grouping, inner) = match (&sum.shape()[..], &sum.children[..]) {
        (["VectorOp", "Grouping", "MetricExpr"], [operator, grouping, inner])
            if operator.text == "sum" =>
        {
            (grouping, inner)
        }
        _ => return Err(NotUnderstood::of(sum)),
    };
    let labels = match (&grouping.shape()[..], &grouping.children[..]) {
        (["By", "Labels"], [_, labels]) => &labels.children,
        _ => return Err(NotUnderstood::of(grouping)),
    };
    let range = only(inner, "RangeAggregationExpr")?;
    let counted = match (&range.shape()[..], &range.children[..]) {
        (["RangeOp", "LogRangeExpr"], [operator, counted])
            if operator.text == "count_over_time" =>
        {
            counted
        }
        _ => return Err(NotUnderstood::of(range)),
    };
    let mut counts = BTreeMap::new();
    for line in found(counted, lines)? {
        let of = |label: &Node| line.labels.get(&label.text).cloned().unwrap_or_default();
        *counts.entry(labels.iter().map(of).collect()).or_default() += 1;
    }
    Ok(counts)
}

fn only<'a>(node: &'a Node, name: &str) -> Result<&'a Node> {
    match &node.children[..] {
        [child] if child.name == name => Ok(child),
        _ => Err(NotUnderstood::of(node)),
    }
}

/// What a selector and the pipeline behind it leave.
fn found(node: &Node, lines: &[Line]) -> Result<Vec<Line>> {
    let (selector, stages) = match (&node.shape()[..], &node.children[..]) {
        (["Selector"] | ["Selector", "Range"], [selector, ..]) => (selector, Vec::new()),
        (
            ["Selector", "PipelineExpr"] | ["Selector", "PipelineExpr", "Range"],
            [selector, pipeline, ..],
        ) => (selector, stages(pipeline)?),
        _ => return Err(NotUnderstood::of(node)),
    };
    let mut matchers = Vec::new();
    flat(selector, "Matchers", &mut matchers)?;
    let mut kept = Vec::new();
    for line in lines {
        let mut line = line.clone();
        let mut keep = true;
        for matcher in &matchers {
            keep &= matches(matcher, &line)?;
        }
        for stage in &stages {
            keep = keep && passes(stage, &mut line)?;
        }
        if keep {
            kept.push(line);
        }
    }
    Ok(kept)
}

/// The grammar nests lists to the left: `Matchers(Matchers(a), b)`.
fn flat<'a>(node: &'a Node, list: &str, into: &mut Vec<&'a Node>) -> Result<()> {
    for child in &node.children {
        match child.name.as_str() {
            name if name == list => flat(child, list, into)?,
            "Matcher" | "PipelineStage" => into.push(child),
            _ => return Err(NotUnderstood::of(node)),
        }
    }
    Ok(())
}

fn stages(pipeline: &Node) -> Result<Vec<&Node>> {
    let mut stages = Vec::new();
    flat(pipeline, "PipelineExpr", &mut stages)?;
    Ok(stages)
}

/// Whether a stage lets a line through; `json` adds labels to it.
fn passes(stage: &Node, line: &mut Line) -> Result<bool> {
    match (&stage.shape()[..], &stage.children[..]) {
        (["LineFilters"], [filters]) => {
            let filter = only(filters, "LineFilter")?;
            match &filter.children[..] {
                [operator, text] => contains(&operator.text, &text.unquoted()?, &line.text)
                    .ok_or_else(|| NotUnderstood::of(filter)),
                _ => Err(NotUnderstood::of(filter)),
            }
        }
        (["Pipe", "LabelParser"], [_, parser]) if parser.text == "json" => {
            if let Ok(value) = serde_json::from_str(&line.text) {
                flatten("", &value, &mut line.labels);
            }
            Ok(true)
        }
        (["Pipe", "LabelFilter"], [_, filter]) => matches(only(filter, "Matcher")?, line),
        _ => Err(NotUnderstood::of(stage)),
    }
}

fn contains(operator: &str, wanted: &str, line: &str) -> Option<bool> {
    match operator {
        "|=" => Some(line.contains(wanted)),
        "!=" => Some(!line.contains(wanted)),
        _ => None,
    }
}

/// Nested names are joined; what the stream has stays, as Loki has it.
fn flatten(prefix: &str, value: &Value, labels: &mut BTreeMap<String, String>) {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                let name: String = name
                    .chars()
                    .map(|c| if plain(c) { c } else { '_' })
                    .collect();
                let joined = match prefix {
                    "" => name,
                    prefix => format!("{prefix}_{name}"),
                };
                flatten(&joined, value, labels);
            }
        }
        // Loki skips lists.
        Value::Array(_) | Value::Null => {}
        Value::String(text) => drop(labels.entry(prefix.to_owned()).or_insert(text.clone())),
        other => drop(labels.entry(prefix.to_owned()).or_insert(other.to_string())),
    }
}

/// A label that is not there is empty.
fn matches(matcher: &Node, line: &Line) -> Result<bool> {
    let [label, operator, value] = &matcher.children[..] else {
        return Err(NotUnderstood::of(matcher));
    };
    let has = line.labels.get(&label.text).map_or("", String::as_str);
    let value = value.unquoted()?;
    let pattern = || anchored(&value);
    match operator.text.as_str() {
        "=" => Ok(has == value),
        "!=" => Ok(has != value),
        "=~" => Ok(pattern()?.is_match(has)),
        "!~" => Ok(!pattern()?.is_match(has)),
        _ => Err(NotUnderstood::of(matcher)),
    }
}
