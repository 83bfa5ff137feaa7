//! What the fake server answers: entries as SRT 0.5.23 writes them, and its errors.

use bytes::Bytes;
use futures::stream::{self, StreamExt};
use http_body_util::{BodyExt, Full, StreamBody, combinators::BoxBody};
use hyper::{Response, StatusCode, body::Frame, header::CONTENT_TYPE};
use protocol::{ImageSize, PriorTokens, Seed};
use replay::prior_tokens;
use serde_json::{Value, json};
use std::convert::Infallible;

use super::{Asked, Fault};

pub(super) type Body = BoxBody<Bytes, Infallible>;

/// The prior that a row of this seed and size gets, in a codebook of this size.
pub fn prior(seed: Seed, size: ImageSize, codebook_size: u32) -> PriorTokens {
    let tokens = prior_tokens(seed, size);
    let smaller = |id: &u16| (u32::from(*id) % codebook_size) as u16;
    let ids = tokens.ids().iter().map(smaller).collect();
    PriorTokens::new(tokens.rows(), tokens.columns(), ids).expect("the same grid")
}

/// A row's entry.
pub(super) fn item(row: &Asked, fault: Option<Fault>, codebook_size: u32) -> Value {
    let seed = Seed::new(row.seed).expect("the contract is checked");
    let large = prior(seed, row.size, codebook_size);
    // Other ids than the large grid's, so that a wrong offset shows.
    let preview = (0..row.preview_tokens).map(|_| codebook_size - 1);
    let large = large.ids().iter().map(|id| u32::from(*id));
    // The published end token is the second id behind the codebook.
    let mut ids: Vec<u32> = preview.chain(large).chain([codebook_size + 1]).collect();
    let mut reason = json!({"type": "length", "length": ids.len()});
    let mut completion_tokens = ids.len();
    match fault {
        Some(Fault::ShortIds) => ids.truncate(row.preview_tokens),
        Some(Fault::IdsOutOfRange) => ids[row.preview_tokens] = codebook_size,
        Some(Fault::EarlyEos) => {
            ids.truncate(row.preview_tokens);
            ids.push(codebook_size + 1);
            completion_tokens = ids.len();
            reason = json!({"type": "stop", "matched": codebook_size + 1});
        }
        Some(Fault::Abort) => {
            ids.clear();
            completion_tokens = 0;
            reason = json!({"type": "abort", "message": "Abort in running"});
        }
        _ => {}
    }
    let mut meta_info = json!({
        "id": row.rid,
        "finish_reason": reason,
        "prompt_tokens": row.prompt_tokens,
        "weight_version": "default",
        "num_retractions": 0,
        "completion_tokens": completion_tokens,
        "cached_tokens": 0,
        "e2e_latency": 0.0,
    });
    if let (Some(Fault::MissingUsage), Some(fields)) = (fault, meta_info.as_object_mut()) {
        fields.retain(|name, _| !name.ends_with("_tokens"));
    }
    json!({"text": "", "output_ids": ids, "meta_info": meta_info})
}

/// A whole answer.
pub(super) fn whole(status: StatusCode, text: String) -> Response<Body> {
    response(status, Full::new(Bytes::from(text)).boxed())
}

/// An error, as SRT's `/generate` words it.
pub(super) fn refusal(status: StatusCode, message: &str) -> Response<Body> {
    whole(status, json!({"error": {"message": message}}).to_string())
}

/// A good start, and nothing more.
pub(super) fn stalled() -> Response<Body> {
    let start = stream::iter([Ok(Frame::data(Bytes::from_static(b"[{\"text\":")))]);
    let body = StreamBody::new(start.chain(stream::pending()));
    response(StatusCode::OK, BodyExt::boxed(body))
}

fn response(status: StatusCode, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let json = "application/json".parse().expect("a header's value");
    response.headers_mut().insert(CONTENT_TYPE, json);
    response
}
