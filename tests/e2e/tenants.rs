//! Two clients of one deployment, each with its key: neither hears of the other's pictures, and the command line brings
//! a key too.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use integration::{
    api::{Api, IN_BACKGROUND},
    binary,
    fleet::{Fleet, QUICK, until},
    tenants::{PRESS, STUDIO, tenants_file},
};
use protocol::Role;
use reqwest::{Method, StatusCode};
use serde_json::json;
use tempfile::TempDir;
use tokio::process::Command;

/// `fresco generate` with these flags; whether it wrote a picture, and what it said.
async fn generate(gateway: &Api, out: &Path, flags: &[&str], key: Option<&str>) -> (bool, String) {
    let fixed = ["generate", "a red fox", "--size", "64x64", "--steps", "2"];
    let out = ["--out", out.to_str().unwrap()];
    fresco(gateway, &[&fixed[..], &out, flags].concat(), key).await
}

/// A command to this gateway, with a key in the environment or none; whether it succeeded, and what it said.
async fn fresco(gateway: &Api, arguments: &[&str], key: Option<&str>) -> (bool, String) {
    let mut command = Command::new(binary("fresco"));
    command
        .args(arguments)
        .args(["--gateway", gateway.url()])
        .env_remove("FRESCO_API_KEY")
        .envs(key.map(|key| ("FRESCO_API_KEY", key)));
    let output = command.output().await.unwrap();
    let said = [output.stdout, output.stderr].concat();
    (
        output.status.success(),
        String::from_utf8_lossy(&said).into_owned(),
    )
}

fn key_file(folder: &TempDir, key: &str) -> PathBuf {
    let file = folder.path().join("api.key");
    fs::write(&file, format!("{key}\n")).unwrap();
    file
}

#[tokio::test]
async fn two_tenants_share_the_devices_and_nothing_else() {
    let (fleet, folder) = (Fleet::quick(&[]).await, TempDir::new().unwrap());
    let tenants = tenants_file(folder.path());
    let flags = ["--tenants", tenants.to_str().unwrap()];
    let (process, gateway) = fleet.start_gateway("tenants", &flags).await;
    let request =
        json!({"prompt": "a red fox", "size": "64x64", "num_inference_steps": 2, "seed": 7});
    let painted = gateway
        .generate(&request, &[STUDIO.header()])
        .await
        .unwrap();
    let picture = painted.data()[0]["url"].as_str().unwrap();
    let picture = picture.strip_prefix(gateway.url()).unwrap().to_owned();
    let job = format!("/v1/images/jobs/{}", painted.id());
    let routes = [
        (Method::GET, picture),
        (Method::GET, job.clone()),
        (Method::DELETE, job.clone()),
    ];
    for (method, path) in routes {
        for (key, wanted) in [
            (Some(STUDIO), StatusCode::OK),
            (Some(PRESS), StatusCode::NOT_FOUND),
            (None, StatusCode::UNAUTHORIZED),
        ] {
            let headers: Vec<_> = key.iter().map(|key| key.header()).collect();
            let answer = gateway
                .send(method.clone(), &path, &headers, None)
                .await
                .unwrap();
            assert_eq!(answer.status, wanted, "{method} {path}");
        }
    }
    let trace = painted.headers["x-trace-id"].to_str().unwrap();
    let told = gateway
        .send(Method::GET, &job, &[STUDIO.header()], None)
        .await;
    assert_eq!(told.unwrap().body["trace_id"], json!(trace));
    let refused = gateway.generate(&request, &[IN_BACKGROUND]).await.unwrap();
    assert_eq!(
        (refused.status, refused.error().0),
        (StatusCode::UNAUTHORIZED, "invalid_api_key")
    );

    let (out, file) = (folder.path().join("out"), key_file(&folder, STUDIO.key));
    let with_file = ["--api-key-file", file.to_str().unwrap()];
    for (flags, key, good) in [
        (&with_file[..], None, true),
        (&with_file[..0], Some(PRESS.key), true),
        (&with_file[..0], None, false),
        (&with_file[..0], Some("sk-nobody"), false),
    ] {
        let (done, said) = generate(&gateway, &out, flags, key).await;
        assert_eq!(done, good, "{said}");
        assert_eq!(said.contains("invalid_api_key"), !good, "{said}");
    }
    let id = painted.id();
    let own = [&["cancel", &id][..], &with_file].concat();
    let (done, said) = fresco(&gateway, &own, None).await;
    assert!(done && said.ends_with("-0 completed\n"), "{said}");
    let (done, said) = fresco(&gateway, &["cancel", &id], Some(PRESS.key)).await;
    assert!(!done && said.contains("not_found"), "{said}");
    let log = process.log();
    for secret in [STUDIO.key, PRESS.key, "sk-nobody"] {
        assert!(!log.contains(secret), "{log}");
    }
}

