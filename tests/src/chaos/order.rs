//! What clients ask for: each request a pure function of the seed and its number, and what it may end with.

use std::time::Duration;

use protocol::{DenoiseParameters, ErrorCode, ImageSize, Seed};
use rand::{Rng, SeedableRng, rngs::StdRng};
use replay::{Fault, FaultStage, Rule, Scene, picture, prior_tokens};
use serde_json::{Value, json};

/// Steps of every picture: short, so that a run has thousands.
pub const STEPS: u16 = 4;

/// How a client goes about its request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Manner {
    /// Waits for the pictures, in the answer itself.
    WaitForBytes,
    /// Waits for the pictures' addresses and fetches them.
    WaitForAddresses,
    /// Asks for the job and looks after it.
    Poll,
    /// The same, and cancels it after this.
    Cancel(Duration),
}

/// One request.
#[derive(Debug, Clone, PartialEq)]
pub struct Order {
    /// Its number; its idempotency key follows from it.
    pub number: usize,
    /// As the client writes it. Names the request, and the poison in it.
    pub prompt: String,
    /// Pictures.
    pub n: u8,
    /// Of each picture.
    pub size: ImageSize,
    /// Of the first picture.
    pub seed: Seed,
    /// How.
    pub manner: Manner,
    /// `timeout_s`.
    pub timeout: Option<Duration>,
}

/// What the engines do to poisoned prompts: fail, or take their process with them.
pub fn rules() -> Vec<Rule> {
    let rule = |text: &str, stage, fault| Rule {
        prompt_contains: text.to_owned(),
        stage,
        fault,
    };
    vec![
        rule("poison fails prior", FaultStage::Prior, Fault::Fail),
        rule("poison fails paint", FaultStage::Denoise, Fault::Fail),
        rule("poison aborts prior", FaultStage::Prior, Fault::Abort),
        rule("poison aborts paint", FaultStage::Denoise, Fault::Abort),
    ]
}

/// What all requests of a run share.
#[derive(Debug, Clone, Copy)]
pub struct Mix {
    /// Of the run.
    pub seed: u64,
    /// Of a hundred requests, those that ask for the job and look after it.
    pub polled_percent: u32,
    /// What there is.
    pub kinds: Kinds,
}

/// How the requests of a run end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kinds {
    /// In every way there is.
    All,
    /// With their pictures: none is cancelled, poisoned or short of time.
    Pictures,
}

/// Of a hundred kinds of requests, one with nothing to it.
const PLAIN: u32 = 99;

