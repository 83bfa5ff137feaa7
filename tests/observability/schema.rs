//! What Grafana takes, by its own types, and that nothing else passes for it.

use std::{collections::BTreeMap, fs};

use integration::{
    dashboards::{
        dashboards,
        schema::{Piece, faults, of_dashboard, of_data_sources},
    },
    root,
};
use serde_json::{Value, json};

fn shipped() -> Vec<Piece> {
    let dashboards = dashboards();
    let of_dashboards = dashboards.iter().flat_map(of_dashboard);
    of_dashboards.chain(of_data_sources()).collect()
}

#[test]
fn grafana_takes_every_dashboard_and_data_source() {
    let pieces = shipped();
    let told = pieces.iter().zip(faults(&pieces));
    let told = told.flat_map(|(piece, faults)| {
        let Piece { place, shape, .. } = piece;
        faults
            .into_iter()
            .map(move |fault| format!("{place}, {shape}: {fault}"))
    });
    let told: Vec<_> = told.collect();
    assert!(told.is_empty(), "{}", told.join("\n"));
    assert!(pieces.len() > 200, "{}", pieces.len());
}

#[test]
fn the_grafana_of_the_containers_is_the_one_whose_types_are_read() {
    let text = |file: &str| fs::read_to_string(root().join(file)).unwrap();
    let artefacts: Value = serde_json::from_str(&text("infra/setup/artefacts.json")).unwrap();
    let compose: Value = serde_yaml_ng::from_str(&text("docker/compose.observe.yaml")).unwrap();
    let types = artefacts["schema"]["version"].as_str().unwrap();
    let image = compose["services"]["grafana"]["image"].as_str().unwrap();
    assert_eq!(image, format!("grafana/grafana:{types}"));
}

/// The first shipped piece of a shape with this value at a place.
fn with(shape: &str, pointer: &str, value: Value) -> Piece {
    let mut pieces = shipped().into_iter();
    let mut piece = pieces.find(|piece| piece.shape == shape).unwrap();
    let (parent, name) = pointer.rsplit_once('/').unwrap();
    let parent = piece.value.pointer_mut(parent).unwrap();
    match parent {
        Value::Array(list) => list[name.parse::<usize>().unwrap()] = value,
        parent => parent[name] = value,
    }
    piece
}

#[test]
fn what_grafana_would_not_take_is_told_with_its_place() {
    let wrong = [
        ("dashboard", "/titles", json!("Fresco")),
        ("dashboard", "/refresh", json!(10)),
        ("dashboard", "/graphTooltip", json!(7)),
        ("dashboard", "/templating/list/0/type", json!("data")),
        ("dashboard", "/templating/list/0/definition", json!("")),
        ("dashboard", "/links/0", json!({"title": "Fresco"})),
        ("panel row", "/collapsed", json!("no")),
        ("panel timeseries", "/describe", json!("")),
        ("panel timeseries", "/gridPos/w", json!("8")),
        (
            "panel timeseries",
            "/fieldConfig/defaults/units",
            json!("s"),
        ),
        ("panel timeseries", "/options/legends", json!({})),
        // Of another kind of panel.
        ("panel timeseries", "/options/calculate", json!(false)),
        ("panel stat", "/options/colorMode", json!("red")),
        ("panel heatmap", "/options/yAxis/unit", json!(7)),
        (
            "panel heatmap",
            "/fieldConfig/defaults/custom",
            json!({"fillOpacity": 60}),
        ),
        (
            "panel state-timeline",
            "/fieldConfig/defaults/mappings/0/type",
            json!("values"),
        ),
        ("panel logs", "/options/showTime", json!("yes")),
        ("panel traces", "/options/height", json!(7)),
        ("query prometheus", "/exemplar", json!("yes")),
        ("query prometheus", "/format", json!("heat")),
        ("query prometheus", "/query", json!("up")),
        ("query tempo", "/queryType", json!("traceQl")),
        ("query tempo", "/tableType", json!("trace")),
        ("query loki", "/queryType", json!("ranged")),
        ("query loki", "/query", json!("{}")),
        ("values prometheus", "/expr", json!("up")),
        ("data source prometheus", "/timeIntervals", json!("15s")),
        ("data source tempo", "/tracesToLogsV2/customQuery", json!(1)),
        ("data source tempo", "/spanBar/types", json!("Duration")),
        ("data source loki", "/derivedFields/0/matcher", json!("x")),
    ];
    let pieces = wrong.clone();
    let pieces = pieces.map(|(shape, pointer, value)| with(shape, pointer, value));
    for ((shape, pointer, _), faults) in wrong.iter().zip(faults(&pieces)) {
        let place = pointer.trim_start_matches('/').replace('/', ".");
        let told = faults.iter().any(|fault| fault.starts_with(&place));
        assert!(told, "{shape} {pointer}: {faults:?}");
    }
}

#[test]
fn what_nobody_knows_has_no_shape() {
    let mut piece = with("panel stat", "/type", json!("sat"));
    piece.shape = "panel sat".to_owned();
    assert_ne!(faults(&[piece]), [Vec::<String>::new()]);
}

#[test]
fn a_required_field_that_is_missing_is_told() {
    let mut query = with("query prometheus", "/expr", Value::Null);
    query.value.as_object_mut().unwrap().remove("expr");
    assert_ne!(faults(&[query]), [Vec::<String>::new()]);
}

/// Where the objects of a value are, and where its texts, numbers and truths.
fn places(value: &Value) -> (Vec<String>, Vec<String>) {
    let (mut objects, mut leaves) = (Vec::new(), Vec::new());
    let mut open = vec![(String::new(), value)];
    while let Some((pointer, value)) = open.pop() {
        match value {
            Value::Object(fields) => {
                let below = |(name, value)| (format!("{pointer}/{name}"), value);
                open.extend(fields.iter().map(below));
                objects.push(pointer);
            }
            Value::Array(list) => {
                let below = |(at, value)| (format!("{pointer}/{at}"), value);
                open.extend(list.iter().enumerate().map(below));
            }
            _ => leaves.push(pointer),
        }
    }
    (objects, leaves)
}

/// A type that says `any`, or that comes from a file that is not there, would take everything.
#[test]
fn nothing_that_we_ship_is_of_a_type_that_takes_everything() {
    // Once for each place in a shape: what stands there in one panel is of the type that it is in the next.
    let mut wrong = BTreeMap::new();
    for piece in shipped() {
        let (objects, leaves) = places(&piece.value);
        for pointer in objects {
            let mut piece = piece.clone();
            piece.value.pointer_mut(&pointer).unwrap()["misspelt"] = json!([]);
            wrong.insert((piece.shape.clone(), pointer), piece);
        }
        for pointer in leaves {
            let mut piece = piece.clone();
            *piece.value.pointer_mut(&pointer).unwrap() = json!({"misspelt": []});
            wrong.insert((piece.shape.clone(), pointer), piece);
        }
    }
    let (places, pieces): (Vec<_>, Vec<_>) = wrong.into_iter().unzip();
    let told = places.iter().zip(faults(&pieces));
    let taken: Vec<_> = told.filter(|(_, faults)| faults.is_empty()).collect();
    assert!(taken.is_empty(), "{taken:?}");
    assert!(places.len() > 200, "{}", places.len());
}
