//! The key that a request brings, as OpenAI's clients send theirs: `Authorization: Bearer KEY`.

use warp::http::{HeaderMap, header::AUTHORIZATION};

/// The key; `None` where there is none, or more than one.
pub fn key(headers: &HeaderMap) -> Option<&str> {
    let mut values = headers.get_all(AUTHORIZATION).into_iter();
    let (value, None) = (values.next()?, values.next()) else {
        return None;
    };
    let (scheme, key) = value.to_str().ok()?.split_once(' ')?;
    let key = key.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !key.is_empty()).then_some(key)
}

#[cfg(test)]
mod tests {
    use warp::http::HeaderValue;

    use super::*;

    #[test]
    fn a_key_is_what_the_one_authorization_of_its_scheme_says() {
        let table: [(&[&str], Option<&str>); 10] = [
            (&[], None),
            (&["Bearer sk-1"], Some("sk-1")),
            (&["bearer sk-1"], Some("sk-1")),
            (&["BEARER  sk-1 "], Some("sk-1")),
            (&["Bearer"], None),
            (&["Bearer "], None),
            (&["sk-1"], None),
            (&["Basic sk-1"], None),
            (&["\u{e9}"], None),
            (&["Bearer sk-1", "Bearer sk-1"], None),
        ];
        for (values, wanted) in table {
            let mut headers = HeaderMap::new();
            for value in values {
                let value = HeaderValue::from_bytes(value.as_bytes()).expect("a header's value");
                headers.append(AUTHORIZATION, value);
            }
            assert_eq!(key(&headers), wanted, "{values:?}");
        }
    }
}