/// A picture that nobody would wait for.
const STEPS_MANY: u32 = 1_000;

/// What all denoisers count for each, and for all of them, if on each of them they add up.
async fn device_seconds(fleet: &Fleet) -> Option<BTreeMap<String, f64>> {
    let by_tenant = fleet.seconds_by_worker(Role::Denoiser, "fresco_tenant_device_seconds");
    let busy = fleet.seconds_by_worker(Role::Denoiser, "fresco_device_busy_seconds");
    let mut sums = BTreeMap::new();
    // Not of one moment: they are the same once the devices are free.
    let (by_tenant, busy) = (by_tenant.await, busy.await);
    for (by_tenant, busy) in by_tenant.into_iter().zip(busy) {
        let of_tenants: f64 = by_tenant.values().sum();
        if (of_tenants - busy[""]).abs() > 1e-6 {
            return None;
        }
        for (tenant, seconds) in by_tenant {
            *sums.entry(tenant).or_default() += seconds;
        }
    }
    Some(sums)
}

#[tokio::test]
async fn what_a_tenant_cancels_is_its_share_of_the_devices_and_shares_add_up() {
    let (fleet, folder) = (Fleet::replay(2, QUICK).await, TempDir::new().unwrap());
    let tenants = tenants_file(folder.path());
    let flags = ["--tenants", tenants.to_str().unwrap()];
    let (_process, keyed) = fleet.start_gateway("tenants", &flags).await;
    let anybody = Api::new(&fleet.gateway);
    let request = |steps| json!({"prompt": "a red fox", "size": "64x64", "num_inference_steps": steps, "seed": 7});
    let started = keyed
        .generate(&request(STEPS_MANY), &[STUDIO.header(), IN_BACKGROUND])
        .await
        .unwrap();
    anybody.until_state(&started.id(), "denoise_running").await;
    let painted = keyed.generate(&request(2), &[PRESS.header()]).await;
    assert_eq!(painted.unwrap().status, StatusCode::OK);
    let painted = anybody.generate(&request(2), &[]).await;
    assert_eq!(painted.unwrap().status, StatusCode::OK);
    anybody.cancel(&started.id()).await;
    let sums = until("the devices are free and their time adds up", || async {
        fleet.until_idle(2).await;
        device_seconds(&fleet).await
    });
    let sums = sums.await;
    let of = |tenant: &str| sums[&format!("{{tenant=\"{tenant}\"}}")];
    // Two steps and a decoding; the cancelled one had a device for longer than the two together.
    for painted in ["press", "none"] {
        assert!(of(painted) >= 0.012, "{sums:?}");
    }
    assert!(of("studio") > of("press") + of("none"), "{sums:?}");
    assert_eq!(sums.len(), 3, "{sums:?}");
}

#[tokio::test]
async fn a_file_of_tenants_that_cannot_be_meant_ends_a_gateway_at_once() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("tenants.toml");
    fs::write(&file, "[[tenant]]\nname = \"studio\"\nkey = \"sk-live\"\n").unwrap();
    let mut by_flag = Command::new(binary("fresco-gateway"));
    by_flag.arg("--tenants").arg(&file);
    let mut by_variable = Command::new(binary("fresco-gateway"));
    by_variable.env("FRESCO_TENANTS", &file);
    for mut command in [by_flag, by_variable] {
        let output = command.output().await.unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains("line 3, column 1: unknown field"), "{said}");
        assert!(!said.contains("sk-live"), "{said}");
    }
}
