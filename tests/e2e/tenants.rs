//! Two clients of one deployment, each with its key: neither hears of the other's pictures, and the command line brings
//! a key too.

use std::{
    fs,
    path::{Path, PathBuf},
};

use integration::{
    api::{Api, IN_BACKGROUND},
    binary,
    fleet::Fleet,
    tenants::{PRESS, STUDIO, tenants_file},
};
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
