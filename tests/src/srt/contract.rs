//! The contract of `POST /generate`, held strictly: what a real server would take in silence, such as a missing
//! `top_p`, is refused here. Pure.

use protocol::ImageSize;
use serde::Deserialize;
use serde_json::{Map, Value};

/// Pixels to a side of a large grid's token.
const PIXELS_PER_TOKEN: u32 = 32;
/// Side of a square preview; others keep about its area.
const PREVIEW_SIDE: f64 = 16.0;

/// What a row asks for.
#[derive(Debug, Clone, PartialEq)]
pub struct Asked {
    /// Its name, for an abort.
    pub rid: String,
    /// It alone decides the ids.
    pub seed: u64,
    /// Of the picture, in pixels.
    pub size: ImageSize,
    /// Ids of the preview, which come first.
    pub preview_tokens: usize,
    /// Preview, large grid and end.
    pub new_tokens: u32,
    /// Ids of the prompt.
    pub prompt_tokens: usize,
}

/// A call.
#[derive(Debug)]
pub struct Call {
    /// In order.
    pub rows: Vec<Asked>,
    /// Lists were sent, so a list is the answer.
    pub is_batched: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Body {
    input_ids: Vec<Vec<u32>>,
    image_data: Vec<[ImageData; 1]>,
    sampling_params: Vec<SamplingParams>,
    rid: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ImageData {
    image_grid_thw: [[u32; 3]; 2],
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SamplingParams {
    temperature: f64,
    top_p: f64,
    top_k: i64,
    max_new_tokens: u32,
    ignore_eos: bool,
    sampling_seed: i64,
}

/// Reads the body of a call, or says what in it is against the contract.
pub(super) fn read(body: &[u8]) -> Result<Call, String> {
    let fields: Map<String, Value> = serde_json::from_slice(body).map_err(|e| e.to_string())?;
    let is_batched = fields
        .get("input_ids")
        .and_then(|ids| ids.get(0))
        .is_some_and(Value::is_array);
    // The single form is the batched one, a level flatter.
    let listed = |value: Value| {
        if is_batched {
            value
        } else {
            Value::Array(vec![value])
        }
    };
    let fields = fields
        .into_iter()
        .map(|(name, value)| (name, listed(value)));
    let body: Body =
        serde_json::from_value(Value::Object(fields.collect())).map_err(|e| e.to_string())?;
    let rows = body.input_ids.len();
    let lengths = [
        body.image_data.len(),
        body.sampling_params.len(),
        body.rid.len(),
    ];
    if rows == 0 || lengths != [rows; 3] {
        return Err(format!("{rows} rows of ids, and of the rest {lengths:?}"));
    }
    let Body {
        input_ids,
        image_data,
        sampling_params,
        rid,
    } = body;
    let images = image_data.iter().flatten();
    let each = input_ids.iter().zip(images).zip(&sampling_params).zip(rid);
    let rows = each.map(|(((ids, image), params), rid)| asked(ids, image, params, rid));
    let rows = rows.collect::<Result<_, _>>()?;
    Ok(Call { rows, is_batched })
}

fn asked(
    ids: &[u32],
    image: &ImageData,
    params: &SamplingParams,
    rid: String,
) -> Result<Asked, String> {
    let [[t, h, w], preview] = image.image_grid_thw;
    let size = ImageSize::new(w * PIXELS_PER_TOKEN, h * PIXELS_PER_TOKEN);
    let size = size.map_err(|error| error.to_string())?;
    let ratio = f64::from(h) / f64::from(w);
    let preview_h = (ratio.sqrt() * PREVIEW_SIDE) as u32;
    let preview_w = ((1.0 / ratio).sqrt() * PREVIEW_SIDE) as u32;
    if (t, preview) != (1, [1, preview_h, preview_w]) {
        return Err(format!("grids {:?}", image.image_grid_thw));
    }
    let new_tokens = h * w + preview_h * preview_w + 1;
    if params.max_new_tokens != new_tokens || !params.ignore_eos {
        return Err(format!("not all of {new_tokens} tokens are asked for"));
    }
    let drawn = (0.0..=2.0).contains(&params.temperature)
        && params.top_p > 0.0
        && params.top_p <= 1.0
        && (params.top_k == -1 || params.top_k > 0);
    if !drawn || ids.is_empty() || rid.is_empty() {
        return Err("sampling, ids or rid".to_owned());
    }
    Ok(Asked {
        rid,
        seed: u64::try_from(params.sampling_seed).map_err(|error| error.to_string())?,
        size,
        preview_tokens: (preview_h * preview_w) as usize,
        new_tokens,
        prompt_tokens: ids.len(),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const SQUARE: &str = include_str!("../../data/srt/generate_1024x1024.json");
    const BOTH: &str = include_str!("../../data/srt/generate_both.json");

    #[test]
    fn the_goldens_are_the_contract() {
        let call = read(BOTH.as_bytes()).expect("the contract");
        assert!(call.is_batched);
        let [square, wide] = call.rows.as_slice() else {
            panic!("{call:?}")
        };
        let size = |row: &Asked| (row.size.width(), row.size.height());
        assert_eq!((size(square), size(wide)), ((1024, 1024), (1152, 864)));
        assert_eq!((square.new_tokens, wide.new_tokens), (1281, 1207));
        assert_eq!((square.preview_tokens, wide.preview_tokens), (256, 234));
        assert_eq!((square.seed, wide.seed), (42, i64::MAX as u64));
    }

    #[test]
    fn the_single_form_is_a_level_flatter() {
        let mut body: Value = serde_json::from_str(SQUARE).expect("JSON");
        for (_, value) in body.as_object_mut().expect("an object") {
            *value = value[0].take();
        }
        let single = read(body.to_string().as_bytes()).expect("the contract");
        assert!(!single.is_batched);
        let batched = read(SQUARE.as_bytes()).expect("the contract");
        assert_eq!(single.rows, batched.rows);
    }

    #[test]
    fn anything_else_is_refused() {
        type Break = (&'static str, fn(&mut Value));
        let breaks: [Break; 12] = [
            ("a field too many", |body| body["stream"] = json!(false)),
            ("no rid", |body| {
                drop(body.as_object_mut().unwrap().remove("rid"))
            }),
            ("no top_p", |body| {
                drop(
                    body["sampling_params"][0]
                        .as_object_mut()
                        .unwrap()
                        .remove("top_p"),
                )
            }),
            ("another parameter", |body| {
                body["sampling_params"][0]["n"] = json!(1)
            }),
            ("too few parameters", |body| {
                body["sampling_params"] = json!([])
            }),
            ("the preview first", |body| {
                body["image_data"][0][0]["image_grid_thw"]
                    .as_array_mut()
                    .unwrap()
                    .reverse()
            }),
            ("one grid", |body| {
                drop(
                    body["image_data"][0][0]["image_grid_thw"]
                        .as_array_mut()
                        .unwrap()
                        .pop(),
                )
            }),
            ("no nesting", |body| {
                body["image_data"][0] = body["image_data"][0][0].take()
            }),
            ("one token too few", |body| {
                body["sampling_params"][0]["max_new_tokens"] = json!(1206)
            }),
            ("an early end", |body| {
                body["sampling_params"][0]["ignore_eos"] = json!(false)
            }),
            ("a seed below 0", |body| {
                body["sampling_params"][0]["sampling_seed"] = json!(-1)
            }),
            ("no top_k", |body| {
                body["sampling_params"][0]["top_k"] = json!(0)
            }),
        ];
        let wide = include_str!("../../data/srt/generate_1152x864.json");
        for (what, break_it) in breaks {
            let mut body: Value = serde_json::from_str(wide).expect("JSON");
            break_it(&mut body);
            assert!(read(body.to_string().as_bytes()).is_err(), "{what}");
        }
    }
}
