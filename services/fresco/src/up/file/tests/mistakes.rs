//! What is refused, and how that is told.

use super::*;

/// What is right, what is made of it, and what the refusal has to name.
const MISTAKES: &[(&str, &str, &str)] = &[
    ("devices = [2, 3]", "devices = [1, 3]", "device 1"),
    ("devices = [2, 3]", "devices = [2, 2]", "device 2"),
    ("devices = [2, 3]", "devices = []", "denoisers.devices"),
    (
        "devices = [2, 3]",
        "devices = [2, 3]\n[start]\nloading_max = 0",
        "loading_max",
    ),
    (
        "devices = [2, 3]",
        "devices = [2, 3]\n[stop]\ndrain_s = 9223372036854775807",
        "stop.drain_s",
    ),
    (
        "devices = [2, 3]",
        "devices = [2, 3]\n[start]\nloading_s = 0",
        "start.loading_s",
    ),
    (
        "devices = [2, 3]",
        "devices = [2, 3]\n[broker]\nack_wait_s = 0",
        "broker.ack_wait_s",
    ),
    (
        "devices = [2, 3]",
        "devices = [2, 3]\n[broker]\nresult_ttl_s = 86401",
        "broker.result_ttl_s",
    ),
    (
        "devices = [0, 1]",
        "devices = [0, 1]\nslots_max = 129",
        "ar.slots_max",
    ),
    (
        "devices = [0, 1]",
        "devices = [0, 1]\ndelay_ms = 60001",
        "ar.delay_ms",
    ),
    (
        "devices = [2, 3]",
        "devices = [2, 3]\n[broker]\nca = \"x\"",
        "broker.urls",
    ),
    (
        "devices = [2, 3]",
        "devices = [2, 3]\n[broker]\nreplicas = 2",
        "broker.replicas",
    ),
    (
        "devices = [2, 3]",
        "devices = [2, 3]\n[broker]\nreplicas = 3",
        "`broker.replicas` needs",
    ),
    (
        "devices = [2, 3]",
        "devices = [2, 3]\n[broker]\nurls = [\"\"]",
        "`broker.urls`",
    ),
    (
        "devices = [2, 3]",
        "devices = [2, 3]\ncolour = 1",
        "line 10, column 1: unknown field, expected `devices`",
    ),
    (
        "engine = \"replay\"",
        "engine = \"torch\"",
        "line 2, column 10: unknown variant, expected one of `native`",
    ),
    ("engine = \"replay\"", "engine = \"native\"", "times"),
    (
        "engine = \"replay\"",
        "engine = \"replay\"\nmodel = \"m\"",
        "model",
    ),
    (
        "engine = \"replay\"",
        "engine = \"replay\"\ntime_scale = 0.0",
        "time_scale",
    ),
    (
        "engine = \"replay\"",
        "engine = \"replay\"\nprefix = \"A\"",
        "prefix",
    ),
    (
        "devices = [0, 1]",
        "devices = [0, 1]\nsrt_urls = [\"http://h:1\"]",
        "srt_urls",
    ),
    (
        "listen = \"127.0.0.1:8080\"",
        "listen = \"127.0.0.1:8080\"\nhealth_listen = \"[::]:8081\"",
        "gateway.health_listen",
    ),
    (
        "listen = \"127.0.0.1:8080\"",
        "listen = \"127.0.0.1:8080\"\npublic_url = \"http://0.0.0.0\"",
        "gateway.public_url",
    ),
    (
        "devices = [2, 3]",
        "devices = [2, 3]\n[broker]\nurls = [\"nats://u:secret@h\"]",
        "broker.credentials",
    ),
    ("listen = \"127.0.0.1:8080\"", "", "listen"),
];

#[test]
fn a_mistake_is_told_by_its_name() {
    for (right, wrong, name) in MISTAKES {
        let text = RIGHT.replacen(right, wrong, 1);
        assert_ne!(text, RIGHT, "{right}");
        let error = parse(&text, Path::new(""), &args()).err();
        assert!(
            error.as_ref().is_some_and(|error| error.contains(name)),
            "{wrong}: {error:?}"
        );
    }
}

#[test]
fn a_line_that_cannot_be_read_is_not_shown() {
    for broker in [
        "urls = [\"nats://u:secret@h\"",
        "urls = nats://u:secret@h",
        "urls = \"nats://u:secret@h\"",
        "urls = [[\"nats://u:secret@h\"]]",
        "url = \"nats://u:secret@h\"",
        "\"nats://u:secret@h\" = 1",
        "replicas = \"nats://u:secret@h\"",
    ] {
        let text = format!("{RIGHT}[broker]\n{broker}\n");
        let error = parse(&text, Path::new(""), &args()).expect_err(broker);
        assert!(!error.contains("secret"), "{error}");
        assert!(error.starts_with("line 1"), "{error}");
    }
}
