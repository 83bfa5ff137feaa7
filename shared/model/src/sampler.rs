//! Guidance and the Euler step: how two predictions move the latents one noise level down.

use tch::{Kind, Tensor};

use crate::error::Result;

/// Classifier-free guidance: away from the unconditional prediction by `scale`. Both are cast to f32 first; the
/// result is f32.
pub(crate) fn guided(conditional: &Tensor, unconditional: &Tensor, scale: f64) -> Result<Tensor> {
    let conditional = conditional.f_to_kind(Kind::Float)?;
    let unconditional = unconditional.f_to_kind(Kind::Float)?;
    Ok(unconditional.f_add(&conditional.f_sub(&unconditional)?.f_mul_scalar(scale)?)?)
}

/// One Euler step of the flow: `latents + sigma_change * velocity`, in f32.
pub(crate) fn euler_step(latents: &Tensor, velocity: &Tensor, sigma_change: f32) -> Result<Tensor> {
    let change = velocity
        .f_to_kind(Kind::Float)?
        .f_mul_scalar(f64::from(sigma_change))?;
    Ok(latents.f_to_kind(Kind::Float)?.f_add(&change)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(tensor: &Tensor) -> Vec<f32> {
        Vec::try_from(tensor).unwrap()
    }

    #[test]
    fn guidance_moves_past_the_conditional_prediction() {
        let conditional = Tensor::from_slice(&[1.0f32, 2.0]);
        let unconditional = Tensor::from_slice(&[0.0f32, 4.0]);

        assert_eq!(
            numbers(&guided(&conditional, &unconditional, 1.0).unwrap()),
            [1.0, 2.0]
        );
        assert_eq!(
            numbers(&guided(&conditional, &unconditional, 1.5).unwrap()),
            [1.5, 1.0]
        );
        assert_eq!(
            numbers(&guided(&conditional, &unconditional, 0.0).unwrap()),
            [0.0, 4.0]
        );
    }

    #[test]
    fn half_precision_predictions_are_combined_in_f32() {
        let half = |value: f32| Tensor::from_slice(&[value]).to_kind(Kind::BFloat16);

        let velocity = guided(&half(1.0), &half(256.0), 1.0 / 3.0).unwrap();
        let latents = euler_step(&half(2.0), &velocity, -1e-3).unwrap();

        assert_eq!(velocity.kind(), Kind::Float);
        assert_eq!(numbers(&velocity), [171.0]);
        assert_eq!(numbers(&latents), [2.0 - 0.171]);
    }
}
