//! `POST /v1/images/generations` and `GET /v1/images/{output}/content`.

use std::{collections::BTreeMap, sync::Arc};

use bytes::Buf;
use futures::Stream;
use messaging::ProgressByOutput;
use protocol::{ErrorCode, JobRecord, OutputId, OutputResult, limits::RESULT_TTL};
use service::clock::unix_millis;
use warp::{
    Filter,
    filters::BoxedFilter,
    host::Authority,
    http::{HeaderMap, HeaderValue, StatusCode, header},
    reply::Response,
};

use super::{answer, host, ok, only, spanned, with};
use crate::{
    answer::{ImagesAnswer, JobAnswer, Pictures, job_path},
    body,
    gateway::Gateway,
    jobs::Accepted,
    outcome::{Absence, Ended, EndedByOutput},
    reply::{ApiError, json, with_request_id},
    request::{ImageRequest, ResponseFormat},
};

pub(super) fn routes(gateway: &Arc<Gateway>) -> BoxedFilter<(Response,)> {
    let generations = warp::path!("v1" / "images" / "generations");
    let generate = generations
        .and(warp::post())
        .and(spanned())
        .and(with(gateway))
        .and(warp::header::headers_cloned())
        .and(host())
        .and(warp::body::stream())
        .then(|span, gateway: Arc<Gateway>, headers, host, body| {
            answer(span, async move {
                generate(&gateway, headers, host, body).await
            })
        });
    let content_path = warp::path!("v1" / "images" / String / "content");
    let content = content_path
        .and(warp::get().or(warp::head()).unify())
        .and(spanned())
        .and(with(gateway))
        .and(warp::header::headers_cloned())
        .then(|id: String, span, gateway: Arc<Gateway>, headers| {
            answer(span, async move { content(&gateway, &id, &headers).await })
        });
    let other_generations = generations.map(only("POST"));
    let other_contents = content_path.map(|_| only("GET, HEAD")());
    generate
        .or(other_generations)
        .unify()
        .or(content)
        .unify()
        .or(other_contents)
        .unify()
        .boxed()
}

async fn generate<B: Buf>(
    gateway: &Gateway,
    headers: HeaderMap,
    host: Option<Authority>,
    body: impl Stream<Item = Result<B, warp::Error>>,
) -> Result<Response, ApiError> {
    let bytes = body::read_json(&headers, body).await?;
    let request = ImageRequest::parse(&bytes)?;
    drop(bytes);
    let format = request.response_format;
    let in_background = prefers_async(&headers);
    if in_background && format == ResponseFormat::Base64 {
        let text = "response_format must be url with Prefer: respond-async";
        return Err(ApiError::parameter("response_format", text));
    }
    gateway.check_ready()?;
    let accepted = gateway.jobs.accept(request).await?;
    tracing::Span::current().record("job", tracing::field::display(accepted.record.job));
    let base = gateway.address.base(host.as_ref());
    if in_background {
        return Ok(job_accepted(&accepted.record, &base));
    }
    wait(gateway, accepted, format, base).await
}

/// Whether the client would rather not wait (RFC 7240). Other preferences are ignored, as the RFC has it.
fn prefers_async(headers: &HeaderMap) -> bool {
    let values = headers
        .get_all("prefer")
        .into_iter()
        .filter_map(|value| value.to_str().ok());
    let mut preferences = values.flat_map(|value| value.split(','));
    preferences.any(|preference| {
        let name = preference.split([';', '=']).next().unwrap_or_default();
        name.trim().eq_ignore_ascii_case("respond-async")
    })
}

/// 202: the job, and where to ask for it.
fn job_accepted(record: &JobRecord, base: &str) -> Response {
    let ended = EndedByOutput::new();
    let job = JobAnswer::new(record, &ended, &ProgressByOutput::new(), base);
    let mut response = with_request_id(json(StatusCode::ACCEPTED, &job), record.job);
    let location = HeaderValue::try_from(format!("{base}{}", job_path(record.job)));
    let location = location.expect("an authority and a hexadecimal id are visible characters");
    response.headers_mut().insert(header::LOCATION, location);
    response.headers_mut().insert(
        "preference-applied",
        HeaderValue::from_static("respond-async"),
    );
    response
}

