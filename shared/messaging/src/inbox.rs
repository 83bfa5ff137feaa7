//! What comes in on a worker loop's inbox, told apart by its subject: `<inbox>.<n>` answers pull `n`,
//! `<inbox>.p<n>` answers progress ack `n`, and a message keeps the subject it was published on.

use async_nats::Message as NatsMessage;

/// What came in on the inbox.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Incoming {
    Message,
    PullExpired(u64),
    PullRefused(u64),
    ProgressAnswered(u64),
    Unknown,
}

/// Messages keep the subject they were published on; answers come on the inbox's own subjects.
pub(crate) fn classify(inbox: &str, message: &NatsMessage) -> Incoming {
    let own = message
        .subject
        .strip_prefix(inbox)
        .and_then(|rest| rest.strip_prefix('.'));
    let Some(token) = own else {
        return Incoming::Message;
    };
    if let Some(number) = token.strip_prefix('p') {
        return match (number.parse(), message.status) {
            (Ok(number), None) => Incoming::ProgressAnswered(number),
            // No responders: the consumer has no leader now, or is gone.
            _ => Incoming::Unknown,
        };
    }
    match (token.parse(), message.status.map(|status| status.as_u16())) {
        (Ok(number), Some(404 | 408)) => Incoming::PullExpired(number),
        (Ok(number), Some(_)) => Incoming::PullRefused(number),
        _ => Incoming::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use async_nats::StatusCode;

    use super::*;

    #[test]
    fn each_answer_is_told_from_a_message() {
        let table = [
            ("t.dn.standard.1.0", None, Incoming::Message),
            ("_INBOX.b.7", None, Incoming::Message),
            ("_INBOX.a.7", Some(408), Incoming::PullExpired(7)),
            ("_INBOX.a.7", Some(404), Incoming::PullExpired(7)),
            ("_INBOX.a.7", Some(409), Incoming::PullRefused(7)),
            ("_INBOX.a.7", Some(503), Incoming::PullRefused(7)),
            ("_INBOX.a.p7", None, Incoming::ProgressAnswered(7)),
            ("_INBOX.a.p7", Some(503), Incoming::Unknown),
            ("_INBOX.a.x", None, Incoming::Unknown),
        ];
        for (subject, status, expected) in table {
            let message = NatsMessage {
                subject: subject.into(),
                reply: None,
                payload: "".into(),
                headers: None,
                status: status.map(|code: u16| StatusCode::from_u16(code).expect("a status")),
                description: None,
                length: 0,
            };
            assert_eq!(
                classify("_INBOX.a", &message),
                expected,
                "{subject} {status:?}"
            );
        }
    }
}
