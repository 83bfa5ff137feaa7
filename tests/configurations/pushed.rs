//! What processes push through the collector, as a Prometheus with our relabelling has it. The exposition is written as the
//! collector's exporter writes it: namespace and program as `job`, the process as `instance`.

use std::fs;

use integration::{
    dashboards::{dashboards, names},
    exposition::Exposition,
    fleet::until,
    prometheus::Prometheus,
    root,
};
use serde_yaml_ng::{Mapping, Value};

/// Two denoisers and what is made of their spans.
const PUSHED: &str = r#"
# TYPE fresco_inflight gauge
fresco_inflight{job="e2e/fresco-denoiser",instance="denoiser-1",stage="denoise"} 1
fresco_inflight{job="e2e/fresco-denoiser",instance="denoiser-2",stage="denoise"} 0
# TYPE fresco_device_busy_seconds_total counter
fresco_device_busy_seconds_total{job="e2e/fresco-denoiser",instance="denoiser-1"} 10
fresco_device_busy_seconds_total{job="e2e/fresco-denoiser",instance="denoiser-2"} 10
# TYPE fresco_worker_info gauge
fresco_worker_info{job="e2e/fresco-denoiser",instance="denoiser-1",worker="denoiser-1"} 1
fresco_worker_info{job="e2e/fresco-denoiser",instance="denoiser-2",worker="denoiser-2"} 1
# TYPE traces_spanmetrics_duration_seconds histogram
traces_spanmetrics_duration_seconds_bucket{job="e2e/fresco-denoiser",instance="denoiser-1",service_name="fresco-denoiser",span_name="denoise",le="+Inf"} 1
traces_spanmetrics_duration_seconds_count{job="e2e/fresco-denoiser",instance="denoiser-1",service_name="fresco-denoiser",span_name="denoise"} 1
# TYPE traces_service_graph_request_total counter
traces_service_graph_request_total{client="fresco-gateway",server="fresco-ar-batcher",connection_type="messaging_system",failed="false"} 3
traces_service_graph_request_total{client="fresco-gateway",server="unknown",connection_type="virtual_node",failed="false"} 2
# TYPE traces_service_graph_request_client_seconds histogram
traces_service_graph_request_client_seconds_bucket{client="fresco-gateway",server="unknown",connection_type="virtual_node",failed="false",le="+Inf"} 2
traces_service_graph_request_client_seconds_count{client="fresco-gateway",server="unknown",connection_type="virtual_node",failed="false"} 2
"#;

/// A Prometheus whose scrape of the collector is that of `file`, of a collector that has `PUSHED`.
async fn scraping(file: &str, exposition: &Exposition) -> Prometheus {
    let text = fs::read_to_string(root().join(file)).unwrap();
    let whole: Value = serde_yaml_ng::from_str(&text).unwrap();
    let jobs = whole["scrape_configs"].as_sequence().unwrap();
    let mut job = jobs
        .iter()
        .find(|job| job["job_name"] == "otel-collector")
        .unwrap()
        .clone();
    let job_mapping = job.as_mapping_mut().unwrap();
    job_mapping.remove("static_configs");
    job_mapping.remove("dns_sd_configs");
    let targets = format!("[{{targets: [\"{}\"]}}]", exposition.address());
    let targets: Value = serde_yaml_ng::from_str(&targets).unwrap();
    job_mapping.insert("static_configs".into(), targets);
    let global: Value = serde_yaml_ng::from_str("{scrape_interval: 1s}").unwrap();
    let config = Mapping::from_iter([
        ("global".into(), global),
        ("scrape_configs".into(), Value::Sequence(vec![job])),
    ]);
    let prometheus = Prometheus::start_with(&serde_yaml_ng::to_string(&config).unwrap()).await;
    until("it is scraped", || async {
        let up = prometheus.now("up == 1").await;
        (!up.is_empty()).then_some(())
    })
    .await;
    prometheus
}

#[tokio::test]
async fn each_process_that_pushes_is_an_instance_of_its_deployment() {
    let exposition = Exposition::start(|| PUSHED.to_owned()).await;
    let prometheus = scraping("observability/prometheus/prometheus.yml", &exposition).await;
    let mut seen = 0;
    for panel in dashboards().into_iter().flat_map(|d| d.panels()) {
        let of_pushed = |query: &String| {
            let asked = names(query, "fresco_");
            asked.iter().all(|name| PUSHED.contains(&**name)) && asked.len() == 2
        };
        for query in panel.promql().into_iter().filter(of_pushed) {
            let query = query.replace("$deployment", "e2e");
            // A join that fails is an answer without success.
            let query = query.replace("$__rate_interval", "1m");
            let mut workers: Vec<_> = until("two scrapes are there", || async {
                let series = prometheus.now(&query).await;
                let workers = series.iter().map(|series| series.labels["worker"].clone());
                (series.len() == 2).then(|| workers.collect())
            })
            .await;
            workers.sort();
            assert_eq!(workers, ["denoiser-1", "denoiser-2"], "{}", panel.name);
            seen += 1;
        }
    }
    assert_eq!(seen, 2, "busy, and busy devices");
    assert_spans(&prometheus).await;
}

/// Under Tempo's names, with the labels that its panels ask for.
async fn assert_spans(prometheus: &Prometheus) {
    let spans = prometheus.now("traces_spanmetrics_latency_count").await;
    let [of_denoise] = &spans[..] else {
        panic!("{spans:?}");
    };
    let label = |name: &str| of_denoise.labels.get(name).map(String::as_str);
    assert_eq!(label("service"), Some("fresco-denoiser"));
    assert_eq!(label("deployment"), Some("e2e"));
    assert_eq!(label("instance"), Some("denoiser-1"));
    for left_over in ["service_name", "exported_job", "exported_instance"] {
        assert_eq!(label(left_over), None);
    }
    // A message that was taken out of its queue is no edge, as it is none with Tempo: the connector makes one of it, to
    // nobody that there is.
    let edges = prometheus
        .now(r#"{__name__=~"traces_service_graph_.*"}"#)
        .await;
    let servers = edges.iter().map(|edge| edge.labels["server"].as_str());
    assert_eq!(servers.collect::<Vec<_>>(), ["fresco-ar-batcher"]);
}

#[tokio::test]
async fn who_pushes_beside_being_scraped_is_there_once() {
    let exposition = Exposition::start(|| PUSHED.to_owned()).await;
    let prometheus = scraping("docker/prometheus.yml", &exposition).await;
    assert_spans(&prometheus).await;
    let twice = prometheus.now(r#"{__name__=~"fresco_.*"}"#).await;
    assert!(twice.is_empty(), "{twice:?}");
}
