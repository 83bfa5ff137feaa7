//! Pages for who brings the admin key: what the others are told, once for all of them.

use warp::{
    Filter, Reply,
    filters::BoxedFilter,
    http::{HeaderMap, HeaderValue, StatusCode, header},
    reply::Response,
};

use crate::AdminKey;

/// A request that does not bring it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NoKey;

impl Reply for NoKey {
    fn into_response(self) -> Response {
        let text = "the admin key is needed\n";
        let mut response = warp::reply::with_status(text, StatusCode::UNAUTHORIZED).into_response();
        let scheme = HeaderValue::from_static("Bearer");
        response
            .headers_mut()
            .insert(header::WWW_AUTHENTICATE, scheme);
        response
    }
}

/// Whether a request brings `key`; without one there is no such page.
pub(crate) fn keyed(key: Option<AdminKey>) -> BoxedFilter<(Result<(), NoKey>,)> {
    let there_is = warp::any().and_then(move || {
        let key = key.clone();
        async move { key.ok_or_else(warp::reject::not_found) }
    });
    there_is
        .and(warp::header::headers_cloned())
        .map(|key: AdminKey, headers: HeaderMap| key.is_in(&headers).then_some(()).ok_or(NoKey))
        .boxed()
}
