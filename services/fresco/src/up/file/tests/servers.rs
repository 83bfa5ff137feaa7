//! `[ar.server]`: the SRT servers that are started.

use super::*;
use crate::up::site::Server;

/// A file that starts its SRT servers, to make wrong.
const SERVED: &str = r#"
engine = "srt"
model = "m"
[pin]
variable = "CUDA_VISIBLE_DEVICES"
device = "cuda:0"
[gateway]
listen = "127.0.0.1:8080"
[ar]
devices = [0, 1, 6, 7]
srt_urls = ["http://127.0.0.1:30020", "http://127.0.0.1:30021/"]
[ar.server]
command = ["bin/srt", "--port={port}", "--model", "{model}/ar", "--json", "{}"]
[denoisers]
devices = [2, 3]
"#;

#[test]
fn each_srt_url_is_a_server_with_its_share_of_the_devices() {
    let (flags, site) = parse(SERVED, Path::new("/f"), &args()).expect("a good file");
    let server = |number: u16, devices: &str| Server {
        pinned: Pinned {
            name: format!("srt-{number}"),
            environment: [
                ("CUDA_DEVICE_ORDER", "PCI_BUS_ID"),
                ("CUDA_VISIBLE_DEVICES", devices),
            ]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into(),
            label: Some(format!("cuda:{devices}")),
            probes: None,
        },
        url: format!("http://127.0.0.1:{}", 30020 + number),
        program: "/f/bin/srt".into(),
        arguments: [
            &format!("--port={}", 30020 + number),
            "--model",
            "/f/m/ar",
            "--json",
            "{}",
        ]
        .map(Into::into)
        .into(),
    };
    assert_eq!(site.servers, [server(0, "0,1"), server(1, "6,7")]);
    assert_eq!(flags.srt_urls.len(), 2);
    let nowhere = Pinned::nowhere(AR_BATCHER.to_owned());
    assert_eq!(site.ar_batcher, Some(nowhere));
    let by_name = SERVED.replace("bin/srt", "srt");
    let (_, site) = parse(&by_name, Path::new("/f"), &args()).expect("a good file");
    assert_eq!(site.servers[0].program, Path::new("srt"));
}

#[test]
fn a_server_that_cannot_be_started_where_it_is_called_is_refused() {
    let one = "\"http://127.0.0.1:30020\", ";
    let table = [
        ("--port={port}", "--port=30020", "{port}"),
        ("\"bin/srt\"", "\"\"", "ar.server.command"),
        ("30021/", "30020", "ar.srt_urls"),
        ("30021/", "8080", "port 8080"),
        (
            "http://127.0.0.1:30020",
            "http://:p@127.0.0.1:30020",
            "credentials",
        ),
        ("127.0.0.1:30021", "10.0.0.1:30021", "ar.srt_urls"),
        ("[0, 1, 6, 7]", "[0, 1, 6]", "ar.devices"),
        ("[0, 1, 6, 7]", "[]", "ar.devices"),
        ("command", "program", "line 13, column 1: unknown field"),
        ("engine = \"srt\"", "engine = \"native\"", "ar."),
    ];
    for (right, wrong, name) in table {
        let text = SERVED.replacen(right, wrong, 1);
        assert_ne!(text, SERVED, "{right}");
        let error = parse(&text, Path::new(""), &args()).err();
        assert!(
            error.as_ref().is_some_and(|error| error.contains(name)),
            "{wrong}: {error:?}"
        );
    }
    let shared = SERVED.replace(one, "");
    parse(&shared, Path::new(""), &args()).expect("one server has all of them");
}
