//! `POST /v1/images/generations` and `GET /v1/images/{output}/content`.

use std::{collections::BTreeMap, sync::Arc};

use bytes::Buf;
use futures::Stream;
use protocol::{ErrorCode, JobRecord, OutputId, OutputResult, trace::attribute};
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
    answer::{ImagesAnswer, Pictures, job_path},
    body,
    gateway::Gateway,
    job_answer::{JobAnswer, JobView, LifeByOutput},
    jobs::{NotQueued, OpenJob, Start},
    keyed::{self, Taken},
    outcome::{Absence, Cause, EndedByOutput},
    reply::{ApiError, json, json_kept, with_replayed, with_request_id},
    request::{ImageRequest, ResponseFormat},
    tenants::Caller,
    waiting::{OnDisconnect, Stay, all_ended, on_disconnect, so_far},
};

/// Patterns of paths, as a trace has them.
const GENERATIONS: &str = "/v1/images/generations";
const CONTENT: &str = "/v1/images/{output}/content";

pub(super) fn routes(gateway: &Arc<Gateway>) -> BoxedFilter<(Response,)> {
    let generations = warp::path!("v1" / "images" / "generations");
    let generate = generations
        .and(warp::post())
        .and(spanned(GENERATIONS))
        .and(with(gateway))
        .and(warp::header::headers_cloned())
        .and(host())
        .and(warp::body::stream())
        .then(|span, gateway: Arc<Gateway>, headers, host, body| {
            answer(span, async move {
                let asked = Asked { headers, host };
                generate_counted(&gateway, asked, body).await
            })
        });
    let content_path = warp::path!("v1" / "images" / String / "content");
    let content = content_path
        .and(warp::get().or(warp::head()).unify())
        .and(spanned(CONTENT))
        .and(with(gateway))
        .and(warp::header::headers_cloned())
        .then(|id: String, span, gateway: Arc<Gateway>, headers| {
            answer(span, async move {
                let caller = gateway.caller(&headers)?;
                content(&gateway, &id, &headers, &caller).await
            })
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

/// A request for pictures, but its body.
#[derive(Debug)]
struct Asked {
    headers: HeaderMap,
    host: Option<Authority>,
}

/// Before anything else it is known who asks: who may not is told nothing more.
async fn generate_counted<B: Buf>(
    gateway: &Gateway,
    asked: Asked,
    body: impl Stream<Item = Result<B, warp::Error>>,
) -> Result<Response, ApiError> {
    let caller = gateway.caller(&asked.headers);
    let tenant = caller.as_ref().ok().and_then(Caller::tenant).cloned();
    let generated = match caller {
        Ok(caller) => generate(gateway, asked, &caller, body).await,
        Err(error) => Err(error),
    };
    generated.inspect_err(|error| {
        if error.is_rejection() {
            gateway.counters.rejected(error.error().code);
            gateway.counters.tenants.of(tenant.as_ref()).rejected();
        }
    })
}

async fn generate<B: Buf>(
    gateway: &Gateway,
    asked: Asked,
    caller: &Caller,
    body: impl Stream<Item = Result<B, warp::Error>>,
) -> Result<Response, ApiError> {
    let Asked { headers, host } = asked;
    let bytes = body::read_json(&headers, body).await?;
    let request = ImageRequest::parse(&bytes, gateway.job_timeout)?;
    drop(bytes);
    let on_disconnect = on_disconnect(&headers)?;
    let key = keyed::key(&headers)?;
    let wish = Wish {
        format: request.response_format,
        in_background: prefers_async(&headers),
        stays: on_disconnect,
        base: gateway.address.base(host.as_ref()),
    };
    if wish.in_background && wish.format == ResponseFormat::Base64 {
        let text = "response_format must be url with Prefer: respond-async";
        return Err(ApiError::parameter("response_format", text));
    }
    // Who has a key comes back with it, and who does not wait cannot leave.
    let Some(key) = key else {
        let stays = if wish.in_background {
            OnDisconnect::Continue
        } else {
            on_disconnect
        };
        let wish = Wish { stays, ..wish };
        return generate_new(gateway, request, caller, wish).await;
    };
    match gateway.take_keyed(request, key, caller).await? {
        Taken::New(open) => reply(gateway, open, wish).await,
        Taken::Joined(open) => match reply(gateway, open, wish).await {
            Ok(response) => Ok(with_replayed(response)),
            Err(error) => Err(error.replayed()),
        },
    }
}

/// What a client wants to hear.
#[derive(Debug)]
struct Wish {
    format: ResponseFormat,
    in_background: bool,
    /// What becomes of a job without a key whose client leaves.
    stays: OnDisconnect,
    /// Start of the addresses in the answer.
    base: String,
}

async fn generate_new(
    gateway: &Gateway,
    request: ImageRequest,
    caller: &Caller,
    wish: Wish,
) -> Result<Response, ApiError> {
    gateway.check_ready()?;
    let order = gateway.order(request, caller).await?;
    let room = gateway.jobs.admit(&order)?;
    let mut open = gateway.jobs.follow(order, Start::New(room))?;
    let stay = Stay::new(gateway, &open, wish.stays);
    let answer = match open.queued().await {
        Ok(()) => reply(gateway, open, wish).await,
        Err(NotQueued::Refused(error)) => Err(error),
        Err(NotQueued::Claimed(_)) => {
            let text = "a job without a key gave way to another";
            Err(ApiError::new(ErrorCode::Internal, text))
        }
    };
    stay.over();
    answer
}

/// The answer about a job that is queued: at once, or with its pictures.
async fn reply(gateway: &Gateway, open: OpenJob, wish: Wish) -> Result<Response, ApiError> {
    tracing::Span::current().record(attribute::JOB_ID, tracing::field::display(open.record.job));
    if wish.in_background {
        return Ok(job_accepted(gateway, &open, &wish.base));
    }
    wait(gateway, open, wish).await
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
fn job_accepted(gateway: &Gateway, open: &OpenJob, base: &str) -> Response {
    let record = &open.record;
    let (ended, progress) = so_far(open);
    // Asked for at the address below; a new job has none.
    let lives = LifeByOutput::new();
    let job = JobAnswer::new(JobView {
        record,
        ended: &ended,
        progress: &progress,
        lives: &lives,
        base,
        result_ttl: gateway.result_ttl.get(),
    });
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
async fn wait(gateway: &Gateway, mut open: OpenJob, wish: Wish) -> Result<Response, ApiError> {
    let ended = all_ended(gateway, &mut open).await?;
    let record = open.record;
    let job = record.job;
    let response = match wish.format {
        ResponseFormat::Url => {
            let pictures = Pictures::Addresses(&wish.base);
            ok(&ImagesAnswer::new(&record, &ended, pictures)?)
        }
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
    let outputs = u8::try_from(record.outputs.len());
    let outputs = outputs.map_err(|_| internal("the job has too many outputs"))?;
    let places = gateway.pictures_out.places(outputs).await;
    let mut pictures = BTreeMap::new();
    for output in &record.outputs {
        let stored = gateway.bus.result(record.job.output(output.index)).await?;
        let stored = stored.ok_or_else(|| internal("a stored picture is gone"))?;
        pictures.insert(output.index, stored.outcome?.bytes);
    }
    // Megabytes of text: milliseconds that the other requests do not wait for.
    let render = move || {
        let answer = ImagesAnswer::new(&record, &ended, Pictures::Bytes(&pictures))?;
        let keep = |bytes| places.keep(bytes);
        Ok(json_kept(StatusCode::OK, &answer, keep))
    };
    let rendered = tokio::task::spawn_blocking(render).await;
    rendered.map_err(|_| internal("the answer cannot be written"))?
}

async fn content(
    gateway: &Gateway,
    id: &str,
    headers: &HeaderMap,
    caller: &Caller,
) -> Result<Response, ApiError> {
    let id: OutputId = id.parse().map_err(|_| no_image())?;
    // Whose it is, the record says; a result does not.
    if let Caller::Tenant(_) = caller {
        let record = gateway.bus.job(id.job).await?;
        let theirs = record.is_some_and(|record| caller.may_see(&record));
        theirs.then_some(()).ok_or_else(no_image)?;
    }
    let place = gateway.pictures_out.places(1).await;
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
        let mut response = Response::new(place.keep(picture.bytes).into());
        response.headers_mut().insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static(picture.format.media_type()),
        );
        response
    };
    let caching = format!(
        "private, max-age={}, immutable",
        gateway.result_ttl.get().as_secs()
    );
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
    match Absence::at(unix_millis(), &record, gateway.result_ttl.get()) {
        Absence::Running => {
            Err(ApiError::new(ErrorCode::NotReady, "the image is not finished").of_job(id.job))
        }
        Absence::Overdue => Ok(gateway.jobs.end(&record, id.index, Cause::Deadline).await),
        Absence::Gone => Err(no_image()),
    }
}
