//! A request's body, read up to its limit.

use std::{pin::pin, time::Duration};

use bytes::Buf;
use futures::{Stream, StreamExt};
use protocol::ErrorCode;
use tokio::time::timeout;
use warp::http::{HeaderMap, header};

use crate::reply::ApiError;

/// Largest body, in bytes: the longest prompt with every character as two `\u` escapes is 98 KB.
const BODY_BYTES_MAX: usize = 256 * 1024;

/// Of a body that is too large this much is read all the same, in bytes: a connection closed on a client that is
/// still sending is reset, and the client never sees the answer.
const BODY_DRAIN_BYTES_MAX: usize = 8 * 1024 * 1024;

/// How long a body may take to arrive: the largest one over 64 kbit/s.
const BODY_READ_TIME_MAX: Duration = Duration::from_secs(30);

/// The bytes of a JSON body.
pub(crate) async fn read_json<B: Buf>(
    headers: &HeaderMap,
    body: impl Stream<Item = Result<B, warp::Error>>,
) -> Result<Vec<u8>, ApiError> {
    check_type(headers)?;
    let too_large = || {
        ApiError::new(
            ErrorCode::BodyTooLarge,
            &format!("the body must be at most {BODY_BYTES_MAX} bytes"),
        )
    };
    if declared_bytes(headers).is_some_and(|bytes| bytes > BODY_DRAIN_BYTES_MAX) {
        return Err(too_large());
    }
    let mut body = pin!(body);
    let (mut bytes, mut seen) = (Vec::new(), 0_usize);
    let read = async {
        while let Some(chunk) = body.next().await {
            let mut chunk = chunk?;
            seen = seen.saturating_add(chunk.remaining());
            if seen > BODY_DRAIN_BYTES_MAX {
                break;
            }
            if seen <= BODY_BYTES_MAX {
                while chunk.has_remaining() {
                    bytes.extend_from_slice(chunk.chunk());
                    chunk.advance(chunk.chunk().len());
                }
            }
        }
        Ok::<_, warp::Error>(())
    };
    let read = timeout(BODY_READ_TIME_MAX, read).await;
    if seen > BODY_BYTES_MAX {
        return Err(too_large());
    }
    match read {
        Ok(Ok(())) => Ok(bytes),
        Ok(Err(_)) => Err(ApiError::new(ErrorCode::InvalidJson, "the body broke off")),
        Err(_) => Err(ApiError::new(
            ErrorCode::RequestTimeout,
            "the body did not arrive in time",
        )),
    }
}

fn declared_bytes(headers: &HeaderMap) -> Option<usize> {
    headers
        .get(header::CONTENT_LENGTH)?
        .to_str()
        .ok()?
        .parse()
        .ok()
}

/// JSON, not compressed, and nothing else.
fn check_type(headers: &HeaderMap) -> Result<(), ApiError> {
    let essence = |name| {
        let value = headers.get(name).map(|value| value.to_str().unwrap_or("?"));
        value.map(|value| {
            value
                .split(';')
                .next()
                .unwrap_or_default()
                .trim()
                .to_ascii_lowercase()
        })
    };
    if essence(header::CONTENT_TYPE).as_deref() != Some("application/json") {
        return Err(ApiError::new(
            ErrorCode::UnsupportedMediaType,
            "content-type must be application/json",
        ));
    }
    match essence(header::CONTENT_ENCODING).as_deref() {
        None | Some("identity") => Ok(()),
        Some(_) => Err(ApiError::new(
            ErrorCode::UnsupportedMediaType,
            "content-encoding must be identity",
        )),
    }
}

#[cfg(test)]
mod tests {
    use futures::stream;

    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, value.parse().expect("a header value"));
        }
        headers
    }

    async fn code_of(
        pairs: &[(&'static str, &str)],
        chunks: Vec<Vec<u8>>,
    ) -> Result<usize, ErrorCode> {
        let body = stream::iter(
            chunks
                .into_iter()
                .map(|chunk| Ok(bytes::Bytes::from(chunk))),
        );
        read_json(&headers(pairs), body)
            .await
            .map(|bytes| bytes.len())
            .map_err(|error| error.error().code)
    }

    const JSON: (&str, &str) = ("content-type", "application/json");

    #[tokio::test]
    async fn a_body_over_the_limit_is_refused_however_it_comes() {
        let full = vec![b' '; BODY_BYTES_MAX];
        assert_eq!(
            code_of(&[JSON], vec![full.clone()]).await,
            Ok(BODY_BYTES_MAX)
        );
        assert_eq!(
            code_of(&[JSON], vec![full.clone(), vec![b' ']]).await,
            Err(ErrorCode::BodyTooLarge)
        );
        assert_eq!(
            code_of(&[JSON], vec![full; 100]).await,
            Err(ErrorCode::BodyTooLarge)
        );
        assert_eq!(
            code_of(&[JSON, ("content-length", "999999999999")], vec![]).await,
            Err(ErrorCode::BodyTooLarge)
        );
    }

    #[tokio::test]
    async fn a_body_of_another_type_is_refused() {
        for pairs in [
            &[][..],
            &[("content-type", "text/plain")],
            &[("content-type", "application/x-www-form-urlencoded")],
            &[("content-type", "application/json5")],
            &[JSON, ("content-encoding", "gzip")],
        ] {
            assert_eq!(
                code_of(pairs, vec![]).await,
                Err(ErrorCode::UnsupportedMediaType),
                "{pairs:?}"
            );
        }
        for value in [
            "application/json",
            "Application/JSON; charset=utf-8",
            "application/json;charset=UTF-8",
        ] {
            assert_eq!(
                code_of(&[("content-type", value)], vec![b"{}".to_vec()]).await,
                Ok(2),
                "{value}"
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_never_ends_is_given_up() {
        let body = stream::pending::<Result<bytes::Bytes, warp::Error>>();
        let error = read_json(&headers(&[JSON]), body)
            .await
            .expect_err("no body came");
        assert_eq!(error.error().code, ErrorCode::RequestTimeout);
    }
}