/// Waits for every output; the first failed one fails the request.
async fn wait(
    gateway: &Gateway,
    mut accepted: Accepted,
    format: ResponseFormat,
    base: String,
) -> Result<Response, ApiError> {
    let record = accepted.record;
    let mut ended = EndedByOutput::new();
    while ended.len() < record.outputs.len() {
        let result = tokio::select! {
            result = accepted.results.recv() => result,
            () = gateway.answers_due.cancelled() => None,
        };
        let Some(result) = result else {
            let text =
                "the gateway is stopping; the job goes on and another gateway can tell of it";
            return Err(ApiError::new(ErrorCode::NotReady, text).of_job(record.job));
        };
        // Its picture is dropped here: a waiting request holds none.
        ended.insert(result.output.index, Ended::from(&result));
        result
            .outcome
            .map_err(|error| ApiError::from(error).of_job(record.job))?;
    }
    let job = record.job;
    let response = match format {
        ResponseFormat::Url => ok(&ImagesAnswer::new(
            &record,
            &ended,
            Pictures::Addresses(&base),
        )?),
        ResponseFormat::Base64 => with_pictures(gateway, record, ended)
            .await
            .map_err(|error| error.of_job(job))?,
    };
    Ok(with_request_id(response, job))
}

/// The answer with the pictures in it, read back from where they are stored.
async fn with_pictures(
    gateway: &Gateway,
    record: Arc<JobRecord>,
    ended: EndedByOutput,
) -> Result<Response, ApiError> {
    let internal = |text| ApiError::new(ErrorCode::Internal, text);
    let permit = gateway.picture_answers.acquire().await;
    let _permit = permit.map_err(|_| internal("the gateway is stopping"))?;
    let mut pictures = BTreeMap::new();
    for output in &record.outputs {
        let stored = gateway.bus.result(record.job.output(output.index)).await?;
        let stored = stored.ok_or_else(|| internal("a stored picture is gone"))?;
        pictures.insert(output.index, stored.outcome?.bytes);
    }
    // Megabytes of text: milliseconds that the other requests do not wait for.
    let render = move || {
        ImagesAnswer::new(&record, &ended, Pictures::Bytes(&pictures)).map(|body| ok(&body))
    };
    let rendered = tokio::task::spawn_blocking(render).await;
    rendered.map_err(|_| internal("the answer cannot be written"))?
}

async fn content(gateway: &Gateway, id: &str, headers: &HeaderMap) -> Result<Response, ApiError> {
    let id: OutputId = id.parse().map_err(|_| no_image())?;
    let outcome = match gateway.bus.result(id).await? {
        Some(result) => result.outcome,
        None => missing(gateway, id).await?.outcome,
    };
    let picture = outcome.map_err(|error| ApiError::from(error).of_job(id.job))?;
    // Results are written once, so that the id names the bytes.
    let tag = format!("\"{id}\"");
    let known = headers
        .get_all(header::IF_NONE_MATCH)
        .into_iter()
        .filter_map(|value| value.to_str().ok());
    let known = known
        .flat_map(|value| value.split(','))
        .any(|value| matches!(value.trim(), "*") || value.trim().trim_start_matches("W/") == tag);
    let mut response = if known {
        let mut response = Response::new(Vec::new().into());
        *response.status_mut() = StatusCode::NOT_MODIFIED;
        response
    } else {
        let mut response = Response::new(picture.bytes.into());
        response.headers_mut().insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static(picture.format.media_type()),
        );
        response
    };
    let caching = format!("private, max-age={}, immutable", RESULT_TTL.as_secs());
    let values = [(header::ETAG, tag), (header::CACHE_CONTROL, caching)];
    for (name, value) in values {
        let value = HeaderValue::try_from(value).expect("ids and numbers are visible characters");
        response.headers_mut().insert(name, value);
    }
    Ok(with_request_id(response, id.job))
}

fn no_image() -> ApiError {
    ApiError::new(ErrorCode::NotFound, "there is no such image")
}

/// The result of an output that had none just now, if its time is over.
async fn missing(gateway: &Gateway, id: OutputId) -> Result<OutputResult, ApiError> {
    let record = gateway.bus.job(id.job).await?.ok_or_else(no_image)?;
    if !record.outputs.iter().any(|output| output.index == id.index) {
        return Err(no_image());
    }
    match Absence::at(unix_millis(), &record) {
        Absence::Running => {
            Err(ApiError::new(ErrorCode::NotReady, "the image is not finished").of_job(id.job))
        }
        Absence::Overdue => Ok(gateway.jobs.end_late(&record, id.index).await),
        Absence::Gone => Err(no_image()),
    }
}