/// Request `number` of a run.
pub fn order(mix: Mix, number: usize) -> Order {
    let salt = (number as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut chance = StdRng::seed_from_u64(mix.seed ^ salt);
    let mut percent = || chance.random_range(0..100_u32);
    let (kind, polled) = (percent(), percent() < mix.polled_percent);
    let kind = match mix.kinds {
        Kinds::All => kind,
        Kinds::Pictures => PLAIN,
    };
    let side = |chance: &mut StdRng| 32 * chance.random_range(1..=3_u32);
    let size = ImageSize::new(side(&mut chance), side(&mut chance)).expect("multiples of 32");
    let cancelled_after = Duration::from_millis(chance.random_range(0..400));
    let poison = ["fails prior", "fails paint", "aborts prior", "aborts paint"];
    let manner = match kind {
        0..=2 => Manner::Cancel(cancelled_after),
        _ if polled => Manner::Poll,
        _ if chance.random() => Manner::WaitForBytes,
        _ => Manner::WaitForAddresses,
    };
    let (prompt, n) = match kind {
        5 => {
            let poison = poison[chance.random_range(0..poison.len())];
            (format!("poison {poison} {number}"), 1)
        }
        _ => (format!("a red fox {number}"), chance.random_range(1..=4)),
    };
    Order {
        number,
        prompt,
        n,
        size,
        seed: Seed::new(chance.random_range(0..u64::from(u32::MAX))).expect("small"),
        manner,
        timeout: matches!(kind, 3..=4)
            .then(|| Duration::from_millis(chance.random_range(100..2_000))),
    }
}

impl Order {
    /// Whether engines fail at it.
    pub fn is_poison(&self) -> bool {
        self.prompt.starts_with("poison")
    }

    /// The body of the request.
    pub fn body(&self) -> Value {
        let mut body = json!({
            "prompt": self.prompt, "n": self.n, "size": self.size.to_string(), "seed": self.seed.get(),
            "num_inference_steps": STEPS,
            "response_format": if self.manner == Manner::WaitForBytes { "b64_json" } else { "url" },
        });
        if let Some(timeout) = self.timeout {
            body["timeout_s"] = json!(timeout.as_secs_f64());
        }
        body
    }

    /// The bytes of its picture `index`.
    pub fn picture(&self, index: u8) -> Vec<u8> {
        let seed = Seed::new(self.seed.get() + u64::from(index)).expect("small");
        let scene = Scene {
            prompt: &self.prompt,
            seed,
            size: self.size,
            denoise: DenoiseParameters::new(STEPS, DenoiseParameters::GUIDANCE_SCALE_DEFAULT)
                .expect("in range"),
            prior: &prior_tokens(seed, self.size),
        };
        picture(&scene).expect("a small picture has a file")
    }

    /// Whether one of its outputs may end like this: `None` is a picture.
    pub fn may_end(&self, end: Option<ErrorCode>) -> bool {
        match end {
            None => !self.is_poison(),
            Some(ErrorCode::Cancelled) => matches!(self.manner, Manner::Cancel(_)),
            Some(ErrorCode::DeadlineExceeded) => self.timeout.is_some(),
            // Of the others only those whose workers were killed again and again: the audit looks at what was tried.
            Some(ErrorCode::AttemptsExhausted) => true,
            Some(_) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIX: Mix = Mix {
        seed: 7,
        polled_percent: 5,
        kinds: Kinds::All,
    };

    #[test]
    fn a_request_is_its_seed_and_number() {
        assert_eq!(order(MIX, 3), order(MIX, 3));
        assert_ne!(order(MIX, 3).seed, order(MIX, 4).seed);
    }

    #[test]
    fn a_thousand_requests_have_every_manner_in_its_share() {
        let orders: Vec<Order> = (0..1_000).map(|number| order(MIX, number)).collect();
        let share =
            |wanted: fn(&Order) -> bool| orders.iter().filter(|order| wanted(order)).count();
        assert!((10..60).contains(&share(|order| matches!(order.manner, Manner::Cancel(_)))));
        assert!((20..90).contains(&share(|order| order.manner == Manner::Poll)));
        assert!((5..45).contains(&share(|order| order.timeout.is_some())));
        assert!((2..30).contains(&share(Order::is_poison)));
        assert!(share(|order| order.n > 1) > 500);
    }

    #[test]
    fn a_request_ends_only_as_it_can() {
        let plain = Order {
            manner: Manner::Poll,
            timeout: None,
            prompt: "a red fox".to_owned(),
            ..order(MIX, 0)
        };
        let poison = Order {
            prompt: "poison fails prior".to_owned(),
            ..plain.clone()
        };
        let cancelled = Order {
            manner: Manner::Cancel(Duration::ZERO),
            ..plain.clone()
        };
        let hurried = Order {
            timeout: Some(Duration::from_secs(1)),
            ..plain.clone()
        };
        use ErrorCode::{ArFailed, Cancelled, DeadlineExceeded};
        for (order, end, allowed) in [
            (&plain, None, true),
            (&plain, Some(Cancelled), false),
            (&plain, Some(DeadlineExceeded), false),
            (&plain, Some(ArFailed), false),
            (&poison, None, false),
            (&cancelled, Some(Cancelled), true),
            (&cancelled, None, true),
            (&hurried, Some(DeadlineExceeded), true),
        ] {
            assert_eq!(order.may_end(end), allowed, "{order:?} {end:?}");
        }
    }
}
