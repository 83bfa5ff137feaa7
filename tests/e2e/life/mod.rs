//! What becomes of outputs that fail, of workers that fail, and of work that nobody wants any more.

mod interrupted;
mod poison;
mod unwanted;

use std::time::Duration;

use integration::{
    fleet::Fleet,
    http::{self, Answer},
};
use replay::{ArTimes, DenoiseTimes, Table};
use serde_json::{Value, json};
use tokio::task::JoinSet;

/// One step of [`SLOW`].
const STEP: Duration = Duration::from_millis(250);

const AR: ArTimes = ArTimes::new(&[(1, 22.0), (2, 24.0)], 258);

const QUICK: Table = Table {
    ar: AR,
    denoise: DenoiseTimes {
        step_ms: 5.0,
        decode_ms: 2.0,
    },
};

const SLOW: Table = Table {
    denoise: DenoiseTimes {
        step_ms: 250.0,
        decode_ms: 2.0,
    },
    ar: AR,
};

fn request(prompt: &str, steps: u32) -> Value {
    json!({"prompt": prompt, "size": "32x32", "seed": 7, "num_inference_steps": steps})
}

fn in_background(fleet: &Fleet, requests: Vec<Value>) -> JoinSet<Answer> {
    let asked = requests.into_iter().map(|request| {
        let gateway = fleet.gateway.clone();
        async move { http::generate(&gateway, &request).await }
    });
    asked.collect()
}
