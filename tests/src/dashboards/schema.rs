//! Whether Grafana takes what we ship: every part of it against the types that Grafana publishes, by TypeScript's own
//! compiler. `shapes.ts` says which types those are; set-up fetches them, and node runs `check.mjs`.

use serde::Serialize;
use serde_json::Value;

use super::Dashboard;
use crate::{node::ask, queries};

/// A part of a dashboard, or of a data source, whose shape has a name in `shapes.ts`.
#[derive(Debug, Clone, Serialize)]
pub struct Piece {
    /// Dashboard and panel, or data source.
    #[serde(skip)]
    pub place: String,
    /// Such as `panel stat` or `query tempo`.
    pub shape: String,
    /// As it is written.
    pub value: Value,
}

impl Piece {
    fn new(place: String, shape: &str, kind: &Value, value: Value) -> Self {
        let kind = kind.as_str().unwrap_or("of no type");
        Self {
            place,
            shape: format!("{shape} {kind}"),
            value,
        }
    }
}

/// A dashboard taken apart: what a panel and a query may have depends on the kind that it is of.
pub fn of_dashboard(dashboard: &Dashboard) -> Vec<Piece> {
    let (file, mut whole) = (&dashboard.file, dashboard.json.clone());
    let mut pieces = Vec::new();
    for mut panel in taken(&mut whole, "panels") {
        // What our own test asks of it.
        taken(&mut panel, "must");
        let place = format!("{file}: {}", panel["title"].as_str().unwrap_or("?"));
        let queries = taken(&mut panel, "targets").into_iter();
        pieces.extend(queries.map(|query| {
            let kind = &query["datasource"]["type"];
            Piece::new(place.clone(), "query", kind, query.clone())
        }));
        pieces.push(Piece::new(place, "panel", &panel["type"], panel.clone()));
    }
    let variables = whole["templating"]["list"].as_array_mut();
    let queried = variables.into_iter().flatten();
    for variable in queried.filter(|variable| variable["type"] == "query") {
        let place = format!("{file}: values of {}", variable["name"]);
        let queries = taken(variable, "query").into_iter();
        let kind = &variable["datasource"]["type"];
        pieces.extend(queries.map(|query| Piece::new(place.clone(), "values", kind, query)));
    }
    pieces.push(Piece {
        place: file.clone(),
        shape: "dashboard".to_owned(),
        value: whole,
    });
    pieces
}

/// A field that is no longer there, as a list.
fn taken(object: &mut Value, field: &str) -> Vec<Value> {
    let fields = object.as_object_mut().expect("an object");
    match fields.remove(field) {
        None => Vec::new(),
        Some(Value::Array(list)) => list,
        Some(one) => vec![one],
    }
}

/// What the provisioned data sources are told beyond an address.
pub fn of_data_sources() -> Vec<Piece> {
    let sources = serde_json::to_value(queries::data_sources()).expect("YAML of ours is JSON too");
    let sources = sources["datasources"].as_array().cloned();
    let sources = sources.unwrap_or_default().into_iter();
    let pieces = sources.map(|source| {
        let place = format!("data source {}", source["name"]);
        let value = source["jsonData"].clone();
        Piece::new(place, "data source", &source["type"], value)
    });
    pieces.collect()
}

/// What of each piece does not fit its shape: where in it, and what the compiler says of that.
pub fn faults(pieces: &[Piece]) -> Vec<Vec<String>> {
    ask("dashboards/check.mjs", "schema", &pieces)
}
