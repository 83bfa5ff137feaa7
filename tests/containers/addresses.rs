//! Who is called where: each listens there.

use std::{collections::BTreeSet, fs};

use crate::files::{Dockerfile, composes, docker, services, targets};

/// `name:port` wherever `text` has one.
fn addresses(text: &str) -> Vec<(&str, &str)> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && !".-:".contains(c));
    words
        .filter_map(|word| word.rsplit_once(':'))
        .filter(|(name, port)| {
            name.contains(|c: char| c.is_ascii_alphabetic()) && port.parse::<u16>().is_ok()
        })
        .collect()
}

#[test]
fn a_role_is_asked_for_its_health_and_its_metrics_where_it_listens() {
    let (dockerfile, targets) = (Dockerfile::read(), targets());
    let prometheus = fs::read_to_string(docker().join("prometheus.yml")).unwrap();
    let mut roles = Vec::new();
    for (service, image) in &targets {
        let Some(port) = dockerfile.health_port(image) else {
            continue;
        };
        let check = dockerfile.list(image, "HEALTHCHECK");
        assert_eq!(check, ["health", &port, "/livez"], "{service}");
        assert!(dockerfile.exposes(image, &port), "{service}");
        assert!(prometheus.contains(&format!("port: {port}\n")), "{service}");
        roles.push(service.as_str());
    }
    roles.sort_by_key(|role| *role != "gateway");
    let named = format!("names: [{}]", roles.join(", "));
    assert!(prometheus.contains(&named), "Prometheus looks for {named}");
}

#[test]
fn every_role_sends_spans_where_they_are_shown_at_once_and_lines_where_they_are_collected() {
    let (dockerfile, targets) = (Dockerfile::read(), targets());
    let [_, observe] = composes();
    let published: Vec<_> = observe.services.values().flat_map(|s| &s.ports).collect();
    for (name, image) in &targets {
        let service = observe.services.get(name);
        if dockerfile.health_port(image).is_some() {
            let service = service.unwrap_or_else(|| panic!("{name} sends nothing"));
            let endpoint = &service.environment["OTEL_EXPORTER_OTLP_ENDPOINT"];
            // Not through the collector: it keeps a trace back until its job cannot run any more.
            assert_eq!(endpoint, "http://tempo:4318", "{name}");
            // The name of its program, as its spans have it, is what leads from one to the other.
            let program = &dockerfile.list(image, "ENTRYPOINT")[1];
            let logging = service.logging.as_ref().unwrap();
            assert_eq!(&logging.options["tag"], program);
            // Whole seconds leave the lines of several roles within one in any order.
            let precise = logging.options.get("fluentd-sub-second-precision");
            assert_eq!(precise.map(String::as_str), Some("true"), "{name}");
            let engine = format!("{}:", logging.options["fluentd-address"]);
            assert!(
                published.iter().any(|port| port.starts_with(&engine)),
                "{name}"
            );
        }
    }
}

/// The panel of warnings and errors reads a level out of each line.
#[test]
fn whose_lines_are_collected_writes_them_as_json() {
    let (dockerfile, targets) = (Dockerfile::read(), targets());
    let [compose, observe] = composes();
    let mut seen = 0;
    for (name, service) in &observe.services {
        let logging = service.logging.as_ref();
        if logging.is_none_or(|logging| logging.driver != "fluentd") {
            continue;
        }
        let mut words = dockerfile.list(&targets[name], "ENTRYPOINT");
        words.extend(compose.services[name].command.iter().cloned());
        let json = words.windows(2).any(|two| two == ["--log-format", "json"]);
        assert!(json, "{name}: {words:?}");
        seen += 1;
    }
    assert_eq!(seen, 4);
}

#[test]
fn an_address_in_a_file_is_a_service_that_listens_there() {
    let (dockerfile, targets, services) = (Dockerfile::read(), targets(), services());
    let listens = |name: &str, port: &str| match targets.get(name) {
        Some(image) => dockerfile.exposes(image, port),
        None => services.iter().any(|(service, parts)| {
            let forms = [format!("0.0.0.0:{port}"), format!("listen_port: {port}")];
            let configurations = parts.configurations();
            let said = |text: &String| forms.iter().any(|form| text.contains(form));
            service == name && configurations.iter().any(said)
        }),
    };
    let mut seen = BTreeSet::new();
    for (service, parts) in &services {
        let mut texts = parts.configurations();
        texts.extend(parts.command.iter().cloned());
        texts.extend(parts.environment.values().cloned());
        for (path, _) in parts
            .mounted()
            .filter(|(path, _)| path.ends_with("provisioning"))
        {
            texts.push(fs::read_to_string(path.join("datasources/fresco.yml")).unwrap());
        }
        for (name, port) in texts.iter().flat_map(|text| addresses(text)) {
            assert!(listens(name, port), "{service} calls {name}:{port}");
            seen.insert(name.to_owned());
        }
    }
    let seen: Vec<_> = seen.iter().map(String::as_str).collect();
    assert_eq!(seen, ["loki", "nats", "prometheus", "tempo"]);
}

#[test]
fn addresses_are_found_and_nothing_else_is() {
    let text =
        r#"url: "nats://watch:watch@nats:4222", http: 0.0.0.0:4318 tempo:2.7.1 a: 5 x-y:80/p"#;
    assert_eq!(addresses(text), [("nats", "4222"), ("x-y", "80")]);
}
